"""lm-evaluation-harness scores the served model through an exported tokenizer, and decides as CORE here does."""

import json
import random

from bundles import CHOICE, CoreTask, one_process, write_bundle

from bench.served import CONTEXT
from nanochat.evals.core import evaluate_core
from nanochat.evals.core_tasks import read_bundle
from nanochat.paths import read_jsonl
from tracks.export import export

MODEL = "nanochat-mine-sft"
ITEMS, LETTERS = 24, "JKLMNOPQRST"  # with which no merge of the vocabulary begins or ends
LITTLE = json.loads("""{
    "task": "little", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice",
    "doc_to_text": "{{query}}", "doc_to_choice": "{{choices}}", "doc_to_target": "gold",
    "metric_list": [{"metric": "acc"}]
}""")


def questions():
    """Choices of as many tokens each: the sum of log-probabilities decides there, and the mean here."""
    dice, rows = random.Random(5), []
    for number in range(ITEMS):
        words = ["".join(dice.sample(LETTERS, 3)) for _ in range(4)]
        rows.append({"query": f"What is {number} + 3 — 여우?", "choices": words, "gold": dice.randrange(4)})
    return rows


def test_lm_eval_decides_as_we_do(server, twin, tmp_path, monkeypatch) -> None:
    import lm_eval  # takes seconds, which every worker would pay
    from lm_eval.tasks import TaskManager

    rows = questions()
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(twin.base))
    export.main(export.Config(format="tokenizer", source="sft", tag="mine", out=str(tmp_path / "tokenizer")))
    (tmp_path / "little.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = LITTLE | {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "little.jsonl")}}}
    about = {"base_url": f"{server.url}/v1/completions", "tokenizer": str(tmp_path / "tokenizer")}
    about |= {"model": MODEL, "tokenizer_backend": "huggingface", "max_length": CONTEXT}
    about |= {"add_bos_token": True, "max_retries": 1}
    manager = TaskManager(include_defaults=False)
    found = lm_eval.simple_evaluate("local-completions", about, [task], batch_size=8, task_manager=manager)
    theirs = {}
    for sample in found["samples"]["little"]:
        scores = [response[0] for response in sample["filtered_resps"]]
        theirs[sample["doc"]["query"]] = scores.index(max(scores)), bool(sample["acc"])

    write_bundle(tmp_path / "hub", [CoreTask("little", "any", CHOICE, 0, 25, rows)])
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    [task] = read_bundle()
    evaluate_core(twin.plain, twin.tokenizer, [task], one_process(), folder=tmp_path / "ours")
    decisions = read_jsonl(tmp_path / "ours/little.jsonl", dict)
    items = task.items(0)
    ours = {items[one["item"]]["query"]: (one["chosen"], one["correct"]) for one in decisions}
    assert theirs == ours
    assert len(ours) == ITEMS
    assert len({chosen for chosen, _ in ours.values()}) > 1
