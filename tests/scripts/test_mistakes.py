"""Mistakes on command lines: one sentence and status 2, from scripts that need nothing to be there for it."""

import pytest


@pytest.mark.parametrize(
    ("script", "flags", "sentence"),
    [
        ("chat_cli", [], ": bash speedrun.sh trains one\n"),  # there is no model
        ("chat_cli", ["-p", ""], "--prompt is empty: give a message, or leave the option out to chat"),
        ("chat_cli", ["--top-p=0"], "--top-p=0.0 has to be above 0 and at most 1"),
        ("chat_cli", ["-s", "-2"], "--step has to be -1 or more, not -2"),
        ("chat_eval", ["--tasks=GSM8K|SmolTalk"], "SmolTalk is no task, choose from ARC-Easy, "),  # it has no verdicts
        ("chat_eval", ["--num-samples=4"], "--num-samples=4 would all be the same, add --temperature=1"),
        ("judge", [], "add --teacher=http://host:port/v1 and --teacher-model=NAME; OPENAI_API_KEY holds the key"),
        ("judge", ["--teacher=http://a/v1", "--teacher-model=b"], "add --prompts=NAMES, or answers with"),
        ("prepare", ["--tasks=gsm9k"], "gsm9k is no task, choose from "),
        ("prepare", ["--num-shards=9999"], "=9999 is out of range, karpathy/climbmix-400b-shuffle has 6,542"),
        ("tok_train", ["--max-char=5"], "did you mean --max-chars?"),
        ("tok_train", ["--vocab-size=100"], "--vocab-size has to be 265 or more, not 100"),
        ("tok_train", ["--data=/no/such/folder"], "--data=/no/such/folder is no folder"),
        ("tok_eval", ["--tag=never"], "tok_train/never/tokenizer.json; train one"),
    ],
)
def test_a_mistake_ends_with_one_sentence(script, flags, sentence, here):
    done = here(f"scripts.{script}", *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert sentence in done.stderr
