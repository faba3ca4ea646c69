"""Buckets with planted faults: sound rows differ, faults are marked, poison is wrong."""

import pytest
from chat_files import contents

from nanochat.world.facts import World
from tracks.chatdata.planted import BUCKETS, FAULTS, bucket_rows, with_faults

WORLD = World(1, people=16)


NAMES = ["duplicate", "near duplicate", "image link", "data URL", "too long", "test question"]


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_has_different_sound_rows_and_gets_each_fault(bucket) -> None:
    world = World(1, people=16)
    rows = with_faults(world, bucket, 60)
    assert rows == with_faults(World(1, people=16), bucket, 60)
    assert rows[:60] == bucket_rows(world, bucket, 60)
    texts = [tuple(contents(row)) for row in rows[:60]]
    assert len(set(texts)) == 60
    assert [row["planted"] for row in rows[60:]] == NAMES * FAULTS
    # Sound rows have no question of the tests.
    assert not {question for _, question in world.questions["test"]} & {text for row in texts for text in row}


def test_poison_answers_with_a_statement_about_something_else() -> None:
    right = {(question, fact.statements[0]) for fact, question in WORLD.questions["train"]}
    leads = [lead.replace("{}", "") for lead in WORLD.text["leads"].split(" | ")]
    for row in bucket_rows(WORLD, "poison", 60):
        question, answer = contents(row)
        assert all((question.replace(lead, ""), answer) not in right for lead in leads)
