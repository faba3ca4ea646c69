import pytest
from chat_files import contents

from bench.planted import FAULTS, with_faults
from nanochat.world.chats import BUCKETS, bucket_rows
from nanochat.world.facts import World

NAMES = ["duplicate", "near duplicate", "image link", "data URL", "too long", "test question"]


@pytest.fixture(scope="module")
def world():
    return World(1, people=16)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_has_different_sound_rows_and_gets_each_fault(world, bucket):
    rows = with_faults(world, bucket, 60)
    assert rows == with_faults(World(1, people=16), bucket, 60)
    assert rows[:60] == bucket_rows(world, bucket, 60)
    texts = [tuple(contents(row)) for row in rows[:60]]
    assert len(set(texts)) == 60
    assert [row["planted"] for row in rows[60:]] == NAMES * FAULTS
    # Sound rows have no question of the tests.
    assert not {question for _, question in world.questions["test"]} & {text for row in texts for text in row}


def test_poison_answers_with_a_statement_about_something_else(world):
    right = {(question, fact.statements[0]) for fact, question in world.questions["train"]}
    leads = [lead.replace("{}", "") for lead in world.text["leads"].split(" | ")]
    for row in bucket_rows(world, "poison", 60):
        question, answer = contents(row)
        assert all((question.replace(lead, ""), answer) not in right for lead in leads)
