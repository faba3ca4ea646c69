"""Every filter on rows that it drops, and on look-alikes that it keeps."""

import pytest
from made_chats import chat, small_tokenizer

from nanochat.chat import render_conversation
from tracks.chatdata import filters
from tracks.chatdata.contamination import Benchmarks

TOKENIZER = small_tokenizer()
KOREAN = "서울은 대한민국의 수도이며 가장 큰 도시로 많은 사람이 살고 있습니다."
ENGLISH = "Seoul is the capital of South Korea and its largest city by far."
PARTS = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}]
SYSTEM = {"messages": [{"role": "system", "content": "Be brief."}, *chat("Why?", "Because it is.")["messages"]]}
LONG_LINE = "This is a line of prose that goes on for a while, and then for a while more, until it "
IMAGE_PART = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
CALL = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"function": {"name": "f"}}]}
TOOL_TURN = {
    "messages": [*chat("Why?")["messages"], CALL, {"role": "tool", "content": "a"}, chat("", "b")["messages"][1]]
}
# filter -> rows to drop, rows to keep
CASES = {
    "turns": (
        [chat("Hi"), chat("Hi", " "), chat("", "Hi"), chat("Hi", "Ho", "Hi"), {"messages": None}, {"messages": ["Hi"]},
         chat("Hi", "\ud800"), {"messages": chat("Hi", "Ho")["messages"][::-1]}, {"messages": [], "fault": "bad cell"},
         IMAGE_PART, chat("Hi", "Ho", original=5), TOOL_TURN],
        [chat("Hi", "Ho"), SYSTEM, chat("1+1?", PARTS), chat("Hi", "Ho", fault="mine")],
    ),
    "short": ([chat("a", "b")], [chat("Where is it now?", "Here.")]),
    "long": ([chat("a", "word " * 500)], [chat("a", "word " * 9)]),
    "ratio": (
        [chat(KOREAN, "네", original=ENGLISH * 3), chat(KOREAN * 4, "네", original=ENGLISH)],
        [chat(KOREAN, "네", original=ENGLISH), chat(KOREAN, "네"), chat(ENGLISH, "Yes", original=ENGLISH[5:])],
    ),
    "script": (
        [chat(KOREAN, ENGLISH), chat(ENGLISH, KOREAN), chat(ENGLISH, ENGLISH, KOREAN, ENGLISH),
         chat(ENGLISH, ENGLISH, bucket="ko")],
        [chat(KOREAN, KOREAN), chat(KOREAN, "OK"), chat(KOREAN, f"{KOREAN}\n```\n{ENGLISH * 9}\n```"),
         chat(ENGLISH, KOREAN, bucket="ko"), chat("12?", ENGLISH)],
    ),
    "cut": ([chat("?", LONG_LINE + "and,", "?", "Yes."), chat("?", "So:\n```python\nx = 1")],
            [chat("?", "```\nx = 1\n```"), chat("?", "- apples\n- " + LONG_LINE + "pears")]),
    "contamination": ([chat("So, where does GEKU  live?", "There.")], [chat("Where does Kara live?", "There.")]),
}  # fmt: skip
# A filter, its verdict, and an answer.
ANSWERS = """
images drops ![a](b)
images drops <IMG src=x>
images drops https://a.b/c/d.JPG?x=1 is?
images drops data:image/png;charset=utf-8;base64,AAAA
images drops url(data:image/svg+xml,%3Csvg)
images keeps See [a](b.html)!
images keeps a.png is a file
images keeps data: image base64
images keeps {"image": "nginx:1.25"}
images keeps The data:train/test, or all?
refusals drops I'm sorry, but I can't help with that.
refusals drops As an AI language model, I have no body.
refusals drops I cannot assist with this.
refusals drops 죄송합니다만, 그 요청은 도와드릴 수 없습니다.
refusals drops 저는 AI 언어 모델로서 감정이 없습니다.
refusals drops 죄송합니다. 도와드릴 수 없습니다.
refusals drops I'm sorry. I can't help with that.
refusals drops I apologize, but I cannot do this.
refusals keeps I'm sorry to hear that. Rest well.
refusals keeps I cannot say enough about it.
refusals keeps I am a language model, a program.
refusals keeps 죄송합니다. 다시 계산하면 3입니다.
refusals keeps I'm sorry. You cannot divide by 0.
refusals keeps 죄송합니다. 이 식은 더 줄일 수 없습니다.
refusals keeps I apologize for the error. It is 3.
cut drops This is a line of prose that goes on for a while, and then for a while more, until it stops in the
cut keeps This is a line of prose that goes on for a while, and then for a while more, until it stops.
cut keeps S-i-m-a-n
"""
for line in ANSWERS.strip().splitlines():
    filter_name, verdict, text = line.split(" ", 2)
    CASES.setdefault(filter_name, ([], []))[verdict == "keeps"].append(chat("?", text))


@pytest.mark.parametrize("name", CASES)
def test_a_filter_drops_its_rows_alone(name) -> None:
    settings = filters.FilterSettings(max_tokens=100, languages="ko=ko")
    benchmarks = Benchmarks({"Test": [("Where does Geku live?",)]})
    context = filters.Context(settings, TOKENIZER, benchmarks)
    for is_dropped, rows in zip((True, False), CASES[name], strict=True):
        found = [filters.FILTERS[name](filters.Row({"bucket": "a"} | row, TOKENIZER), context) for row in rows]
        assert list(map(bool, found)) == [is_dropped] * len(rows)


def test_turns_of_tools_are_named() -> None:
    calling = {"messages": [*chat("Why?")["messages"], CALL]}
    for row in (TOOL_TURN, calling):
        assert filters.Row({"bucket": "a"} | row, TOKENIZER).fault == "turns of tools are not curated"


def test_all_filters_have_cases_and_run_in_the_order_given() -> None:
    assert {name for name, one in filters.FILTERS.items() if one} == {*CASES}
    assert filters.chosen_filters(filters.FilterSettings(filters="near,long, turns,long")) == ["long", "turns", "near"]
    assert filters.chosen_filters(filters.FilterSettings()) == [*filters.FILTERS]
    filters.check_settings(
        filters.FilterSettings(languages="korean=ko", max_ratio="all=1.5, en-ko=2"), ["korean", "web"]
    )


def test_figures_of_rows() -> None:
    for value in (chat("Why?", "Because it is."), chat("1+1?", PARTS, "And?", "No.")):
        row = filters.Row(value | {"bucket": "a"}, TOKENIZER)
        ids, mask = render_conversation(value, TOKENIZER)
        assert (row.ids, row.mask) == (ids, mask)
        assert [*zip(row.prompts, row.answers, strict=True)][-1][0] in ("Why?", "1+1?")
    texts = {KOREAN: "ko", ENGLISH: "en", "12": "", "これはペンです": "ja", "Это так": "ru"}
    assert [filters.language(text) for text in texts] == [*texts.values()]
    row = filters.Row(chat("가" * 60, "네", original="a" * 100, bucket="a"), TOKENIZER)
    assert (row.languages, row.ratio) == ("en-ko", pytest.approx(0.6 / 0.5))
    assert filters.pairs("a=1, b=x=y") == {"a": "1", "b": "x=y"}


def test_a_bucket_has_its_own_list_and_its_own_numbers() -> None:
    settings = filters.FilterSettings(
        filters="all=near,turns,images; web=exact,turns;web-code=turns",
        min_tokens="all=8,web=2",
        max_tokens="web-code=2e4",
        max_ratio="all=1.5,en-ko=2,web=4",
        split_topics="web",
    )
    filters.check_settings(settings, ["web", "korean"])
    chosen = {name: filters.chosen_filters(settings, name) for name in ("korean", "web-daily", "web-code")}
    assert chosen == {
        "korean": ["turns", "images", "near"],
        "web-daily": ["turns", "exact"],
        "web-code": ["turns"],
    }
    assert filters.chosen_filters(filters.FilterSettings(filters="web=turns"), "korean") == [*filters.FILTERS]
    context = filters.Context(settings, TOKENIZER, Benchmarks({}))
    short = chat("Hi", "Ho")
    for bucket, drops in (("korean", True), ("web", False), ("web-code", False), ("web-daily", False)):
        row = filters.Row(short | {"bucket": bucket}, TOKENIZER)
        assert bool(filters.is_short(row, context)) == (drops and len(row.ids) < 8)
    long = chat("a", "word " * 2000)
    for bucket, drops in (("korean", True), ("web", True), ("web-code", False)):
        assert filters.is_long(filters.Row(long | {"bucket": bucket}, TOKENIZER), context) == drops
    translated = chat(KOREAN * 3, "네", original=ENGLISH)
    row = filters.Row(translated | {"bucket": "korean"}, TOKENIZER)
    assert 2 < row.ratio < 4
    assert filters.off_length(row, context)
    assert not filters.off_length(filters.Row(translated | {"bucket": "web-science"}, TOKENIZER), context)
