"""Mistakes on command lines about sources, filters, teachers and facts: one sentence and status 2."""

from conftest import each_row

MISTAKES = """
chats --sources=a=World-Chat --part=3/2 | --part=3/2 is not a part like 1/4
chats --sources=a=World-Chat --against=GSM9K | GSM9K is not a task, choose from
chats --sources=a=World-Chat --against=World-Facts --filters=turns,exact | is for the filter contamination, which
chats --sources=a=World-Facts/test | World-Facts has no split test to train on; test splits
chats --sources=a=json:no.jsonl | there is no file
chats --sources=a=World-Chat,b=json:none.jsonl | the source of the bucket b has no rows: json:
chats --sources=web=World-Chat --licenses=wbe=MIT | --licenses: the bucket wbe is not known, choose from web
chats --sources=web=World-Chat --languages=wbe=ko | --languages: the bucket wbe is not known, choose from web
chats --sources=web=World-Chat --languages=web=kr | --languages: the language kr is not known, choose from ar, el, en
chats --sources=web=World-Chat --filters=turns,copies | --filters: copies is not known, choose from turns, images, short
chats --sources=web=World-Chat --filters="all=turns;wbe=turns" | --filters: the bucket wbe is not known, choose from all
chats --sources=web=World-Chat --filters="all=turns;web=copies" | --filters: copies is not known, choose from
chats --sources=web=World-Chat --filters="all=turns;web=" | --filters: web= names no filter, or web stands there
chats --sources=web=World-Chat --filters="turns;all=exact" | --filters: all=exact names no filter, or all stands there
chats --sources=web=World-Chat --filters="web-code=turns" | --filters: the bucket web-code is not known, choose from
chats --sources=web=World-Chat --min-tokens=all=8,wbe=2 | --min-tokens: the bucket wbe is not known
chats --sources=web=World-Chat --min-tokens=few | --min-tokens=few is not like 8 or all=8,web=2, with whole
chats --sources=web=World-Chat --max-tokens=all=2048,web=0 | --max-tokens=all=2048,web=0 is not like 8 or
chats --sources=web=World-Chat --max-tokens=2.5 | --max-tokens=2.5 is not like 8 or all=8,web=2, with whole
chats --sources=web=World-Chat --near=1 | --near=1 is not like 0.8 or all=0.8,web=0.9, from 0.5 on
chats --sources=web=World-Chat --near=all=0.8,web=0.2 | --near=all=0.8,web=0.2 is not like
chats --sources=web=World-Chat --split-topics=wbe | --split-topics: the bucket wbe is not known
chats --sources=web=World-Chat,web-code=World-Sums --split-topics=web | a part would be called web-code
chats --sources=web=World-Chat --max-ratio=all=0 | --max-ratio=all=0 is not like all=2,en-ko=2.5
chats --sources=web=World-Chat --max-ratio="all=2, en-kr=3" | --max-ratio=all=2, en-kr=3 is not like
chats --sources=a=column | has no column messages, it has text
chats --sources=a=json:bad.jsonl | bad.jsonl:2: no JSON object with `messages`
chats --sources="a b=World-Chat" | a b=World-Chat is not like NAME=VALUE
chats --sources=a=World-Chat,a=World-Sums | is not like NAME=VALUE, or has a NAME for the second time
chats --sources= | --sources is empty, write it like facts=World-Chat
teach --sources=b=json:broken.jsonl | broken.jsonl:1: Expecting
teach --sources=b=json:empty.jsonl | row 1, from empty.jsonl: a conversation has a list
teach --sources=b=json:good.jsonl | add --teacher=http://host:port/v1 and --teacher-model=NAME
teach --sources=b=json:good.jsonl --language=Korean --check-choices | --language and --check-choices cannot be
teach --sources=b=json:good.jsonl --language=Korean --topics | --language and --topics cannot be combined
identity --facts=maker.toml | needs a name
identity --facts=list.toml | each fact as a text
identity --facts=broken.toml | is not TOML: Invalid
"""


@each_row("command sentence", MISTAKES)
def test_a_mistake_ends_with_one_sentence(command, sentence, refused) -> None:
    assert sentence in refused(f"tracks.chatdata.{command}")
