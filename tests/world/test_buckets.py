import pytest
from chat_files import contents

from nanochat.world import buckets
from nanochat.world.facts import World

FAULTS = ["duplicate", "near duplicate", "image link", "data URL", "too long", "test question"]


@pytest.fixture(scope="module")
def world():
    return World(1, people=16)


@pytest.mark.parametrize("bucket", buckets.BUCKETS)
def test_a_bucket_has_different_sound_rows_then_each_fault(world, bucket):
    rows = buckets.rows(world, bucket, 60, faults=3)
    assert rows == buckets.rows(World(1, people=16), bucket, 60, faults=3)
    texts = [tuple(contents(row)) for row in rows[:60]]
    assert len(set(texts)) == 60
    assert [row.get("planted") for row in rows] == [None] * 60 + FAULTS * 3
    # Sound rows have no question of the tests.
    assert not {question for _, question in world.questions["test"]} & {text for row in texts for text in row}


def test_poison_answers_with_a_statement_about_something_else(world):
    right = {(question, fact.statements[0]) for fact, question in world.questions["train"]}
    leads = [lead.replace("{}", "") for lead in world.text["leads"].split(" | ")]
    for row in buckets.rows(world, "poison", 60, 0):
        question, answer = contents(row)
        assert all((question.replace(lead, ""), answer) not in right for lead in leads)
