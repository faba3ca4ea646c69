"""The cost of quantization in bits per byte: recipes on base models, one for each seed, with GPTQ and late training.

    python -m bench.quantization --tags a-1 a-2 a-3 [--late b-1 b-2 b-3] [--clip 30]

--late: models of the same seeds with fake quantization at the end of training (scripts.golf_train --qat=int6-row).
A gap is the score minus that of the model's own weights in fp32, on the same rows; ± is the standard error over seeds.
The row with GPTQ takes the finest clip whose file is no larger than that of int6-row.
"""

import argparse
import statistics

import pyarrow as pa

from nanochat import quant
from nanochat.artifact import read_artifact, write_artifact
from nanochat.checkpoint import load_model
from nanochat.evals.bpb import bits_per_byte, read_text
from nanochat.gpt import GPT
from nanochat.lab.golf import validation_documents
from nanochat.runtime import Runtime, setup
from scripts.golf_pack import calibration_batches, vocabulary_of, without_defaults

ROUNDS = 6  # of the search for a clip


class Subject:
    """A trained model with the text that measures it."""

    def __init__(self, tag: str, runtime: Runtime, size: int):
        self.model, self.tokenizer, checkpoint = load_model("base_train", tag, -1, runtime)
        self.runtime = runtime
        documents = validation_documents(checkpoint.manifest["config"]["data"], size)
        self.text = read_text([pa.array(documents)], self.tokenizer, size)
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.hessians = quant.collect_hessians(self.model, calibration_batches(checkpoint, self.model, 65536))
        self.score = self.measure(self.model)

    def measure(self, model: GPT) -> float:
        return bits_per_byte(model, self.text, model.config.max_seq_len, 8, self.runtime).value

    def pack(self, plan: str) -> bytes:
        recipes = quant.assign(plan, quant.matrices(self.model))
        stored = quant.quantize_weights(self.weights, recipes, self.hessians)
        return write_artifact(without_defaults(self.model), stored, vocabulary_of(self.tokenizer), recipes)

    def gap(self, data: bytes) -> float:
        """Return the score of a file, minus that of the weights in fp32."""
        self.model.load_state_dict(read_artifact(data).weights)
        score = self.measure(self.model)
        self.model.load_state_dict(self.weights)
        return score - self.score

    def finest(self, plan: str, room: int) -> bytes:
        """Return the file with the smallest factor for the plan's clips that is no larger than `room`."""
        low, high = 0.1, 1.0
        for _ in range(ROUNDS):
            factor = (low * high) ** 0.5
            if len(self.pack(quant.scale_clip(plan, factor))) <= room:
                high = factor
            else:
                low = factor
        return self.pack(quant.scale_clip(plan, high))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quantization", description=__doc__.splitlines()[0])
    parser.add_argument("--tags", nargs="+", required=True, help="base models, one for each seed")
    parser.add_argument("--late", nargs="*", default=[], help="the same, trained with fake quantization at the end")
    parser.add_argument("--clip", type=float, default=30, help="the largest clip of the row with GPTQ, in deviations")
    parser.add_argument("--bytes", type=int, default=300_000, help="of validation text")
    options = parser.parse_args()
    gaps, sizes = {}, {}

    def note(name: str, subject: Subject, data: bytes) -> None:
        gaps.setdefault(name, []).append(subject.gap(data))
        sizes.setdefault(name, []).append(len(data))

    with setup("cpu", "fp32") as runtime:
        scores = []
        for tag in options.tags:
            subject = Subject(tag, runtime, options.bytes)
            scores.append(subject.score)
            for plan in ("int8-row", "int6-row", "int5-row"):
                note(plan, subject, subject.pack(plan))
            room = sizes["int6-row"][-1]
            clip = f"int6-row+clip-{options.clip:g}"
            note("int6-row, clip, same bytes", subject, subject.finest(clip, room))
            note(
                "int6-row, clip and gptq, same bytes",
                subject,
                subject.finest(f"embed={clip},blocks|head={clip}+gptq", room),
            )
        late = []
        for tag, score in zip(options.late, scores, strict=False):
            subject = Subject(tag, runtime, options.bytes)
            note("int6-row after late training", subject, subject.pack("int6-row"))
            late.append(gaps["int6-row after late training"][-1] + subject.score - score)
        if late:
            gaps["the same, against the weights of training without it"] = late
            sizes["the same, against the weights of training without it"] = sizes["int6-row after late training"]
    print(f"fp32: {statistics.fmean(scores):.4f} bits per byte, {len(scores)} seeds")
    print(f"{'recipe':52}{'gap':>10}{'±':>10}{'bytes':>12}")
    for name, found in gaps.items():
        error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
        print(f"{name:52}{statistics.fmean(found):>+10.5f}{error:>10.5f}{statistics.fmean(sizes[name]):>12,.0f}")


if __name__ == "__main__":
    main()
