"""What a stage starts from: a run to go on with, or a model to use."""

import dataclasses
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from nanochat.attention import find_path
from nanochat.checkpoint import Checkpoint, Saver, check_free_space, hold, load, newest, rng_state, set_rng_state, steps
from nanochat.gpt import GPT, GPTConfig, config_of, describe_config, new_model
from nanochat.interrupt import signals
from nanochat.log import print0
from nanochat.paths import base_dir, stage_dir
from nanochat.stages import MODELS
from nanochat.tokenizer import Tokenizer


def fixed_settings(config: Any) -> dict[str, Any]:
    """The fields of a script's config that a run keeps from its beginning to its end."""
    fields = dataclasses.fields(config)
    return {field.name: getattr(config, field.name) for field in fields if not field.metadata["may_change"]}


@contextmanager
def hold_for_all(folder: Path, runtime: Any) -> Iterator[None]:
    """Keep a run's folder from other runs, for all of its ranks."""
    with ExitStack() as stack:
        runtime.broadcast(lambda: stack.enter_context(hold(folder)))
        yield


def run_to_go_on_with(folder: Path, config: Any, tokenizer: Tokenizer | None, runtime: Any) -> Checkpoint | None:
    """The checkpoint in a run's folder that it goes on from, the same on all ranks; None for a new run.

    config.resume: auto (the newest that is whole, if it is of this configuration), a step, or never. What then lies
    ahead is set aside. A setting that is None stays what it was, and so does the tokenizer.
    """
    step = runtime.broadcast(lambda: _choose(folder, config, tokenizer))
    return None if step is None else load(folder, step, hashes=False)


def _choose(folder: Path, config: Any, tokenizer: Tokenizer | None) -> int | None:
    resume, there = config.resume, steps(folder)
    if resume == "never":
        return _set_aside(folder, there)
    if resume != "auto" and not resume.isdecimal():
        raise ValueError(f"--resume={resume} is not known, take auto, never or a step's number")
    if resume != "auto" and int(resume) not in there:
        raise ValueError(f"--resume={resume}: {folder} has {', '.join(map(str, there)) or 'no checkpoints'}")
    checkpoint = newest(folder) if resume == "auto" else load(folder, int(resume))
    if checkpoint is None and there:
        raise ValueError(f"{folder} has checkpoints, but none that is whole: --resume=never starts anew")
    if checkpoint is None:
        return None
    before = checkpoint.manifest["config"]
    now = {name: value for name, value in fixed_settings(config).items() if value is not None}
    changed = [name for name in now if before.get(name) != now[name]]
    differ = [f"--{name.replace('_', '-')} was {before.get(name)} and is {now[name]}" for name in changed]
    if tokenizer and checkpoint.manifest["tokenizer"]["hash"] != tokenizer.content_hash:
        differ.append(f"the tokenizer {config.tokenizer_tag} has been trained anew")
    if differ:
        differ = "; ".join(differ)
        raise ValueError(f"{folder} holds another run: {differ}. Take another --tag, or start anew: --resume=never")
    if resume != "auto":
        _set_aside(folder, [step for step in there if step > checkpoint.step])
    return checkpoint.step


def _set_aside(folder: Path, given_up: list[int]) -> None:
    """Checkpoints that must not be the newest when the run goes on once more; kept, until it happens again."""
    if given_up:
        (folder / "outcome.json").unlink(missing_ok=True)
    for step in given_up:
        kept = folder / f"given_up_step_{step:06d}"
        shutil.rmtree(kept, ignore_errors=True)
        (folder / f"step_{step:06d}").rename(kept)
        print0(f"checkpoint: step {step:,} is given up, it is kept as {kept.name}")


def trained(source: str = "", tag: str = "") -> list[tuple[str, str]]:
    """What --source calls a stage, and the tag, of each model there is, or of those named; a ValueError if none is.

    The stage that is furthest on comes last, and of it the tag that was trained last.
    """
    if source and source not in MODELS:
        raise ValueError(f"the source {source} is not one of {', '.join(MODELS)}")
    found = []
    for name in [source] if source else MODELS:
        folders = [stage_dir(MODELS[name], tag)] if tag else (base_dir() / MODELS[name]).glob("*")
        there = sorted((folder for folder in folders if steps(folder)), key=lambda folder: folder.stat().st_mtime)
        found += [(name, folder.name) for folder in there]
    if not found:
        which = " ".join([source] * bool(source) + ["model"] + [f"of --tag={tag}"] * bool(tag))
        command = f"python -m scripts.{MODELS[source]} trains one" if source else "bash speedrun.sh trains one"
        raise ValueError(f"there is no {which} below {base_dir()}: {command}")
    return found


def load_model(stage: str, tag: str, step: int | None, runtime: Any) -> tuple[GPT, Tokenizer, Checkpoint]:
    """A trained model on the runtime's device, its tokenizer, and where it comes from; step None: the newest."""
    checkpoint = find_model(stage, tag, step, runtime)
    model = build_model(config_of(checkpoint.manifest), runtime, checkpoint)
    return model.eval().requires_grad_(False), tokenizer_of(checkpoint), checkpoint


def find_model(stage: str, tag: str, step: int | None, runtime: Any) -> Checkpoint:
    """Where a trained model is, the same on all ranks; step None: the newest that is whole."""
    folder = stage_dir(stage, tag)

    def find() -> int:
        found = newest(folder) if step is None else load(folder, step)
        if found is None:
            raise ValueError(f"there is no model in {folder}: python -m scripts.{stage} makes one")
        return found.step

    checkpoint = load(folder, runtime.broadcast(find), hashes=False)
    print0(f"model: {stage} {tag}, step {checkpoint.step:,}")
    return checkpoint


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The one that its model was trained with."""
    about = checkpoint.manifest["tokenizer"]
    tokenizer = Tokenizer.load(stage_dir("tok_train", about["tag"]) / "tokenizer.json")
    if tokenizer.content_hash != about["hash"]:
        raise ValueError(f"{checkpoint.path} was trained with another tokenizer than tok_train now has: train it again")
    return tokenizer


def build_model(
    config: GPTConfig, runtime: Any, weights: Checkpoint | int, needs: Collection[str] = (), **options: Any
) -> GPT:
    """A model on the runtime's device; weights: of a checkpoint, or new ones from a seed; needs: of attention."""
    path, reason = find_path(runtime.attention, runtime.device, runtime.dtype, needs)
    print0(f"attention: {reason}")
    with torch.device("meta"):
        model = new_model(config, path, **options)
    model.to_empty(device=runtime.device)
    model.compute_dtype = runtime.dtype
    if isinstance(weights, Checkpoint):
        model.init_buffers()
        model.load_state_dict(weights.model_tensors())
    else:
        model.init_weights(weights)
    return model


@contextmanager
def keeping(
    folder: Path, config: Any, runtime: Any, model: GPT, optimizer: Any, source: Any, merge: Any, **about: Any
) -> Iterator[Callable[[Any], None]]:
    """A hook of the loop, the last one, that saves all that `put_back` needs; a collective.

    merge: joins the states that the ranks' sources give. about: what manifests say besides: stage, parent, data,
    tokenizer. A run that broke down learns where it can go on from.
    """
    about |= {"config": fixed_settings(config), "dtype": runtime.dtype_name, "model": describe_config(model.config)}
    copies = max(1, config.keep_last + 1 - len(steps(folder)))  # one is written before one goes
    check_free_space(folder, copies * sum(12 * p.numel() for p in model.parameters()), "the checkpoints of this run")
    if config.keep_every or not config.keep_last:
        keeps = f"--keep-every={config.keep_every}" if config.keep_last else "--keep-last=0"
        print0(f"checkpoints: there is room for {copies}; what {keeps} keeps besides is not counted")

    def save(state: Any) -> None:
        states = merge(runtime.all_gather(source.state_dict()))
        record = about | {"loop": dataclasses.asdict(state), "source": states, "rng": rng_state()}
        saver.save(state.step, model.state_dict(), optimizer.state_tensors(), record)

    saver = Saver(folder, runtime.rank, runtime.world_size, config.keep_last, config.keep_every, runtime.store)
    with signals(), saver:  # until the last checkpoint is written, the first does not end the process
        try:
            yield save
        except FloatingPointError as error:
            with suppress(OSError):  # which was said: this is not what ends the run
                saver.wait()
            there = steps(folder)
            kept = f"the checkpoint of step {there[-1]:,} is kept" if there else "no checkpoint was saved before"
            raise FloatingPointError(f"{error}; {kept} in {folder}") from None


def has_news(state: Any, begun: Checkpoint | None, folder: Path) -> bool:
    """Whether a run that was left by the loop has a record to write; says why not."""
    if state.stop:
        print0(f"stopped by {state.stop} after step {state.step:,}: the same command goes on from there")
    elif begun and begun.step == state.step and (folder / "outcome.json").exists():
        print0(f"the run had ended with step {state.step:,}: nothing is left to train")
    else:
        return True
    return False


def put_back(checkpoint: Checkpoint, optimizer: Any, source: Any) -> dict[str, Any]:
    """Optimizer, source and generators as they were, the model has its weights by now; the loop's state."""
    optimizer.load_state_tensors(checkpoint.optimizer_state)
    source.load_state_dict(checkpoint.manifest["source"])
    set_rng_state(checkpoint.manifest["rng"])
    loop = dict(checkpoint.manifest["loop"])
    loop.pop("records", None)  # of older checkpoints: the log needs no count of its records any more
    return loop
