"""The compute multiplier of one ladder over another: by how much cheaper the same quality is, with an interval.

A ladder is a series of depths at one recipe. The multiplier of a candidate at one of its depths is the FLOPs that the
baseline needs for the candidate's bits per byte, divided by those that the candidate has used: above 1 the candidate is
cheaper. The baseline's FLOPs are read off its curve, the logarithm of bits per byte over the logarithm of FLOPs, which
is straight between neighbouring depths. That is exact where the curve is a power law, and beyond the baseline's depths,
where the last piece goes on, an extrapolation.

The interval has every multiplier that the runs do not refute: for each one a t test asks whether the candidate's mean
lies on the baseline's curve at so many FLOPs (as Fieller's theorem does for a ratio). So the noise of the candidate,
and that of the baseline's depths on both sides, count as they should, and intervals need not be symmetric. Two or three
seeds say little about the spread of one depth: the relative spread is taken to be the same at all depths of both
ladders, and estimated from all of them. FLOPs are taken as exact.

With pairs, runs of both ladders that saw the same text in the same order, what a seed does to both sides is no noise:
the spreads of their difference and of their sum are estimated separately.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEVEL = 0.9  # of an interval, unless another one is asked for
BEYOND = (0.25, 0.5, 1, 2, 4, 8)  # lengths of the outermost piece, to look for the end of an interval beyond it
ROUNDING = 1e-9  # of logarithms, and of multipliers near 1


@dataclass(frozen=True)
class Rung:
    """The runs of a ladder at one depth, which differ in their seed alone."""

    depth: int
    flops: float  # of a run
    bpb: Sequence[float]  # bits per byte of each run
    seeds: Sequence[int | None] = ()  # of the same runs, None where it is not known

    @property
    def logs(self) -> list[float]:
        """The logarithm of each run's bits per byte."""
        return [math.log(bpb) for bpb in self.bpb]

    @property
    def x(self) -> float:
        return math.log(self.flops)

    @property
    def y(self) -> float:
        return math.fsum(self.logs) / len(self.bpb)


class Multiplier(NamedTuple):
    """The compute multiplier at a depth of the candidate. None: not known."""

    depth: int
    value: float | None  # None: the baseline's curve does not reach the candidate's bits per byte
    low: float | None  # the interval's ends, None without an estimate of the spread; 0 and infinity: no limit was found
    high: float | None
    is_extrapolated: bool  # the value lies beyond the baseline's depths
    is_within: bool  # the candidate's FLOPs lie within the baseline's: that it is cheaper at all is not extrapolated
    measured: tuple[float, float]  # multipliers that the baseline's depths cover

    @property
    def verdict(self) -> str:
        """Whether the candidate is cheaper."""
        if self.value is None or self.low is None or self.high is None:
            return "?"
        if self.low <= 1 + ROUNDING and self.high >= 1 - ROUNDING:
            return "not distinguishable"
        verdict = "cheaper" if self.low > 1 else "more expensive"
        return verdict if self.is_within else f"{verdict}?"


# ---- the baseline's curve ----


class Curve(NamedTuple):
    """Log bits per byte over log FLOPs, straight between neighbouring points and beyond the outermost ones."""

    xs: Sequence[float]  # ascending
    ys: Sequence[float]

    def place(self, x: float) -> tuple[int, float]:
        """Return the number of the point left of x, and the weight of the one to the right; theirs add up to 1."""
        left = min(max(bisect_right(self.xs, x) - 1, 0), len(self.xs) - 2)
        return left, (x - self.xs[left]) / (self.xs[left + 1] - self.xs[left])

    def at(self, x: float) -> float:
        left, weight = self.place(x)
        return (1 - weight) * self.ys[left] + weight * self.ys[left + 1]

    def crossing(self, y: float, near: float) -> float | None:
        """Return the x where the curve has the height y, the nearest one to `near`; None where it never has.

        Beyond its ends the curve counts only where it falls.
        """
        last = len(self.xs) - 2
        found = []
        for left in range(last + 1):
            height = self.ys[left + 1] - self.ys[left]
            if not height:
                continue
            share = (y - self.ys[left]) / height
            reaches_left = share >= 0 or (left == 0 and height < 0)
            reaches_right = share <= 1 or (left == last and height < 0)
            if reaches_left and reaches_right:
                found.append(self.xs[left] + share * (self.xs[left + 1] - self.xs[left]))
        return min(found, key=lambda x: abs(x - near), default=None)

    def outwards(self, x: float, sign: int) -> Iterator[float]:
        """Yield places from x on, to the right or to the left: points of the curve, and some beyond them."""
        points = self.xs if sign > 0 else self.xs[::-1]
        yield from (point for point in points if sign * point > sign * x)
        piece = abs(points[-1] - points[-2])
        start = max(x, points[-1], key=lambda place: sign * place)
        yield from (start + sign * piece * factor for factor in BEYOND)


# ---- the noise ----


class Spread(NamedTuple):
    """The variance of log bits per byte over seeds, at any depth of both ladders.

    freedom: degrees of freedom of each variance; 0: not known. Without pairs, `single` is that of a run. With pairs,
    `difference` and `total` are those of a pair's difference and sum.
    """

    freedom: int
    single: float = math.nan
    difference: float = math.nan
    total: float = math.nan
    is_paired: bool = False


def _squares(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def spread_of(baseline: Sequence[Rung], candidate: Sequence[Rung], paired: bool) -> Spread:
    """Return the spread over seeds. paired: runs of both ladders with one depth and one seed are pairs."""
    if not paired:
        rungs = [*baseline, *candidate]
        freedom = sum(len(rung.bpb) - 1 for rung in rungs)
        return Spread(freedom, math.fsum(_squares(rung.logs) for rung in rungs) / freedom if freedom else math.nan)
    others = {rung.depth: rung for rung in candidate}
    differences = totals = 0.0
    freedom = 0
    for rung in baseline:
        if rung.depth not in others:
            continue
        scores = dict(zip(others[rung.depth].seeds, others[rung.depth].logs, strict=True))
        pairs = [(score, scores[seed]) for seed, score in zip(rung.seeds, rung.logs, strict=True)]
        differences += _squares([other - one for one, other in pairs])
        totals += _squares([other + one for one, other in pairs])
        freedom += len(pairs) - 1
    if not freedom:
        return Spread(0, is_paired=True)
    return Spread(freedom, difference=differences / freedom, total=totals / freedom, is_paired=True)


def can_pair(baseline: Sequence[Rung], candidate: Sequence[Rung]) -> bool:
    """Return True if both ladders have the same seeds, each once, at the depths that both have."""
    others = {rung.depth: rung for rung in candidate}
    for rung in baseline:
        seeds = set(rung.seeds)
        if rung.depth in others and not (
            None not in seeds
            and seeds == set(others[rung.depth].seeds)
            and len(seeds) == len(rung.bpb) == len(others[rung.depth].bpb)
        ):
            return False
    return True


def _error(spread: Spread, baseline: Sequence[Rung], rung: Rung, left: int, weight: float) -> tuple[float, float]:
    """Return the variance of the candidate's mean minus the curve's height, and its degrees of freedom.

    left, weight: where on the curve, as `Curve.place` has it.
    """
    one, other = baseline[left : left + 2]
    if not spread.is_paired:
        parts = 1 / len(rung.bpb) + (1 - weight) ** 2 / len(one.bpb) + weight**2 / len(other.bpb)
        return spread.single * parts, spread.freedom
    difference = total = 0.0
    # The part of each depth, as weights of the candidate's and minus the baseline's runs there.
    parts = [(0.0, 1 - weight, one), (0.0, weight, other)]
    if rung.depth == one.depth:
        parts[0] = (1.0, 1 - weight, one)
    elif rung.depth == other.depth:
        parts[1] = (1.0, weight, other)
    else:
        parts.append((1.0, 0.0, rung))
    for own, theirs, runs in parts:  # a difference and a sum are independent
        difference += spread.difference * ((own + theirs) / 2) ** 2 / len(runs.bpb)
        total += spread.total * ((own - theirs) / 2) ** 2 / len(runs.bpb)
    variance = difference + total
    if not variance:
        return 0.0, spread.freedom
    # The degrees of freedom of a sum of two variances, by Satterthwaite.
    return variance, spread.freedom * variance**2 / (difference**2 + total**2)


# ---- multipliers ----


def multipliers(
    baseline: Sequence[Rung], candidate: Sequence[Rung], level: float = LEVEL, paired: bool = False
) -> list[Multiplier]:
    """Return the multiplier at each depth of the candidate. The baseline has two depths or more, by FLOPs.

    paired: as `can_pair` says, and the runs with one seed saw the same text in the same order.
    """
    spread = spread_of(baseline, candidate, paired)
    curve = Curve([rung.x for rung in baseline], [rung.y for rung in baseline])
    found = []
    for rung in candidate:
        own = rung.x
        ends = curve.xs[0], curve.xs[-1]
        is_within = ends[0] - ROUNDING <= own <= ends[1] + ROUNDING
        measured = math.exp(ends[0] - own), math.exp(ends[1] - own)
        place = curve.crossing(rung.y, own)
        if place is None:
            found.append(Multiplier(rung.depth, None, None, None, False, is_within, measured))
            continue
        low = high = None
        if spread.freedom:
            excess = _test(spread, baseline, rung, curve, level)
            low = math.exp(_end(curve, place, -1, excess) - own)
            high = math.exp(_end(curve, place, 1, excess) - own)
        value = math.exp(place - own)
        is_extrapolated = not ends[0] - ROUNDING <= place <= ends[1] + ROUNDING
        found.append(Multiplier(rung.depth, value, low, high, is_extrapolated, is_within, measured))
    return found


def _test(spread: Spread, baseline: Sequence[Rung], rung: Rung, curve: Curve, level: float) -> Callable[[float], float]:
    """Return the test of x as the FLOPs at which the baseline has the candidate's bits per byte: above 0 refutes it."""
    from scipy.special import stdtrit  # not at the top: the import takes a tenth of a second

    def excess(x: float) -> float:
        variance, freedom = _error(spread, baseline, rung, *curve.place(x))
        return abs(rung.y - curve.at(x)) - float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)

    return excess


def _end(curve: Curve, place: float, sign: int, excess: Callable[[float], float]) -> float:
    """Return where an interval around `place` ends, to the right or to the left; infinite if no end is found."""
    from scipy.optimize import brentq

    inside = place
    for outside in curve.outwards(place, sign):
        if excess(outside) > 0:
            # At `place` itself both sides are 0 where pairs have no spread at all.
            return inside if excess(inside) >= 0 else float(brentq(excess, inside, outside, xtol=ROUNDING))
        inside = outside
    return sign * math.inf


# ---- in words ----


def in_words(found: Sequence[Multiplier], baseline: str, candidate: str) -> str:
    """Return what multipliers say, in a sentence. baseline, candidate: the names of the ladders."""
    unknown = [one.depth for one in found if one.value is None]
    if all(one.low is None for one in found) and len(unknown) < len(found):
        return "Without an interval nothing tells a difference from chance: train both ladders with --seeds=1,2,3."
    groups: dict[str, list[int]] = {}
    for one in found:
        groups.setdefault(one.verdict, []).append(one.depth)
    parts = []
    for verdict in ("cheaper", "more expensive"):
        depths = groups.get(verdict, [])
        if len(depths) == len(found):
            parts.append(f"{candidate} is {verdict} than {baseline}: holds at every depth, {_listed(depths)}")
        elif depths:
            only = "" if groups.keys() & {"cheaper", "more expensive"} - {verdict} else " only"
            parts.append(f"{candidate} is {verdict} than {baseline} {_at(depths)}{only}")
    unclear = groups.get("not distinguishable", [])
    if len(unclear) == len(found):
        parts.append(
            f"{candidate} and {baseline} are not distinguishable at any depth; more seeds narrow the intervals"
        )
    elif unclear:
        parts.append(f"not distinguishable {_at(unclear)}")
    if unknown:
        parts.append(f"unknown {_at(unknown)}, as the curve of {baseline} does not fall to such bits per byte")
    open_depths = [one.depth for one in found if one.value is not None and one.verdict.endswith("?")]
    if open_depths:
        parts.append(f"extrapolated: ? {_at(open_depths)}, as {baseline} has no depth with so few or so many FLOPs")
    sizes = [one.depth for one in found if one.is_extrapolated and one.depth not in open_depths]
    if sizes:
        parts.append(f"extrapolated: ? is the figure {_at(sizes)}")
    return "; ".join(parts) + "."


def _listed(depths: Sequence[int]) -> str:
    return ", ".join(map(str, depths))


def _at(depths: Sequence[int]) -> str:
    return f"at {'depth' if len(depths) == 1 else 'depths'} {_listed(depths)}"
