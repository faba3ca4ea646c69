"""A teacher: another model behind an OpenAI-compatible endpoint, which translates, answers and judges.

The client of `openai` tries failed requests again, after growing waits or as long as Retry-After asks (up to two
minutes). Each answer is kept in a file named by the hash of model, messages and settings, so a run that was stopped
pays for nothing twice when it is started again. The key comes from the environment; no message or file has it.
"""

import json
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nanochat.chat import text_of
from nanochat.config import Count, option, options
from nanochat.errors import UserError
from nanochat.log import Progress, Record, print0
from nanochat.paths import base_dir, read_json, text_sha256, write_json
from nanochat.protocols import Message
from nanochat.statistics import Metrics, mean_estimate
from tracks.chatdata.topics import TOPICS

PROMPTS = Path(__file__).parent / "prompts"
KEY = "OPENAI_API_KEY"  # environment variable
SECRET = 8  # characters; local servers accept keys like EMPTY, which may be words of an answer
RETRIES = 5  # of a request
SHOWN = 4000  # characters of a conversation whose topic is asked for
SCORES = {"1": 1.0, "2": 0.0, "tie": 0.5}  # verdict -> score of the first answer


class NoAnswer(UserError):
    """The teacher has no usable answer for a row; the run continues with other rows."""


@options("teacher")
class TeacherSettings:
    """A teacher, and the limits of its use."""

    teacher: str = option("", "address of an OpenAI-compatible endpoint, like http://host:port/v1")
    teacher_model: str = option("", "name of the teacher's model")
    teacher_tokens: Count = option(1024, "maximum number of tokens in an answer", least=1)
    teacher_temperature: float = option(0.0, "sampling temperature of the teacher")
    budget: Count = option(0, "tokens to spend, prompts included (0: no limit)")
    parallel: Count = option(8, "concurrent requests", least=1)
    timeout: float = option(120.0, "seconds to wait for an answer", least=0.1)


class Teacher:
    """The client. Threads may share it; `map` runs a function on many rows side by side."""

    def __init__(self, settings: TeacherSettings) -> None:
        from openai import OpenAI  # slow

        if not re.fullmatch(r"https?://[^\s@?#]+", settings.teacher) or not settings.teacher_model:
            raise UserError(f"add --teacher=http://host:port/v1 and --teacher-model=NAME; {KEY} holds the key")
        self.settings = settings
        self.tokens = 0  # spent
        self._reserved = 0  # tokens of requests that run, at most
        self._key = os.environ.get(KEY, "").strip()
        self._client = OpenAI(
            base_url=settings.teacher,
            api_key=self._key or "none",  # the client demands one
            timeout=settings.timeout,
            max_retries=RETRIES,
        )
        self._counting = threading.Lock()
        # Equal requests at the same time: the second one waits, and finds the answer in the cache.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def ask(self, name: str, /, *earlier: Message, **words: str) -> str:
        """Return the answer to a prompt with each {word} replaced, after earlier messages.

        An answer that was cut off is kept as an empty one: it is an error each time, and paid for once.
        """
        template = (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").strip()
        question = template.format_map(words)  # braces in a text that is put in stay as they are
        request = {
            "model": self.settings.teacher_model,
            "messages": [*earlier, {"role": "user", "content": question}],
            "temperature": self.settings.teacher_temperature,
            "max_tokens": self.settings.teacher_tokens,
        }
        content = json.dumps(request)
        key = text_sha256(content)
        path = base_dir() / "teacher" / f"{key}.json"
        with self._locks[key]:
            if not path.exists():
                # A token has one byte or more.
                answer = self._pay(request, len(content) + self.settings.teacher_tokens)
                write_json(path, request | {"answer": answer})
            answer = read_json(path)["answer"]
        if not answer:
            raise NoAnswer("an answer is cut off or empty")
        return answer

    def map(self, work: Callable[["Teacher", Record], Record], rows: list[Record]) -> list[Record]:
        """Return the results of `work(teacher, row)`, in order; rows without one are left out."""
        failures = []

        def attempt(row: Record) -> Record | None:
            try:
                return work(self, row)
            except NoAnswer as reason:
                failures.append(f"the first that is left out: {reason}")

        done = []
        progress = Progress()
        with ThreadPoolExecutor(self.settings.parallel) as pool:
            for number, result in enumerate(pool.map(attempt, rows), 1):
                if result:
                    done.append(result)
                progress.update(f"teacher: {number:,} of {len(rows):,} rows", number / len(rows))
        print0(f"teacher: {len(done):,} of {len(rows):,} rows, {self.tokens:,} tokens", *failures[:1], sep="; ")
        if not done:
            raise UserError("the teacher has no answer to any row, so nothing is written")
        return done

    def _pay(self, request: Record, most: int) -> str:
        """Send a request and return the answer; empty if it is cut off. most: tokens that it may cost."""
        import openai

        budget = self.settings.budget
        with self._counting:
            if 0 < budget < self.tokens + self._reserved + most:
                raise NoAnswer(f"the budget of {budget:,} tokens has no room for another request")
            self._reserved += most
        spent = most  # where the cost is not known
        try:
            response = self._client.chat.completions.create(**request)
            [choice] = response.choices
            answer = self._clean(choice.message.content or "") if choice.finish_reason == "stop" else ""
            model = self._clean(response.model)
            if response.usage:
                spent = int(response.usage.total_tokens)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            spent = 0  # a request that is refused costs nothing
            raise NoAnswer(self._clean(error.message)) from None
        except openai.APITimeoutError as error:
            raise NoAnswer(self._clean(error.message)) from None
        except openai.APIError as error:
            raise UserError(self._clean(f"the teacher {self.settings.teacher}: {error.message}")) from None
        except (AttributeError, TypeError, ValueError):
            raise NoAnswer("a response is not a chat completion") from None
        finally:
            with self._counting:
                self._reserved -= most
                self.tokens += spent
        # A date may follow the name: gpt-4o-2024-08-06 answers for gpt-4o.
        if not re.fullmatch(re.escape(request["model"]) + r"(-\d+)*", model):
            raise UserError(f"{model} answers instead of {request['model']}: correct --teacher-model")
        return answer

    def _clean(self, text: str) -> str:
        """Return a server's text without the key, and without halves of surrogate pairs."""
        text = text.encode(errors="replace").decode().strip()
        return text.replace(self._key, "[key]") if len(self._key) >= SECRET else text


# ---- uses: each returns a row with more in it ----


def translate(teacher: Teacher, row: Record, language: str) -> Record:
    """Translate the prompts in a conversation; `original` is the user's first one, for the filter `ratio`."""
    translated = row | {"messages": []}
    for message in row["messages"]:
        text = text_of(message)
        if message["role"] == "user":
            translated.setdefault("original", text)
        if message["role"] != "assistant":
            message = message | {"content": teacher.ask("translate", language=language, text=text)}
        translated["messages"].append(message)
    return translated


def answer(teacher: Teacher, row: Record) -> Record:
    """Answer each prompt in a conversation, in place of other answers."""
    messages: list[Message] = []
    for message in row["messages"]:
        if message["role"] == "user":
            reply = teacher.ask("answer", *messages, text=text_of(message))
            messages += [message, {"role": "assistant", "content": reply}]
        elif message["role"] == "system":
            messages.append(message)
    return row | {"messages": messages, "teacher": teacher.settings.teacher_model}


def topic(teacher: Teacher, row: Record) -> Record:
    """Decide which topic a conversation has."""
    shown = "\n\n".join(f"{message['role']}: {text_of(message)}" for message in row["messages"])[:SHOWN]
    return row | {"topic": _verdict("|".join(TOPICS), teacher.ask("topic", conversation=shown))}


def check_choices(teacher: Teacher, row: Record) -> Record:
    """Return a multiple-choice question if its answer is the only right choice, and no two choices say the same."""
    question, right = (text_of(message) for message in row["messages"][-2:])
    if _verdict("yes|no", teacher.ask("choices", question=question, right=right)) == "no":
        raise NoAnswer("its answer is not the only right choice, or two choices say the same")
    return row


def judge(teacher: Teacher, row: Record) -> Record:
    """Compare two samples of a row in both orders: their `reward` is 1, 0, or 0.5 for a tie and if verdicts differ.

    `first` and `longer` are the scores of the sample that is shown first, and of the longer one.
    """
    a, b = row["samples"]
    first = []  # scores of the sample that is shown first: 1, 0, or 0.5 for a tie
    for one, two in ((a, b), (b, a)):
        text = teacher.ask("judge", prompt=row["prompt"], first=one["text"], second=two["text"])
        first.append(SCORES[_verdict("1|2|tie", text)])
    a["reward"] = first[0] if sum(first) == 1 else 0.5
    b["reward"] = 1 - a["reward"]
    if len(a["text"]) > len(b["text"]):
        longer = a["reward"]
    elif len(a["text"]) < len(b["text"]):
        longer = b["reward"]
    else:
        longer = 0.5
    return row | {"first": sum(first) / 2, "longer": longer}


def _verdict(words: str, text: str) -> str:
    verdicts = re.findall(rf"verdict\W*({words})\b", text.lower())
    if not verdicts:
        raise NoAnswer("the judge gives no verdict")
    return verdicts[-1]


def judged_metrics(judged: list[Record]) -> Metrics:
    """Return win rate and biases for rows from `judge`, with standard errors over prompts."""
    scores = [row["samples"][0]["reward"] for row in judged]
    return {
        "Prompts": len(judged),
        "Ties": scores.count(0.5),
        "Win rate of A": mean_estimate(scores).metric(),
        "Wins of the first place": mean_estimate([row["first"] for row in judged]).metric(),
        "Wins of the longer answer": mean_estimate([row["longer"] for row in judged]).metric(),
    }
