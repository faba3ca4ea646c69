"""OpenAI's chat and completion requests, checked by pydantic models and turned into requests for the engine."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from nanochat.chat import render_prompt
from nanochat.engine import ENDS, Request
from nanochat.tokenizer import Tokenizer

PROMPTS_PER_SAMPLE = 8  # limits the prompts of a completion request
ERROR_TYPES = {  # OpenAI's error names, by status; all other statuses are an invalid_request_error
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ApiError(Exception):
    """An error response in OpenAI's form. param: the field at fault. code: the reason, for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.headers = headers or {}  # such as retry-after
        kind = ERROR_TYPES.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class RequestLimits:
    """Limits for one request. tokens: generated for one sample, 0: as many as the context holds."""

    body_bytes: int = 1 << 20
    messages: int = 200
    characters: int = 200_000  # in all texts together
    tokens: int = 0
    samples: int = 16  # for one prompt


@dataclass(frozen=True)
class ServedModel:
    """The model behind the server. context: tokens in a prompt and a sample together."""

    name: str
    tokenizer: Tokenizer
    context: int
    limits: RequestLimits
    created: int = 0  # seconds since 1970


@dataclass(frozen=True)
class ApiRequest:
    """A checked request: the fields, and the form for the engine."""

    fields: "CommonFields"
    is_chat: bool
    prompts: list[Request]  # one engine request a prompt, each with n samples
    prompt_texts: list[str]  # the prompts as `echo` shows them
    added_tokens: int  # tokens at the start of each prompt, not sent by the client
    top_logprobs: int = -1  # alternatives to each token, 0: the token's own log-probability, -1: none
    echo: bool = False
    generates: bool = True  # False: only the prompt is scored
    # Tokens that end a choice here and not in the engine: the client sees their log-probability.
    end_tokens: frozenset[int] = frozenset()

    def __post_init__(self):
        if self.fields.stream and self.needs_scores:
            raise ApiError(400, "log-probabilities of prompts and of alternative tokens are not streamed", "stream")

    @property
    def samples(self) -> int:
        return sum(prompt.n for prompt in self.prompts)

    @property
    def needs_scores(self) -> bool:
        """Return True if log-probabilities need a forward pass over the whole row."""
        return self.top_logprobs > 0 or (self.echo and self.top_logprobs == 0)


# ---- the fields of OpenAI's requests ----

# Fields with an effect on the answer, but not on this server. Null and values without effect are accepted.
UNSUPPORTED = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
UNSUPPORTED_IN_MESSAGES = {"tool_calls": ([],), "function_call": ({},), "audio": ({},), "refusal": ("",)}


def unsupported_field(fields: dict, table: dict[str, tuple]) -> str | None:
    """Return the first field from a table with another value than a harmless one."""
    for name, harmless in table.items():
        if fields.get(name) is not None and fields[name] not in harmless:
            return name
    return None


def normal_message(message: dict) -> dict:
    """Accept plain text as content, the role developer, and answers of ours with `parts`."""
    if not isinstance(message, dict):
        return message  # refused by pydantic, with a message
    name = unsupported_field(message, UNSUPPORTED_IN_MESSAGES)
    if name:
        raise ValueError(f"{name} is not supported by this server, leave it out")
    role = message.get("role")
    content = message.get("content")
    # `content` alone would lose the calculator's work.
    if role == "assistant" and message.get("parts"):
        content = message["parts"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return {"role": "system" if role == "developer" else role, "content": content}


def list_of_stops(stop: str | list) -> list:
    return [stop] if isinstance(stop, str) else stop


def list_of_prompts(prompt: str | list) -> list:
    """Put a single prompt, a text or a list with token ids, into a list."""
    # A list without token ids is no prompt: even an empty text has <|bos|>.
    prompts = [prompt] if isinstance(prompt, str) or is_token_row(prompt) else prompt
    is_list = isinstance(prompts, list) and len(prompts) > 0
    if is_list and (all(isinstance(one, str) for one in prompts) or all(map(is_token_row, prompts))):
        return prompts
    raise ValueError("has to be a text, a list of texts, a list of token ids, or a list of lists of token ids")


def is_token_row(value: str | list) -> bool:
    # type, not isinstance: true is no token id
    return isinstance(value, list) and len(value) > 0 and all(type(token) is int for token in value)


StopText = Annotated[str, Field(min_length=1, max_length=256)]


class ContentPart(BaseModel):
    type: Literal["text", "python", "python_output"]
    text: str


class Message(BaseModel):
    """A message in a conversation; nanochat.chat checks the order."""

    role: Literal["system", "user", "assistant"]
    content: list[ContentPart] = Field(min_length=1)  # an image or a file is refused as an unknown type


class StreamOptions(BaseModel):
    include_usage: bool | None = False


class CommonFields(BaseModel):
    """Fields of chat and completion requests. Other fields are ignored."""

    # strict: "1" is no number, and true is none either.
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    model: str | None = None
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)  # not OpenAI's, but known from other servers
    # The engine has seeds without a sign; clients send any 64 bits.
    seed: int = Field(default_factory=lambda: secrets.randbits(32), ge=-(2**63), lt=2**63)
    n: int = Field(1, ge=1)
    stop: Annotated[list[StopText], BeforeValidator(list_of_stops)] = Field([], max_length=4)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class ChatFields(CommonFields):
    messages: list[Annotated[Message, BeforeValidator(normal_message)]] = Field(min_length=1)
    # Two names for one limit; None: as many as the context holds.
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)


class CompletionFields(CommonFields):
    prompt: Annotated[list[str] | list[list[int]], BeforeValidator(list_of_prompts)] = [""]
    max_tokens: int = Field(16, ge=0)
    echo: bool = False
    # The number alone; a chat has a flag and a number.
    logprobs: int = Field(-1, ge=0, le=5)
    best_of: int | None = None


# ---- from a body to a checked request ----

JSON_OBJECT = TypeAdapter(dict[str, Any])
Fields = TypeVar("Fields", bound=CommonFields)


def _validate(model: type[Fields], body: bytes) -> Fields:
    """Return the fields of a JSON body; an ApiError names the first wrong field. Null counts as absent."""
    try:
        found = JSON_OBJECT.validate_json(body)
        fields = model.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:  # also for a body without JSON, in wrong UTF-8, or nested too deeply
        raise _field_error(error) from None
    name = unsupported_field(found, UNSUPPORTED)
    if name:
        message = f"{name} is not supported by this server, leave it out"
        raise ApiError(400, message, name, "unsupported_parameter")
    return fields


def _field_error(error: ValidationError) -> ApiError:
    # One sentence about one field is enough to act.
    first = error.errors(include_url=False, include_input=False)[0]
    name = ""
    for part in first["loc"]:  # ("messages", 0, "role") -> messages[0].role
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    name = name.removeprefix(".")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{name or 'body'}: {message}", name or None)


def _check_characters(texts: Sequence[str], limits: RequestLimits, field: str) -> None:
    count = sum(map(len, texts))  # token ids count one each
    if count > limits.characters:
        sentence = f"the request has {count:,} characters, {limits.characters:,} are allowed"
        raise ApiError(400, sentence, field, "string_above_max_length")


def parse_chat(body: bytes, served: ServedModel) -> ApiRequest:
    """Check the body of a chat request and render the conversation as a prompt."""
    fields = _validate(ChatFields, body)
    limits = served.limits
    # Cheap checks first: encoding is the slow part.
    if len(fields.messages) > limits.messages:
        sentence = f"the request has {len(fields.messages):,} messages, {limits.messages:,} are allowed"
        raise ApiError(400, sentence, "messages", "array_above_max_length")
    _check_characters([part.text for message in fields.messages for part in message.content], limits, "messages")
    if fields.messages[-1].role == "assistant":
        raise ApiError(400, "the last message has to be the user's", "messages")
    try:
        tokens = render_prompt(fields.model_dump(include={"messages"}), served.tokenizer)
    except ValueError as error:  # user and assistant must take turns
        raise ApiError(400, str(error), "messages") from None
    if fields.top_logprobs and not fields.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    max_tokens = fields.max_completion_tokens or fields.max_tokens  # the newer name comes first
    return ApiRequest(
        fields=fields,
        is_chat=True,
        prompts=_engine_requests(fields, [tokens], max_tokens, served, "messages", stop=None),
        prompt_texts=[""],
        added_tokens=len(tokens),  # a chat shows no prompt
        top_logprobs=fields.top_logprobs if fields.logprobs else -1,
    )


def parse_completion(body: bytes, served: ServedModel) -> ApiRequest:
    """Check the body of a completion request and encode its prompts."""
    fields = _validate(CompletionFields, body)
    if not fields.max_tokens and not fields.echo:
        raise ApiError(400, "max_tokens is 0 and echo is false: there is nothing to answer", "max_tokens")
    if fields.best_of not in (None, 1, fields.n):
        raise ApiError(400, "best_of other than n is not supported", "best_of")
    rows, texts = _encode_prompts(fields.prompt, served)
    end_tokens = frozenset()
    stop = None  # the engine's own end tokens
    if fields.logprobs >= 0:
        # Programs score a prompt by asking for one token more, and drop this token: show end tokens, too.
        end_tokens = frozenset(served.tokenizer.special_tokens[name] for name in ENDS)
        stop = frozenset()
    return ApiRequest(
        fields=fields,
        is_chat=False,
        prompts=_engine_requests(fields, rows, fields.max_tokens, served, "prompt", stop),
        prompt_texts=texts,
        added_tokens=1 if isinstance(fields.prompt[0], str) else 0,  # <|bos|>
        top_logprobs=fields.logprobs,
        echo=fields.echo,
        generates=fields.max_tokens > 0,
        end_tokens=end_tokens,
    )


def _encode_prompts(prompts: list[str] | list[list[int]], served: ServedModel) -> tuple[list[list[int]], list[str]]:
    """Return prompts as token ids and as texts. A text gets <|bos|> before it, token ids are taken as they are."""
    tokenizer = served.tokenizer
    most = PROMPTS_PER_SAMPLE * served.limits.samples
    if len(prompts) > most:
        raise ApiError(400, f"prompt has {len(prompts):,} prompts, {most:,} are allowed", "prompt")
    _check_characters(prompts, served.limits, "prompt")
    if isinstance(prompts[0], str):
        bos = tokenizer.special_tokens["<|bos|>"]
        return [[bos, *tokenizer.encode(text)] for text in prompts], prompts
    if any(not 0 <= token < tokenizer.vocab_size for row in prompts for token in row):
        sentence = f"prompt has ids beyond the vocabulary of {tokenizer.vocab_size:,} tokens"
        raise ApiError(400, sentence, "prompt")
    return prompts, [tokenizer.decode(row) for row in prompts]


def _engine_requests(
    fields: CommonFields,
    rows: list[list[int]],
    max_tokens: int | None,
    served: ServedModel,
    field: str,
    stop: frozenset[int] | None,
) -> list[Request]:
    """Return one engine request a prompt. max_tokens None: as many as limit and context allow."""
    limits = served.limits
    if fields.model not in (None, served.name):
        sentence = f"there is no model {fields.model[:100]!r} here, only {served.name!r}"
        raise ApiError(404, sentence, "model", "model_not_found")
    if fields.n > limits.samples:
        raise ApiError(400, f"n: at most {limits.samples} samples of a prompt are allowed", "n")
    generates = max_tokens is None or max_tokens > 0
    for tokens in rows:
        # Without generation, a prompt may fill the context.
        if len(tokens) + generates > served.context:
            sentence = f"the prompt has {len(tokens):,} tokens, prompt and answer must fit into {served.context:,}"
            raise ApiError(400, sentence, field, "context_length_exceeded")
    # A limit that was asked for is refused, not lowered in silence.
    if limits.tokens and (max_tokens or 0) > limits.tokens:
        raise ApiError(400, f"max_tokens: at most {limits.tokens:,} tokens of an answer are allowed", "max_tokens")
    if max_tokens is None:
        max_tokens = limits.tokens or served.context
    requests = []
    for tokens in rows:
        request = Request(
            tokens,
            max(max_tokens, 1),  # 0 means: only scored, without the engine
            temperature=fields.temperature,
            top_k=min(fields.top_k, served.tokenizer.vocab_size),
            top_p=fields.top_p,
            seed=fields.seed % 2**64,  # the engine takes no negative seeds
            stop=stop,
            n=fields.n,
        )
        requests.append(request)
    return requests
