"""bench.evidence: how far behind a committed card is, and a card that is made again."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, checked
from outcomes import leave, sections

from bench import evidence, speed
from bench.evidence import CARDS, PLANNED, TRUNK, Card, age, cards
from nanochat.errors import UserError
from nanochat.paths import write_json, write_text

CARD = "# nanochat training report\n"
LOSS = {"title": "Loss", "x": "tokens", "y": "nats", "series": {"train": [[0, 9], [5.0, 2.0]]}}
# In place of .venv/bin/python: the report of this tree, for a base folder that has an outcome.
PYTHON = f"""#!/bin/sh
PYTHONPATH={ROOT} exec {sys.executable} "$@"
"""


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository with a card of its first commit, and of three commits since."""
    root = tmp_path / "tree"
    write_text(root / "nanochat/gpt.py", "1")
    write_text(root / speed.RECORD, (ROOT / speed.RECORD).read_text(encoding="utf-8"))
    write_text(root / "README.md", "Before.\n<!-- speed -->\nold\n<!-- /speed -->\nAfter.\n")
    write_text(root / "runs/setup.sh", "exit 0\n")
    write_text(root / ".venv/bin/python", PYTHON)
    (root / ".venv/bin/python").chmod(0o755)
    git(tmp_path, "init", "tree")
    git(root, "add", ".")
    git(root, "commit", "-m", "First")
    commit = git(root, "rev-parse", "--short", "HEAD")
    write_text(root / "report.md", f"- Commit: {commit} (clean)\n\n![Loss](report/old.svg)\n")
    write_text(root / "report/old.svg", "<svg/>")
    write_text(root / "report/cpu.md", "another card")
    for name, text in (("nanochat/gpt.py", "2"), ("docs/gpt.md", "a page"), ("nanochat/page.md", "another")):
        write_text(root / name, text)
        git(root, "add", ".")
        git(root, "commit", "-m", name)
    monkeypatch.setattr(evidence, "ROOT", root)
    monkeypatch.setattr(evidence, "CARDS", [Card("main", "report.md", ["bash run.sh"], 0.1)])
    return root


def test_a_card_is_as_far_behind_as_commits_changed_its_code(tree) -> None:
    commit = git(tree, "rev-list", "--max-parents=0", "HEAD")[:7]
    [card] = cards()
    name, path, found, date, since, touched = age(card)
    assert (name, path, since, touched) == ("main", "report.md", 3, 1)
    assert found == commit
    assert date == git(tree, "log", "-1", "--format=%cs")
    write_text(tree / "report.md", "- Commit: 1234567 (clean)\n")
    assert age(card) == ["main", "report.md", "1234567", None, None, None]
    (tree / "report.md").unlink()
    assert age(card) == ["main", "report.md", None, None, None, None]


def test_a_card_is_made_in_a_checkout_and_goes_on_after_a_failure(tree, base, capsys) -> None:
    """The first attempt fails after its first step; the second one does only what is left."""
    write_text(tree / "run.sh", 'echo step >>"$NANOCHAT_BASE_DIR/steps"\n[ -e "$NANOCHAT_BASE_DIR/go" ] || exit 3\n')
    git(tree, "add", ".")
    git(tree, "commit", "-m", "The run")
    commit = git(tree, "rev-parse", "--short", "HEAD")
    own = base / "evidence" / commit / "main"
    leave(own, curves=[LOSS])
    before = (tree / "report.md").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"bash run.sh has failed \(exit code 3\): run the same command again to go on"):
        evidence.main([])
    assert (tree / "report.md").read_text(encoding="utf-8") == before
    write_text(own / "go", "")
    assert "0 of 5 rows of the table" not in capsys.readouterr().out
    evidence.main(["--only=main,speed"])
    assert (own / "steps").read_text() == "step\nstep\n"
    text = (tree / "report.md").read_text(encoding="utf-8")
    assert "![Loss](report/tok_train-default-1.svg)" in text
    assert (tree / "report/tok_train-default-1.svg").read_text(encoding="utf-8").startswith("<svg")
    assert not (tree / "report/old.svg").exists()
    assert (tree / "report/cpu.md").read_text() == "another card"
    assert git(own.parent / "checkout", "rev-parse", "--short", "HEAD") == commit
    said = capsys.readouterr().out
    assert "about 1.1 hours" in said
    assert (
        "bench.engine is left out, it needs --reference or NANOCHAT_REFERENCE (checkout of the public nanochat)" in said
    )
    assert "0 of 5 rows of the table in README.md are new" in said


def test_a_card_of_a_series_has_the_outcomes_of_its_tag_alone(tree: Path, base: Path) -> None:
    """The runs that a series compares lie in the same base folder, with tags of their own."""
    for name, tag in (("main", ""), ("series", "golf")):
        write_text(tree / "run.sh", "")
        git(tree, "add", ".")
        git(tree, "commit", "--allow-empty", "-m", name)
        commit = git(tree, "rev-parse", "--short", "HEAD")
        folder = base / "evidence" / commit
        for stage, own in (("tok_train", "golf"), ("base_train", "golf-1"), ("base_train", "golf-2")):
            leave(folder / name, stage, own)
        evidence.make(Card(name, "report.md", [], 0.1, (), tag), evidence.checkout(folder, commit), folder / name)
        found = [title for title in sections((tree / "report.md").read_text(encoding="utf-8")) if " train" in title]
        runs = [] if tag else ["Base model training (golf-1)", "Base model training (golf-2)"]
        assert found == ["Tokenizer training", *runs]


def test_the_tag_of_a_card_is_that_of_its_series() -> None:
    """As its last command or its spec names it; tests of tracks compare it with the default of a command."""
    for card in cards([*CARDS, *PLANNED]):
        words = shlex.split(card.commands[-1])
        tags = [word.removeprefix("--tag=") for word in words if word.startswith("--tag=")]
        specs = [Path(word.removeprefix("--spec=")).stem for word in words if word.startswith("--spec=")]
        if card.tag:
            own = card.tag.split(",")[-1]
            assert [own] == (tags or specs or [own]), card.name
    # Those of speedrun.sh.
    assert {card.name for card in [*CARDS, *PLANNED] if not card.tag} == {"main", "cpu"}


def test_a_card_may_be_made_on_another_text(
    tree: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tree / "run.sh", 'echo "$@" >>"$NANOCHAT_BASE_DIR/words"\n')
    git(tree, "add", ".")
    git(tree, "commit", "-m", "The run")
    commit = git(tree, "rev-parse", "--short", "HEAD")
    planned = [
        Card("mixed", "report/mixed.md", ["bash run.sh --depth=2"], 9.0, text="mixed-text"),
        Card("world", "report/world.md", ["bash run.sh --depth=3"], 9.0),
    ]
    monkeypatch.setattr(evidence, "PLANNED", planned)
    (tmp_path / "my text").mkdir()
    folders = [base / "evidence" / commit / card.name for card in planned]
    for folder in folders:
        leave(folder)
    for words in ([], [f"--text={tmp_path}/my text"]):
        evidence.main(["--only=mixed,world", *words])
    mixed, world = ((folder / "words").read_text(encoding="utf-8").splitlines() for folder in folders)
    assert mixed == ["--depth=2 --data=mixed-text", f"--depth=2 --data={tmp_path}/my text"]
    assert world == ["--depth=3", "--depth=3"]


def test_a_card_that_is_not_there() -> None:
    done = checked(
        subprocess.run(
            ["bash", "runs/evidence.sh", "--check", "--only=cake"], cwd=ROOT, capture_output=True, text=True
        ),
        2,
    )
    assert done.stderr.startswith("error: --only=cake: there is no such card, choose from main, cpu")


def test_every_committed_card_is_listed_with_the_code_it_depends_on() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (*ROOT.glob("*.md"), *ROOT.glob("report/*.md"))}
    texts |= {path: path.read_text(encoding="utf-8") for path in ROOT.glob("tracks/*/*.md")}
    committed = {path.relative_to(ROOT).as_posix() for path, text in texts.items() if text.startswith(CARD)}
    assert committed == {card.path for card in cards()}
    assert not committed & {card.path for card in PLANNED}
    names = [card.name for card in [*CARDS, *PLANNED]]
    assert len(set(names)) == len(names)
    for card in [*CARDS, *PLANNED]:
        assert not card.tracks or card.path.startswith(f"tracks/{card.tracks[0]}/")
    for path in TRUNK:
        assert (ROOT / path).exists()


def test_a_card_depends_on_all_tracks_that_its_commands_run() -> None:
    """On those in its commands, and on those that its own track imports or starts."""
    for card in cards([*CARDS, *PLANNED]):
        used = set(re.findall(r"\btracks[./](\w+)", " ".join(card.commands)))
        for path in (ROOT / "tracks" / card.tracks[0]).glob("*.py") if card.tracks else ():
            text = path.read_text(encoding="utf-8")
            used |= set(re.findall(r'(?:from |import |")tracks\.(\w+)', text))
        assert used <= {*card.tracks}, card.name
    by_name = {card.name: card for card in CARDS}
    assert {*by_name["two_bases"].tracks} == {"lab", "bases", "export", "benchmarks", "chatdata"}
    assert {*by_name["bases"].tracks} == {"bases", "export", "benchmarks", "preferences"}
    assert by_name["main"].code == (*TRUNK, ":!*.md")
    own = by_name["lab"].code[len(TRUNK) :]
    assert own == ("tracks/lab", ":!tracks/lab/tests", "tracks/chatdata", ":!tracks/chatdata/tests", ":!*.md")


def test_labs_with_held_out_benchmarks_ask_them_at_the_end() -> None:
    """Only then their cards have the ratio of the costs of the recipe and of the final models."""
    for card in [*CARDS, *PLANNED]:
        for command in card.commands:
            # A search for rates asks no benchmark, and refuses the flag.
            if re.search(r"tracks\.lab\.(run|embedded) ", command) and "--kind=rates" not in command:
                assert command.endswith(" --final"), card.name


def test_a_change_in_any_of_its_tracks_counts(tree: Path) -> None:
    for name in ("lab/card", "chatdata/run", "chatdata/tests/test_run", "golf/run"):
        write_text(tree / f"tracks/{name}.py", "1")
        git(tree, "add", ".")
        git(tree, "commit", "-m", name)
    write_text(tree / "tracks/lab/card.md", (tree / "report.md").read_text(encoding="utf-8"))
    assert age(Card("lab", "tracks/lab/card.md", [], 6.0, ["lab", "chatdata"]))[-2:] == [7, 3]
    assert age(Card("lab", "tracks/lab/card.md", [], 6.0, ["lab"]))[-2:] == [7, 2]


def test_studies_that_have_not_been_run_are_listed_and_run_by_name_alone(
    tree: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tree / "run.sh", "")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "The run")
    commit = git(tree, "rev-parse", "--short", "HEAD")
    card = Card("other", "report/other.md", ['touch "$NANOCHAT_BASE_DIR/started"'], 9.0)
    monkeypatch.setattr(evidence, "PLANNED", [card])
    monkeypatch.setattr(evidence, "AWAITING", {"other": "nine hours of two cores"})
    evidence.main(["--check"])
    said = capsys.readouterr().out
    assert "| other | report/other.md | - " in said
    assert "evidence: report/other.md has not been made yet: nine hours of two cores" in said
    for name in ("main", "other"):
        leave(base / "evidence" / commit / name)
    evidence.main([])
    assert not (tree / "report/other.md").exists()
    assert "about 1.1 hours" in capsys.readouterr().out
    evidence.main(["--only=other"])
    assert (tree / "report/other.md").exists()


# ---- the speed table of README.md ----

MACHINE = {"Platform": "Linux", "CPUs": "8 cores (16 logical)", "Memory": "64.0 GB", "GPUs": "none"}


def made(benchmark: str, case: str, figure: str, **medians: float | None) -> dict:
    """What a benchmark writes with --json: a row for each contender, None for one that failed."""
    rows = []
    for name, median in medians.items():
        value = None if median is None else {"unit": "", "median": median, "best": median, "values": [], "ratio": None}
        rows.append({"case": case, "name": name, "note": "", figure: value})
    about = {"benchmark": benchmark, "command": "", "date": "2026-12-24", "commit": "1234567 (clean)"}
    return about | {"machine": MACHINE, "versions": {}, "rows": rows}


def test_the_table_of_the_readme_is_that_of_the_record() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert speed.TABLE.findall(page) == [speed.render(speed.read(ROOT))]


def test_the_rows_are_cases_of_the_benchmarks() -> None:
    from bench import dataloader, engine, tokenizer_peers, train_step

    assert speed.COMMANDS.keys() == {row.benchmark for row in speed.ROWS.values()}
    known = {
        "tokenizer": tokenizer_peers.WORKS["train"].keys() | tokenizer_peers.WORKS["encode"].keys(),
        "dataloader": dataloader.LOADERS.keys(),
        "train_step": train_step.OURS.keys() | train_step.REFERENCE.keys(),
        "engine": {"ours", "reference"},
    }
    for row in speed.ROWS.values():
        assert {row.ours, row.peer} <= known[row.benchmark]
    assert speed.ROWS["generation"].case in engine.CASES
    assert "--vocab" in speed.COMMANDS["tokenizer"]


def test_rows_without_their_peer_stay_with_their_date() -> None:
    before = speed.read(ROOT)
    found = {
        "engine": made("engine", "32 prompts", "rate", ours=3000.0, reference=200.0),
        "train_step": made(
            "train_step", "depth 4", "rate", **{"ours, as shipped": 9000.0, "reference, as shipped": None}
        ),
        "tokenizer": made("tokenizer", "train, 65536 tokens", "seconds", ours=0.5, gigatoken=2.0),
    }
    record, stays = speed.update(before, found)
    assert {key for key in record if record[key] != before[key]} == {"generation", "tokenizer"}
    assert record["generation"] == {
        "ours": 3000.0,
        "peer": 200.0,
        "ratio": 15.0,
        "date": "2026-12-24",
        "commit": "1234567 (clean)",
        "machine": "CPU with 8 cores (16 logical), no GPU",
    }
    assert record["tokenizer"]["ratio"] == 4.0
    assert stays == [
        "encode text, cl100k_base, 2 threads: as measured on 2026-11-20, because tiktoken did not take part",
        "load training data, tokens dropped: as measured on 2026-11-20, because bench.dataloader did not run",
        "training step, depth 4, as shipped: as measured on 2026-11-20, because public nanochat did not take part",
    ]
    table = speed.render(record)
    assert "| generate for 32 prompts | 3,000 tokens/s | public nanochat, 200 tokens/s | 15 | 2026-12-24 |" in table
    assert (
        "| training step, depth 4, as shipped | 6,588 tokens/s | public nanochat, 3,493 tokens/s | 1.89 | 2026-11-20 |"
        in table
    )
    assert "CPU with 8 cores (16 logical), no GPU (2026-12-24). CPU with 2 cores, no GPU (2026-11-20)." in table


def test_the_speed_table_is_measured_again(tree, base, tmp_path, capsys) -> None:
    """By the python of the checkout, here one that copies JSON; a benchmark that has finished does not run again."""
    (tmp_path / "peers/reference").mkdir(parents=True)
    for name, one in {
        "engine": made("engine", "32 prompts", "rate", ours=3000.0, reference=200.0),
        "train_step": made(
            "train_step", "depth 4", "rate", **{"ours, as shipped": 9000.0, "reference, as shipped": 3e3}
        ),
        "dataloader": made("dataloader", "data loader", "rate", ours=5e7, reference=2e6),
    }.items():
        for row in one["rows"]:
            row["dropped"] = {"median": 0.01}
        write_json(tmp_path / f"made/{name}.json", one)
    program = f"""#!/bin/sh
        echo "$*" >>"{tmp_path}/calls"
        [ "$2" != bench.train_step ] || [ -e "{tmp_path}/go" ] || exit 3
        for word in "$@"; do last=$word; done
        cp "{tmp_path}/made/${{2#bench.}}.json" "${{last#--json=}}"
    """
    write_text(tree / ".venv/bin/python", program)
    (tree / ".venv/bin/python").chmod(0o755)
    git(tree, "add", ".")
    git(tree, "commit", "-m", "Benchmarks")
    words = ["--only=speed", f"--reference={tmp_path}/peers/reference", f"--text={tmp_path}/made"]
    with pytest.raises(UserError, match=r"bench.train_step --data .* has failed \(exit code 3\)"):
        evidence.main(words)
    assert (tree / "README.md").read_text(encoding="utf-8") == "Before.\n<!-- speed -->\nold\n<!-- /speed -->\nAfter.\n"
    write_text(tmp_path / "go", "")
    evidence.main(words)
    calls = [line.split()[1] for line in (tmp_path / "calls").read_text().splitlines()]
    assert calls == ["bench.dataloader", "bench.train_step", "bench.train_step", "bench.engine"]
    page = (tree / "README.md").read_text(encoding="utf-8")
    assert page == f"Before.\n<!-- speed -->\n{speed.render(speed.read(tree))}<!-- /speed -->\nAfter.\n"
    assert (
        "| load training data, tokens dropped | 50 M tokens/s, 1 % | public nanochat, 2 M tokens/s | 25 | 2026-12-24 |"
        in page
    )
    assert "3 of 5 rows of the table in README.md are new" in capsys.readouterr().out
    with pytest.raises(
        UserError, match="--reference=nowhere: there is no folder nowhere, give a checkout of the public"
    ):
        evidence.main(["--only=speed", "--check", "--reference=nowhere"])
