import pytest

from nanochat.world import buckets
from nanochat.world.facts import World

FAULTS = 3


@pytest.fixture(scope="module")
def world():
    return World(1, people=16)


@pytest.mark.parametrize("bucket", buckets.BUCKETS)
def test_a_bucket_has_different_sound_rows_then_each_fault(world, bucket):
    rows = buckets.rows(world, bucket, 60, FAULTS)
    assert rows == buckets.rows(World(1, people=16), bucket, 60, FAULTS)
    texts = [[message["content"] for message in row["messages"]] for row in rows if "planted" not in row]
    assert len({tuple(row) for row in texts}) == len(texts) == 60
    planted = [row["planted"] for row in rows[60:]]
    assert planted == [name for name in buckets.FAULTS for _ in range(FAULTS)]
    tests = {question for _, question in world.questions["test"]}
    assert not tests & {text for row in texts for text in row}  # but for the planted rows, as a test question is


def test_poison_answers_with_a_statement_about_something_else(world):
    right = {(question, fact.statements[0]) for fact, question in world.questions["train"]}
    leads = [lead.replace("{}", "") for lead in world.rows("leads")[0]]
    for row in buckets.rows(world, "poison", 60, 0):
        question, answer = (message["content"] for message in row["messages"])
        assert all((question.replace(lead, ""), answer) not in right for lead in leads)


def test_a_folder_is_needed():
    with pytest.raises(ValueError, match="--out is missing"):
        buckets.main(buckets.Config())
    with pytest.raises(ValueError, match="--size=huge is not known, take one of tiny"):
        buckets.main(buckets.Config(out="raw", size="huge"))
