"""A teacher: another model behind an OpenAI-compatible endpoint, which translates, answers and judges.

Each answer is kept in a file named by the hash of model, messages and settings, so a run that was stopped pays for
nothing twice when it is started again. The client of `openai` connects, retries with growing waits and jitter, and
waits as long as Retry-After asks, up to two minutes. The key comes from the environment and is never printed.
"""

import json
import os
import re
import statistics
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nanochat.config import Count, option
from nanochat.log import Progress, Record, print0
from nanochat.outcome import Metrics, mean_estimate, measured
from nanochat.paths import base_dir, read_json, text_sha256, write_json

Row = TypeVar("Row")
Result = TypeVar("Result")
Messages = list[dict]

PROMPTS = Path(__file__).parent / "prompts"
KEY = "OPENAI_API_KEY"  # environment variable
RETRIES = 5  # of a request
ROW_ERRORS = (400, 413, 422)  # statuses about one row, such as a conversation that is too long
VERSION = r"(-\d{4,8}|-\d{4}-\d\d-\d\d)?"  # may follow a name: gpt-4o is answered by gpt-4o-2024-08-06
VERDICT = re.compile(r"verdict\W*(1|2|tie)\b")
SCORES = {"1": 1.0, "2": 0.0, "tie": 0.5}  # verdict -> score of the first answer


class NoAnswer(ValueError):
    """The teacher has no usable answer for a row; the run continues with other rows."""


@dataclass(frozen=True)
class TeacherSettings:
    """A teacher, and the limits of its use."""

    teacher: str = option("", "address of an OpenAI-compatible endpoint, like http://host:port/v1", group="teacher")
    teacher_model: str = option("", "name of the teacher's model", group="teacher")
    teacher_prompts: str = option(str(PROMPTS), "folder with prompts, NAME.txt", group="teacher", in_card=False)
    teacher_tokens: Count = option(1024, "most tokens of an answer", group="teacher", least=1)
    teacher_temperature: float = option(0.0, "sampling temperature of the teacher", group="teacher", least=0)
    budget: Count = option(0, "tokens to spend, prompts included (0: no limit)", group="teacher", least=0)
    parallel: Count = option(8, "requests at once", group="teacher", least=1, in_card=False)
    timeout: float = option(120.0, "seconds to wait for an answer", group="teacher", least=0.1, in_card=False)


class Teacher:
    """The client. Threads may share it; `map` runs a function on many rows side by side."""

    def __init__(self, settings: TeacherSettings):
        from openai import OpenAI  # slow

        if not re.fullmatch(r"https?://[^\s@?#]+", settings.teacher) or not settings.teacher_model:
            raise ValueError(f"add --teacher=http://host:port/v1 and --teacher-model=NAME; {KEY} holds the key")
        self.settings = settings
        self._key = os.environ.get(KEY) or "no-key"  # the client demands one
        self._client = OpenAI(
            base_url=settings.teacher, api_key=self._key, timeout=settings.timeout, max_retries=RETRIES
        )
        self.counts = Counter()  # requests, cached answers, tokens
        self._held = 0  # tokens that running requests may use
        self._change = threading.Condition()  # guards these two
        # Equal requests at the same time: the second one waits, and finds the answer in the cache.
        self._locks = defaultdict(threading.Lock)

    def prompt(self, name: str, **words: str) -> str:
        """Return a prompt with each {word} replaced."""
        path = Path(self.settings.teacher_prompts).expanduser() / f"{name}.txt"
        text = path.read_text(encoding="utf-8").strip()
        # In one pass: braces in a text that is put in stay as they are.
        return re.sub(r"\{(\w+)\}", lambda match: words.get(match[1], match[0]), text)

    def ask(self, messages: Messages) -> str:
        """Return the answer to a conversation. An answer that was cut off is kept too, and is an error each time."""
        request = {
            "model": self.settings.teacher_model,
            "messages": messages,
            "temperature": self.settings.teacher_temperature,
            "max_tokens": self.settings.teacher_tokens,
        }
        key = text_sha256(json.dumps(request, sort_keys=True))
        path = base_dir() / "teacher" / key[:2] / f"{key}.json"
        with self._locks[key]:
            if path.exists():
                record = read_json(path)
                self._settle("cached answers", 0, 0)
            else:
                record = request | self._pay(request)
                write_json(path, record)
        text, reason = record["content"].strip(), record["finish_reason"]
        if reason != "stop" or not text:
            raise NoAnswer(f"an answer is cut off or empty ({reason})")
        return text

    def map(self, work: Callable[[Row], Result], rows: list[Row]) -> list[tuple[Row, Result]]:
        """Return rows with the results of `work`, in order; rows without one are counted and left out."""

        def attempt(row: Row) -> Result | NoAnswer:
            try:
                return work(row)
            except NoAnswer as reason:
                return reason

        done, failures = [], []
        progress = Progress("teacher", "rows")
        with ThreadPoolExecutor(self.settings.parallel) as pool:
            for row, result in zip(rows, pool.map(attempt, rows), strict=True):
                if isinstance(result, NoAnswer):
                    failures.append(result)
                else:
                    done.append((row, result))
                progress.update(len(done) + len(failures), len(rows))
        spent = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        print0(f"teacher: {len(done):,} of {len(rows):,} rows, {spent}")
        if failures:
            print0(f"teacher: {len(failures):,} rows without an answer are left out, the first: {failures[0]}")
        if not done:
            raise ValueError("the teacher has no answer to any row, so nothing is written")
        return done

    def _pay(self, request: Record) -> Record:
        """Send a request within the budget, and return the answer."""
        import openai

        # A token has one byte or more; the names of the fields stand for the tokens around each message.
        most = request["max_tokens"] + len(json.dumps(request["messages"], ensure_ascii=False).encode())
        self._reserve(most)
        used = most  # a request without an answer may be charged
        try:
            response = self._client.post("/chat/completions", body=request, cast_to=object)
            used = int((response.get("usage") or {}).get("total_tokens") or most)
            model, choice = str(response["model"]), response["choices"][0]
            content = choice["message"]["content"] or ""
            answer = {"content": content.encode(errors="replace").decode(), "finish_reason": choice["finish_reason"]}
        except openai.APITimeoutError:
            raise NoAnswer(f"no answer within {self.settings.timeout:g} seconds") from None
        except openai.APIStatusError as error:
            used = 0
            kind = NoAnswer if error.status_code in ROW_ERRORS else ValueError
            text = error.message.replace(self._key, "[key]")
            raise kind(f"the teacher refuses, status {error.status_code}: {text[:300]}") from None
        except openai.APIConnectionError:
            raise ValueError(f"the teacher {self.settings.teacher} cannot be reached") from None
        except (AttributeError, LookupError, TypeError, ValueError):
            raise NoAnswer("a response is no chat completion") from None
        finally:
            self._settle("requests", most, used)
        if not re.fullmatch(re.escape(request["model"]) + VERSION, model):
            raise ValueError(f"{model[:100]} answers instead of {request['model']}: correct --teacher-model")
        return answer

    def _reserve(self, tokens: int) -> None:
        """Hold back tokens of the budget for a request."""
        budget = self.settings.budget

        def fits() -> bool:
            return not budget or self.counts["tokens"] + self._held + tokens <= budget

        with self._change:
            # Running requests may use less than they hold.
            self._change.wait_for(lambda: fits() or not self._held)
            if not fits():
                raise NoAnswer(f"the budget of {budget:,} tokens has no room for another request")
            self._held += tokens

    def _settle(self, kind: str, held: int, used: int) -> None:
        with self._change:
            self._held -= held
            self.counts.update({kind: 1, "tokens": used})
            self._change.notify_all()


# ---- uses ----


def user(text: str) -> Messages:
    """Return a conversation with one message."""
    return [{"role": "user", "content": text}]


def plain(message: dict) -> str:
    """Return the text of a message."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def translate(teacher: Teacher, text: str, language: str) -> str:
    """Return the text in another language."""
    return teacher.ask(user(teacher.prompt("translate", language=language, text=text)))


def answer(teacher: Teacher, messages: Messages) -> str:
    """Return the next message of the assistant. A conversation without a system message gets our prompt."""
    texts = [{"role": message["role"], "content": plain(message)} for message in messages]
    system = teacher.prompt("answer")
    if system and texts[0]["role"] != "system":
        texts.insert(0, {"role": "system", "content": system})
    return teacher.ask(texts)


def judge(teacher: Teacher, messages: Messages, first: str, second: str) -> float:
    """Return the score of the first answer against the second: 1, 0, or 0.5 for a tie."""
    prompt = "\n\n".join(f"{message['role']}: {plain(message)}" for message in messages)
    text = teacher.ask(user(teacher.prompt("judge", prompt=prompt, first=first, second=second)))
    verdicts = VERDICT.findall(text.lower())
    if not verdicts:
        raise NoAnswer("the judge gives no verdict")
    return SCORES[verdicts[-1]]


def judge_twice(teacher: Teacher, row: Record) -> Record:
    """Return the row with the score of A, 0 to 1, as it stands first and second; if they differ, it is a tie."""
    a, b = row["answer_a"], row["answer_b"]
    first = second = 0.5
    if a != b:
        first = judge(teacher, row["prompt"], a, b)
        second = 1 - judge(teacher, row["prompt"], b, a)
    return row | {"first": first, "second": second, "score": first if first == second else 0.5}


def judged_metrics(judged: list[Record]) -> Metrics:
    """Return win rate and biases for rows from `judge_twice`; standard errors are over prompts."""
    scores = [row["score"] for row in judged]
    # The first place scores `first` with A in it, and 1 - `second` with B.
    places = [(row["first"] + 1 - row["second"]) / 2 for row in judged]
    longer = [len(row["answer_a"]) - len(row["answer_b"]) for row in judged]
    try:
        correlation = statistics.correlation(scores, longer)
    except statistics.StatisticsError:  # all scores or all lengths are equal
        correlation = None
    return {
        "Prompts": len(judged),
        "Win rate of A": mean_estimate(scores).metric(),
        "Wins, ties, losses": ", ".join(str(scores.count(value)) for value in (1, 0.5, 0)),
        "Verdicts that depend on the order": sum(row["first"] != row["second"] for row in judged),
        "Wins of the first place": mean_estimate(places).metric(),
        "Correlation of score and length": measured(correlation),
    }


def read_rows(path: str, *columns: str) -> list[Record]:
    """Return the rows of a JSONL file; ValueError for one without these columns."""
    rows = []
    for number, line in enumerate(Path(path).expanduser().read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append(row | {column: row[column] for column in columns})
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"{path}:{number} is no JSON with {' and '.join(columns)}") from None
    return rows
