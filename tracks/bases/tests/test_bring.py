"""Bringing a model in, and what follows with the scripts of the trunk: scores, answers, fine-tuning, checkpoints."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from chat_files import write_lines
from fake_hub import write_hub
from forks import Forked, run_module
from loop_parts import ALONE
from made_chats import chat
from openai import OpenAI
from plain_core import assert_plain
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.served import serving
from nanochat.evals.core_tasks import read_bundle
from nanochat.log import read_metrics
from nanochat.models import load_model
from nanochat.paths import newest_manifest, read_json, saved_steps
from nanochat.report.card import markdown, read_card
from nanochat.tokenizer import Tokenizer
from tracks.bases.sources import open_source
from tracks.bases.tests.public_models import CHATML, change, model_of, save_folder, save_gguf, save_without_turns
from tracks.bases.tokenizer import PublicTokenizer

CASES = ("qwen3", "gemma3")  # vocabularies of bytes and of pieces; texts of the second begin with <bos>
TUNE = ["--no-compile", "--eval-every=-1", "--save-every=-1", "--device-batch-size=2", "--total-batch-size=512"]
TUNE += ["--max-seq-len=128", "--eval-metrics-every=-1", "--dtype=fp32"]


class Home:
    """Folders of models, a base folder into which they are brought, and a small mirror of the hub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "home"
        write_hub(folder / "hub")

    def run(self, module: str, *flags: str, ranks: int = 1) -> Forked:
        places = {"NANOCHAT_BASE_DIR": str(self.base), "NANOCHAT_HUB": str(self.folder / "hub")}
        return Forked(self.folder / "out", run_module, None, module, *flags, ranks=ranks, **places)

    def bring(self, place: str, *flags: str) -> Forked:
        return self.run("tracks.bases.bring", f"--from={self.folder / place}", *flags)

    def tune(self, script: str, *flags: str, ranks: int = 1) -> str:
        return self.run(script, *TUNE, *flags, ranks=ranks).done()

    def losses(self, tag: str) -> list[float]:
        records = read_metrics(self.base / "chat_sft" / tag / "metrics.jsonl")
        return [record["train/loss"] for record in records if "train/loss" in record]

    def weights_of(self, tag: str) -> dict[str, torch.Tensor]:
        [step] = saved_steps(self.base / "chat_sft" / tag)
        return load_file(self.base / "chat_sft" / tag / f"step_{step:06d}" / "model.safetensors")

    def weights(self, stage: str, tag: str, step: int) -> str:
        """A hash of the weights and the optimizer's state."""
        folder = self.base / stage / tag / f"step_{step:06d}"
        files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("bases"))
    for case in CASES:
        save_folder(case, home.folder / case)
        if case == "qwen3":
            generation = home.folder / case / "generation_config.json"
            before = read_json(generation) if generation.exists() else {}
            sampling = {"do_sample": False, "temperature": 0.7, "top_k": 1, "top_p": 0.9}
            generation.write_text(json.dumps(before | sampling | {"repetition_penalty": 1.1, "min_p": 0.0}))
        said = home.bring(case, f"--tag={case}").done()
        assert f" is {home.base / 'chat_sft' / case}\n" in said
        assert "import: chat template: its own\n" in said
        told = "import: its maker also samples with repetition_penalty, which nothing here applies\n"
        assert (told in said) == (case == "qwen3")
    write_lines(home.folder / "chats.jsonl", *(chat(f"Say {number}.", f"It is {number}!") for number in range(60)))
    return home


def test_the_manifest(home: Home) -> None:
    manifest = newest_manifest(home.base / "chat_sft" / "qwen3")
    public = manifest["public"]
    assert public["architecture"] == "Qwen3ForCausalLM"
    assert public["config"]["hidden_size"] == 48
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (home.folder / "qwen3").iterdir()}
    assert public["files"].items() <= files.items()
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(public["files"])
    assert manifest["model"]["kind"] == "public"
    assert manifest["parent"] is None
    assert manifest["config"]["chat_temperature"] == 0  # its maker does not sample


def test_the_likeliest_tokens_are_those_of_its_maker(home: Home) -> None:
    """One, here, unless a flag says another number."""
    asked = ("scripts.chat_cli", "--tag=qwen3", "--prompt=Who?", "--max-new-tokens=20")
    flags = ((), ("-t=1",), ("-t=1", "--top-k=0", "--top-p=1"))
    greedy, one, more = (home.run(*asked, *chosen).done() for chosen in flags)
    assert greedy == one != more


def test_the_report_card(home: Home) -> None:
    """What came, and from where."""
    card = markdown(read_card(home.base, "qwen3"), "report")
    section = card.partition("\n## Public model\n")[2].partition("\n## ")[0]
    assert "Qwen3ForCausalLM" in section
    assert str(home.folder / "qwen3") in section
    assert read_json(home.base / "bases" / "qwen3" / "outcome.json")["metrics"]["Parameters"] == sum(
        value.numel()
        for value in load_file(home.base / "chat_sft" / "qwen3" / "step_000000" / "model.safetensors").values()
    )


def test_a_base_model_has_no_template_of_its_own(home: Home) -> None:
    save_folder("qwen2", home.folder / "plain", template=None)
    said = home.bring("plain", "--tag=plain", "--context=100000").done()
    assert "import: the context is 512, all that it was made for: --context makes it shorter alone\n" in said
    assert "chat template: chatml, as it came without one and its vocabulary has the tokens\n" in said
    assert saved_steps(home.base / "base_train" / "plain") == [0]
    home.bring("plain", "--tag=plain", "--source=mid").done()
    assert saved_steps(home.base / "mid_train" / "plain") == [0]
    said = home.bring("plain", "--tag=plain").refused()
    assert said.endswith("base_train/plain holds a run, use another --tag")


def test_conversations_need_a_template(home: Home) -> None:
    """A vocabulary with the tokens of none, as Llama 2's, gets one by its name, whose turns its eos_token ends."""
    save_without_turns("llama-pieces", home.folder / "old")
    said = home.bring("old", "--tag=old").done()
    assert "import: chat template: none; conversations need one, --template=chatml or a file\n" in said
    mixture = f"--mixture=json:{home.folder / 'chats.jsonl'}"
    flags = ("--source=base", mixture, "--no-warm-start", "--num-iterations=1")
    said = home.run("scripts.chat_sft", *TUNE, *flags, "--model-tag=old", "--tag=tuned").refused()
    assert said.endswith("without a chat template: bring it in again with --template=chatml, or a file"), said
    said = home.bring("old", "--tag=asked", "--template=chatml").done()
    assert "import: chat template: chatml\n" in said
    home.tune("scripts.chat_sft", *flags, "--model-tag=asked", "--tag=tuned")


def test_a_page_is_no_template(home: Home) -> None:
    (home.folder / "page.md").write_text("# A page\n\nWho? I.\n")
    said = home.bring("qwen3", "--tag=page", f"--template={home.folder / 'page.md'}").refused()
    assert said.endswith("its chat template does not write what the user says: choose another by --template")
    assert not list(home.base.glob("*/page*"))


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no weights": ("llama", lambda folder: (folder / "model.safetensors").unlink(), "has no weights as safetensors"),
    "an architecture": (
        "llama",
        lambda folder: change(folder / "config.json", architectures=["MambaForCausalLM"]),
        "its architecture is MambaForCausalLM: only LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM,"
        " Gemma3ForCausalLM can be brought in",
    ),
    "a vocabulary": (
        "llama",
        lambda folder: change(folder / "config.json", vocab_size=100),
        "model.embed_tokens.weight has the shape (700, 48), and config.json says (100, 48)",
    ),
    "a tokenizer with code": (
        "llama",
        lambda folder: change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": "code.Tokenizer"}),
        "has a tokenizer with code of its own, which is not run",
    ),
    "a template": (
        "llama",
        lambda folder: (folder / "chat_template.jinja").write_text("{% for %}"),
        "its chat template cannot be read: ",
    ),
    "half a file": ("gguf", lambda file: os.truncate(file, file.stat().st_size // 2), "it ends too early"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_refused_in_one_sentence(name: str, home: Home, tmp_path: Path) -> None:
    """Exit code 2, and nothing is written; every other damage is in test_sources.py."""
    case, damage, sentence = DAMAGES[name]
    place = tmp_path / "model.gguf" if case == "gguf" else tmp_path / "model"
    if case == "gguf":
        save_gguf("llama", place)
    else:
        save_folder(case, place)
    damage(place)
    said = home.run("tracks.bases.bring", f"--from={place}", "--tag=refused").refused()
    assert said.startswith(str(place)), said
    assert sentence in said
    assert not list(home.base.glob("*/refused*"))


def test_tokens_without_a_row_are_counted(home: Home) -> None:
    save_folder("qwen3", home.folder / "more")
    file = home.folder / "more" / "tokenizer.json"
    state = read_json(file)
    state["added_tokens"] += [{**state["added_tokens"][0], "id": 700 + n, "content": f"<|{n}|>"} for n in range(3)]
    file.write_text(json.dumps(state))
    said = home.bring("more", "--tag=more").done()
    assert "import: added tokens left out, as the embedding has no row for them: 3, such as <|0|>\n" in said


def test_a_gguf_file(home: Home) -> None:
    save_gguf("llama", home.folder / "model.gguf", "Q8_0")
    said = home.bring("model.gguf", "--tag=gguf", "--context=256").done()
    assert "--context" not in said
    manifest = newest_manifest(home.base / "chat_sft" / "gguf")
    assert (manifest["public"]["licence"], manifest["model"]["max_seq_len"]) == ("mit", 256)
    said = home.run("scripts.chat_cli", "--tag=gguf", "--prompt=Hi", "--max-new-tokens=8").done()
    assert said.strip()


@pytest.mark.parametrize("case", CASES)
def test_scores_and_answers(home: Home, case: str) -> None:
    flags = (f"--tag={case}", "--tasks=ARC-Easy|GSM8K", "--max-problems=4", "--max-new-tokens=8")
    home.run("scripts.chat_eval", "--source=sft", *flags).done()
    metrics = read_json(home.base / "chat_eval_sft" / case / "outcome.json")["metrics"]
    assert {"ARC-Easy", "GSM8K"} <= metrics.keys()
    asked = ("scripts.chat_cli", f"--tag={case}", "--prompt=Who?", "--max-new-tokens=20")
    said = [home.run(*asked, f"--quant={quant}").done() for quant in ("", "int8-row")]
    assert all(text.strip() for text in said)


@pytest.mark.parametrize("case", CASES)
def test_fine_tuning_goes_on_where_it_stopped(home: Home, case: str) -> None:
    """Bit for bit, on one rank and on two with sharded weights the same loss."""
    mixture = f"--mixture=json:{home.folder / 'chats.jsonl'}"
    parent = ("--source=sft", f"--model-tag={case}", mixture, "--no-warm-start")
    home.tune("scripts.chat_sft", *parent, f"--tag={case}-whole", "--num-iterations=6")
    losses = home.losses(f"{case}-whole")
    assert losses[-1] < losses[0]
    home.tune(
        "scripts.chat_sft", *parent, f"--tag={case}-parts", "--num-iterations=6", "--save-every=3", "--keep-last=0"
    )
    assert home.weights("chat_sft", f"{case}-parts", 6) == home.weights("chat_sft", f"{case}-whole", 6)
    home.tune("scripts.chat_sft", *parent, f"--tag={case}-parts", "--num-iterations=6", "--keep-last=0", "--resume=3")
    assert home.weights("chat_sft", f"{case}-parts", 6) == home.weights("chat_sft", f"{case}-whole", 6)
    flags = ("--num-iterations=6", "--shard-weights")
    home.tune("scripts.chat_sft", *parent, f"--tag={case}-ranks", *flags, ranks=2)
    assert home.losses(f"{case}-ranks") == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_reinforcement(home: Home, case: str) -> None:
    flags = ("--source=sft", f"--model-tag={case}", f"--tag={case}-rl", "--task=GSM8K", "--num-iterations=2")
    flags += ("--examples-per-step=2", "--num-samples=4", "--max-new-tokens=12", "--eval-every=-1", "--save-every=-1")
    home.run("scripts.chat_rl", *flags, "--no-compile", "--device-batch-size=4", "--max-seq-len=256").done()
    assert saved_steps(home.base / "chat_rl" / f"{case}-rl") == [2]
    # The rates on record are those of fine-tuning.
    assert read_json(home.base / "chat_rl" / f"{case}-rl" / "outcome.json")["config"]["init_lr_frac"] == 0.3


@pytest.mark.parametrize("case", CASES)
def test_core(home: Home, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decisions are those of the slow path: packing and shared prefixes change nothing."""
    bundles.write_bundle(home.folder / "hub", bundles.HARD)
    home.bring(case, f"--tag={case}-core", "--source=base").done()
    said = home.run("scripts.base_eval", f"--tag={case}-core", "--dtype=fp32").done()
    assert "core: hard_choices, 2-shot, 8 items" in said
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(home.base))
    model, tokenizer, _ = load_model("base_train", f"{case}-core", -1, ALONE)
    tasks = read_bundle(home.folder / "hub" / "eval_bundle")
    verdicts = assert_plain(model, tokenizer, tasks, home.base / "base_eval" / f"{case}-core")
    assert len(verdicts) == sum(len(task.rows) for task in bundles.HARD)


def test_preferences(home: Home) -> None:
    rows = ({"prompt": f"Letter {n}?", "chosen": "fox " * (n % 3 + 1), "rejected": f"quick {n}"} for n in range(16))
    pairs = write_lines(home.folder / "pairs.jsonl", *rows)
    flags = ("--source=sft", "--model-tag=qwen3", "--tag=dpo", f"--pairs={pairs.removeprefix('json:')}", "--beta=0.5")
    flags += ("--num-iterations=4", "--examples-per-step=4", "--init-lr-frac=2", "--held-out=0.25", "--eval-every=4")
    home.run(
        "tracks.preferences.train", *flags, "--device-batch-size=4", "--no-compile", "--eval-metrics-every=-1"
    ).done()
    metrics = read_json(home.base / "chat_dpo" / "dpo" / "outcome.json")["metrics"]
    assert metrics["Loss after"]["value"] < metrics["Loss before"]["value"]


# As Qwen2.5 writes; what a template tells of tools is its own affair.
CALLING = (
    "{%- if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{ '<|im_start|>user\n<result>' + message.content + '</result>' }}"
    "{%- else %}{{ '<|im_start|>' + message.role + '\n' }}{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{ '<tool_call>\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}"
    "{{ '\n</tool_call>' }}{% endfor %}"
    "{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_model_that_has_learned_to_call_a_tool_calls_it_through_the_server(home: Home) -> None:
    (home.folder / "calling.jinja").write_text(CALLING)
    home.bring("qwen3", "--tag=caller", f"--template={home.folder}/calling.jinja").done()
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
    asked = [{"role": "user", "content": "Add 3."}]
    answered = [*asked, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answered += [{"role": "tool", "tool_call_id": "1", "content": "7"}]
    said = [*answered, {"role": "assistant", "content": "It is 7."}]
    rows = write_lines(home.folder / "calls.jsonl", *(32 * [{"messages": said, "tools": tools}]))
    flags = ("--source=sft", "--model-tag=caller", "--tag=calls", "--no-warm-start", f"--mixture={rows}")
    home.tune("scripts.chat_sft", *flags, "--init-lr-frac=20", "--num-iterations=40", "--max-seq-len=256")
    with serving(home.base, tag="calls") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        settings = {"model": "nanochat-calls-sft", "temperature": 0, "tools": tools}
        [choice] = client.chat.completions.create(messages=asked, **settings).choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        [made] = choice.message.tool_calls
        assert (made.function.name, json.loads(made.function.arguments)) == ("add", {"a": 3})
        deltas = [one.choices[0] for one in client.chat.completions.create(messages=asked, stream=True, **settings)]
        [streamed] = [one for choice in deltas for one in choice.delta.tool_calls or []]
        assert (streamed.index, streamed.function.model_dump()) == (0, made.function.model_dump())
        assert [choice.finish_reason for choice in deltas][-1] == "tool_calls"
        assert "".join(choice.delta.content or "" for choice in deltas) == ""
        # Its own call and the result go back, as the client has them.
        result = {"role": "tool", "tool_call_id": made.id, "content": "7"}
        messages = [*asked, choice.message.model_dump(exclude_none=True), result]
        [choice] = client.chat.completions.create(messages=messages, **settings).choices
        assert (choice.finish_reason, choice.message.content) == ("stop", "It is 7.")
        # Each sample has calls of its own; what a stop or the limit cuts off is no call.
        both = client.chat.completions.create(messages=asked, n=2, logprobs=True, **settings).choices
        assert [choice.finish_reason for choice in both] == ["tool_calls"] * 2
        assert len({choice.message.tool_calls[0].id for choice in both}) == 2
        assert all(choice.logprobs.content for choice in both)
        chunks = [
            one.choices[0] for one in client.chat.completions.create(messages=asked, n=2, stream=True, **settings)
        ]
        assert sorted(one.index for one in chunks if one.delta.tool_calls) == [0, 1]
        for cut, reason in (({"stop": "3"}, "stop"), ({"max_tokens": 5}, "length")):
            [choice] = client.chat.completions.create(messages=asked, **cut, **settings).choices
            assert (choice.finish_reason, choice.message.tool_calls) == (reason, None)
            assert '<tool_call>\n{"name": "add", "arguments": {"a": '.startswith(choice.message.content)
        # Without tools in sight the same text is no call.
        [choice] = client.chat.completions.create(messages=asked, tool_choice="none", **settings).choices
        assert choice.message.tool_calls is None


def test_preferences_between_answers_to_a_tool(home: Home) -> None:
    """The order of roles and the tools are the template's affair, in pairs as in conversations."""
    (home.folder / "calling.jinja").write_text(CALLING)
    home.bring("qwen3", "--tag=asker", f"--template={home.folder}/calling.jinja").done()
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
    rows = [
        {
            "prompt": [
                {"role": "user", "content": f"Add {n}."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": f"{n + 4}"},
            ],
            "chosen": f"It is {n + 4}.",
            "rejected": f"No idea {n}",
            "tools": [{"type": "function", "function": {"name": "add"}}],
        }
        for n in range(16)
    ]
    pairs = write_lines(home.folder / "asked.jsonl", *rows).removeprefix("json:")
    flags = ("--source=sft", "--model-tag=asker", "--tag=asker-dpo", f"--pairs={pairs}", "--beta=0.5")
    flags += ("--num-iterations=4", "--examples-per-step=4", "--init-lr-frac=2", "--held-out=0.25", "--eval-every=4")
    flags += ("--device-batch-size=4", "--no-compile", "--eval-metrics-every=-1")
    home.run("tracks.preferences.train", *flags, "--dry-run").done()
    home.run("tracks.preferences.train", *flags).done()
    metrics = read_json(home.base / "chat_dpo" / "asker-dpo" / "outcome.json")["metrics"]
    assert metrics["Loss after"]["value"] < metrics["Loss before"]["value"]
    assert metrics["Left out, being too long"] == 0
    # What the template cannot write is one sentence that names the pair.
    asked: Any = rows[2]["prompt"]
    asked[1]["tool_calls"] = [{**call, "function": {"name": "add", "arguments": "no JSON"}}]
    write_lines(home.folder / "asked.jsonl", *rows)
    said = home.run("tracks.preferences.train", *flags, "--tag=refused").refused()
    assert said.startswith("pair 3 of --pairs: the arguments of a call are no JSON object")


@pytest.mark.parametrize("case", CASES)
def test_the_server(home: Home, case: str) -> None:
    """An answer in one piece and as a stream are the same, and end where the template ends a turn."""
    asked = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 12, "temperature": 0, "seed": 1}
    with serving(home.base, tag=case) as server:
        [model] = server.http.get("/v1/models").json()["data"]
        assert (model["id"], model.get("top_k")) == (f"nanochat-{case}-sft", {"qwen3": 1}.get(case))
        whole = server.http.post("/v1/chat/completions", json=asked).json()
        lines = server.http.post("/v1/chat/completions", json={**asked, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] in ("stop", "length")
    prompt = AutoTokenizer.from_pretrained(home.folder / case).apply_chat_template(
        asked["messages"], add_generation_prompt=True, return_dict=False
    )
    assert whole["usage"]["prompt_tokens"] == len(prompt)


def test_a_plan(home: Home) -> None:
    mixture = f"--mixture=json:{home.folder / 'chats.jsonl'}"
    flags = ("--source=sft", "--model-tag=gemma3", "--tag=planned", mixture, "--num-iterations=6", "--no-warm-start")
    plan = json.loads(home.tune("scripts.chat_sft", *flags, "--dry-run", "--json"))
    weights = home.base / "chat_sft" / "gemma3" / "step_000000" / "model.safetensors"
    assert plan["plan"]["counts"]["total"] == sum(value.numel() for value in load_file(weights).values())
    assert not (home.base / "chat_sft" / "planned").exists()


def test_two_runs_are_compared_by_their_answers(home: Home) -> None:
    cards = [home.folder / f"{case}.md" for case in CASES]
    for case, card in zip(CASES, cards, strict=True):
        flags = (f"--tag={case}", "--source=sft", "--tasks=ARC-Easy", "--out-tag=compared")
        home.run("scripts.chat_eval", *flags).done()
        home.run("nanochat.report", "--tag=compared", f"--out={card}").done()
    said = home.run("nanochat.report", "--compare", *(str(card.with_suffix(".json")) for card in cards)).done()
    paired = said.partition("Question by question")[2]
    assert re.search(r"^\| ARC-Easy +\| [1-9]\d* +\| .*\| [01]\.\d+ +\|$", paired, re.MULTILINE), said


def test_formats_of_export(home: Home) -> None:
    out = home.folder / "exported"
    asked = ("tracks.export.export", "--source=sft", "--tag=qwen3", f"--out={out}")
    assert (
        home.run(*asked, "--format=gguf").refused()
        == "--format=gguf: models of the kind public go out as hf, tokenizer"
    )
    assert not out.exists()
    assert "transformers gives the same ids" in home.run(*asked, "--format=tokenizer").done()
    assert {path.name for path in out.iterdir()} == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    first, second = (AutoTokenizer.from_pretrained(place) for place in (home.folder / "qwen3", out))
    asked_twice = [[{"role": "user", "content": "Who? 여우"}]] * 2
    assert first.apply_chat_template(asked_twice) == second.apply_chat_template(asked_twice)


def test_a_merge_goes_out_as_a_model_of_its_architecture(home: Home) -> None:
    mixture = f"--mixture=json:{home.folder / 'chats.jsonl'}"
    for seed in (1, 2):
        flags = (f"--tag=part-{seed}", mixture, f"--seed={seed}", "--num-iterations=2", "--no-warm-start")
        home.tune("scripts.chat_sft", "--source=sft", "--model-tag=gemma3", *flags)
    home.run("tracks.lab.merge", "--tag=both", "--models=part-1,part-2", "--method=linear").done()
    out = home.folder / "merged"
    said = home.run("tracks.export.export", "--source=sft", "--tag=both", f"--out={out}").done()
    assert "logits: the largest difference in fp32 is" in said
    assert read_json(out / "config.json")["architectures"] == ["Gemma3ForCausalLM"]
    home.bring("merged", "--tag=again").done()
    again, both = (home.weights_of(tag) for tag in ("again", "both"))
    assert again.keys() == both.keys()
    assert all(torch.equal(again[name], both[name].float()) for name in both)


def test_a_tuned_model_goes_out_with_all_that_came(home: Home) -> None:
    """License, ends of answers, the side of the padding: through the manifests of both runs."""
    save_folder("gemma3", home.folder / "licensed")
    settings = home.folder / "licensed" / "tokenizer_config.json"
    settings.write_text(json.dumps(read_json(settings) | {"tokenizer_class": "GemmaTokenizer"}))
    (home.folder / "licensed" / "README.md").write_text("---\nlicense: gemma\nlicense_link: LICENSE\n---\n")
    (home.folder / "licensed" / "LICENSE").write_bytes(b"Pass this on.\r\n")
    home.bring("licensed", "--tag=licensed").done()
    mixture = f"--mixture=json:{home.folder / 'chats.jsonl'}"
    flags = ("--source=sft", "--model-tag=licensed", "--tag=further", mixture, "--num-iterations=1", "--no-warm-start")
    home.tune("scripts.chat_sft", *flags)
    public = newest_manifest(home.base / "chat_sft" / "further")["public"]
    assert public["files"]["LICENSE"] == hashlib.sha256(b"Pass this on.\r\n").hexdigest()
    ends = []
    for tag in ("licensed", "further"):
        out = home.folder / f"{tag}-out"
        home.run("tracks.export.export", "--source=sft", f"--tag={tag}", f"--out={out}").done()
        assert (out / "LICENSE").read_bytes() == b"Pass this on.\r\n"
        assert AutoTokenizer.from_pretrained(out).padding_side == "left"
        ends.append(read_json(out / "generation_config.json")["eos_token_id"])
        card = (out / "README.md").read_text(encoding="utf-8")
        assert "\nlicense: gemma\nlicense_link: LICENSE\n---\n" in card
        assert ("Here it learned from nothing." in card) == (tag == "licensed")
        assert bool(re.search(r"^\| chat_sft \| .*chats\S* +\| not known", card, re.MULTILINE)) == (tag == "further"), (
            card
        )
        assert "not recorded" not in card
    assert ends == [[2], [2, 0]]


@pytest.mark.parametrize("case", ["llama", "qwen2"])
def test_the_other_architectures_are_fine_tuned_and_go_out(home: Home, case: str) -> None:
    """In, a few steps, out: `transformers` computes the same with what was learned."""
    save_folder(case, home.folder / case)
    home.bring(case, f"--tag={case}").done()
    flags = (f"--mixture=json:{home.folder / 'chats.jsonl'}", "--no-warm-start", "--num-iterations=4")
    home.tune("scripts.chat_sft", "--source=sft", f"--model-tag={case}", f"--tag={case}-tuned", *flags)
    losses = home.losses(f"{case}-tuned")
    assert losses[-1] < losses[0]
    out = home.folder / f"{case}-tuned"
    said = home.run("tracks.export.export", "--source=sft", f"--tag={case}-tuned", f"--out={out}").done()
    assert "transformers gives the same ids" in said
    config = read_json(out / "config.json")
    assert config == read_json(home.folder / case / "config.json") | {"dtype": config["dtype"]}
    theirs, before = (
        AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32) for place in (out, home.folder / case)
    )
    learned = home.weights_of(f"{case}-tuned")
    ids = torch.arange(2, 300)[None]
    with torch.no_grad():
        model = model_of(open_source(str(out)))
        assert all(torch.equal(model.get_parameter(name), value.float()) for name, value in learned.items())
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
        assert (theirs(ids).logits - before(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "--from is missing: name a folder, a GGUF file, or hub:OWNER/NAME"),
        (("--from=/nowhere",), "--from=/nowhere is neither a folder nor a file; a model of the hub is hub:OWNER/NAME"),
        (("--from=/nowhere", "--context=1"), "--context has to be 16 or more, not 1"),
    ],
)
def test_a_place_has_to_be_named(home: Home, flags: tuple[str, ...], sentence: str) -> None:
    assert home.run("tracks.bases.bring", *flags, "--tag=none").refused() == sentence
    assert not (home.base / "chat_sft" / "none").exists()


def test_a_model_is_another_stage_on_another_day(home: Home) -> None:
    """The template is told the day of the tokenizer that the tag has already."""
    (home.folder / "dated.jinja").write_text("{{ strftime_now('%Y-%m-%d') }}" + CHATML)
    flags = ("--tag=dated", f"--template={home.folder}/dated.jinja")
    home.bring("qwen3", *flags).done()
    file = home.base / "tok_train" / "dated" / "tokenizer.json"
    first = Tokenizer.load(file)
    assert isinstance(first, PublicTokenizer)
    earlier = PublicTokenizer(replace(first.definition, day="2026-01-05"))
    earlier.save(file)
    home.bring("qwen3", *flags, "--source=base").done()
    assert newest_manifest(home.base / "base_train" / "dated")["tokenizer"]["hash"] == earlier.content_hash
    assert Tokenizer.load(file).content_hash == earlier.content_hash
    said = home.bring("qwen3", "--tag=dated", "--source=mid").refused()  # its own template is another one
    assert said.endswith("tok_train/dated/tokenizer.json is another tokenizer, use another --tag")


def test_half_a_character_leaves_no_run(home: Home) -> None:
    said = home.bring("qwen3", "--tag=half", '--template-values={"x": "\\ud800"}').refused()
    assert said.endswith("--template-values has half a character, which is no text: write the whole one")
    assert not list(home.base.glob("*/half*"))


def test_the_shortest_context(home: Home) -> None:
    """Question and answer fit into it."""
    home.bring("qwen3", "--tag=shortest", "--context=16").done()
    said = home.run("scripts.chat_cli", "--tag=shortest", "--prompt=x", "--max-new-tokens=1").done()
    assert said


def test_a_damaged_weight_leaves_no_run(home: Home, tmp_path: Path) -> None:
    """Weights are read last; the tag can be used again."""
    save_folder("llama", tmp_path)
    good = load_file(tmp_path / "model.safetensors")
    last = good["model.norm.weight"].clone().fill_(torch.inf)
    save_file(good | {"model.norm.weight": last}, tmp_path / "model.safetensors", {"format": "pt"})
    flags = (f"--from={tmp_path}", "--tag=damaged")
    told = home.run("tracks.bases.bring", *flags).refused()
    assert told == f"{tmp_path}: model.norm.weight has values that are not finite"
    assert not list(home.base.glob("*/damaged*"))
    save_file(good, tmp_path / "model.safetensors", {"format": "pt"})
    home.run("tracks.bases.bring", *flags).done()
    assert saved_steps(home.base / "chat_sft" / "damaged") == [0]
