"""Mistakes on command lines: one sentence and status 2, from scripts that find no model."""

from conftest import each_row

# Script and flags | words of the sentence. SmolTalk has no verdicts.
MISTAKES = """
chat_cli | : bash speedrun.sh trains one
chat_cli -p "" | --prompt is empty: give a message, or leave the option out to chat
chat_eval --sampling=0.7,0.9 | --sampling=0.7,0.9 has to be three numbers like 0.7,0.9,32768
chat_eval --tasks=GSM8K|MMLU~jokes | MMLU~jokes: the augmentation jokes is not known, choose from styles, options
chat_eval --sampling=1,1.9,100 | --top-p has to be 0 or more and below 1, not 1.9
chat_eval --repeats=3 | all answers to a problem would be the same, add --temperature=1
chat_eval --tasks=GSM8K|SmolTalk | SmolTalk is not a task, choose from ARC-Easy,
prepare --tasks=gsm9k | gsm9k is not a task, choose from
base_train --matrix-lr=None | --matrix-lr: could not convert string to float: 'None'
prepare --num-shards=9999 | =9999 is out of range, karpathy/climbmix-400b-shuffle has 6,542
tok_train --vocab-size=100 | --vocab-size has to be 265 or more, not 100
tok_train --vocab-size=3e6 | --vocab-size has to be 265 or more and below 2097153, not 3000000
tok_train --max-chars=1e20 | --max-chars has to be 1 or more and below 9223372036854775808, not 100000000000000000000
tok_train --doc-cap=1e20 | --doc-cap has to be 1 or more and below 9223372036854775808
tok_train --threads=1e20 | --threads has to be 0 or more and below 9223372036854775808
tok_train --data=/no/such/folder | --data=/no/such/folder is not a folder
tok_eval --tag=never | tok_train/never/tokenizer.json; train one
plan --data=/no/such/folder | --data=/no/such/folder is not a folder
plan --scale cpu | --scale=cpu needs real text, and this machine has none: name a folder with --data=FOLDER
plan --tag=../up | the tag ../up cannot name a folder
chat_web --host=0.0.0.0 | --host=0.0.0.0 is open to other machines: set NANOCHAT_API_KEY
chat_web --port=70000 | --port=70000: bind
chat_web --tag=none --port=0 | there is no model in
base_eval --tag=none | base_train/none: python -m scripts.base_train makes one
plan --depth=900 | are missing; free some, or set NANOCHAT_BASE_DIR
chat_rl --total-batch-size=512 | --total-batch-size does not apply to samples: use --examples-per-step
chat_rl --replay=gsm8k | --replay names conversations, but none is replayed: add --replay-rows=16
chat_rl --num-samples=1 | --num-samples has to be 2 or more, not 1
base_train SMALL --device-batch-size=3 | does not divide --total-batch-size=256: use auto or one of [1, 2, 4, 8]
base_train SMALL --target-flops=1e9 | --num-iterations and --target-flops both set the length of the run: keep one
base_train --device-type=gpu | --device-type=gpu is not on this machine, use one of
"""


@each_row("command sentence", MISTAKES)
def test_a_mistake_ends_with_one_sentence(command, sentence, refused) -> None:
    assert sentence in refused(f"scripts.{command}")
