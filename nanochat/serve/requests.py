"""OpenAI's chat and completion requests, checked by pydantic models and turned into requests for the engine."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from starlette.exceptions import HTTPException

from nanochat.chat import check_conversation, render_prompt, render_text
from nanochat.engine import Request
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.settings import CHAT_TEMPERATURE
from nanochat.tokenizer import Tokenizer


class ApiError(HTTPException):
    """An error response in OpenAI's form. param: the field at fault. code: the reason, for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = message[:1000]  # it may quote the client
        super().__init__(status, message, headers)  # such as retry-after
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class ServedModel:
    """The model behind the server. context: tokens in a prompt and a sample together. is_base: see `render_text`.

    temperature and suggestions are for the page, see nanochat.chat: programs choose their own. top_k and top_p are a
    public model's, for whoever gives none.
    """

    name: str
    tokenizer: Tokenizer
    context: int
    temperature: float = CHAT_TEMPERATURE
    top_k: int | None = None  # None: 0 for programs, and the page has its own
    top_p: float = 1.0
    is_base: bool = False
    suggestions: Sequence[str] = ()


@dataclass(frozen=True)
class ApiRequest:
    """A checked request: the fields, and the form for the engine."""

    fields: "CommonFields"
    is_chat: bool
    prompts: list[Request]  # one engine request a prompt, each with n samples
    echo: bool = False  # show the prompt before each choice
    added_tokens: Sequence[int] = ()  # of a completion: tokens at the start of each prompt, not sent by the client
    # Likeliest tokens with log-probabilities beside each token; None: no log-probabilities.
    likely: int | None = None
    tools: Collection[str] = ()  # names of those that the model may call
    parallel_calls: bool = True  # more than one in an answer

    @property
    def sample_count(self) -> int:
        return sum(prompt.n for prompt in self.prompts)


# ---- the fields of OpenAI's requests ----


# Fields that would change the answer; with 0, "", false or an empty list they change nothing.
UNSUPPORTED = """
    tools functions response_format logit_bias frequency_penalty presence_penalty best_of suffix audio
    chat_template_kwargs repetition_penalty min_p
""".split()
NEUTRAL = {"repetition_penalty": 1}  # what clients send to change nothing, beside null, 0 and what is empty


def in_list(value: Any) -> Any:
    """Put a single text, or a single row of token ids, into a list."""
    is_row = isinstance(value, list) and value and isinstance(value[0], int)
    return [value] if is_row or isinstance(value, str) else value


StopText = Annotated[str, Field(min_length=1, max_length=256)]
TokenRow = Annotated[list[NonNegativeInt], Field(min_length=1)]


class CommonFields(BaseModel):
    """Fields of chat and completion requests. Others are ignored, or refused if they are UNSUPPORTED."""

    # strict: "1" is not a number, and neither is true.
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    model: str = ""
    temperature: float = Field(1.0, ge=0, le=2)
    # None: the model's own, or all tokens.
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: NonNegativeInt | None = None  # not OpenAI's, but known from other servers
    seed: int = Field(default_factory=lambda: secrets.randbits(32))
    n: int = Field(1, ge=1, le=128)
    stop: Annotated[list[StopText], BeforeValidator(in_list)] = Field([], max_length=4)
    stream: bool = False
    stream_options: Record = {}  # include_usage: a last chunk with the number of tokens


Fields = TypeVar("Fields", bound=CommonFields)


class Function(BaseModel):
    """What a tool is called, and whatever else a template tells the model about it."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str = Field(min_length=1, max_length=256)


class Tool(BaseModel):
    """Something that the model may call."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"] = "function"
    function: Function


class ChatFields(CommonFields):
    messages: list[Record] = Field(min_length=1)  # nanochat.chat checks roles, order and contents
    # Two names for one limit; None: as many as the context holds.
    max_completion_tokens: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)  # likeliest tokens beside each token; needs logprobs
    tools: list[Tool] = Field([], max_length=128)
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True


class CompletionFields(CommonFields):
    prompt: Annotated[list[str] | list[TokenRow], BeforeValidator(in_list)] = Field([""], min_length=1, max_length=2048)
    max_tokens: PositiveInt = 16
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)


# Further keys of messages, by role, for templates that know tools.
TOOL_KEYS = {"assistant": ("tool_calls", "reasoning_content"), "tool": ("tool_call_id", "name")}

# ---- from a body to a checked request ----

JSON_OBJECT = TypeAdapter(Record)


def read_fields(model: type[Fields], body: bytes, served: ServedModel) -> Fields:
    """Return the fields of a JSON body; an ApiError names the first wrong field. Null counts as absent."""
    try:
        found = JSON_OBJECT.validate_json(body)
        fields = model.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:  # also for a body without JSON, in wrong UTF-8, or nested too deeply
        first = error.errors(include_url=False, include_input=False)[0]
        place = [str(part) for part in first["loc"]]  # such as messages, 0, role
        message = f"{'.'.join(place) or 'body'}: {first['msg']}"
        raise ApiError(400, message, place[0] if place else None) from None
    for name in UNSUPPORTED:
        if found.get(name) and found[name] != NEUTRAL.get(name) and name not in model.model_fields:
            raise ApiError(400, f"{name}: this server does not support the field, leave it out", name)
    if fields.model not in ("", served.name):
        raise ApiError(
            404, f"there is no model {fields.model!r} here, only {served.name!r}", "model", "model_not_found"
        )
    return fields


def parse_chat(body: bytes, served: ServedModel) -> ApiRequest:
    """Check the body of a chat request and render the conversation as a prompt."""
    fields = read_fields(ChatFields, body, served)
    if fields.top_logprobs and not fields.logprobs:
        raise ApiError(400, "top_logprobs: logprobs has to be true beside it", "top_logprobs")
    has_template = served.tokenizer.template is not None
    messages = []
    for message in fields.messages:
        role = message.get("role")
        # In answers of ours: `content` alone would lose the calculator's work.
        content = message.get("parts") or message.get("content")
        if role == "developer" and not has_template:  # newer clients' name; a template of a public model may know it
            role = "system"
        said = {"role": role, "content": content}
        messages.append(said | {key: message[key] for key in TOOL_KEYS.get(str(role), ()) if message.get(key)})
    if messages[-1]["role"] == "assistant":
        raise ApiError(400, "the last message has to be the user's, or a tool's result", "messages")
    tools = _offered(fields, served)
    try:
        # User and assistant must take turns, unless a template of a public model has the say.
        asked = {"messages": messages} | ({"tools": tools} if tools else {})
        conversation = check_conversation(asked, any_order=has_template)
        tokens = (render_text if served.is_base else render_prompt)(conversation, served.tokenizer)
    except UserError as error:
        raise ApiError(400, str(error), "messages") from None
    max_tokens = fields.max_completion_tokens or fields.max_tokens or served.context  # the newer name comes first
    prompt = engine_request(fields, tokens, max_tokens, served, "messages")
    # The engine has them at every step: they can be streamed.
    prompt = replace(prompt, logprobs=fields.logprobs, likely=fields.top_logprobs)
    return ApiRequest(
        fields=fields,
        is_chat=True,
        prompts=[prompt],
        likely=fields.top_logprobs if fields.logprobs else None,
        tools=frozenset(tool["function"]["name"] for tool in tools),
        parallel_calls=fields.parallel_tool_calls,
    )


def _offered(fields: ChatFields, served: ServedModel) -> list[Record]:
    """Return the tools that the model is told of."""
    if fields.tool_choice not in ("auto", "none"):
        raise ApiError(400, "tool_choice: auto and none are known, no model here can be made to call", "tool_choice")
    if fields.tool_choice == "none" or not fields.tools:
        return []
    template = None if served.is_base else served.tokenizer.template
    if not template or not template.call_form:
        raise ApiError(400, "tools: this model has no chat template that writes calls as JSON, leave it out", "tools")
    return [tool.model_dump() for tool in fields.tools]


def parse_completion(body: bytes, served: ServedModel) -> ApiRequest:
    """Check the body of a completion request. A text begins as the model's texts do, token ids are used unchanged."""
    fields = read_fields(CompletionFields, body, served)
    if fields.stream and fields.logprobs is not None:
        raise ApiError(400, "log-probabilities are not streamed", "stream")
    tokenizer = served.tokenizer
    texts = [prompt for prompt in fields.prompt if isinstance(prompt, str)]  # all prompts or none
    rows = [prompt for prompt in fields.prompt if not isinstance(prompt, str)]
    openings: list[list[int]] = [[] for _ in rows]
    if texts:
        encoded = [tokenizer.encode(text) for text in texts]
        openings = [tokenizer.opening(ids) for ids in encoded]
        rows = [[*opening, *ids] for opening, ids in zip(openings, encoded, strict=True)]
    elif max(map(max, rows)) >= tokenizer.vocab_size:
        raise ApiError(400, f"prompt has ids beyond the vocabulary of {tokenizer.vocab_size:,} tokens", "prompt")
    # Programs score a prompt by asking for one token more, and drop this token: then end tokens end a choice here and
    # not in the engine, so that the client sees their log-probability.
    stop = None if fields.logprobs is None else frozenset()
    return ApiRequest(
        fields=fields,
        is_chat=False,
        prompts=[engine_request(fields, row, fields.max_tokens, served, "prompt", stop) for row in rows],
        echo=fields.echo,
        added_tokens=[len(opening) for opening in openings],
        likely=fields.logprobs,
    )


def engine_request(
    fields: CommonFields,
    tokens: list[int],
    max_tokens: int,
    served: ServedModel,
    field: str,
    stop: frozenset[int] | None = None,
) -> Request:
    """Return the engine's request for one prompt, which came in a certain field."""
    if len(tokens) >= served.context:
        sentence = f"the prompt has {len(tokens)} tokens, prompt and answer must fit into {served.context}"
        raise ApiError(400, sentence, field, "context_length_exceeded")
    top_k = fields.top_k if fields.top_k is not None else served.top_k or 0
    return Request(
        tokens,
        max_tokens,
        temperature=fields.temperature,
        top_k=min(top_k, served.tokenizer.vocab_size),
        top_p=served.top_p if fields.top_p is None else fields.top_p,
        seed=fields.seed % 2**64,  # clients send any integer
        stop=stop,
        n=fields.n,
    )
