"""A real night of the referee: edits without effect, and edits with a planted gain or harm. What does it answer?

    python -m bench.night --folder=FOLDER                                 20 edits that do nothing
    python -m bench.night --folder=FOLDER --edits=planted --scale=tiny   5 harms, and 5 gains

Each edit is made in a clone of the last commit, and asked about with `scripts.trial`, as an agent would. The same
command goes on where it was stopped. `--json=FILE` has a row for each answer.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.common import ROOT
from bench.findings import Findings, JsonFile
from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, print0, table_of, terminal_table
from nanochat.trial.answers import ANSWERS, STATUS
from nanochat.trial.ledger import read
from nanochat.trial.listing import listed
from nanochat.trial.settings import BudgetName, ScaleName
from nanochat.trial.sides import git


@dataclass(frozen=True)
class Edit:
    """A text of a file, and what replaces it."""

    name: str
    file: str
    old: str
    new: str


# The same computation. The first six leave every bit; the others round in another way, or draw other random numbers,
# as another seed would.
NO_OPS = (
    Edit("a comment", "nanochat/muon.py", "\n    rows = update.norm(", "\n    # Rows first.\n    rows = update.norm("),
    Edit("another docstring", "nanochat/gpt.py", '"""Return logits (B, T, vocab_size), or', '"""Logits, or'),
    Edit(
        "an argument by name",
        "nanochat/muon.py",
        "torch.baddbmm(x, left, right, beta=a)",
        "torch.baddbmm(input=x, batch1=left, batch2=right, beta=a)",
    ),
    Edit("a type is named", "nanochat/dataloader.py", "        marks = []\n", "        marks: list[Any] = []\n"),
    Edit("a sum turned round", "nanochat/gpt.py", "return x + self.mlp(norm(x))", "return self.mlp(norm(x)) + x"),
    Edit("a square as a product", "nanochat/muon.py", "damping.square()", "(damping * damping)"),
    Edit(
        "one fused sum",
        "nanochat/gpt.py",
        "x = x + layer.x0_lambda * layer.x0",
        "x = x.addcmul(layer.x0_lambda, layer.x0)",
    ),
    Edit(
        "a gate by tanh",
        "nanochat/gpt.py",
        "gate = 3 * torch.sigmoid(self.ve_gate(x[..., :VALUE_GATE_INPUTS]))",
        "gate = 1.5 + 1.5 * torch.tanh(0.5 * self.ve_gate(x[..., :VALUE_GATE_INPUTS]))",
    ),
    Edit(
        "a norm by hand",
        "nanochat/gpt.py",
        "return F.rms_norm(x, x.shape[-1:], eps=eps)",
        "return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)",
    ),
    Edit(
        "backout by addcmul",
        "nanochat/gpt.py",
        "return norm(x - factor.to(x.dtype) * middle)",
        "return norm(torch.addcmul(x, -factor.to(x.dtype), middle))",
    ),
    Edit(
        "rotation by fused products",
        "nanochat/attention.py",
        "a * self.cos - b * self.sin, b * self.cos + a * self.sin",
        "torch.addcmul(a * self.cos, b, self.sin, value=-1), torch.addcmul(b * self.cos, a, self.sin)",
    ),
    Edit(
        "momentum without lerp",
        "nanochat/muon.py",
        "return gradients.lerp(momenta, momentum)",
        "return gradients * (1 - momentum) + momenta * momentum",
    ),
    Edit(
        "three divisions",
        "nanochat/muon.py",
        "(update / (raised * whole * SAFETY))",
        "(update / raised / whole / SAFETY)",
    ),
    Edit(
        "polynomials in steps",
        "nanochat/muon.py",
        "torch.baddbmm(gram, gram, gram, beta=b, alpha=c)",
        "b * gram + c * (gram @ gram)",
    ),
    Edit(
        "one subtraction",
        "nanochat/muon.py",
        "values.mul_(1 - decay * shrinks).sub_(update)",
        "values.sub_(update + decay * shrinks * values)",
    ),
    Edit(
        "decay by a half angle",
        "nanochat/schedules.py",
        "0.5 * (1 + math.cos(math.pi * min(1.0, progress)))",
        "math.cos(math.pi / 2 * min(1.0, progress)) ** 2",
    ),
    Edit(
        "another interpolation",
        "nanochat/schedules.py",
        "return share * high + (1 - share) * low",
        "return low + share * (high - low)",
    ),
    Edit("other first weights", "nanochat/gpt.py", "zlib.crc32(", "zlib.adler32("),
    Edit("other order of documents", "nanochat/dataloader.py", "(self.seed, number))", "(self.seed + 1, number))"),
    Edit("both drawn anew", "nanochat/gpt.py", 'f"{seed} {name}"', 'f"{seed} {name} anew"'),
)

# What makes a model worse. dev/MEASURED.md has by how much.
HARMS = (
    Edit(
        "model: no value embeddings in attention",
        "nanochat/gpt.py",
        "gate = 3 * torch.sigmoid(",
        "gate = 0 * torch.sigmoid(",
    ),
    Edit(
        "model: MLPs write a tenth",
        "nanochat/gpt.py",
        "return x + self.mlp(norm(x))",
        "return x + 0.1 * self.mlp(norm(x))",
    ),
    Edit(
        "optimizer: one polynomial of Polar Express in place of five",
        "nanochat/muon.py",
        "for a, b, c in POLAR_EXPRESS:",
        "for a, b, c in POLAR_EXPRESS[:1]:",
    ),
    Edit(
        "optimizer: warmdown ends at 30 % of the run",
        "nanochat/schedules.py",
        "left = max(0.0, 1.0 - progress)",
        "left = max(0.0, 0.3 - progress)",
    ),
    Edit(
        "data: half of each batch twice",
        "nanochat/dataloader.py",
        "            yield batch, marks\n",
        "            yield torch.cat([batch[:, : batch.shape[1] // 2]] * 2, 1), marks\n",
    ),
)

AUTHOR = {f"GIT_{who}_{what}": "night" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@options("night")
class Config:
    """Ask the referee about edits whose effect is known."""

    folder: str = option("", "folder for the clone, the series and their runs")
    edits: Literal["no-op", "planted"] = option("no-op", "edits without effect, or with a gain or harm")
    scale: ScaleName = option("embedded", "that of scripts.trial")
    budget: BudgetName = option("flops", "that of scripts.trial")
    pairs: Count = option(2, "that of scripts.trial", least=1)
    unsafe_exec: bool = option(False, "that of scripts.trial")
    json: JsonFile = option(
        "", "also write the rows, machine, date and commit as JSON; without a file, print that alone"
    )


@dataclass(frozen=True)
class Asked:
    """A question: an edit, and the commit that it is made to."""

    name: str
    expected: str  # "nothing", "harm" or "gain"
    base: str  # commit
    edit: Edit


def main(config: Config) -> None:
    if not config.folder:
        raise UserError("name a folder for the clone and its runs with --folder=FOLDER")
    findings = Findings("night", config.json)
    folder = Path(config.folder).expanduser().resolve()
    clone = cloned(folder / "repository")
    answers = []
    for question in questions(clone, config.edits):
        make(clone, question)
        answers.append(describe(question, ask(clone, folder / "home", config, question)))
        print0(f"night: {question.name}: {ANSWERS[answers[-1]['answer']]}")
    findings.rows += answers
    commit = git(clone, "rev-parse", "--short", "as-it-is").strip()
    title = f"{config.edits}, scale {config.scale}, budget {config.budget}, pairs {config.pairs}"
    columns = "Edit | It is a | Answer | Gain:+.4f | Interval:.4f | Shown from:.4f | Reason"
    rows = [list((answer | {"answer": ANSWERS[answer["answer"]]}).values()) for answer in answers]
    print0(f"edits of commit {commit}", terminal_table(table_of(title, columns, rows)), "", sep="\n")
    right = sum(map(is_right, answers))
    kept = sum(answer["answer"] == "keep" for answer in answers)
    print0(f"{len(rows)} edits, {kept} kept; {right} answers are right, or the effect is below what was shown")
    for series in dict.fromkeys(answer["expected"] for answer in answers):
        told = listed(series, list(read(folder / "home/trial" / series / "trial.jsonl")))
        print0(f"{series}: {told['runs']} runs, {told['seconds'] / 60:.0f} minutes of training and scoring")
    findings.finish()


def cloned(clone: Path) -> Path:
    """Return a clone of the last commit; one that is there is used as it is."""
    if not (clone / ".git").exists():
        shutil.rmtree(clone, ignore_errors=True)
        git(ROOT, "clone", "--quiet", str(ROOT), str(clone))
        git(clone, "tag", "as-it-is")
    return clone


def questions(clone: Path, edits: str) -> list[Asked]:
    """Return the questions of a night."""
    if edits == "no-op":
        return [Asked(edit.name, "nothing", "as-it-is", edit) for edit in NO_OPS]
    if not git(clone, "tag", "--list", "flawed"):
        git(clone, "checkout", "--quiet", "--force", "as-it-is")
        for edit in HARMS:
            replace(clone, edit)
        git(clone, "commit", "--quiet", "--all", "--no-gpg-sign", "--message=five harms", variables=AUTHOR)
        git(clone, "tag", "flawed")
    mended = [Edit(edit.name, edit.file, edit.new, edit.old) for edit in HARMS]
    harms = [Asked(edit.name, "harm", "as-it-is", edit) for edit in HARMS]
    return harms + [Asked(edit.name, "gain", "flawed", edit) for edit in mended]


def replace(clone: Path, edit: Edit) -> None:
    path = clone / edit.file
    text = path.read_text(encoding="utf-8")
    if text.count(edit.old) != 1:
        raise UserError(f"{edit.file} has not exactly one {edit.old!r}: the edit {edit.name!r} is for other code")
    path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def make(clone: Path, question: Asked) -> None:
    """Leave the clone at the question's commit, with its edit not committed."""
    git(clone, "checkout", "--quiet", "--force", question.base)
    git(clone, "clean", "--quiet", "--force", "-d")
    replace(clone, question.edit)


def ask(clone: Path, home: Path, config: Config, question: Asked) -> Record:
    """Return the referee's answer: its JSON."""
    series = question.expected
    door = home / "trial" / series / "ask.py"
    flags = [f"--series={series}", f"--scale={config.scale}", f"--budget={config.budget}", f"--pairs={config.pairs}"]
    flags += ["--unsafe-exec"] if config.unsafe_exec else []
    program = ["-IB", str(door)] if door.exists() else ["-m", "scripts.trial"]
    about = os.environ | {"NANOCHAT_BASE_DIR": str(home), "PYTHONPATH": str(clone)}
    command = [sys.executable, *program, *flags, "--json"]
    done = subprocess.run(command, cwd=clone, env=about, stdout=subprocess.PIPE, encoding="utf-8")
    if done.returncode not in STATUS.values():
        raise UserError(f"the referee did not answer about {question.name!r} (exit status {done.returncode})")
    return json.loads(done.stdout)


def describe(question: Asked, answer: Record) -> Record:
    """Return a row of the table."""
    return {
        "edit": question.name,
        "expected": question.expected,
        "answer": answer["answer"],
        **{name: answer.get(name) for name in ("gain", "interval", "smallest", "reason")},
    }


def is_right(answer: Record) -> bool:
    """Say whether an answer is right: what is not distinguishable has to be below what the question shows.

    A run that fails, or is refused, says nothing of a planted effect.
    """
    if answer["expected"] == "nothing":
        return answer["answer"] != "keep"
    if answer["gain"] is None:
        return False
    if answer["answer"] == "undecided":
        return abs(answer["gain"]) < answer["smallest"]
    return (answer["answer"] == "keep") == (answer["expected"] == "gain")


if __name__ == "__main__":
    run_script(main)
