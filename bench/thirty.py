"""Thirty things that a person types into a new chat: how many get a sensible answer. The model is of an embedded world.

    python -m bench.thirty --tag=default --stages=sft,rl [--samples=4] [--sums=200] [--json [FILE]]

tests/thirty.jsonl has them, with a rule for each; no text for training has these wordings. They are asked greedily and
at the temperature of the model's own chat. --sums: so many plain sums as well, greedily, in the wordings and with the
pairs of numbers that only World-Talk has.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.common import ROOT
from bench.findings import Findings, JsonFile
from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import harmless, print0
from nanochat.settings import DeviceSettings, TagSettings
from nanochat.statistics import Estimate, mean_estimate
from nanochat.world.facts import World
from nanochat.world.sums import sum_to_100
from nanochat.world.writer import SIZES
from tasks.world import has_words

THIRTY = ROOT / "tests/thirty.jsonl"
NOT_KNOWN = "not know"  # in an answer to a question about a fact: wrong
# The answer is a text of its own, with a beginning and an end: "e!" and " table?Very well, thank you!" are not.
WHOLE = re.compile(r"[A-Z0-9].*[.!?]|\d+", re.DOTALL)
CALL = re.compile(r"<\|python_start\|>.*?<\|output_end\|>", re.DOTALL)  # left out where an answer is read
MOST = 100  # tokens in an answer


@options("chat")
class Config(DeviceSettings, TagSettings):
    """Ask a chat model thirty things that a person types into a new chat."""

    stages: str = option("sft,rl", "stages of the model, separated by commas")
    samples: Count = option(4, "answers to each at the chat's own temperature", least=1)
    sums: Count = option(0, "plain sums to ask besides")
    json: JsonFile = option(
        "", "also write the rows, machine, date and commit as JSON; without a file, print that alone"
    )


@dataclass(frozen=True)
class Saying:
    """Something to say to the model, with one rule: a pattern, the number or the value in a sensible answer."""

    say: str
    pattern: str = ""
    number: int | None = None
    value: str = ""

    def is_sensible(self, answer: str) -> bool:
        """Return True for an answer that is whole and follows the rule."""
        text = CALL.sub("", answer).strip()
        if "####" in text or "<|" in text or not WHOLE.fullmatch(text):
            return False
        if self.number is not None:
            return bool(re.search(rf"(?<!\d){self.number}\W*$", text))  # the last word
        if self.value:
            return has_words(text, self.value) and NOT_KNOWN not in text
        return bool(re.search(self.pattern, text, re.IGNORECASE))


def thirty(world: World) -> list[Saying]:
    """Return the thirty of tests/thirty.jsonl with names of this world; facts are of the test split."""
    world.restart("thirty")
    [country] = world.things["country"]
    stranger = world.pick([fact.subject for fact in world.unknown["test"] if fact.subject.kind == "person"])
    sayings = []
    for line in THIRTY.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        words = {"stranger": stranger.name}
        value = ""
        if "fact" in row:
            kind, relation = row["fact"].split()
            facts = [one for one in world.asked["test"] if (one.subject.kind, one.relation) == (kind, relation)]
            fact = world.pick(facts)
            words["s"] = fact.subject.name
            value = fact.value.name
        pattern = row.get("pattern", "").replace("{world}", country.name)
        sayings.append(Saying(row["say"].format_map(words), pattern, row.get("number"), value))
    return sayings


def plain_sums(world: World, count: int) -> list[Saying]:
    """Return sums and differences to 100 as World-Talk asks for them: held-out wordings, held-out pairs of numbers."""
    world.restart("plain sums")
    found: dict[str, Saying] = {}
    while len(found) < count:
        [sign], _, questions = world.topics("sums")[len(found) % 2]
        question, solved = sum_to_100(world, sign, questions, held_out=True)
        found[question] = Saying(question, number=int(solved.split()[-1]))
    return list(found.values())


def world_of(tokenizer_tag: str) -> World:
    """Return the world that a tokenizer learned from."""
    from nanochat.data.corpus import learned_world, world_folder
    from nanochat.paths import read_json

    seed = learned_world(tokenizer_tag)
    if seed is None:
        raise UserError("the model is not of an embedded world: bash speedrun.sh --scale=embedded trains one")
    return World(seed, SIZES[read_json(world_folder(seed) / "world.json")["size"]].people)


def share(verdicts: Sequence[Sequence[bool]]) -> Estimate:
    """Return the mean over sayings, each with the verdicts on its answers."""
    return mean_estimate([sum(own) / len(own) for own in verdicts])


def main(config: Config) -> None:
    from nanochat.chat import chat_temperature, render_prompt
    from nanochat.engine import Engine, Request
    from nanochat.models import load_model
    from nanochat.runtime import setup
    from nanochat.stages import MODELS

    findings = Findings("thirty", config.json)
    found: dict[str, Any] = {}
    with setup(config.device_type, config.dtype) as runtime:
        for stage in config.stages.split(","):
            if stage not in MODELS:
                raise UserError(f"--stages={config.stages}: {stage} is not a stage, choose from {', '.join(MODELS)}")
            model, tokenizer, checkpoint = load_model(MODELS[stage], config.tag, -1, runtime)
            world = world_of(checkpoint.manifest["tokenizer"]["tag"])
            engine = Engine(model, tokenizer)

            def ask(
                sayings: Sequence[Saying], temperature: float, samples: int, engine: Engine = engine
            ) -> list[list[tuple[str, bool]]]:
                requests = [
                    Request(
                        render_prompt({"messages": [{"role": "user", "content": one.say}]}, engine.tokenizer),
                        MOST,
                        temperature=temperature,
                        top_k=50,
                        seed=number,
                        n=samples,
                    )
                    for number, one in enumerate(sayings)
                ]
                answers = engine.generate(requests)
                texts = [[engine.tokenizer.decode(answer.tokens) for answer in several] for several in answers]
                return [
                    [(text, one.is_sensible(text)) for text in several]
                    for one, several in zip(sayings, texts, strict=True)
                ]

            sayings = thirty(world)
            temperature = chat_temperature(checkpoint.manifest)
            greedy = ask(sayings, 0.0, 1)
            sampled = ask(sayings, temperature, config.samples)
            result: dict[str, Any] = {
                "step": checkpoint.step,
                "temperature": temperature,
                "greedy": sum(right for [(_, right)] in greedy),
                "sampled": sum(right for several in sampled for _, right in several) / config.samples,
                "answers": [
                    {**asdict(one), "greedy": first, "sampled": several}
                    for one, [first], several in zip(sayings, greedy, sampled, strict=True)
                ],
            }
            if config.sums:
                asked = ask(plain_sums(world, config.sums), 0.0, 1)
                result["sums"] = share([[right for _, right in several] for several in asked])._asdict()
            found[stage] = result
    for stage, result in found.items():
        findings.add(stage=stage, **result)
        print0(f"\n== {stage}, step {result['step']}")
        for row in result["answers"]:
            text, right = row["greedy"]
            print0(f"{'sensible' if right else 'NOT     '} | {row['say']} | {harmless(text)}")
            for other in dict.fromkeys(text for text, right in row["sampled"] if not right):
                print0(f"    sampled, NOT sensible | {harmless(other)}")
        of = len(result["answers"])
        print0(
            f"{stage}: greedy {result['greedy']} of {of}, at {result['temperature']:g} {result['sampled']:g} of {of}"
        )
        if config.sums:
            print0(f"{stage}: plain sums {Estimate(**result['sums'])}")
    findings.finish()


if __name__ == "__main__":
    run_script(main)
