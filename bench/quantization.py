"""The cost of quantization in bits per byte: recipes, GPTQ and quantization-aware training (QAT), over seeds.

    python -m bench.quantization --tags a-1 a-2 a-3 [--qat b-1 b-2 b-3] [--clip 16]

--bytes: of validation text. --qat: models with QAT at the end of training (tracks.golf.train --qat=int6-row).
A gap is the score minus that of the model's own weights in fp32, on the same rows; ± is the standard error over seeds.
Rows with a clip take the finest codes in the bytes of another row, half as coarse in the embedding as in the blocks.
They have 8 bits before compression: the step between codes decides the bytes, and with 6 bits so fine a step would cut
off the largest weights.
"""

import statistics
from functools import partial
from typing import TYPE_CHECKING

from bench.common import parser_of
from bench.findings import Findings
from nanochat.log import table_of
from nanochat.statistics import mean_estimate

# Others are imported where they are used: they import torch, and --help does not wait for that.
if TYPE_CHECKING:
    from nanochat.gpt import GPT
    from nanochat.runtime import Runtime
    from tracks.golf.pack import Packed


class Subject:
    """A trained model with the text that measures it."""

    def __init__(self, tag: str, runtime: "Runtime", size: int) -> None:
        from nanochat import quant
        from nanochat.data.corpus import open_corpus
        from nanochat.evals.bpb import read_text
        from nanochat.models import load_model
        from tracks.golf.pack import calibration_batches

        self.model, self.tokenizer, checkpoint = load_model("base_train", tag, -1, runtime)
        self.runtime = runtime
        corpus = open_corpus(checkpoint.manifest["config"]["data"])
        self.text = read_text(corpus.batches("val"), self.tokenizer, size)
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.hessians = quant.collect_hessians(self.model, calibration_batches(checkpoint, self.model))
        self.score = self.measure(self.model)

    def measure(self, model: "GPT"):
        from nanochat.evals.bpb import text_bpb

        return text_bpb(model, self.text, model.config.max_seq_len, 8, self.runtime).value

    def pack(self, plan: str, factor: float = 1.0):
        from nanochat import quant
        from tracks.golf.pack import pack_scaled

        recipes = quant.assign(plan, quant.matrices(self.model))
        return pack_scaled(self.model, self.tokenizer, recipes, self.hessians, factor)

    def gap(self, packed: "Packed"):
        """Return the score of a file, minus that of the weights in fp32."""
        from tracks.golf.artifact import read_artifact

        self.model.load_state_dict(read_artifact(packed[1]).weights)
        score = self.measure(self.model)
        self.model.load_state_dict(self.weights)
        return score - self.score

    def finest(self, plan: str, room: int):
        """Return the finest codes that fit into `room` bytes of model; all matrices have a clip."""
        from nanochat import quant
        from tracks.golf.pack import fill_room

        codes = sum(matrix.numel() for matrix in quant.matrices(self.model).values())
        return fill_room(partial(self.pack, plan), room, codes)


def main() -> None:
    parser = parser_of("quantization", __doc__, bytes=300_000)
    parser.add_argument("--tags", nargs="+", required=True, help="base models, one for each seed")
    parser.add_argument("--qat", nargs="*", default=[], help="base models trained with QAT at the end")
    parser.add_argument("--clip", type=float, default=16, help="first clip of the rows with one, in deviations")
    options = parser.parse_args()
    findings = Findings("quantization", options.json)
    from nanochat.runtime import setup

    gaps = {}
    sizes = {}

    def note(name: str, subject: Subject, packed: "Packed") -> None:
        gaps.setdefault(name, []).append(subject.gap(packed))
        sizes.setdefault(name, []).append(packed[0])

    with setup("cpu", "fp32") as runtime:
        scores = []
        for tag in options.tags:
            subject = Subject(tag, runtime, options.bytes)
            scores.append(subject.score)
            for plan in ("int8-row", "int6-row", "int5-row"):
                note(plan, subject, subject.pack(plan))
            for bits in ("int6-row", "int5-row"):
                room = sizes[bits][-1]
                embed, blocks = (f"int8-row+clip-{clip:g}" for clip in (options.clip / 2, options.clip))
                note(f"clip, bytes of {bits}", subject, subject.finest(f"embed={embed},blocks|head={blocks}", room))
                plan = f"embed={embed},blocks|head={blocks}+gptq"
                note(f"clip and gptq, bytes of {bits}", subject, subject.finest(plan, room))
        for tag in options.qat:
            subject = Subject(tag, runtime, options.bytes)
            note("int6-row after QAT", subject, subject.pack("int6-row"))
    print(f"fp32: {statistics.fmean(scores):.4f} bits per byte, {len(scores)} seeds")
    rows = [[name, *mean_estimate(found), statistics.fmean(sizes[name])] for name, found in gaps.items()]
    findings.show(table_of("", "Recipe | Gap:+.5f | ±:.5f | Bytes:,.0f", rows))
    findings.finish()


if __name__ == "__main__":
    main()
