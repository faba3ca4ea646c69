"""The bundle's tasks: prompts equal to the public nanochat's, the cache of tokens, broken bundles."""

import json
import random

import pytest
from bundles import COMPLETION, HARD, CoreTask, vocabulary, world_tasks, write_bundle
from conftest import ROOT
from plain_core import prompts

from nanochat.evals import core_tasks
from nanochat.evals.core_tasks import prepare, read_bundle, task_entries
from nanochat.tokenizer import Tokenizer

SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary()


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """The world's tasks and the hard ones, in a mirror."""
    write_bundle(tmp_path / "mirror", [*world_tasks(9), *HARD])
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    return tmp_path / "mirror/eval_bundle"


@pytest.mark.skipif(not (SHARED / "parity").exists(), reason="no recorded prompts here")
def test_prompts_are_those_of_the_public_nanochat(monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(SHARED / "hub"))
    tasks, items, seen = {task.label: task for task in read_bundle()}, {}, set()
    assert len(tasks) == 22
    for line in (SHARED / "parity/core_prompts.jsonl").read_text(encoding="utf-8").splitlines():
        wanted = json.loads(line)
        task, most = tasks[wanted["task"]], wanted["max_per_task"]
        if task.label not in items:
            items[task.label] = task.items(most)
        assert (task.kind, task.shots) == (wanted["type"], wanted["shots"])
        assert task.prompts(items[task.label], wanted["index"]) == wanted["prompts"]
        seen.add((task.label, wanted["index"]))
    assert len(seen) == 66
    assert {task.baseline for task in tasks.values()} == {0, 0.091, 0.2, 0.25, 0.5, tasks["boolq"].baseline}


@pytest.mark.parametrize("most", [0, 7])
def test_prompts_are_those_of_the_plain_twin(bundle, most):
    for task, made in zip(read_bundle(), [*world_tasks(9), *HARD], strict=True):
        if most and most <= task.shots:
            continue
        items = task.items(most)
        expected = list(made.rows)
        random.Random(1337).shuffle(expected)
        assert items == expected[: most or None]
        assert (task.label, task.kind, task.baseline) == (made.label, made.kind, made.baseline / 100)
        for index in range(len(items)):
            assert task.prompts(items, index) == prompts(task, items, index)


def test_prefix_and_options_make_up_the_prompts(bundle, tokenizer):
    bos = tokenizer.special_tokens["<|bos|>"]
    for one in prepare(tokenizer):
        items, prepared = one.task.items(0), one.load()
        assert one.tokens == len(prepared.ids)
        for index, (prefix, options, scored) in enumerate(prepared):
            rows = [[bos, *tokenizer.encode(text)] for text in prompts(one.task, items, index)]
            if one.task.kind == "language_modeling":
                assert len(options[0]) == scored[0] == len(rows[1]) - len(rows[0]), one.task.label
                rows = rows[1:]
            assert [[*prefix, *option] for option in options] == rows
            assert all(0 <= count <= len(option) for count, option in zip(scored, options, strict=True))
            if one.task.kind == "schema":
                assert {tuple(row[len(row) - scored[0] :]) for row in rows} == {
                    tuple(rows[0][len(rows[0]) - scored[0] :])
                }
            elif one.task.kind == "multiple_choice":
                assert scored == list(map(len, options))
            assert prepared.gold[index] == items[index].get("gold", 0)


# ---- the cache ----


def files(base) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (base / "core_prompts").iterdir()}


def test_the_hash_of_a_question_is_the_same_for_any_tokenizer(bundle, tokenizer):
    other = Tokenizer.train(["another vocabulary of the very same questions"], 270)
    assert other.content_hash != tokenizer.content_hash
    for one, same, fewer in zip(prepare(tokenizer), prepare(other), prepare(tokenizer, 7), strict=True):
        questions = one.load().questions.tolist()
        assert questions == same.load().questions.tolist()
        texts = [one.task.prompts(one.task.items(0), index) for index in range(len(questions))]
        assert len(set(questions)) == len(set(map(tuple, texts)))
        if one.task.shots and len(questions) > 7:  # the examples differ
            assert questions[:7] != fewer.load().questions.tolist()


def test_prompts_are_rendered_once(bundle, tokenizer, tmp_path, monkeypatch):
    first = prepare(tokenizer)
    before = files(tmp_path / "base")
    monkeypatch.setattr(core_tasks, "_render", lambda *given: 1 / 0)
    assert prepare(tokenizer) == first
    assert files(tmp_path / "base") == before


def test_prompts_are_rendered_again_if_something_differs(bundle, tokenizer, tmp_path):
    keys = [{one.key for one in prepare(tokenizer)}]
    keys += [{one.key for one in prepare(tokenizer, 8)}, {one.key for one in prepare(vocabulary(310))}]
    assert len(set.union(*keys)) == sum(map(len, keys))
    path = bundle / "eval_data/hard/hard_schema.jsonl"
    path.write_text(path.read_text().replace("feared", "loved"))
    assert len({one.key for one in prepare(tokenizer)} - keys[0]) == 1
    core = bundle / "core.yaml"
    core.write_text(core.read_text().replace("num_fewshot: [1]", "num_fewshot: [0]"))
    assert len({one.key for one in prepare(tokenizer)} - keys[0]) == 2


# ---- broken bundles ----


def test_the_list_may_be_any_yaml(tmp_path):
    path = tmp_path / "core.yaml"
    path.write_text(
        "# tasks\nicl_tasks:\n  - label: a\n    dataset_uri: x/a.jsonl\n    num_fewshot: [0, 5]\n# one more\n\n"
        '  -\n    label: b\n    continuation_delimiter: "\\nA: # \\uc5ec"\n    has_categories: true\n'
    )
    first = {"label": "a", "dataset_uri": "x/a.jsonl", "num_fewshot": [0, 5]}
    assert task_entries(path) == [first, {"label": "b", "continuation_delimiter": "\nA: # 여", "has_categories": True}]


BROKEN = {  # (file in the bundle, text, its replacement) -> the error
    ("eval_data/hard/hard_schema.jsonl", '"gold": 2', '"gold": 3'): r"hard_schema.jsonl:4: no schema item, restore",
    ("eval_data/hard/hard_schema.jsonl", '"continuation": "feared', '"text": "feared'): r":3: no schema item",
    ("eval_data/hard/hard_choices.jsonl", '"gold": 3}', '"gold": 3'): r"hard_choices.jsonl:4: no multiple_choice item",
    ("eval_data/hard/hard_completion.jsonl", '"1 2 3 4', "5, 1"): r"hard_completion.jsonl:3: no language_modeling item",
    ("core.yaml", "label: hard_schema", "label: soft"): r"eval_bundle is damaged \(KeyError\('soft'\)\), restore it",
    ("core.yaml", "num_fewshot: [1]", "num_fewshot: []"): r"eval_bundle is damaged \(IndexError",
    (
        "core.yaml",
        "icl_task_type: schema",
        "icl_task_type: sketch",
    ): r"world_schema.jsonl:1: no sketch item, restore the bundle",
    ("core.yaml", "  label: hard_schema", "hard_schema"): r"core.yaml has no task list below icl_tasks, restore",
    ("core.yaml", "icl_tasks", "tasks"): r"core.yaml has no task list below icl_tasks, restore",
    ("core.yaml", "hard_choices.jsonl", "lost.jsonl"): r"eval_data/hard/lost.jsonl: not in the mirror",
    ("eval_meta_data.csv", ",1,4,50,", ",1,4,,"): r"eval_bundle is damaged \(ValueError",
    ("eval_meta_data.csv", "Eval Task", "Name"): r"eval_bundle is damaged \(KeyError\('Eval Task'\)\)",
}


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: " ".join(change))
def test_a_broken_bundle_is_one_sentence(bundle, tokenizer, change):
    name, old, new = change
    path, error = bundle / name, BROKEN[change]
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=error):
        prepare(tokenizer)


def test_a_continuation_that_grows_into_its_context_is_refused(bundle):
    rows = [{"context": "the cat, the c", "continuation": "at"}] * 2
    write_bundle(bundle.parent, [CoreTask("glued", "hard", COMPLETION, 0, 0, rows, "")])
    with pytest.raises(
        ValueError, match="glued, item 0: the tokens of its context change when the continuation follows"
    ):
        prepare(Tokenizer.train(["the cat the cat the cat"], 270))
    (task,) = prepare(Tokenizer.train(["the"], 266))  # where nothing merges
    assert [int(one) for one in task.load().scored] == [2, 2]


def test_a_bundle_that_is_not_there(bundle, tokenizer):
    (bundle / "eval_meta_data.csv").unlink()
    with pytest.raises(ValueError, match=r"1 of 2 files are not available:\n  eval_bundle/eval_meta_data.csv: not in"):
        prepare(tokenizer)


def test_too_few_items_for_the_examples(bundle, tokenizer):
    sentence = "shows 5 examples before a question and has 5 items: take a --max-per-task of 6 or more"
    with pytest.raises(ValueError, match=f"world_people {sentence}"):
        prepare(tokenizer, 5)
