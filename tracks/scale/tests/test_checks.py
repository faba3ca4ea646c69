"""Preflight on two gloo ranks: under torchrun, and by hand as two nodes, where each has its own variables."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from tracks.scale import checks as preflight

SCRIPT = ["-m", "tracks.scale.preflight"]


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


class Ranks:
    """Two ranks, started by hand as two nodes of one rank; `places` are their checkouts and base directories."""

    def __init__(self, quick: str, places: list[tuple[Path, Path]], port: int, *flags: str, only: int | None = None):
        self.processes = []
        for rank, (home, base) in enumerate(places):
            ours = {"RANK": f"{rank}", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
            ours |= {"MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}", "OMP_NUM_THREADS": "1"}
            ours |= {"NANOCHAT_BASE_DIR": str(base), "PYTHONPATH": str(home)}
            if only in (None, rank):
                about = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                command = [quick if home == ROOT else sys.executable, *SCRIPT, *flags]
                self.processes.append(subprocess.Popen(command, cwd=home, env=os.environ | ours, **about))

    def end(self, code: int, timeout: float = 30):
        """Return stdout and stderr of all, once they have ended with this code."""
        try:
            said = [process.communicate(timeout=timeout) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        assert [process.returncode for process in self.processes] == [code] * len(self.processes), said
        return ["".join(texts) for texts in zip(*said, strict=True)]


@pytest.fixture
def base(tmp_path):
    return tmp_path / "base"


def test_torchrun_writes_a_report(base, quick) -> None:
    command = [quick, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *SCRIPT]
    variables = {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    record = json.loads((base / "preflight.json").read_text())
    assert record["interconnect"] == "n/a"
    facts, ranks, network = [table["rows"] for table in record["tables"]]
    assert dict(facts)["missing files"] == []
    assert (
        record["places"] == [row[0] for row in ranks] == [f"rank {rank} on {os.uname().nodename}" for rank in range(2)]
    )
    for _, free, write, read, skew, product, links in ranks:
        assert min(free, write, read, product) > 0
        assert abs(skew) < 1  # one machine has one clock
        assert links == "n/a"
    assert [row[0] for row in network] == [2, 2, 2]
    assert all(min(row[2:4]) > 0 and row[4] == "n/a" for row in network)
    assert record["all_reduce_gb_s"] == network[-1][2]
    assert all(warning in done.stdout for warning in record["warnings"])
    assert list(base.iterdir()) == [base / "preflight.json"]


def test_two_nodes_refuse_a_base_directory_that_is_not_shared(base, quick, tmp_path) -> None:
    out, err = Ranks(quick, [(ROOT, base), (ROOT, tmp_path / "other")], free_port()).end(2)
    assert re.fullmatch(r"error: rank 0 on \S+ has missing files .*preflight-\w+/data.* one NANOCHAT_BASE_DIR\n", err)
    assert out == ""  # no collective has begun
    assert list(base.iterdir()) == []


def test_two_nodes_refuse_unlike_checkouts_and_files_that_are_missing(base, quick, tmp_path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    with open(clone / "nanochat/paths.py", "a") as file:
        file.write("# a change\n")
    out, err = Ranks(quick, [(ROOT, base), (clone, base)], free_port()).end(2)
    assert re.fullmatch(r"error: rank 1 on \S+ has (commit|changes) .*\n", err)
    assert out == ""
    out, err = Ranks(quick, [(ROOT, base), (ROOT, base)], free_port(), f"--files={ROOT},text").end(2)
    assert re.fullmatch(rf"error: rank 0 on \S+ has missing files \['{base}/text'\], not \[\]: .*\n", err)


def test_a_rank_that_does_not_come_and_a_port_in_use(base, quick) -> None:
    _, err = Ranks(quick, [(ROOT, base)] * 2, free_port(), only=0).end(2)
    assert re.fullmatch(r"error: the ranks do not meet: .*1/2 clients joined\.\n", err)
    with socket.create_server(("localhost", 0)) as server:
        _, err = Ranks(quick, [(ROOT, base)] * 2, server.getsockname()[1], only=0).end(2)
    assert re.fullmatch("error: the ranks do not meet: .*EADDRINUSE.*\n", err)


def test_slow_ranks_clocks_and_sockets_are_warnings(base, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base))
    log = "Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0\nChannel 00 : 0[0] -> 1[1] via P2P/CUMEM\n+ NVL[20.0]"
    links = ", ".join(sorted(set(re.findall(preflight.LINKS, log))))
    assert links == "NET/Socket, NVL, P2P/CUMEM"
    ranks = [
        preflight.RankRow(f"rank {rank} on a", 1.0, 1.0, 1.0, 2.0 * (rank == 3), 1.0 + (rank == 2), links)
        for rank in range(4)
    ]
    network = [preflight.NetworkRow(size, 1.0, 200.0 / size, 1.0, 50.0) for size in (2, 2, 2, 8, 8, 8)]
    preflight.report({}, ranks, network)
    said = capsys.readouterr().out.split("warning: ")
    assert said[1] == "rank 2 on a is slow: 2.0000 s for a matrix product, the median is 1.0000 s\n\n"
    assert said[2] == "the clock of rank 3 on a differs by +2.000 s from that of rank 0\n\n"
    assert said[3] == "NCCL uses sockets between nodes: 25.00 GB/s; adapters: 50.0 GB/s; 75% less than in a node\n"
