"""Public models beside `transformers`: logits, gradients, tokens, chats, decisions, memory, speed.

    python -m bench.bases --model=PLACE [--only logits greedy …] [--peers FOLDER]
    python -m bench.bases --random llama qwen2 qwen3 gemma3

A place is a folder or a GGUF file, as tracks.bases.bring reads it; random models are tiny ones of the tests, without
figures of speed and memory. The peer is the model that `transformers` makes of the same files, in fp32 on a CPU. It
needs accelerate to read GGUF files, as lm_eval does; a folder in which pip has put that (`pip install --target`) is
given as --peers. The exit status is 1 if a goal is missed.
"""

import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.common import parser_of
from bench.findings import Findings
from nanochat.log import table_of

TEXTS = 100
LONGEST = 1024  # tokens of a text
STRINGS = 10_000
CHATS = 500
PROMPTS = 200
NEW = 64  # greedy tokens of each
ITEMS = 200  # of each task
TASKS = ("ARC-Easy", "PIQA", "HellaSwag")
BUNDLE_NAMES = {"ARC-Easy": "arc_easy", "PIQA": "piqa", "HellaSwag": "hellaswag"}
# Goals.
CLOSE = 1e-4  # of the range of logits, and of loss and gradients
FASTER_ANSWERS = 3.0
MEMORY = 1.3  # times the weights in fp32


class Pair:
    """The same model here and in `transformers`, and their tokenizers."""

    def __init__(self, place: str, context: int, is_random: bool = False) -> None:
        import torch
        import transformers

        from nanochat.models import new_model
        from tracks.bases.sources import open_source
        from tracks.bases.tokenizer import PublicTokenizer
        from tracks.bases.weights import weights_of

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        path = Path(place)
        where = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        self.theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **where).eval()
        # AutoTokenizer has a class for Qwen2 that splits as Qwen2's own vocabulary does, whatever tokenizer.json says.
        tokenizers = transformers.PreTrainedTokenizerFast if is_random else transformers.AutoTokenizer
        self.their_tokenizer = tokenizers.from_pretrained(folder, **where)
        self.source = open_source(place, context)
        self.tokenizer = PublicTokenizer(self.source.definition)
        self.ours: Any = new_model(self.source.config).to_empty(device="cpu")
        self.ours.load_state_dict(weights_of(self.source))
        self.ours.eval()
        # Where a GGUF file says how digits are split, and `transformers` passes over it.
        if path.is_file():
            from tokenizers import Tokenizer

            backend = Tokenizer.from_str(self.source.definition.tokenizer)
            self.their_tokenizer.backend_tokenizer.pre_tokenizer = backend.pre_tokenizer


def some_texts(count: int, seed: int = 1) -> list[str]:
    """Return texts of random pieces: many scripts, code, emoji, blanks, bytes that are not UTF-8."""
    from tracks.export.tokenizers import PIECES

    dice = random.Random(seed)
    broken = [b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98"]
    pieces = [*PIECES, *(data.decode(errors="replace") for data in broken)]
    return ["".join(dice.choices(pieces, k=dice.randint(1, 30))) for _ in range(count)]


def prose(pair: Pair, count: int, longest: int) -> list[list[int]]:
    """Return token rows of up to so many tokens, of text that the model may know: the texts of tasks."""
    from tasks import open_tasks

    task = open_tasks("GSM8K")["GSM8K"]
    dice = random.Random(2)
    rows = []
    for _ in range(count):
        length = dice.randint(2, longest)
        ids: list[int] = list(pair.tokenizer.prefix)
        while len(ids) < length:
            message = task[dice.randrange(len(task))]["messages"][0]["content"]
            ids += pair.tokenizer.encode(f"{message}\n")
        rows.append(ids[:length])
    return rows


Row = tuple[str, str, str, bool]  # what, found, goal, reached


# ---- equality ----


def largest(differences: Sequence[float]) -> float:
    """Return the largest difference; not a number if one is none, which max would leave out."""
    return max(differences) if all(map(math.isfinite, differences)) else math.nan


def logits(pair: Pair) -> Iterator[Row]:
    import torch

    differences = []
    with torch.no_grad():
        for row in prose(pair, TEXTS, LONGEST):
            ids = torch.tensor([row])
            expected = pair.theirs(ids).logits
            difference = (pair.ours(ids) - expected).abs().max() / (expected.max() - expected.min())
            differences.append(float(difference))
    worst = largest(differences)
    yield (
        f"logits, {TEXTS} texts of up to {LONGEST:,} tokens",
        f"{worst:.1e} of their range",
        f"{CLOSE}",
        worst <= CLOSE,
    )


def gradients(pair: Pair) -> Iterator[Row]:
    """Their loss takes the softmax in fp32, which is less exact than ours: so it is also taken in fp64."""
    import torch
    import torch.nn.functional as F

    from tracks.bases.families import names_of

    [row] = prose(pair, 1, 256)
    ids = torch.tensor([row])
    loss = pair.ours(ids[:, :-1], ids[:, 1:]) / (len(row) - 1)
    loss.backward()
    exact = F.cross_entropy(pair.theirs(ids).logits[0, :-1].double(), ids[0, 1:])
    relative = abs(float(loss.detach()) / float(exact.detach()) - 1)
    yield "loss of a training step", f"{relative:.1e}", f"{CLOSE}", relative <= CLOSE
    for name, expected in (("", exact), ("; their own loss, in fp32", pair.theirs(ids, labels=ids).loss)):
        pair.theirs.zero_grad(set_to_none=True)
        expected.backward()
        named = dict(pair.theirs.named_parameters())
        differences, norms = [], []
        for names in names_of(pair.source.config):
            gradient = named[names.theirs].grad
            differences.append(float((pair.ours.get_parameter(names.ours).grad[: len(gradient)] - gradient).norm()))
            norms.append(float(gradient.norm()))
        worst = largest([difference / norm for difference, norm in zip(differences, norms, strict=True)])
        whole = math.hypot(*differences) / math.hypot(*norms)
        goal = "" if name else f"{CLOSE}"
        yield (
            f"gradients together, and the worst tensor{name}",
            f"{whole:.1e}, {worst:.1e}",
            goal,
            not goal or (worst <= CLOSE),
        )
    pair.ours.zero_grad(set_to_none=True)
    pair.theirs.zero_grad(set_to_none=True)


def greedy(pair: Pair) -> Iterator[Row]:
    import torch

    from nanochat.engine import Engine, Request

    rows = prose(pair, PROMPTS, 96)
    requests = [Request(row, NEW, temperature=0.0, stop=frozenset()) for row in rows]
    pair.theirs.generation_config.eos_token_id = None
    expected = []
    for row in rows:
        ids = torch.tensor([row])
        found = pair.theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
        expected.append(found[0, len(row) :].tolist())
    for name, slots in (("alone", 1), ("batched with other lengths", 32)):
        found = [one.tokens for [one] in Engine(pair.ours, pair.tokenizer, slots=slots).generate(requests)]
        unequal = [number for number in range(PROMPTS) if found[number] != expected[number]]
        ties = sum(_is_tie(pair, rows[number], found[number], expected[number]) for number in unequal)
        told = f"{PROMPTS - len(unequal)} of {PROMPTS}, {ties} ties"
        yield f"{NEW} greedy tokens, {name}", told, "equal but for ties", len(unequal) == ties


def _is_tie(pair: Pair, prompt: list[int], ours: list[int], theirs: list[int]) -> bool:
    """Return True if the two likeliest tokens, where they part, are as close as rounding."""
    import torch

    place = next(number for number in range(NEW) if ours[number] != theirs[number])
    with torch.no_grad():
        last = pair.theirs(torch.tensor([prompt + theirs[:place]])).logits[0, -1]
    spread = float(last.max() - last.min())
    return abs(float(last[ours[place]] - last[theirs[place]])) <= CLOSE * spread


def tokens(pair: Pair) -> Iterator[Row]:
    texts = some_texts(STRINGS)
    equal = sum(
        pair.tokenizer.encode(text)
        == pair.their_tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        for text in texts
    )
    yield f"token ids of {STRINGS:,} strings", f"{equal:,} equal", "all", equal == STRINGS


def template(pair: Pair) -> Iterator[Row]:
    from nanochat.chat import render_conversation

    source = pair.source.definition.template
    dice = random.Random(3)
    texts = some_texts(2000, seed=4)
    tool = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}
    equal = refused = 0
    for number in range(CHATS):
        roles = ["system"] * (number % 2) + ["user", "assistant"] * dice.randint(1, 4)
        messages = [{"role": role, "content": dice.choice(texts)} for role in roles]
        tools = [tool] if number % 3 == 0 else None
        conversation: Any = {"messages": messages, **({"tools": tools} if tools else {})}
        try:
            expected = pair.their_tokenizer.apply_chat_template(messages, tools, chat_template=source)["input_ids"]
        except Exception:  # the template's own words
            refused += 1
            continue
        equal += render_conversation(conversation, pair.tokenizer)[0] == expected
    told = f"{equal} equal" + (f", {refused} refused by the template" if refused else "")
    yield f"chat template, {CHATS} conversations", told, "all", equal + refused == CHATS and equal > refused


def decisions(pair: Pair) -> Iterator[Row]:
    """lm_eval's model for `transformers`, and our CORE, on the same prompts without examples.

    Both score the tokens behind those that all texts share: how lm_eval parts a prompt itself is not compared.
    """
    from dataclasses import replace

    from lm_eval.models.huggingface import HFLM

    from nanochat.evals.core import evaluate_core
    from nanochat.evals.core_tasks import read_bundle
    from nanochat.paths import read_jsonl
    from nanochat.runtime import setup

    harness = HFLM(pretrained=pair.theirs, tokenizer=pair.their_tokenizer, batch_size=8)
    bundle = {task.label: task for task in read_bundle()}
    for name in TASKS:
        task = replace(bundle[BUNDLE_NAMES[name]], shots=0)
        with tempfile.TemporaryDirectory() as folder, setup("cpu", "fp32") as runtime:
            evaluate_core(pair.ours, pair.tokenizer, [task], runtime, ITEMS, Path(folder))
            ours = list(read_jsonl(Path(folder, f"{task.label}.jsonl"), dict))
        items = task.items(0)
        equal = sum(_their_choice(harness, task.prompts(items, one["item"])) == one.get("chosen") for one in ours)
        yield (
            f"decisions of lm_eval's model and of CORE, {name}",
            f"{equal} of {len(ours)} equal",
            "all",
            equal == len(ours),
        )


def _their_choice(harness: Any, texts: list[str]) -> int:
    """Return the option that lm_eval's model finds likeliest a token, after the tokens that all texts begin with."""
    rows = [harness.tok_encode(text) for text in texts]
    columns = enumerate(zip(*rows, strict=False))
    shared = next((place for place, column in columns if len(set(column)) > 1), min(map(len, rows)))
    parts = [(("", ""), row[:shared], row[shared:]) for row in rows]
    # An option that says nothing further has no likelihood; CORE chooses it if it comes first.
    sums = iter(harness._loglikelihood_tokens([part for part in parts if part[2]], disable_tqdm=True))
    losses = [-next(sums)[0] / len(more) if more else math.nan for _, _, more in parts]
    return losses.index(min(losses))


def export(pair: Pair) -> Iterator[Row]:
    from tracks.bases.export import write_folder
    from tracks.bases.families import FAMILIES

    public = {
        "architecture": FAMILIES[pair.source.config.family].architecture,
        "from": pair.source.place,
        "config": pair.source.settings,
        "generation": pair.source.generation,
        "licence": pair.source.licence,
        "files": pair.source.hashes(),
    }
    with tempfile.TemporaryDirectory() as folder:
        manifest = {"stage": "base_train", "step": 0, "public": public}
        checks = write_folder(pair.ours, pair.tokenizer, manifest, Path(folder))
    for check in checks:
        yield "export, loaded again", check, "equal", "but by" not in check


# ---- speed and memory ----


def _rates(runs: dict[str, Callable[[], int]], repeats: int = 5) -> dict[str, float]:
    """Return the median rate of each in turn; a run returns a count."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(repeats + 1):  # the first warms up
        for name, run in runs.items():
            start = time.perf_counter()
            count = run()
            if number:
                found[name].append(count / (time.perf_counter() - start))
    return {name: statistics.median(rates) for name, rates in found.items()}


def generate(pair: Pair) -> Iterator[Row]:
    import torch

    from nanochat.engine import Engine, Request
    from nanochat.runtime import DTYPES, setup

    rows = [row[:48] for row in prose(pair, 64, 96) if len(row) >= 48][:16]
    ids = torch.tensor(rows)
    pair.theirs.generation_config.eos_token_id = None

    def ours(dtype: torch.dtype) -> Callable[[], int]:
        pair.ours.compute_dtype = dtype
        engine = Engine(pair.ours, pair.tokenizer, slots=16)
        pair.ours.compute_dtype = torch.float32
        requests = [Request(row, NEW, temperature=0.0, stop=frozenset()) for row in rows]
        return lambda: sum(len(one.tokens) for [one] in engine.generate(requests))

    def theirs() -> int:
        with torch.inference_mode():
            found = pair.theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
        return found.shape[0] * (found.shape[1] - ids.shape[1])

    # bf16 where a run takes it by itself: elsewhere a CPU imitates it, at a third of the speed.
    with setup("cpu") as runtime:
        names = dict.fromkeys(["fp32", runtime.dtype_name])
    rates = _rates({**{name: ours(DTYPES[name]) for name in names}, "generate": theirs})
    for name in names:
        ratio = rates[name] / rates["generate"]
        told = f"{rates[name]:,.0f} tokens/s, {ratio:.2f} x generate's {rates['generate']:,.0f} in fp32"
        yield f"{NEW} tokens for 16 prompts, {name}", told, f"{FASTER_ANSWERS} x", ratio >= FASTER_ANSWERS


def memory(place: str) -> Row:
    """Return the peak of a process that brings the model in, beside one that imports the same code."""
    code = "import sys, resource; from tracks.bases.bring import *; import tracks.bases.weights, nanochat.train, "
    code += "tracks.export.from_hf; main(Config(from_=sys.argv[1], tag='memory')) if sys.argv[1] else None; "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for argument in ("", place):
            done = subprocess.run(
                [sys.executable, "-c", code, argument],
                env={**os.environ, "NANOCHAT_BASE_DIR": folder},
                check=True,
                capture_output=True,
                text=True,
            )
            peaks.append(int(done.stdout.split()[-1]))
        stored = sum(path.stat().st_size for path in Path(folder).rglob("model.safetensors"))
    taken = (peaks[1] - peaks[0]) / stored
    told = f"{taken:.2f} x the weights ({stored / 1e6:,.0f} MB), beside {peaks[0] / 1e6:,.0f} MB of code"
    return "memory while loading", told, f"{MEMORY} x", taken <= MEMORY


PARTS: dict[str, Callable[[Pair], Iterator[Row]]] = {
    "logits": logits,
    "gradients": gradients,
    "greedy": greedy,
    "tokens": tokens,
    "template": template,
    "decisions": decisions,
    "export": export,
    "generate": generate,
}


RANDOM_MODELS = ("llama", "qwen2", "qwen3", "gemma3")  # cases of the tests
OF_RANDOM = [name for name in PARTS if name != "generate"]  # parts that say something about random weights


def compared(place: str, context: int, only: list[str], name: str = "") -> list[Row]:
    """Return the rows of these parts, each shown as soon as it is found. name: of a random model, before each."""
    pair = Pair(place, context, bool(name))
    rows = []
    for part in only:
        for what, *rest in PARTS[part](pair):
            rows.append((f"{name}{what}", *rest))
            print(*rows[-1][:3], sep=" | ", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = parser_of("bases", __doc__)
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument("--model", default="", help="folder or GGUF file")
    models.add_argument(
        "--random", nargs="+", choices=RANDOM_MODELS, default=[], help="tiny models with random weights"
    )
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--peers", default="", help="folder with packages: accelerate, trl and what they need")
    parser.add_argument("--only", nargs="*", choices=[*PARTS, "memory"], default=[*PARTS, "memory"])
    options = parser.parse_args()
    if options.peers:
        sys.path.append(options.peers)
    of_random = [name for name in OF_RANDOM if name in options.only]
    if options.random and not of_random:
        parser.error(f"--random is for --only {' '.join(OF_RANDOM)}")
    findings = Findings("bases", options.json)
    rows: list[Row] = []
    for case in options.random:
        from tracks.bases.tests.public_models import save_folder

        with tempfile.TemporaryDirectory() as folder:
            save_folder(case, Path(folder), max_position_embeddings=options.context)
            rows += compared(folder, options.context, of_random, f"{case}: ")
    if options.model and "memory" in options.only:
        rows.append(memory(options.model))
    if options.model and set(options.only) & set(PARTS):
        rows += compared(options.model, options.context, [name for name in PARTS if name in options.only])
    findings.show(
        table_of("", "What | Found | Goal | Reached", [[*row[:3], "yes" if row[3] else "no"] for row in rows])
    )
    for what, found, goal, reached in rows:
        findings.add(what=what, found=found, goal=goal, reached=reached)
    findings.finish()
    sys.exit(0 if all(row[3] for row in rows) else 1)


if __name__ == "__main__":
    main()
