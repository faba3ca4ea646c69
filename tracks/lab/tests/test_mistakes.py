"""Mistakes on command lines about merges: one sentence and status 2."""

from conftest import each_row

MISTAKES = """
merge | --models and --tag are needed
merge --tag=new --models=one,none | there is no model in
merge --tag=new --models=one:0.7,two:0.3 --method=soup --dev=GSM8K | --method=soup chooses the weights itself: give
merge --tag=new --models=one,two --scale=2 | --scale is a factor of changes: use --method=task or ties
"""


@each_row("command sentence", MISTAKES)
def test_a_mistake_ends_with_one_sentence(command, sentence, refused) -> None:
    assert sentence in refused(f"tracks.lab.{command}")
