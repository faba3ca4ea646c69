"""A trial: a question about two versions of the code, and its answer.

The runs of both sides are trained and scored here, as the plan of `decision` asks for them. Each has its line in the
ledger, so that a question that was stopped goes on.
"""

import dataclasses
import json
import math
import platform
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from nanochat.cores import own_cores, processor, usable_cores
from nanochat.environment import torch_build
from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.log import Record, print_line
from nanochat.paths import hold_folder, text_sha256
from nanochat.trial import arena, decision
from nanochat.trial.answers import STATUS, answer_lines, tell
from nanochat.trial.arena import TIMES, Failure, Killed
from nanochat.trial.bounds import more_cores, over_budget, scored_longer, work_of
from nanochat.trial.decision import Answer, Noise, Part, Verdict
from nanochat.trial.listing import length_words
from nanochat.trial.scorer import Refused
from nanochat.trial.scoring import again_words, count_of, patience_of, scored
from nanochat.trial.series import Question, Series, asked_root, faults_decide_nothing, open_series, series_folder
from nanochat.trial.sides import (
    Side,
    changed_files,
    check_files,
    check_flags,
    check_incumbent,
    check_unchanged,
    commit_of,
    committed,
    working_tree,
)

FIRST_BYTES = 10**8  # of the files of a run, as long as none is known
LARGER = 3.0  # times the bytes of the incumbent's files: a checkpoint that carries something else
AGAIN = "-again"  # end of the key of a run that repeats another one
# Files of the code that decide how much a run trains: a little more passes the bounds on time.
LENGTH = ("nanochat/scaling.py", "nanochat/train.py", "nanochat/run.py", "scripts/base_train.py")
# What follows from a run's seed.
SEEDED = {"weights": "weights at the end", "initial": "first weights", "rows": "first rows of text"}


def run_trial(question: Question) -> int:
    """Answer a question, print the answer, and return the exit status: 0 keep, 10 discard, 11 undecided."""
    sandbox.require(question.unsafe)
    folder = series_folder(question.series)
    with hold_folder(folder, "--series"), faults_decide_nothing(folder):
        series = open_series(folder)
        try:
            record = Trial(series, question, asked_root()).record()
        except Refused as refused:  # a flag that is not the candidate's to set
            asked = {"candidate": question.candidate, "flags": question.flags, "number": 0}
            record = series.ledger.add("trial", name="", **asked, answer="discard", reason=str(refused))
        told = {name: value for name, value in record.items() if name != "previous"}
        tell(told, answer_lines(told), question.json)
    return STATUS[record["answer"]]


class Trial:
    """A question, while it is being answered."""

    def __init__(self, series: Series, question: Question, root: Path) -> None:
        self.series = series
        self.question = question
        self.machine = machine_name()
        self.incumbent = self._incumbent(root)
        check_incumbent(self.incumbent, self._referee)
        self.candidate = self._candidate(root)
        if self.incumbent.key == self.candidate.key:
            raise UserError("the candidate is the incumbent: change the code, or name another --candidate")
        # A question that was not answered yet goes on under its number.
        words = [self.incumbent.key, self.candidate.key, *map(str, dataclasses.astuple(question.plan))]
        self.name = text_sha256(json.dumps(words))[:16]
        asked = [record["name"] for record in series.ledger.of_kind("asked")]
        if self.name not in asked:
            self._check_flags()
            series.ledger.add("asked", name=self.name, **self._sides(), diff=self.candidate.diff, time=time.time())
            asked.append(self.name)
        self.number = 1 + asked.index(self.name)

    def _check_flags(self) -> None:
        """Raise a UserError for flags that the incumbent's code cannot plan a run by: nothing is spent for that."""
        scale, fixed = self.series.scale, self.series.fixed
        asked = []
        if self.question.flags:  # also at the second depth, where the incumbent would fail at the end
            asked += product([self.incumbent.flags], scale.depths if self.question.plan.deeper else scale.depths[:1])
        if self.question.candidate.strip().startswith("-"):  # it may be kept at the first depth alone
            asked.append((self.candidate.flags, scale.depths[0]))
        for flags, depth in asked:
            words = [f"--depth={depth}", *flags, scale.budget(fixed["budget"], depth)]
            complaint = arena.complaint(self.incumbent.code, words, scale.vocab_size, fixed["unsafe"])
            if complaint:
                raise UserError(complaint)

    @property
    def _referee(self) -> Path:
        return self.series.code / self.series.fixed["referee"]

    def _sides(self) -> Record:
        return {
            name: {"name": side.name, "commit": side.commit, "code": side.code.name, "flags": list(side.flags)}
            for name, side in (("incumbent", self.incumbent), ("candidate", self.candidate))
        }

    def _note(self) -> str:
        """Return what a reader should know: a series is about its first commit and what it kept, at equal work."""
        found = []
        kept = {one["candidate"]["code"] for one in self.series.ledger.of_kind("trial") if one["answer"] == "keep"}
        if self.incumbent.code.name not in {self.series.fixed["referee"], *kept}:
            found.append(
                "the incumbent is neither the code that the series began with nor a candidate that it has kept"
            )
        lengths = [name for name in changed_files(self.incumbent.code, self.candidate.code) if name in LENGTH]
        if lengths:
            names = ", ".join(lengths)
            found.append(
                f"the candidate changes {names}, by which a run's length is counted: see whether it trains longer"
            )
        if self.question.flags:
            found.append(f"both sides have {self.question.flags}")
        found += filter(None, [again_words(self.series, self.name, "validation")])
        if killed := self._lines("killed"):
            found.append(f"{count_of(len(killed), 'run')} trained again after a kill")
        if again := self._begun_again():
            found.append(f"{count_of(len(again), 'run')} begun again")
        different = {line["side"] for line in self._lines("repeated") if not line["same"]}
        if different:
            runs = "runs of both sides" if len(different) == 2 else "a run of the incumbent"
            found.append(f"{runs} ended with other weights when trained again")
        return "; ".join(found)

    def _incumbent(self, root: Path) -> Side:
        commit = commit_of(root, self.question.incumbent)
        return Side(commit[:8], commit, committed(root, commit, self.series.code), self._flags(""))

    def _candidate(self, root: Path) -> Side:
        asked = self.question.candidate.strip()
        if asked.startswith("-"):
            return dataclasses.replace(self.incumbent, name=asked, flags=self._flags(asked))
        if asked:
            commit = commit_of(root, asked)
            return Side(commit[:8], commit, committed(root, commit, self.series.code), self._flags(""))
        code, diff = working_tree(root, self.series.code)
        commit = commit_of(root, "HEAD")
        return Side("the working tree", commit, code, self._flags(""), diff)

    def _flags(self, own: str) -> list[str]:
        """Return the flags of a side: the scale's, those for both, and its own, of which the last counts."""
        flags = [f"{name}={value}" for name, value in self.series.scale.flags.items()]
        found: dict[str, str] = {}
        try:
            both = check_flags(self.question.flags, "--flags")
        except Refused as refused:  # they are nobody's attempt
            raise UserError(f"--flags: {refused}") from None
        for word in [*flags, *both, *check_flags(own, "--candidate")]:
            found[word.partition("=")[0]] = word
        return list(found.values())

    # ---- the answer ----

    def record(self) -> Record:
        """Return the answer's line in the ledger; one that is there already is not asked again."""
        ledger = self.series.ledger
        for record in ledger.of_kind("trial"):
            if record["name"] == self.name:
                return record
        for left in (self.series.folder / "runs").glob(f"*{AGAIN}*"):  # of a referee that was killed
            shutil.rmtree(left, ignore_errors=True)
        before = {"name": self.name, "number": self.number, **self._sides()}
        try:
            check_files(
                self.incumbent,
                self.candidate,
                self._referee,
                [*self.series.documents("validation"), *self.series.documents("holdout")],
            )
            noise = self._noise()
            self._say_length()
            shown = decision.smallest(noise, self.question.plan, self.number)
            self._say(f"the noise is {noise.sd:.4f} bits per byte over seeds: this question shows gains of {shown:.4f}")
            verdict = decision.decide(self.question.plan, self.number, noise, self._pairs, self.series.scale.depths)
            if verdict.answer is Answer.KEEP and self.series.fixed["budget"] != "seconds":
                self._check_repeats()
            found = self._found(verdict)
        except Refused as refused:
            found = {"answer": "discard", "reason": str(refused), "refused": refused.check}
        except Failure as failure:
            found = {"answer": "discard", "reason": str(failure), "failed": True}
        self.series.check()
        for code in (self.incumbent.code, self.candidate.code, self._referee):
            check_unchanged(code)
        if found["answer"] != "keep":  # the holdout is for what is kept
            self._forget_confirming()
        return ledger.add("trial", **before, **found)

    def _forget_confirming(self) -> None:
        for side in (self.incumbent, self.candidate):
            for number in range(self.question.plan.confirming):
                key = self._key(side, Part.CONFIRM, self._seed(Part.CONFIRM, number))
                shutil.rmtree(self.series.folder / "runs" / key, ignore_errors=True)

    def _found(self, verdict: Verdict) -> Record:
        plan = self.question.plan
        noise = self._noise()
        shown = decision.smallest(noise, plan, self.number)
        reason = verdict.reason
        if verdict.answer is Answer.UNDECIDED:
            reason += self._advice(verdict.aim, noise)
        return {
            "answer": verdict.answer.value,
            "reason": reason,
            "holds": verdict.holds,
            "note": self._note(),
            "contained": not (self.series.fixed["unsafe"] and sandbox.missing()),  # it is used wherever it works
            "gain": verdict.gain.mean,
            "interval": verdict.gain.half() if verdict.gain.stderr else 0.0,
            "pairs": verdict.gain.pairs,
            "p": verdict.p,
            "level": verdict.level,
            "part": verdict.part,
            "second": _second_record(verdict),
            "noise": noise._asdict(),
            "smallest": shown,
            "in_turns": self._measured[0] is not Part.SCREEN,  # the runs that the metrics are of
            "metrics": {name: self._difference(name) for name in self.question.metrics},
            "confirmed": self._confirmed(verdict),
        }

    def _advice(self, aim: float, noise: Noise) -> str:
        """Return how many more pairs would show a gain, as far as pairs are advised."""
        plan = self.question.plan
        if plan.pairs >= decision.MOST_PAIRS:
            return f"{plan.pairs} pairs have not shown {aim:.4f}"
        wanted = decision.pairs_for(aim, noise, plan, self.number + 1)
        if wanted is None:
            return f"{decision.MOST_PAIRS} pairs would not show {aim:.4f}"
        repeated = self.series.fixed["budget"] != "seconds"
        asked = f"--pairs={wanted} asks for them, up to {plan.with_pairs(wanted).runs + repeated} runs"
        return f"{wanted - plan.pairs} more pairs would show {aim:.4f}: {asked}"

    def _difference(self, metric: str) -> Record:
        """Return what both sides took, and the change in percent with its interval.

        The incumbent's runs may be those of the noise floor, of another hour: a change of times would be the machine's.
        """
        part, count = self._measured
        sides = []
        for side in (self.incumbent, self.candidate):
            runs = [self._there(side, part, number) for number in range(count)]
            sides.append([run[metric] for run in runs if run])
        found = {"incumbent": statistics.median(sides[0]), "candidate": statistics.median(sides[1])}
        comparable = part is not Part.SCREEN or metric not in TIMES
        if comparable and count > 1 and min(map(min, sides)) > 0:  # a run says itself how much memory it took
            times = decision.gain_of([(math.log(other), math.log(one)) for one, other in zip(*sides, strict=True)])
            found |= {"change": 100 * math.expm1(times.mean), "interval": 100 * math.expm1(times.half())}
        return found

    def _confirmed(self, verdict: Verdict) -> list[list[str]]:
        """Return the runs [incumbent's, candidate's] that have confirmed a keep: the holdout is for them."""
        if verdict.answer is not Answer.KEEP:
            return []
        return [
            [
                self._key(side, Part.CONFIRM, self._seed(Part.CONFIRM, number))
                for side in (self.incumbent, self.candidate)
            ]
            for number in range(self.question.plan.confirming)
        ]

    # ---- runs ----

    def _noise(self) -> Noise:
        """Return the noise floor; runs that are missing are trained."""
        runs = [self._run(self.incumbent, Part.SCREEN, number, floor=True) for number in range(self.series.scale.floor)]
        noise = decision.noise_of([run["bpb"] for run in runs])
        if not noise.sd:
            raise UserError("the incumbent's runs have the same figure for every seed: it does not use the seed")
        return noise

    def _pairs(self, part: Part, count: int) -> list[decision.Pair]:
        """Return the scores of pairs as `_draw` does; NoPairs where the second depth takes too much, or fails."""
        try:
            return self._draw(part, count)
        except (Failure, Refused) as error:
            cheats = isinstance(error, Refused) and error.check != "budget"
            if part is not Part.DEPTH or cheats:
                raise
            raise decision.NoPairs(str(error)) from None

    def _draw(self, part: Part, pairs: int) -> list[decision.Pair]:
        """Train pairs, and return their scores; raise Refused if they are no fair pairs."""
        if part is Part.SCREEN:
            part = self._first
        scores = []
        found: dict[str, list[Record]] = {"incumbent": [], "candidate": []}
        for number in range(pairs):
            sides = [("incumbent", self.incumbent), ("candidate", self.candidate)]
            for name, side in sides if number % 2 == 0 else reversed(sides):  # a slow hour hits both
                found[name].append(self._run(side, part, number))
            one, other = found["incumbent"][-1], found["candidate"][-1]
            scores.append((one["bpb"], other["bpb"]))
            self._check_pairs(found, part, pairs)
            gain = one["bpb"] - other["bpb"]
            self._say(f"{part.value} pair {number + 1} of {pairs}: gain {gain:+.4f} bits per byte")
        return scores

    def _check_pairs(self, found: dict[str, list[Record]], part: Part, pairs: int) -> None:
        """Raise Refused if the candidate does not use its seed, or has more than the incumbent to work with.

        pairs: of the whole part.
        """
        for name, what in SEEDED.items():
            values = [run[name] for run in found["candidate"] if run[name]]
            if len(set(values)) < len(values):
                raise Refused("seed", f"two seeds give the candidate the same {what}: its seed is chosen, not given")
        if self.series.fixed["budget"] == "seconds":  # both sides of every part are trained in turns
            floor = [run["seconds"] for run in self._incumbents(Part.SCREEN, self.series.scale.floor)]
            one, other = ([run["seconds"] for run in runs] for runs in found.values())
            times = decision.longer(one, other, floor)
            if times:
                raise over_budget("seconds", times)
            times = 0.0
            if len(found["candidate"]) >= self._least_pairs(pairs):  # other work takes cores from a run
                times = more_cores(self._incumbents(Part.SCREEN, self.series.scale.floor), found)
            if times:
                raise over_budget("cores", times)
        else:  # threads that wait use processor time up too, and other work on the machine changes seconds
            self._check_work(found, part)
        if len(found["candidate"]) >= self._least_pairs(pairs):
            times = scored_longer(found["incumbent"], found["candidate"])
            if times and part is Part.SCREEN:  # another hour, when the machine was less busy
                times = scored_longer(self._incumbents(Part.AGAIN, len(found["candidate"])), found["candidate"])
            if times:
                raise over_budget("scoring_cpu_seconds", times)
        one, other = (statistics.median(run["bytes"] for run in runs) for runs in found.values())
        if other > LARGER * one:
            raise over_budget("bytes", other / one)

    def _least_pairs(self, pairs: int) -> int:
        """Return how many pairs of a part may refuse a candidate: one may have met a slow minute.

        Where nothing is confirmed there may be no other.
        """
        return 2 if self.question.plan.confirming else min(pairs, 2)

    def _check_work(self, found: dict[str, list[Record]], part: Part) -> None:
        """Raise Refused if the candidate has taken more processor time than chance explains."""
        floor = []
        if part is not Part.SCREEN:
            floor = [run["cpu_seconds"] for run in self._incumbents(Part.SCREEN, self.series.scale.floor)]
        times = self._more_work(found["incumbent"], found["candidate"], floor)
        if times and part is Part.SCREEN:  # the incumbent's runs may be of another hour, when the machine was faster
            times = self._more_work(self._incumbents(Part.AGAIN, len(found["candidate"])), found["candidate"], floor)
        if times:
            raise over_budget("cpu_seconds", times)

    def _incumbents(self, part: Part, count: int) -> list[Record]:
        return [self._run(self.incumbent, part, number) for number in range(count)]

    @staticmethod
    def _more_work(incumbent: Sequence[Record], candidate: Sequence[Record], floor: Sequence[float]) -> float:
        one = [run["cpu_seconds"] for run in incumbent]
        return decision.longer(one, work_of(candidate, incumbent), floor)

    def _say(self, text: str) -> None:
        """Tell how far it is; with --json the answer stands alone on stdout."""
        print_line(f"trial {self.number}: {text}", file=sys.stderr if self.question.json else sys.stdout)

    def _say_length(self) -> None:
        """Tell how long the question may take."""
        fixed = self.series.fixed
        floor = self._incumbents(Part.SCREEN, self.series.scale.floor)
        self._say(length_words(self.question.plan, fixed["scale"], fixed["budget"], floor))

    @property
    def _first(self) -> Part:
        """Return the part whose runs are those of the first part.

        By the clock the noise floor's runs of the incumbent are no pairs: a slow hour would hit the candidate alone.
        """
        return Part.BESIDE if self.series.fixed["budget"] == "seconds" else Part.SCREEN

    @property
    def _measured(self) -> tuple[Part, int]:
        """Return the part whose runs say what both sides take, and its pairs: the confirmation, if there was one."""
        plan = self.question.plan
        if plan.confirming and self._there(self.candidate, Part.CONFIRM, plan.confirming - 1):
            return Part.CONFIRM, plan.confirming
        return self._first, plan.pairs

    def _depth(self, part: Part) -> int:
        return self.series.scale.depths[part is Part.DEPTH]

    def _seed(self, part: Part, number: int) -> int:
        """Return a pair's seed. Those of the first part are the noise floor's, for every trial; the others are new."""
        if part is Part.SCREEN:
            return self.series.seed("floor", number)
        return self.series.seed(part.value, self.name, number)

    def _key(self, side: Side, part: Part, seed: int) -> str:
        depth = self._depth(part)
        return text_sha256(json.dumps([side.key, depth, seed, self.machine]))[:16]

    def _there(self, side: Side, part: Part, number: int) -> Record | None:
        key = self._key(side, part, self._seed(part, number))
        return next((run for run in self.series.ledger.of_kind("run") if run["key"] == key), None)

    def _run(self, side: Side, part: Part, number: int, floor: bool = False) -> Record:
        """Return a run of a side, from the ledger if it is there."""
        there = self._there(side, part, number)
        if there:
            return there
        series = self.series
        key = self._key(side, part, self._seed(part, number))
        depth = self._depth(part)
        what = "noise floor" if floor else part.value
        who = "incumbent" if side is self.incumbent else "candidate"
        self._say(f"{what} {number + 1}: {who}, depth {depth}")
        flags = self._words(side, part, number)
        folder = series.folder / "runs" / key
        shutil.rmtree(folder, ignore_errors=True)
        self._check_space()
        about: Record = {"question": self.name, "part": part.value, "number": number, "key": key, "side": side.key}
        self._fail_again(side, key)
        try:
            series.ledger.add("begun", **about)
            measured = self._trained_or_again(side, flags, folder, about)

            def patience(late: bool) -> float:
                return self._patience(side, part, number, late)

            measured |= scored(series, side, key, "validation", patience, self.name, part=part.value, number=number)
            measured["weights"] = arena.weights_hash(folder)
        except (Failure, Refused) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._add_crash(about, error)
            if side is self.incumbent:
                raise UserError(f"a run of the incumbent failed, so nothing can be compared: {error}") from None
            raise
        if part is not Part.CONFIRM:  # the holdout is for what was confirmed
            shutil.rmtree(folder)
        return series.ledger.add(
            "run", key=key, side=side.key, part=part.value, number=number, depth=depth, machine=self.machine, **measured
        )

    def _add_crash(self, about: Record, error: Failure | Refused) -> None:
        check = error.check if isinstance(error, Refused) else ""
        reason = error.reason if isinstance(error, Refused) else str(error)
        self.series.ledger.add("crash", **about, check=check, reason=reason)

    def _fail_again(self, side: Side, key: str) -> None:
        """Raise what a candidate's run has ended with, if the referee was killed before it had said so."""
        crash = next((line for line in self._lines("crash") if line["key"] == key), None)
        if crash and side is self.candidate:
            raise Refused(crash["check"], crash["reason"]) if crash["check"] else Failure(crash["reason"])

    def _trained_or_again(self, side: Side, flags: Sequence[str], folder: Path, about: Record) -> Record:
        """Return what training has measured. A run that was killed is trained again: of each side once in a question.

        The machine may have killed it for other work, but whoever kills itself may do so by what it has seen. about:
        the run, for the ledger.
        """
        try:
            return self._trained(side, flags, folder)
        except Killed as killed:
            # One that repeats is that which was killed before, if there is one.
            before = [line for line in self._lines("killed") if line["side"] == side.key]
            if before and not about["key"].endswith(AGAIN):
                raise Failure(f"{killed}, and another one was trained again before") from None
            self.series.ledger.add("killed", **about)
        try:
            return self._trained(side, flags, folder)
        except Killed as killed:
            raise Failure(f"{killed}, twice") from None

    def _lines(self, kind: str) -> list[Record]:
        """Return the lines of a kind that are of this question."""
        return [line for line in self.series.ledger.of_kind(kind) if line["question"] == self.name]

    def _begun_again(self) -> list[str]:
        """Return the keys of this question's runs that were begun more than once: the trial was stopped in them."""
        counts = Counter(line["key"] for line in self._lines("begun"))
        return [key for key, count in counts.items() if count > 1]

    def _check_repeats(self) -> None:
        """Raise Refused if a run of the candidate ends with other weights, trained again with the same seed.

        What is drawn anew each time can be drawn until it is good: by a run that kills itself, or whoever stops the
        trial. Runs that end by the clock are never the same, and where the incumbent's are not, nothing is compared.
        """
        part = Part.CONFIRM if self.question.plan.confirming else self._first
        count = self.question.plan.confirming or self.question.plan.pairs
        doubted = {*self._begun_again(), *(line["key"] for line in self._lines("killed"))}

        def chosen(side: Side) -> tuple[int, bool]:
            """Return the number of a run, one of those that were begun again if there are any, and whether it is."""
            keys = [self._key(side, part, self._seed(part, number)) for number in range(count)]
            numbers = [number for number, key in enumerate(keys) if key in doubted]
            among = numbers or [*range(count)]
            return among[self.series.seed("repeat", self.name) % len(among)], bool(numbers)

        number, _ = chosen(self.candidate)
        own, is_doubted = chosen(self.incumbent)
        if is_doubted:  # whoever asks has made the incumbent, too
            self._repeats(self.incumbent, part, own)
        if not self._repeats(self.candidate, part, number) and self._repeats(self.incumbent, part, number):
            raise Refused(
                "seed",
                "a run, trained again with its seed, ends with other weights: it draws what is not given, or adds up in"
                " no fixed order",
            )

    def _repeats(self, side: Side, part: Part, number: int) -> bool:
        """Return True if a run of a side, trained again, ends with the same weights."""
        first = self._run(side, part, number)
        there = next((line for line in self._lines("repeated") if line["of"] == first["key"]), None)
        if there:
            return there["same"]
        key = first["key"] + AGAIN
        about: Record = {"question": self.name, "part": part.value, "number": number, "key": key, "side": side.key}
        self._fail_again(side, key)
        who = "incumbent" if side is self.incumbent else "candidate"
        self._say(f"{part.value} {number + 1} again, for the same weights: {who}, depth {self._depth(part)}")
        folder = self.series.folder / "runs" / key
        self._check_space()
        self.series.ledger.add("begun", **about)
        try:
            measured = self._trained_or_again(side, self._words(side, part, number), folder, about)
            weights = arena.weights_hash(folder)
        except (Failure, Refused) as error:
            self._add_crash(about, error)
            if side is self.incumbent:
                raise UserError(f"a run of the incumbent failed, so nothing can be compared: {error}") from None
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        is_same = weights == first["weights"]
        self.series.ledger.add("repeated", **about, of=first["key"], same=is_same, seconds=measured["seconds"])
        return is_same

    def _words(self, side: Side, part: Part, number: int) -> list[str]:
        """Return the flags of a run."""
        depth = self._depth(part)
        budget = self.series.scale.budget(self.series.fixed["budget"], depth)
        words = [f"--depth={depth}", *side.flags, budget, f"--seed={self._seed(part, number)}"]
        never = ["eval-every", "sample-every", "core-metric-every", "save-every"]
        return [*words, *(f"--{name}=-1" for name in never), "--no-compile"]

    def _patience(self, side: Side, part: Part, number: int, late: bool) -> float:
        """Return the seconds that a scoring may take: a candidate's are bounded by the incumbent's at this depth.

        late: it took longer before. So did the incumbent, perhaps, if the machine is busier now: it is scored first.
        """
        if side is self.incumbent:
            return arena.SCORING
        if late:
            self._run(self.incumbent, Part.AGAIN if part is Part.SCREEN else part, number)
        which = {"side": self.incumbent.key, "depth": self._depth(part), "machine": self.machine}
        runs = [run for run in self.series.ledger.of_kind("run") if which.items() <= run.items()]
        return patience_of([run["scoring"] for run in runs])

    def _trained(self, side: Side, flags: Sequence[str], folder: Path) -> Record:
        series = self.series
        home, text = series.folder / "home", series.folder / "text"
        return arena.train(side, flags, home, text, folder, series.scale.patience, series.fixed["unsafe"])

    def _check_space(self) -> None:
        """Raise an OSError if the files of a run, as large as a candidate's may be, would not fit."""
        from nanochat.checkpoint import check_free_space

        known = [run["bytes"] for run in self.series.ledger.of_kind("run")]
        check_free_space(self.series.folder, int(LARGER * max(known, default=FIRST_BYTES)))


def _second_record(verdict: Verdict) -> Record | None:
    """Return what the second depth has shown; None if it was not asked."""
    gain = verdict.second
    if gain is None:
        return {"answer": "failed", "reason": verdict.failed} if verdict.failed else None
    answer = "undecided"
    if gain.p_better() <= decision.WORSE:
        answer = "better"
    elif gain.p_worse() <= decision.WORSE:
        answer = "worse"
    return {"gain": gain.mean, "interval": gain.half(), "pairs": gain.pairs, "answer": answer}


def machine_name() -> str:
    """Return what decides a run's rounding and speed: the processor with what it can, the cores for it, and torch."""
    software = torch_build()["__version__"]
    cores = f"{len(own_cores())} {usable_cores()} cores"  # without a quota, which the sandbox does not see, and with it
    return f"{platform.machine()} {text_sha256(processor())[:12]} {cores} torch {software}"
