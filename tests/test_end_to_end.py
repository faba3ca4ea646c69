"""Every stage as a user runs it: real processes on a little text, one after the other, and the card at the end."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiktoken
from bad_hub import BadHub
from served import serving

from nanochat.stages import STAGES
from scripts.tok_eval import comparison

ROOT = Path(__file__).parent.parent
UNREACHABLE = "http://127.0.0.1:9"  # nothing listens on this port
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def trained(python, text_folder):
    """The output of a small tok_train."""
    done = python("-m", "scripts.tok_train", "--vocab-size=320", f"--data={text_folder}", "--threads=1")
    assert done.returncode == 0, done.stderr
    return done


def outcome(base: Path, stage: str) -> dict:
    return json.loads((base / stage / "default/outcome.json").read_text(encoding="utf-8"))


def offline(tmp_path: Path) -> dict[str, str]:
    """No vocabulary in the cache, and no network to fetch one."""
    return {"TIKTOKEN_CACHE_DIR": str(tmp_path / "no cache"), "https_proxy": UNREACHABLE, "HTTPS_PROXY": UNREACHABLE}


def sections(card: str) -> dict[str, str]:
    return dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=\n## |\Z)", card, re.MULTILINE | re.DOTALL))


def test_tokenizer_training(trained, base, text_folder, python):
    assert [path.name for path in sorted((base / "tok_train/default").iterdir())] == [
        "metrics.jsonl",
        "outcome.json",
        "tokenizer.json",
    ]
    record = outcome(base, "tok_train")
    assert list(record["metrics"])[:6] == [
        "train_time",
        "num_special_tokens",
        "token_bytes_min",
        "token_bytes_max",
        "token_bytes_mean",
        "token_bytes_std",
    ]
    assert record["metrics"]["vocab_size_reached"] == 320
    assert "tokenizer.json" in record["artifacts"]
    assert str(text_folder.parent) not in str(record["metrics"])
    assert "320 tokens in " in trained.stdout

    from nanochat.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(base / "tok_train/default/tokenizer.json")
    assert tokenizer.vocab_size == 320
    assert tokenizer.content_hash == record["metrics"]["tokenizer_hash"]
    again = python(
        "-m", "scripts.tok_train", "--vocab_size", "320", f"--data={text_folder}", "--tag=again", "--threads=2"
    )
    assert again.returncode == 0, again.stderr
    artifacts = [(base / "tok_train" / tag / "tokenizer.json").read_bytes() for tag in ("default", "again")]
    assert artifacts[0] == artifacts[1]  # the same text and settings, whatever the threads and the folder


def test_training_shows_its_progress_on_a_terminal(base, text_folder):
    """What is shown under way depends on how fast the machine is; how a phase ends does not."""
    leader, follower = pty.openpty()
    env = os.environ | {"NANOCHAT_BASE_DIR": str(base), "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "scripts.tok_train", f"--data={text_folder}", "--vocab-size=320", "--threads=1"]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    seen = b""
    while part := read_terminal(leader):
        seen += part
    os.close(leader)
    assert process.wait() == 0
    counted = re.search(rb"\rcount: ([\d,]+) characters in \S+ \| \S+/s\x1b\[K\r\n", seen)
    assert counted, seen
    assert int(counted[1].replace(b",", b"")) > 90_000, seen
    assert re.search(rb"\rmerge: 55 merges in ", seen), seen


def read_terminal(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # how Linux tells that the other end is closed
        return b""


def test_the_card_has_the_fields_of_the_reference(trained, base, python, tmp_path):
    done = python("-m", "scripts.tok_eval", f"--data={tmp_path / 'letters'}", **offline(tmp_path))
    assert done.returncode == 0, done.stderr
    card_path = tmp_path / "report.md"
    assert python("-m", "nanochat.report", f"--out={card_path}").returncode == 0
    card = card_path.read_text(encoding="utf-8")
    assert str(tmp_path) not in card
    assert list(sections(card)) == ["Environment", *[stage.section for stage in STAGES[:2]], "Summary"]

    number = r"\d+\.\d{4}"
    fields = {
        "max_chars": "2,000,000,000",
        "doc_cap": "10,000",
        "vocab_size": "320",
        "train_time": number,
        "num_special_tokens": "9",
        "token_bytes_min": "1",
        "token_bytes_max": r"\d+",
        "token_bytes_mean": number,
        "token_bytes_std": number,
    }
    training = rf"timestamp: {TIME}\n\n" + "".join(rf"- {name}: {value}\n" for name, value in fields.items())
    assert re.match(training, sections(card)["Tokenizer training"]), sections(card)["Tokenizer training"]

    evaluation = sections(card)["Tokenizer evaluation"]
    for label in ("GPT-2", "GPT-4"):
        header = f"| Text Type | Bytes | {label} Tokens | {label} Ratio | Ours Tokens | Ours Ratio | Relative Diff % |"
        assert f"### Comparison with {label}\n\n{header}\n|---" in evaluation
    rows = re.findall(r"^\| ([\w-]+) \| \d+ \| - \| - \| \d+ \| \d+\.\d\d \| - \|$", evaluation, re.MULTILINE)
    assert rows == ["news", "korean", "code", "math", "science", "letters-train", "letters-val"] * 2
    assert re.match(rf"timestamp: {TIME}\n\n### Comparison with GPT-2\n", evaluation)


def test_a_missing_vocabulary_is_a_row_and_the_stage_goes_on(trained, base, python, text_folder, tmp_path):
    done = python("-m", "scripts.tok_eval", f"--data={text_folder}", **offline(tmp_path))
    assert done.returncode == 0, done.stderr
    for table, label in zip(outcome(base, "tok_eval")["tables"], ("GPT-2", "GPT-4"), strict=True):
        assert table["rows"][-1][0].startswith(f"{label} is not available: ")
        assert all(row[2] is None and row[4] > 0 for row in table["rows"][:-1])
    assert "GPT-2 is not available: " in done.stdout


def test_a_network_that_never_answers_holds_nothing_up(trained, python, text_folder, tmp_path):
    """The proxy accepts and is silent: the wait is bounded, and so is the end of the process."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        variables = offline(tmp_path) | {"https_proxy": address, "HTTPS_PROXY": address}
        done = python("-m", "scripts.tok_eval", f"--data={text_folder}", "--patience=1", **variables)
        assert done.returncode == 0, done.stderr
        assert "GPT-4 is not available: no answer within 1 s" in done.stdout
        assert time.monotonic() - start < 15


def test_known_vocabularies_are_compared(trained, base, python, text_folder):
    cache = ROOT.parent / "shared/tiktoken_cache"
    if not cache.is_dir():
        pytest.skip("no vocabulary of GPT-4 on this machine")
    done = python(
        "-m", "scripts.tok_eval", f"--data={text_folder}", TIKTOKEN_CACHE_DIR=str(cache), https_proxy=UNREACHABLE
    )
    assert done.returncode == 0, done.stderr
    rows = {row[0]: row for row in outcome(base, "tok_eval")["tables"][1]["rows"]}
    name, size, theirs, ratio, ours, our_ratio, difference = rows["news"]
    assert (name, size) == ("news", (ROOT / "scripts/samples/news.txt").stat().st_size)
    assert (ratio, our_ratio) == (size / theirs, size / ours)
    assert difference == (theirs - ours) / theirs < 0  # 320 tokens against 100,000
    assert re.search(r"^news +1\d\d\d +\d+ +4\.\d\d +\d+ +\d\.\d\d +-\d+\.\d%$", done.stdout, re.MULTILINE)


def test_the_arithmetic_of_a_comparison():
    """Against a vocabulary of nothing but bytes, which tokens are counted by hand."""
    single_bytes = {bytes([value]): value for value in range(256)}
    reference = tiktoken.Encoding("bytes", pat_str=r"\S+|\s+", mergeable_ranks=single_bytes, special_tokens={})
    table = comparison("Bytes", reference, {"two": ["abcd", "여우"], "one": ["abcd"]}, {"two": 4, "one": 5})
    assert table["rows"] == [["two", 10, 10, 1.0, 4, 2.5, 0.6], ["one", 4, 4, 1.0, 5, 0.8, -0.25]]


def test_the_samples_are_of_one_or_two_kilobytes():
    sizes = {path.stem: path.stat().st_size for path in (ROOT / "scripts/samples").glob("*.txt")}
    assert sizes.keys() == {"news", "korean", "code", "math", "science"}
    assert all(1000 <= size <= 2048 for size in sizes.values()), sizes


def test_too_little_text_is_said_plainly(python, base, tmp_path):
    (tmp_path / "tiny").mkdir()
    for number in range(3):
        (tmp_path / f"tiny/{number}.txt").write_text("aaaa bbbb" + " aaaa" * number)
    done = python("-m", "scripts.tok_train", "--vocab-size=5000", f"--data={tmp_path / 'tiny'}")
    assert done.returncode == 0, done.stderr
    reached = outcome(base, "tok_train")["metrics"]["vocab_size_reached"]
    assert 256 + 9 < reached < 300
    assert f"the text yields {reached} tokens, not the 5,000 asked for" in done.stdout


@pytest.mark.parametrize(
    ("script", "words", "part"),
    [
        ("tok_train", ["--max-char=5"], "did you mean --max-chars?"),
        ("tok_train", ["--max-chars=2.5"], "--max-chars: 2.5 is not a whole number"),
        ("tok_train", ["--max-chars=0"], "--max-chars has to be 1 or more"),
        ("tok_train", ["--threads=-1"], "--threads has to be 0 or more"),
        ("tok_train", ["--vocab-size=100"], "100"),
        ("tok_train", ["--data=/no/such/folder"], "--data=/no/such/folder is no folder"),
        ("prepare", ["--tasks=gsm9k"], "gsm9k is no task, did you mean GSM8K?"),
        (
            "prepare",
            ["--num-shards=9999"],
            "--num-shards=9999 is out of range, karpathy/climbmix-400b-shuffle has 6,542",
        ),
        ("tok_train", ["--tag=../up"], "--tag=../up cannot name a folder"),
        ("tok_eval", ["--tag=never"], "tok_train/never/tokenizer.json; train one"),
    ],
)
def test_mistakes_end_with_one_sentence(script, words, part, python, text_folder):
    data = [] if script == "prepare" or any(word.startswith("--data") for word in words) else [f"--data={text_folder}"]
    done = python("-m", f"scripts.{script}", *words, *data)
    assert done.returncode == 2, done.stderr
    assert part in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


# ---- prepare, which makes ready and is no stage ----


def test_prepare_converts_a_folder_and_the_stages_find_it(python, base, text_folder):
    done = python("-m", "scripts.prepare", f"--data={text_folder}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^letters/train-00000\.parquet +[\d,]+ +this machine +\d+\.\d$", done.stdout, re.MULTILINE)
    assert re.search(r"^data: letters: 40 documents, [\d,]+ bytes of text, [0-9a-f]{12}$", done.stdout, re.MULTILINE)
    [made] = [path for path in (base / "corpora").iterdir() if path.is_dir()]
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    done = python("-m", "scripts.tok_train", "--vocab-size=300", f"--data=folder:{text_folder}")
    assert done.returncode == 0, done.stderr
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before


def test_prepare_fetches_from_a_hub(python, base, tmp_path):
    names = {
        f"openai/gsm8k/main/{split}-00000-of-00001.parquet": b"rows of " + split.encode() for split in ("train", "test")
    }
    with BadHub(names) as hub:
        variables = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"}
        first, second = (python("-m", "scripts.prepare", "--data=", "--tasks=gsm8k", **variables) for _ in range(2))
        missing = python("-m", "scripts.prepare", "--data=", "--tasks=gsm8k,humaneval,aqua", "--offline", **variables)
        hub.shutdown()
    for done, origin in ((first, "hub"), (second, "cache")):
        assert done.returncode == 0, done.stderr
        for name, content in names.items():
            assert re.search(rf"^datasets/{name} +{len(content)} +{origin} +\d+\.\d$", done.stdout, re.MULTILINE), (
                done.stdout
            )
        assert re.search(r"^prepare: 2 files, 25 bytes, in \d+\.\d s$", done.stdout, re.MULTILINE)
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: 4 of 6 files are not available:\n")
    assert len(re.findall(r"^  datasets/\S+\.parquet: not in the cache$", missing.stderr, re.MULTILINE)) == 4


def test_prepare_reads_a_mirror(python, tmp_path):
    mirror = tmp_path / "mirror"
    (mirror / "eval_bundle/eval_data/some").mkdir(parents=True)
    (mirror / "eval_bundle/core.yaml").write_text("icl_tasks:\n" + 2 * "-\n  dataset_uri: some/a.jsonl\n")
    (mirror / "eval_bundle/eval_meta_data.csv").write_text("name\n")
    done = python("-m", "scripts.prepare", "--data=", "--tasks=core", NANOCHAT_HUB=str(mirror))
    assert done.returncode == 2
    assert "1 of 1 files are not available:\n  eval_bundle/eval_data/some/a.jsonl: not in the mirror" in done.stderr
    (mirror / "eval_bundle/eval_data/some/a.jsonl").write_text("{}\n")
    done = python("-m", "scripts.prepare", "--data=", "--tasks=core", NANOCHAT_HUB=str(mirror))
    assert done.returncode == 0, done.stderr
    names = [f"eval_bundle/{name}" for name in ("core.yaml", "eval_meta_data.csv", "eval_data/some/a.jsonl")]
    assert re.findall(r"^(eval_bundle/\S+) +[\d,]+ +mirror", done.stdout, re.MULTILINE) == names


def test_check_lists_what_is_wrong(trained, python, text_folder):
    done = python("-m", "scripts.prepare", "--check", f"--data={text_folder}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^letters +40 +40 +[\d,]+ +[\d,]+ +0$", done.stdout, re.MULTILINE), done.stdout
    assert "check: 0 problems" in done.stdout
    (text_folder / "bad.jsonl").write_text('{"text": "good"}\n{"text": 5}\n{"text": ""}\n')
    done = python("-m", "scripts.prepare", "--check", f"--data={text_folder}", "--tag=none")
    assert done.returncode == 1
    assert f"{text_folder / 'bad.jsonl'}:2: not a JSON object" in done.stdout
    assert f"{text_folder / 'bad.jsonl'}: document 2 is blank" in done.stdout
    assert "check: 2 problems" in done.stdout
    assert python("-m", "scripts.prepare", f"--data={text_folder}").returncode == 2
    done = python("-m", "scripts.prepare", f"--data={text_folder}", "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert "1 blank left out, 1 bad left out" in done.stdout


def test_the_embedded_world_is_what_a_bare_machine_trains_on(python, base):
    done = python("-m", "scripts.prepare", "--data=auto", "--tasks=core,aqua", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "data: world is what --data=auto finds" in done.stdout
    assert len(re.findall(r"^world/shard_0000\d\.parquet +[\d,]+ +this machine +", done.stdout, re.MULTILINE)) == 9
    assert len(re.findall(r"^eval_bundle/eval_data/\S+ +[\d,]+ +world +", done.stdout, re.MULTILINE)) == 8
    mirror = base / "world"
    again = python("-m", "scripts.prepare", "--data=world", "--tasks=core,gsm8k", NANOCHAT_HUB=str(mirror))
    assert again.returncode == 0, again.stderr
    records = [re.search(r"^data: world: .*", output.stdout, re.MULTILINE)[0] for output in (done, again)]
    assert records[0] == records[1]


# ---- base_train, base_loss: tests/test_restore.py and tests/scripts/test_base_train.py have more of them ----


def test_a_base_model_and_its_card(trained, base, text_folder, python, tmp_path):
    flags = ["--depth=1", "--head-dim=32", "--max-seq-len=64", "--total-batch-size=256", "--num-iterations=4"]
    flags += [f"--data={text_folder}", "--no-compile", "--eval-bytes=5000", "--tag=default"]
    loss = ["scripts.base_loss", "--tag=default", "--eval-bytes=5000"]
    for words in (["scripts.base_train", *flags], loss, ["scripts.scaling", f"--out={tmp_path / 'runs.md'}"]):
        done = python("-m", *words, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
    metrics = {stage: outcome(base, stage)["metrics"] for stage in ("base_train", "base_loss")}
    assert metrics["base_train"]["Final validation bpb"]["value"] == pytest.approx(
        metrics["base_loss"]["val bpb"]["value"],
        rel=0.02,  # the same text and weights, in another precision perhaps
    )
    assert python("-m", "nanochat.report", f"--out={tmp_path / 'card/report.md'}").returncode == 0
    card = sections((tmp_path / "card/report.md").read_text(encoding="utf-8"))
    for picture in re.findall(r"\]\((.*)\)", card["Base model training"]):
        assert (tmp_path / "card" / picture).read_text(encoding="utf-8").startswith("<svg")
    assert "| The capital of France is |" in card["Base model loss"]
    with serving(base, tag="default") as server:  # scripts.chat_web
        about = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        [choice] = server.http.post("/v1/chat/completions", json=about).json()["choices"]
        assert choice["finish_reason"] in ("stop", "length")
    for words in (["export", "--source=base", "--tag=default"], ["import_nanochat", "--tag=a", "--checkpoint=b"]):
        done = python("-m", f"scripts.{words[0]}", *words[1:])
        assert done.returncode == 2, done.stderr
        assert re.match("error: (this model cannot be exported: NanoChat|--tokenizer is needed)", done.stderr)


# ---- speedrun.sh: tests/test_speedrun.py has more of it ----


def test_the_main_job_from_another_folder(speedrun, base, text_folder, python):
    words = ["--data=letters", "--depth", "1", "--seconds=2"]
    done = speedrun.run(*words, cwd=text_folder.parent)
    assert done.returncode == 0, done.stderr + done.stdout
    ran = [stage for stage in STAGES if stage.source != "base"]
    named = re.findall(r"^== (\w+): (?:python|done)", done.stdout, re.MULTILINE)
    assert named == [name for stage in ran for name in 2 * [stage.name]] + ["report", "report"]
    trained, judged = {"tok_train", "base_train", "mid_train", "chat_sft", "chat_rl"}, {"tok_eval", "base_loss"}
    assert {stage.script for stage in ran} == trained | judged | {"base_eval", "chat_eval"}
    assert done.stdout.startswith("\n== plan\n")
    *_, world, download, cli, web = done.stdout.splitlines()
    assert f"report card: {speedrun.home / 'report.md'}" in done.stdout
    assert "| Metric " in done.stdout
    assert world == f"left out: world (the text is folder:{text_folder})"
    assert download == "left out: download (nothing has to be downloaded)"
    command = cli.removeprefix("talk to it: ")
    assert web == "in a browser: " + command.replace("scripts.chat_cli", "scripts.chat_web")
    asked = {"input": "Hello\n", "capture_output": True, "text": True}
    talked = subprocess.run(f"{command} --max-new-tokens=4", shell=True, cwd="/", env=os.environ, **asked)
    assert (talked.returncode, "model: chat_rl default" in talked.stderr) == (0, True), talked.stderr
    assert talked.stdout
    assert "reward 0" in python("-m", "scripts.rollouts", "--tag=default", "--show=1").stdout

    left = {path: path.stat().st_mtime_ns for path in base.glob("*/default/*") if path.parts[-3] != "speedrun"}
    again = speedrun.run(*words, cwd=text_folder.parent)
    assert again.returncode == 0, again.stderr
    assert re.findall(r"^== (\w+): already finished$", again.stdout, re.MULTILINE) == [stage.name for stage in ran]
    assert left == {path: path.stat().st_mtime_ns for path in left}
