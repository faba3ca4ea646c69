"""The definition of a public model's tokenizer: its vocabulary checked, its ends found, its chat template chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

from nanochat.errors import UserError
from tracks.bases.model import PublicConfig
from tracks.bases.templates import TEMPLATES, joined_template, named_template, turn_end, usual_template, with_values
from tracks.bases.tokenizer import Definition, PublicCore

# Most rows of an embedding that no token has, the larger of a number and a share of all. Trainers add rows so that each
# of up to 8 chips has a multiple of 128, or to make the number round: Qwen2.5 has 271 of 151,936.
SPARE, SPARE_SHARE = 1024, 0.1
TRIED = "Who? I am a 1.\U000f51a3"  # what a tokenizer is tried with; for the last character hardly any has a token
OF_DOCUMENTS = "<|endoftext|>"  # stands between documents in vocabularies whose texts begin with nothing


class Wanted(NamedTuple):
    """The chat template that a user asks for."""

    template: str = ""  # in place of the model's own: a name in TEMPLATES, or a file
    values: str = ""  # that it is given, a JSON object


def definition_of(
    text: str,
    named: Mapping[str, str],
    wanted: Wanted,
    special: Mapping[str, str | None],
    ends: Sequence[int],
    config: PublicConfig,
    begins: Sequence[int] = (),
) -> Definition:
    """Return a tokenizer's definition.

    text: of the tokenizer.json, which alone decides what a text begins with: `transformers` 5 leaves add_bos_token of a
    tokenizer_config.json unread beside one. named: the model's chat templates. wanted: the template that was asked for.
    special: tokens by their role. ends: tokens that end a text. begins: what stands between documents if no token of a
    role does.
    """
    core = PublicCore(text)
    _check_vocabulary(core, config.vocab_size)  # first: what is made of it has a length of the largest id
    ids: dict[str, int] = {}
    for role, token in special.items():
        id = core.backend.token_to_id(token) if token else None
        if token and id is None:
            raise UserError(f"its {role} {token} is not in its vocabulary")
        if id is not None:
            ids[role] = id
    prefix = _prefix(core)
    if len(prefix) > 1:
        raise UserError("its texts begin with several tokens, which is not known here")
    between = [ids[role] for role in ("bos_token", "eos_token") if role in ids]
    document = core.special_tokens.get(OF_DOCUMENTS, next(iter([*between, *begins, *ends]), None))
    bos = prefix[0] if prefix else document
    ends = [*ends, *([ids["eos_token"]] if "eos_token" in ids else [])]
    if bos is None or not ends:
        raise UserError("its tokenizer names no token that begins or ends a text")
    own = joined_template(named)
    if wanted.template in named:
        own = named[wanted.template]
    elif wanted.template in TEMPLATES:
        own = named_template(wanted.template, core.special_tokens)
    elif wanted.template:
        try:
            own = Path(wanted.template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join([*TEMPLATES, *named])
            raise UserError(f"--template={wanted.template} is none of {known}, and no file: {error}") from None
    elif named and not own:
        raise UserError(f"its chat templates are {', '.join(named)}, and none is the default: choose one by --template")
    template = own or usual_template(core.special_tokens)
    if wanted.values:
        template = with_values(template, wanted.values)
    variables = {role: token for role, token in special.items() if token}
    day = date.today().isoformat() if "strftime_now" in template else ""
    found = Definition(text, template, bos, prefix, ends, variables, day)
    if template:
        ends = [*turn_end(found), *ends]
    ends = list(dict.fromkeys([*ends, bos]))
    outside = [id for id in ends if not 0 <= id < config.vocab_size]
    if outside:
        raise UserError(f"its token {outside[0]} ends a text, and its vocabulary has {config.vocab_size:,}")
    return replace(found, ends=ends)


def _prefix(core: PublicCore) -> list[int]:
    """Return the tokens that the library puts before every text; UserError if it cannot read one."""
    try:
        added, plain = (core.backend.encode(TRIED, add_special_tokens=special).ids for special in (True, False))
    # The library raises Exception itself, for example where a character has no token.
    except Exception as error:
        raise UserError(f"its tokenizer.json cannot read a text: {error}") from None
    if not plain:
        raise UserError("its tokenizer.json makes no tokens of a text: its vocabulary is empty, or texts are emptied")
    for place in range(len(added)):
        if added[place : place + len(plain)] == plain:
            return added[:place]
    return []


def _check_vocabulary(core: PublicCore, rows: int) -> None:
    """Compare a vocabulary with the rows of an embedding."""
    if core.vocab_size > rows or has_too_few(core.vocab_size, rows):
        raise UserError(
            f"its vocabulary has {core.vocab_size:,} tokens, and its embedding {rows:,} rows: take the tokenizer that"
            " these weights were trained with"
        )
    token, id = max(core.backend.get_vocab().items(), key=lambda one: one[1], default=("", -1))
    if id >= rows:
        raise UserError(f"its token {token} has the id {id:,}, and its embedding {rows:,} rows: one of them is damaged")


def has_too_few(tokens: int, rows: int) -> bool:
    """Return True if so few tokens are another model's: an embedding has not so many rows to spare."""
    return rows - tokens > max(SPARE, SPARE_SHARE * rows)
