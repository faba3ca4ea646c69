"""Topics by rules: plain cases of each, in both languages, and rows that are tagged and split."""

import pytest
from conftest import each_row
from made_chats import chat

from tracks.chatdata import topics

PLAIN = """
code | Write a Python function that reverses a string. | Use slicing.
code | 파이썬으로 리스트를 정렬하는 코드를 작성해 줘. | sorted를 쓰세요.
science | Why do planets orbit the sun? | Gravity pulls them.
science | 광합성이 무엇인가요? | 식물이 빛으로 양분을 만드는 일입니다.
medical | What are the symptoms of diabetes? | Thirst and tiredness.
medical | 감기 증상이 있는데 어떻게 해야 하나요? | 물을 많이 드세요.
mathematics | Solve the equation 3x + 5 = 20. | x = 5
mathematics | 삼각형의 넓이를 구하시오. | 밑변과 높이를 곱하고 2로 나눕니다.
daily | How was your day? | Fine, thank you.
daily | 오늘 저녁에 뭐 먹지? | 김치찌개 어때요?
daily | Write a short story about a doctor and her friend. | Once upon a time there was a doctor.
"""


@each_row("topic asked answered", PLAIN)
def test_plain_conversations_have_their_topic(topic, asked, answered) -> None:
    assert topics.topic_of(asked, answered) == topic
    assert topics.topic_of_row(chat(asked, answered)) == topic


def test_every_topic_has_words_and_none_stands_twice_in_a_list() -> None:
    assert {*topics.WORDS} == {*topics.TOPICS}
    for words in topics.WORDS.values():
        listed = f"{words.sure} {words.hint}".lower().split()
        assert len(listed) == len(set(listed))


def test_words_stand_alone_in_english_and_anywhere_in_korean() -> None:
    assert topics.points_of("genes and a gene", "science") == topics.points_of("gene", "science") > 0
    assert topics.points_of("genesis", "science") == 0
    assert topics.points_of("유전자를", "science") > 0
    assert topics.points_of("a solar  system", "science") == 0
    assert topics.points_of("the Solar System", "science") > 0


@pytest.mark.parametrize("row", [{"messages": []}, {"messages": [{"role": "user", "content": 5}]}, chat("", "")])
def test_a_malformed_or_empty_row_is_daily(row) -> None:
    assert topics.topic_of_row(row) == "daily"


def test_rows_keep_their_own_topic_and_split_buckets_are_called_by_it() -> None:
    asked = chat("What are the symptoms of diabetes?", "Thirst.", bucket="web")
    rows = [asked, asked | {"topic": "science"}, asked | {"topic": "Sports"}, asked | {"topic": []}]
    expected = ["medical", "science", "medical", "medical"]
    assert [row["topic"] for row in topics.tagged(rows, split=False)] == expected
    assert {row["bucket"] for row in topics.tagged(rows, split=False)} == {"web"}
    assert [row["bucket"] for row in topics.tagged(rows, split=True)] == [f"web-{topic}" for topic in expected]
