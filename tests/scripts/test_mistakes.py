"""Mistakes on command lines: one sentence and status 2, from scripts that need nothing to be there for it."""

import shlex

import pytest

# script and flags | words of the sentence. No model is there, and SmolTalk has no verdicts.
MISTAKES = """
chat_cli | : bash speedrun.sh trains one
chat_cli -p "" | --prompt is empty: give a message, or leave the option out to chat
chat_cli --top-p=2 | --top-p has to be below 1, not 2.0
chat_eval --sampling=0.7,0.9 | --sampling=0.7,0.9 has to be three numbers like 0.7,0.9,32768
chat_eval --tasks=MMLU~ | MMLU~ is no augmentation, choose from styles, options
chat_eval --tasks=GSM8K|MMLU~jokes | jokes is no augmentation, choose from styles, options
chat_eval --tasks=MMLU~styles~jokes | styles~jokes is no augmentation
chat_eval --sampling=1,1.9,100 | --top-p has to be below 1, not 1.9
chat_eval --repeats=3 | all answers to a problem would be the same, add --temperature=1
chat_cli -s -2 | --step has to be -1 or more, not -2
chat_eval --tasks=GSM8K|SmolTalk | SmolTalk is no task, choose from ARC-Easy,
chat_eval --num-samples=4 | all answers to a problem would be the same, add --temp
prepare --tasks=gsm9k | gsm9k is no task, choose from
prepare --num-shards=9999 | =9999 is out of range, karpathy/climbmix-400b-shuffle has 6,542
tok_train --max-char=5 | did you mean --max-chars?
tok_train --vocab-size=100 | --vocab-size has to be 265 or more, not 100
tok_train --data=/no/such/folder | --data=/no/such/folder is no folder
tok_eval --tag=never | tok_train/never/tokenizer.json; train one
plan --width=3 | unknown argument --width
plan --until bed_time | invalid choice 'bed_time' for argument '--until'. Expected one of ('', 'world', 'download',
plan --scale=huge | invalid choice 'huge' for argument '--scale'. Expected one of ('auto', 'embedded',
plan --data=/no/such/folder | --data=/no/such/folder is no folder
plan --scale cpu | --scale=cpu needs real text, and none is here: name a folder with --data=FOLDER
plan --tag=../up | the tag ../up cannot name a folder
chat_web --host=0.0.0.0 | --host=0.0.0.0 is open to other machines: set NANOCHAT_API_KEY
chat_web --port=70000 | --port=70000: bind
chat_web --tag=none --port=0 | there is no model in
base_eval --tag=none | base_train/none: python -m scripts.base_train makes one
base_eval --max-per-task=-2 | --max-per-task has to be -1 or more, not -2
plan --depth=900 | are missing; free some, or set NANOCHAT_BASE_DIR
"""


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_a_mistake_ends_with_one_sentence(case, here, base):
    command, sentence = case.split(" | ")
    script, *flags = shlex.split(command)
    done = here(f"scripts.{script}", *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert sentence in done.stderr
    assert not list(base.glob("speedrun/*/plan.json"))
