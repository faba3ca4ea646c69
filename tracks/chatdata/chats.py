"""Make training chats from any sources: filtered, without duplicates and without questions of benchmarks.

python -m tracks.chatdata.chats --sources=facts=World-Chat,web=json:my.jsonl --against=World-Facts --tag=first
"""

import json
import re
import shutil
from contextlib import closing
from dataclasses import fields
from pathlib import Path

from nanochat.config import check_names, fixed_settings, flag_of, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.paths import hold_folder, read_json, stage_dir, text_sha256, tokenizer_file, write_json
from nanochat.settings import TagSettings
from tracks.chatdata.filters import Context, FilterSettings, buckets_with_rows, check_settings, chosen_filters, pairs


@options("data")
class Config(FilterSettings, TagSettings):
    """Make chats to train on from tasks, files, folders and data sets of the hub."""

    tag = "default"
    sources: str = option(
        "", "source of each bucket, like facts=World-Chat,web=json:my.jsonl,code=folder,more=hub:owner/name"
    )
    licenses: str = option("", "license of each bucket, like web=CC-BY-4.0 (default: unknown)")
    against: str = option("", "drop rows that contain test questions of these tasks, like CLIcK,MMLU")
    tokenizer_tag: str = option("default", "run that trained the tokenizer, for --min-tokens and --max-tokens")
    out: str = option("", "folder for the chats (default: chats/TAG)", in_card=False, may_change=True)
    part: str = option(
        "", "filter only part i/n of the files, like 1/4; a run without --part does the rest", may_change=True
    )


def part_of(text: str) -> slice:
    """Return the places of a part's files: 2/3 has every third file from the second on."""
    match = re.fullmatch(r"(\d+)/(\d+)", text or "1/1")
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise UserError(f"--part={text} is not a part like 1/4, 2/4, 3/4 or 4/4")
    return slice(number - 1, None, count)


def check(config: Config) -> None:
    """Raise a UserError for a mistake in a setting. No file is read. tracks.chatdata.run calls it."""
    part_of(config.part)
    buckets = pairs(config.sources)
    if not buckets:
        raise UserError("--sources is empty, write it like facts=World-Chat,web=json:my.jsonl")
    check_names("--licenses: the bucket", pairs(config.licenses), buckets)
    check_settings(config, buckets)
    if config.against and not searched(config):
        raise UserError(
            f"--against={config.against} is for the filter contamination, which --filters leaves out for all buckets:"
            " add it to a list, or leave out --against"
        )


def searched(config: Config) -> list[str]:
    """Return the buckets whose rows are searched for questions of benchmarks, as --filters says."""
    found = buckets_with_rows(config, pairs(config.sources))
    return [bucket for bucket in found if "contamination" in chosen_filters(config, bucket)]


def main(config: Config) -> None:
    from nanochat.outcome import Outcome
    from nanochat.tokenizer import Tokenizer
    from tasks import TASKS, open_tasks
    from tracks.chatdata.contamination import Benchmarks
    from tracks.chatdata.sources import benchmark_questions, open_sources
    from tracks.chatdata.store import filter_file, merge, report, write_output
    from tracks.chatdata.topics import tagged

    check(config)
    outcome = Outcome.begin("chats", config.tag, config)
    found = searched(config)
    without = [bucket for bucket in buckets_with_rows(config, pairs(config.sources)) if bucket not in found]
    if config.against and without:
        print0(f"chats: --filters leaves out contamination for {', '.join(without)}: questions may stay in their rows")
    tests = open_tasks(config.against, unsafe_exec=True, tokenizer=config.tokenizer_tag) if config.against else {}
    tokenizer = Tokenizer.load(tokenizer_file(config.tokenizer_tag))
    sources = open_sources(config.sources, config.licenses, TASKS, config.tokenizer_tag)
    out = Path(config.out).expanduser() if config.out else stage_dir("chats", config.tag)
    manifest = out / "manifest.json"
    # All that decides the output.
    settings = {flag_of(name): value for name, value in fixed_settings(config).items()}
    settings |= {
        "tokenizer": tokenizer.content_hash,
        "benchmarks": {name: task.hashes() for name, task in tests.items()},
        "sources": [source.origin | {"rows": source.rows, "files": source.hashes} for source in sources],
    }
    if manifest.exists():
        # What a manifest does not have came later: its run had the default. Limits used to be numbers.
        before = {flag_of(one.name): one.default for one in fields(config)} | read_json(manifest)
        others = ", ".join(name for name in settings if before.get(name) != settings[name] != str(before.get(name)))
        if others:
            raise UserError(f"{out} was made with other settings or files ({others}): use another --tag or --out")
        print0(f"{out} is finished")
        return
    benchmarks = Benchmarks({name: benchmark_questions(task) for name, task in tests.items()})
    context = Context(config, tokenizer, benchmarks)
    # Tables of a run with other settings, which has failed, are not used.
    work = out / "work" / text_sha256(json.dumps(settings))
    work.mkdir(parents=True, exist_ok=True)
    tables = [work / f"{number:05d}.db" for number in range(len(sources))]
    # Parts that run at the same time have a lock each.
    with hold_folder(out / "work" / config.part.replace("/", "-of-")):
        for source, table in list(zip(sources, tables, strict=True))[part_of(config.part)]:
            if not table.exists():
                split = config.is_split(source.origin["bucket"])
                stream = tagged(source.stream(), split) if split or config.topics else source.stream()
                filter_file(stream, source.rows, context, table)
                print0(f"{', '.join(source.hashes)}: {source.rows:,} rows are filtered")
        if config.part:
            return
        with closing(merge(tables, config, work / "all.db")) as rows:
            outcome.tables = report(rows, config)
            moved = out / "work" / "moved.json"
            earlier = read_json(moved) if moved.exists() else []  # by runs that have not finished
            names: list[str] = []
            for path in write_output(rows, work, config.origin):
                outcome.add_artifact(path)
                names.append(path.name)
                write_json(moved, sorted({*earlier, *names}))
                path.replace(out / path.name)
            for name in set(earlier) - set(names):
                (out / name).unlink(missing_ok=True)
        outcome.metrics = {"Rows in": sum(source.rows for source in sources)} | benchmarks.sizes
        outcome.finish()
        counts = {table["title"]: table["rows"] for table in outcome.tables}
        write_json(manifest, {"command": outcome.command, "files": outcome.artifacts, "counts": counts} | settings)
        shutil.rmtree(out / "work")


if __name__ == "__main__":
    run_script(main)
