"""Reads a request's body into the few values that shape the answer.

Knows: the fields of OpenAI's requests. Does not know: routes, replies, HTTP.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

from velox_sim.shapes import RefusalError

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "Fields",
    "ModelRequest",
    "count_prompt_tokens",
    "prompt_text",
    "read_fields",
    "read_limit",
    "read_request",
]

Fields: TypeAlias = dict[str, object]

# Tokenizers give about four bytes of English a token; a real count would need a vocabulary.
CHARACTERS_PER_TOKEN: Final = 4
_MAX_LIMIT: Final = 2**31 - 1  # larger ones have no exact place in every JSON reader


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that names a model. fields: the whole body."""

    model: str
    stream: bool
    include_usage: bool
    fields: Fields


def read_request(body: bytes) -> ModelRequest:
    """Read a body. Raises RefusalError (400) for anything that OpenAI would not take for a request."""
    fields = read_fields(body)
    model = fields.get("model")
    if not isinstance(model, str) or not model or not model.isprintable():
        raise RefusalError(400, "you must provide a model parameter", param="model")
    stream = fields.get("stream")
    if not isinstance(stream, bool | None):
        raise RefusalError(400, "stream is true or false", param="stream", code="invalid_type")
    options = fields.get("stream_options")
    include_usage = isinstance(options, dict) and options.get("include_usage") is True
    return ModelRequest(model, bool(stream), include_usage, fields)


def read_fields(body: bytes) -> Fields:
    """Read a body that is a JSON object. Raises RefusalError (400)."""
    fields = _parse(body)
    if not isinstance(fields, dict):
        raise RefusalError(400, "The body of your request is not a JSON object")
    return fields


def read_limit(fields: Fields, names: tuple[str, ...]) -> int | None:
    """Return the first of `names` that has a value: the longest answer the client wants, in tokens.

    Raises RefusalError (400) when it is no whole number from 1 to 2^31 - 1.
    """
    for name in names:
        limit = fields.get(name)
        if limit is None:
            continue
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _MAX_LIMIT:
            message = f"{name} is a whole number from 1 to {_MAX_LIMIT}"
            raise RefusalError(400, message, param=name, code="invalid_value")
        return limit
    return None


def _parse(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # Lone surrogates and numbers beyond 64 bits are taken by most real upstreams, and so by this one.
        pass
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise RefusalError(400, f"We could not parse the JSON body of your request: {exc}") from exc


def count_prompt_tokens(*prompts: object) -> int:
    """Estimate the tokens (1 or more) of prompts in any of OpenAI's shapes: texts, ids, messages, parts.

    A loop, not a recursion: a client decides how deep its lists are nested.
    """
    n_characters = n_ids = 0
    rest = list(prompts)
    while rest:
        match rest.pop():
            case str() as text:
                n_characters += len(text)
            case int():
                n_ids += 1
            case list() as items:
                rest.extend(items)
            case dict() as part:
                rest.append(part.get("content"))
                rest.append(part.get("text"))
            case _:
                pass
    return max(1, n_ids + -(-n_characters // CHARACTERS_PER_TOKEN))


def prompt_text(*prompts: object) -> str:
    """Return what count_prompt_tokens() counts, in its order, as one text with the same number of tokens."""
    pieces: list[str] = []
    rest = list(reversed(prompts))
    while rest:
        match rest.pop():
            case str() as text:
                pieces.append(text)
            case int() as token:
                pieces.append(f"{token & 0xFFFF:0{CHARACTERS_PER_TOKEN}x}")
            case list() as items:
                rest.extend(reversed(items))
            case dict() as part:
                rest.append(part.get("text"))
                rest.append(part.get("content"))
            case _:
                pass
    return "".join(pieces)
