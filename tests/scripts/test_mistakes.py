"""Mistakes on command lines and in chat data: one sentence and status 2, from scripts that find no model."""

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import each_row, plant_world
from made_chats import small_tokenizer

CHAT = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'
FILES = {
    "good.jsonl": CHAT,
    "none.jsonl": "",
    "bad.jsonl": f'{CHAT}\n{{"text": "x"}}',
    "broken.jsonl": "{",
    "empty.jsonl": '{"messages": []}',
    "maker.toml": "maker = 'me'",
    "list.toml": "name = ['a']",
    "broken.toml": "name = ",
}
TEACHER = "--teacher=http://host/v1 --teacher-model=wise"
SMALL = "--depth=1 --max-seq-len=32 --total-batch-size=256 --num-iterations=5"
# Script and flags | words of the sentence. SmolTalk has no verdicts.
MISTAKES = """
chat_cli | : bash speedrun.sh trains one
chat_cli -p "" | --prompt is empty: give a message, or leave the option out to chat
chat_eval --sampling=0.7,0.9 | --sampling=0.7,0.9 has to be three numbers like 0.7,0.9,32768
chat_eval --tasks=GSM8K|MMLU~jokes | MMLU~jokes: the augmentation jokes is not known, choose from styles, options
chat_eval --sampling=1,1.9,100 | --top-p has to be 0 or more and below 1, not 1.9
chat_eval --repeats=3 | all answers to a problem would be the same, add --temperature=1
chat_eval --tasks=GSM8K|SmolTalk | SmolTalk is no task, choose from ARC-Easy,
prepare --tasks=gsm9k | gsm9k is no task, choose from
prepare --num-shards=9999 | =9999 is out of range, karpathy/climbmix-400b-shuffle has 6,542
tok_train --vocab-size=100 | --vocab-size has to be 265 or more, not 100
tok_train --data=/no/such/folder | --data=/no/such/folder is no folder
tok_eval --tag=never | tok_train/never/tokenizer.json; train one
plan --data=/no/such/folder | --data=/no/such/folder is no folder
plan --scale cpu | --scale=cpu needs real text, and none is here: name a folder with --data=FOLDER
plan --tag=../up | the tag ../up cannot name a folder
chat_web --host=0.0.0.0 | --host=0.0.0.0 is open to other machines: set NANOCHAT_API_KEY
chat_web --port=70000 | --port=70000: bind
chat_web --tag=none --port=0 | there is no model in
base_eval --tag=none | base_train/none: python -m scripts.base_train makes one
plan --depth=900 | are missing; free some, or set NANOCHAT_BASE_DIR
chats --sources=a=World-Chat --part=3/2 | --part=3/2 is not a part like 1/4
chats --sources=a=World-Chat --against=GSM9K | GSM9K is no task, choose from
chats --sources=a=World-Facts/test | World-Facts has no split test to train on; test splits
chats --sources=a=json:no.jsonl | there is no file
chats --sources=a=World-Chat,b=json:none.jsonl | the source of the bucket b has no rows: json:
chats --sources=web=World-Chat --licenses=wbe=MIT | --licenses: the bucket wbe is not known, choose from web
chats --sources=web=World-Chat --languages=wbe=ko | --languages: the bucket wbe is not known, choose from web
chats --sources=web=World-Chat --languages=web=kr | --languages: the language kr is not known, choose from ar, el, en
chats --sources=web=World-Chat --filters=turns,copies | --filters: copies is not known, choose from turns, images, short
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
identity --facts=maker.toml | needs a name
identity --facts=list.toml | each fact as a text
identity --facts=broken.toml | is no TOML: Invalid
judge sft:mine sft:other TEACHER --prompts=World-Talk | the split train is not known, choose from test
judge sft:mine sft:other TEACHER | is no task, choose from
judge d8 sft:other TEACHER --prompts=json:good.jsonl | d8 is not like sft:d8: the stage d8 is not known, choose
judge sft:mine sft:other --num-samples=2 --temperature=1 | each model gives one answer to a prompt
chat_dpo --total-batch-size=512 | --total-batch-size does not apply to pairs: use --examples-per-step
chat_dpo | --pairs=: there is no line with prompt, chosen and rejected
chat_rl --total-batch-size=512 | --total-batch-size does not apply to samples: use --examples-per-step
chat_rl --num-samples=1 | --num-samples has to be 2 or more, not 1
merge | --models and --tag are needed
merge --tag=new --models=one,none | there is no model in
merge --tag=new --models=one,two --scale=2 | --scale is a factor of changes: take --method=task or ties
base_train SMALL --device-batch-size=3 | does not divide --total-batch-size=256: take auto or one of [1, 2, 4, 8]
base_train SMALL --target-flops=1e9 | --num-iterations and --target-flops each end the run: keep one of them
base_train --device-type=gpu | --device-type=gpu is not on this machine, take one of
chat_dpo --beta=0 | --beta has to be 0.0001 or more, not 0.0
"""


@pytest.fixture(autouse=True)
def ready(base: Path, tiny_world: Path, tmp_path: Path, monkeypatch):
    small_tokenizer().save(plant_world(base, tiny_world) / "tok_train/default/tokenizer.json")
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("column").mkdir()
    pq.write_table(pa.table({"text": ["x"]}), "column/a.parquet")


@each_row("command sentence", MISTAKES)
def test_a_mistake_ends_with_one_sentence(command, sentence, here, base):
    script, *flags = shlex.split(command.replace("TEACHER", TEACHER).replace("SMALL", SMALL))
    assert sentence in here(f"scripts.{script}", *flags, code=2).stderr
    assert not [found for name in ("chats/*/*.json*", "speedrun/*/plan.json") for found in base.glob(name)]
