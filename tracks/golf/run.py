"""Golf: the best model in N bytes and T seconds: train, pack and score an entry, and baselines under the same limits.

python -m tracks.golf.run                              200 kB and a minute on two cores, three seeds; no network
python -m tracks.golf.run --ablate --ablation-seeds=1  also the entry without each of its tricks
python -m tracks.golf.run --scale=cpu --data=FOLDER    1 MB and ten minutes
python -m tracks.golf.run --scale=1gpu                 16 MB and ten minutes on a GPU; the default where there is one

Run the same command again to resume.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.jobs.runner import Step
from nanochat.jobs.scales import flag_words, read_flags
from nanochat.jobs.series import (
    SeriesSettings,
    check_flags,
    figure,
    refuse_own,
    report_step,
    run_series,
    source_of,
    tokenizer_step,
    training_step,
    words_of,
)
from nanochat.log import print0
from nanochat.settings import LEAST_VOCABULARY
from tracks.golf.entries import BASELINES, SCALES, VOCABULARIES, ScaleName, expand, tricks_of
from tracks.golf.series import best_baseline


@options("golf")
class Config(SeriesSettings):
    """Train, pack and score an entry with several seeds, and compare it with baselines."""

    tag = option("", "name of the series, and of its folders (default: ENTRY-SCALE)")
    vocab_size = option(0, "size of the vocabulary (0: the scale's)", least=LEAST_VOCABULARY)
    flags = option("", "flags for training, in quotes, and --plan for packing; unknown flags are passed on as well")
    scale: Literal["auto", ScaleName] = option("auto", "budget (auto: 1gpu where there is a GPU, else embedded)")
    entry: str = option("golf", "golf, or seed: the entry that the track started from (only with --scale=1gpu)")
    seeds: Count = option(3, "seeds 1 to N of the entry, and of the best baseline", least=1)
    ablate: bool = option(False, "also score the entry without each of its tricks")
    ablation_seeds: Count = option(0, "seeds of the ablation (0: as --seeds)")
    unsafe_exec: bool = option(False, "score without the sandbox where it does not work")


def settle(config: Config) -> Config:
    """Return the config with everything chosen that was left open; a UserError for what cannot be."""
    import torch

    scale = config.scale
    if scale == "auto":
        scale = "1gpu" if torch.cuda.is_available() else "embedded"
    if scale == "1gpu" and not torch.cuda.is_available():
        raise UserError("--scale=1gpu needs a GPU: use --scale=embedded or --scale=cpu")
    refuse_own(words_of(config), {"--seed": "--seeds"})
    given = read_flags(words_of(config))
    if "--without" in given:
        raise UserError("--without is not a flag of a series: use --ablate, which leaves out each trick in turn")
    if config.ablation_seeds > config.seeds:
        raise UserError(f"--ablation-seeds={config.ablation_seeds} is more than --seeds={config.seeds}")
    flags = expand(given | {"--scale": scale, "--entry": config.entry})
    return replace(
        config,
        scale=scale,
        tag=config.tag or f"{config.entry}-{scale}",
        vocab_size=config.vocab_size or VOCABULARIES.get(config.entry, SCALES[scale].vocabulary),
        data=source_of(config, flags.get("--data", "auto")),
    )


def entry_flags(config: Config, entry: str, trick: str = "") -> dict[str, str]:
    """Return the flags of an entry, or of the entry without a trick."""
    given = read_flags(words_of(config)) | {"--scale": config.scale, "--entry": entry, "--without": trick}
    return expand(given | {"--data": config.data})


def scored(config: Config, name: str, seed: int, entry: str, stride: int, trick: str = "") -> Iterator[Step]:
    """Yield the steps that train, pack and score one run TAG-NAME-SEED."""
    flags = entry_flags(config, entry, trick)
    plan = flags.pop("--plan")
    del flags["--data"]
    tag = f"{config.tag}-{name}-{seed}"
    step = f"{name}-{seed}"
    words = [*flag_words(flags), f"--seed={seed}"]
    yield training_step(f"{step}-train", "tracks.golf.train", words, tag, tokenizer_tag=config.tag, data=config.data)
    pack = ["tracks.golf.pack", f"--scale={config.scale}", f"--tag={tag}", f"--plan={plan}"]
    yield Step(f"{step}-pack", pack, output=f"golf_pack/{tag}", parent=f"base_train/{tag}")
    score = ["tracks.golf.eval", f"--tag={tag}", f"--stride={stride}"]
    if config.unsafe_exec:
        score.append("--unsafe-exec")
    yield Step(f"{step}-score", score, output=f"golf_eval/{tag}", parent=f"golf_pack/{tag}")


def steps(config: Config) -> Iterator[Step]:
    """Yield all steps of the series."""
    yield tokenizer_step(config, config.data)
    # The entry's first run chooses the stride by its speed. All others use it too, or the scores could not be compared.
    yield from scored(config, config.entry, 1, config.entry, stride=-1)
    stride = int(figure("golf_eval", f"{config.tag}-{config.entry}-1", "Stride"))
    for baseline in BASELINES:
        yield from scored(config, baseline, 1, baseline, stride)
    # The best baseline has all seeds.
    best = best_baseline(config.tag)

    tricks = {}  # name in the tag → trick to leave out
    if config.ablate:
        given = read_flags(words_of(config)) | {"--scale": config.scale, "--entry": config.entry}
        tricks = {f"{config.entry}-without-{trick.replace(' ', '-')}": trick for trick in tricks_of(given)}
    # A seed of all before the next one: a series that is stopped has whole seeds.
    ablation_seeds = config.ablation_seeds or config.seeds
    for seed in range(1, config.seeds + 1):
        if seed > 1:
            yield from scored(config, config.entry, seed, config.entry, stride)
            yield from scored(config, best, seed, best, stride)
        if seed <= ablation_seeds:
            for name, trick in tricks.items():
                yield from scored(config, name, seed, config.entry, stride, trick)

    entries = ",".join([config.entry, *tricks])
    compare = ["tracks.golf.eval", f"--tag={config.tag}", f"--entries={entries}", f"--seeds={config.seeds}"]
    compare.append(f"--ablation-seeds={ablation_seeds}")  # the tag may have more, of earlier flags
    yield Step("comparison", compare)
    yield report_step(config.tag, config.out)


def main(config: Config) -> None:
    from tracks.golf.eval import find_sandbox

    config = settle(config)
    find_sandbox(SCALES[config.scale].device, config.unsafe_exec)
    flags = entry_flags(config, config.entry)
    del flags["--plan"]
    own = [f"--tokenizer-tag={config.tag}", f"--vocab-size={config.vocab_size}"]
    plan = check_flags("tracks.golf.train", [*own, *flag_words(flags)])
    if "--dry-run" in flags:
        print0(plan)
        return
    run_series("golf", config.tag, steps(config))


if __name__ == "__main__":
    run_script(main)
