"""What each stage of tracks.bases.practice has gained and lost beside its base model, question by question.

python -m tracks.bases.gains --tag=practice
"""

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome, read_outcomes
from nanochat.paths import base_dir
from nanochat.report.compare import decisions
from nanochat.settings import TagSettings
from nanochat.stages import source_of
from nanochat.statistics import mean_estimate, sign_test
from tracks.bases.practice import KINDS

COLUMNS = (
    "Benchmark | Questions:d | Before:.4f | After:.4f | Difference:+.4f | ±:.4f | In errors:+.1f"
    " | Better:d | Worse:d | p:.2g"
)


@options("gains")
class Config(TagSettings):
    """Compare the scores of each stage of a series with those of its base model."""

    tag = option("practice", "name of the series")


def gain_rows(found: list[Record], before: str, after: str) -> list[list]:
    """Return a row for each benchmark whose same questions both stages have answered."""
    import numpy as np  # slow

    answers = {(source_of(one["stage"]), one["task"], one["questions"]): one for one in found}
    rows = []
    for (source, task, questions), one in answers.items():
        later = answers.get((after, task, questions))
        if source != before or not later:
            continue
        first, second = (np.array(each["right"].split(), float) / each["samples"] for each in (one, later))
        mean, error = mean_estimate((second - first).tolist())
        better, worse = int((second > first).sum()), int((second < first).sum())
        in_errors = mean / error if error > 0 else None  # nan for a single question
        scores = [len(first), float(first.mean()), float(second.mean()), mean, error, in_errors]
        rows.append([task, *scores, better, worse, sign_test(better, worse)])
    return rows


def main(config: Config) -> None:
    outcome = Outcome.begin("practice", config.tag, config)
    evaluations = [one for one in read_outcomes(base_dir(), config.tag) if "eval" in one.stage]
    found = decisions(base_dir(), evaluations)
    for after in KINDS:
        rows = gain_rows(found, "base", after)
        if rows:
            outcome.tables.append(table_of(f"Before and after {after.upper()}", COLUMNS, rows))
    if not outcome.tables:
        raise UserError(
            f"--tag={config.tag}: no stage has answered the base model's questions: run tracks.bases.practice"
        )
    outcome.metrics["±"] = (
        "of the difference over questions, for one training; p is not corrected for the number of rows"
    )
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
