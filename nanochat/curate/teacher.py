"""A teacher: another model behind an OpenAI-compatible endpoint, which translates, answers and judges.

Each answer is kept in a file named by the hash of model, messages and settings, so a run that was stopped pays for
nothing twice when it is started again. An answer that was cut off is kept too, and is an error each time. The client of
`openai` connects, retries with growing waits and jitter, and waits as long as Retry-After asks, up to two minutes. The
key comes from the environment; no message, record or file has it.
"""

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nanochat.config import Count, option
from nanochat.log import Progress, Record, print0
from nanochat.paths import base_dir, read_json, text_sha256, write_json

Row = TypeVar("Row")
Result = TypeVar("Result")
Messages = list[dict]

PROMPTS = Path(__file__).parent / "prompts"
KEY = "OPENAI_API_KEY"  # environment variable
SECRET = 8  # characters; local servers take keys like EMPTY, which may be words of an answer
RETRIES = 5  # of a request
ROW_ERRORS = (400, 413, 422)  # statuses about one row, such as a conversation that is too long
VERSION = r"(-\d{4,8}|-\d{4}-\d\d-\d\d)?"  # may follow a name: gpt-4o is answered by gpt-4o-2024-08-06
VERDICT = re.compile(r"verdict\W*(1|2|tie)\b", re.IGNORECASE)


class NoAnswer(ValueError):
    """The teacher has no usable answer for a row; the run continues with other rows."""


@dataclass(frozen=True)
class TeacherSettings:
    """A teacher, and the limits of its use."""

    teacher: str = option("", "address of an OpenAI-compatible endpoint, like http://host:port/v1", group="teacher")
    teacher_model: str = option("", "name of the teacher's model", group="teacher")
    teacher_prompts: str = option("", "folder with prompts, NAME.txt (default: ours)", group="teacher")
    teacher_tokens: Count = option(1024, "most tokens of an answer", group="teacher", least=1)
    teacher_temperature: float = option(0.0, "sampling temperature of the teacher", group="teacher", least=0)
    budget: Count = option(0, "tokens to spend, prompts included (0: no limit)", group="teacher", least=0)
    parallel: Count = option(8, "requests at once", group="teacher", least=1, in_card=False)
    timeout: float = option(120.0, "seconds to wait for an answer", group="teacher", least=0.1, in_card=False)


class Teacher:
    """The client. Threads may share it; `map` runs a function on many rows side by side."""

    def __init__(self, settings: TeacherSettings):
        from openai import OpenAI  # slow

        self.settings = settings
        if not re.fullmatch(r"https?://[^\s@?#]+", settings.teacher) or not settings.teacher_model:
            raise ValueError(f"add --teacher=http://host:port/v1 and --teacher-model=NAME; {KEY} holds the key")
        self._key = os.environ.get(KEY, "").strip()
        if not re.fullmatch("[!-~]*", self._key):
            raise ValueError(f"the key in {KEY} has characters that no HTTP header may have")
        self._client = OpenAI(
            base_url=settings.teacher,
            api_key=self._key or "none",  # the client demands one
            timeout=settings.timeout,
            max_retries=RETRIES,
        )
        self.counts = Counter({"requests": 0, "cached answers": 0, "tokens": 0})
        self._held = 0  # tokens that running requests may use
        self._change = threading.Condition()  # guards these two
        # Equal requests at the same time: the second one waits, and finds the answer in the cache.
        self._locks = [threading.Lock() for _ in range(256)]

    def prompt(self, name: str, **words: str) -> str:
        """Return a prompt with each {word} replaced."""
        folder = Path(self.settings.teacher_prompts or PROMPTS).expanduser()
        text = (folder / f"{name}.txt").read_text(encoding="utf-8").strip()
        # In one pass: braces in a text that is put in stay as they are.
        return re.sub(r"\{(\w+)\}", lambda match: words.get(match[1], match[0]), text)

    def ask(self, messages: Messages) -> str:
        """Return the answer to a conversation."""
        request = {
            "model": self.settings.teacher_model,
            "messages": messages,
            "temperature": self.settings.teacher_temperature,
            "max_tokens": self.settings.teacher_tokens,
        }
        key = text_sha256(json.dumps(request, sort_keys=True))
        path = base_dir() / "teacher" / key[:2] / f"{key}.json"
        with self._locks[int(key[:2], 16)]:
            if path.exists():
                record = read_json(path)
                self._settle("cached answers", 0, 0)
            else:
                record = request | self._pay(request)
                write_json(path, record)
        text = record["content"].strip()
        if record["finish_reason"] != "stop" or not text:
            raise NoAnswer(f"the answer is {'cut off' if text else 'empty'} ({record['finish_reason']})")
        return text

    def map(self, work: Callable[[Row], Result], rows: list[Row]) -> list[tuple[Row, Result]]:
        """Return rows with the results of `work`, in order; rows without one are counted by reason and left out."""

        def attempt(row: Row) -> Result | NoAnswer:
            try:
                return work(row)
            except NoAnswer as reason:
                return reason

        done = []
        failures = Counter()  # reason -> rows
        progress = Progress("teacher", "rows")
        with ThreadPoolExecutor(self.settings.parallel) as pool:
            for row, result in zip(rows, pool.map(attempt, rows), strict=True):
                if isinstance(result, NoAnswer):
                    failures[str(result)] += 1
                else:
                    done.append((row, result))
                progress.update(len(done) + failures.total(), len(rows))
        for reason, count in failures.most_common():
            print0(f"teacher: {count:,} rows are left out: {reason}")
        spent = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        print0(f"teacher: {len(done):,} of {len(rows):,} rows, {spent}")
        if not done:
            raise ValueError("the teacher has no answer to any row, so nothing is written")
        return done

    def _pay(self, request: Record) -> Record:
        """Send a request, and return the answer with its usage in tokens."""
        import openai

        # A token has one byte or more; the names of the fields stand for the tokens around each message.
        most = request["max_tokens"] + len(json.dumps(request["messages"], ensure_ascii=False).encode(errors="replace"))
        self._reserve(most)
        used = most  # a request without an answer may be charged
        try:
            answer = self._client.post("/chat/completions", body=request, cast_to=object)
            used = int((answer.get("usage") or {}).get("total_tokens") or most)
            model, choice = self._clean(answer["model"]), answer["choices"][0]
            content = self._clean(choice["message"]["content"] or "")
            reason = self._clean(choice["finish_reason"])
        except openai.APITimeoutError:
            raise NoAnswer(f"no answer within {self.settings.timeout:g} seconds") from None
        except openai.APIStatusError as error:
            used = 0
            kind = NoAnswer if error.status_code in ROW_ERRORS else ValueError
            raise kind(self._clean(f"the teacher refuses, status {error.status_code}: {error.message[:300]}")) from None
        except openai.APIConnectionError:
            raise ValueError(f"the teacher {self.settings.teacher} cannot be reached") from None
        except (AttributeError, LookupError, TypeError, RecursionError, ValueError) as error:
            raise NoAnswer(f"the response is no chat completion ({type(error).__name__})") from None
        finally:
            self._settle("requests", most, used)
        if not re.fullmatch(re.escape(request["model"]) + VERSION, model):
            raise ValueError(f"{model[:100]} answers instead of {request['model']}: correct --teacher-model")
        return {"content": content, "finish_reason": reason, "tokens": used}

    def _reserve(self, tokens: int) -> None:
        """Hold back tokens of the budget for a request."""
        budget = self.settings.budget
        with self._change:
            while budget and self.counts["tokens"] + self._held + tokens > budget:
                if not self._held:
                    raise NoAnswer(f"the budget of {budget:,} tokens has no room for another request")
                self._change.wait()  # running requests may use less than they hold
            self._held += tokens

    def _settle(self, kind: str, held: int, used: int) -> None:
        with self._change:
            self._held -= held
            self.counts.update({kind: 1, "tokens": used})
            self._change.notify_all()

    def _clean(self, text: str) -> str:
        """Return the text without the key, and without halves of surrogate pairs."""
        text = text.encode(errors="replace").decode()
        return text.replace(self._key, "[key]") if len(self._key) >= SECRET else text


# ---- uses ----


def plain(message: dict) -> str:
    """Return the text of a message."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def translate(teacher: Teacher, text: str, language: str) -> str:
    """Return the text in another language."""
    return teacher.ask([{"role": "user", "content": teacher.prompt("translate", language=language, text=text)}])


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
    text = teacher.ask(
        [{"role": "user", "content": teacher.prompt("judge", prompt=prompt, first=first, second=second)}]
    )
    verdicts = VERDICT.findall(text.lower())
    if not verdicts:
        raise NoAnswer("the judge gives no verdict")
    return {"1": 1.0, "2": 0.0, "tie": 0.5}[verdicts[-1]]


def read_rows(path: str, *columns: str) -> list[Record]:
    """Return the rows of a JSONL file; ValueError for one without these columns."""
    rows = []
    for number, line in enumerate(Path(path).expanduser().read_bytes().splitlines(), 1):
        try:
            rows.append(json.loads(line))
            [rows[-1][column] for column in columns]
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"{path}:{number} is no JSON with {' and '.join(columns)}") from None
    return rows
