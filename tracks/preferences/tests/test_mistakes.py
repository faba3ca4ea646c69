"""Mistakes on command lines about pairs and judges: one sentence and status 2."""

from conftest import each_row

MISTAKES = """
judge sft:mine sft:other TEACHER --prompts=World-Talk | the split train is not known, choose from test
judge sft:mine sft:other TEACHER | is not a task, choose from
judge d8 sft:other TEACHER --prompts=json:good.jsonl | d8 is not like sft:d8: the stage d8 is not known, choose
judge sft:mine sft:other --num-samples=2 --temperature=1 | each model gives one answer to a prompt
train --total-batch-size=512 | --total-batch-size does not apply to pairs: use --examples-per-step
train | --pairs=: there is no line with prompt, chosen and rejected
train --beta=0 | --beta has to be 0.0001 or more, not 0.0
"""


@each_row("command sentence", MISTAKES)
def test_a_mistake_ends_with_one_sentence(command, sentence, refused) -> None:
    assert sentence in refused(f"tracks.preferences.{command}")
