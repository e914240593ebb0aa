"""Reads the few fields of a request's JSON body that Velox acts on.

Knows: JSON objects, which top-level fields count, what their values may be. Does not know: routes, policies.
simdjson checks the whole document and gives the fields (0.4 µs at 0.75 KB); the body itself goes upstream unchanged.
Two traps shape this file. simdjson returns the first of two equal keys and every upstream takes the last, so a
second one is refused. And a parser's objects forbid its next parse while they live, so none leaves `_scan`, not even
in the traceback of an error: checks that raise come after it.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn, TypeAlias

import simdjson

from velox.errors import Reason, VeloxError
from velox.types import Peek

__all__ = ["BodyReader"]

# The parser's buffers grow to the largest body seen and never shrink: larger ones get a parser of their own.
_KEPT_BYTES: Final = 8 * 1024 * 1024
# What the standard library's parser reads becomes Python objects, up to 12 times the body's size.
_TOLERANT_BYTES: Final = 8 * 1024 * 1024
_MODEL_CHARS: Final = 256
# Python refuses to convert longer ones (sys.set_int_max_str_digits), in quadratic time before that.
_INT_DIGITS: Final = 1000

# The first that is present counts.
_MAX_TOKENS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_FIELDS: Final = frozenset({"model", "stream", "user", *_MAX_TOKENS})
# Control characters (C0, DEL, C1), and surrogates, which no UTF-8 can carry on.
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_Scalar: TypeAlias = str | int | float | bool | None


class _Compound:
    """Stands for an object or array that a field holds."""


_COMPOUND: Final = _Compound()
_Value: TypeAlias = _Scalar | _Compound


class BodyReader:
    """Reads bodies, one after the other; one per worker, whose parser's buffers are used again and again."""

    __slots__ = ("_parser",)

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def read(self, body: bytes | bytearray) -> Peek:
        """Return what Velox acts on. The body is not changed.

        Raises VeloxError: INVALID_JSON (says where), DUPLICATE_KEY and BAD_REQUEST (with the field as param).
        A body that simdjson refuses and most upstreams accept (lone surrogates, huge numbers) is read all the same.
        """
        parser = self._parser if len(body) <= _KEPT_BYTES else simdjson.Parser()
        try:
            fields = _scan(parser, body)
        # ValueError: no JSON, or UnicodeDecodeError. RuntimeError: too deep, or an integer over 64 bits.
        except (ValueError, RuntimeError):
            fields = _scan_tolerantly(body)
        return _peek(fields)


def _scan(parser: simdjson.Parser, body: bytes | bytearray) -> list[tuple[str, _Value]] | None:
    """Return the fields that count, in order, as plain values; None when the document is no object."""
    document = parser.parse(body)
    if not isinstance(document, simdjson.Object):
        return None
    fields: list[tuple[str, _Value]] = []
    for key in document:
        if key in _FIELDS:
            value = document[key]
            plain = value is None or isinstance(value, str | int | float)
            fields.append((key, value if plain else _COMPOUND))
    return fields


class _Pairs(list[tuple[str, object]]):
    """An object as the standard library's parser saw it: every key, the second one of a name too."""


def _scan_tolerantly(body: bytes | bytearray) -> list[tuple[str, _Value]] | None:
    """Do what `_scan` does with the parser that most upstreams use; raise INVALID_JSON if it refuses too."""
    if len(body) > _TOLERANT_BYTES:
        raise _invalid("body is not strict JSON")
    try:
        # json.loads would guess UTF-16 and UTF-32; simdjson takes a byte order mark, so this does.
        document = _TOLERANT.decode(body.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise _invalid(f"body is not UTF-8 at byte {exc.start}") from None
    except json.JSONDecodeError as exc:
        raise _invalid(
            f"body is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno} (character {exc.pos})"
        ) from None
    except RecursionError:
        raise _invalid("body is nested too deeply") from None
    if not isinstance(document, _Pairs):
        return None
    return [
        (key, value if value is None or isinstance(value, str | int | float) else _COMPOUND)
        for key, value in document
        if key in _FIELDS
    ]


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"body is not JSON: it has {name}")


def _read_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INT_DIGITS else float(digits)


_TOLERANT: Final = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_constant=_refuse_constant, parse_int=_read_int
)


def _peek(fields: list[tuple[str, _Value]] | None) -> Peek:
    if fields is None:
        raise _invalid("body is JSON but not an object")
    values = dict(fields)
    if len(values) != len(fields):
        raise _duplicate([key for key, _ in fields])
    max_tokens = None
    for name in _MAX_TOKENS:
        if name in values:
            tokens = _tokens(name, values[name])
            max_tokens = tokens if max_tokens is None else max_tokens
    stream = values.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _bad("stream", "must be true, false or null")
    return Peek(_model(values), bool(stream), max_tokens, _user(values))


def _model(values: dict[str, _Value]) -> str | None:
    if "model" not in values:
        return None
    model = values["model"]
    if not isinstance(model, str):
        raise _bad("model", "must be a string")
    if not 1 <= len(model) <= _MODEL_CHARS or _UNFIT.search(model):
        raise _bad("model", f"must have 1 to {_MODEL_CHARS} characters, none of them a control character")
    return model


def _tokens(name: str, value: _Value) -> int | None:
    if value is None:
        return None
    # bool is an int to Python, and not to JSON.
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _bad(name, "must be an integer of 0 or more, or null")
    return value


def _user(values: dict[str, _Value]) -> str | None:
    """Return `user` where it is a string; what else it may be is between client and upstream."""
    user = values.get("user")
    return user.encode(errors="replace").decode() if isinstance(user, str) else None


def _duplicate(keys: list[str]) -> VeloxError:
    key = next(key for n, key in enumerate(keys) if key in keys[:n])
    return VeloxError(Reason.DUPLICATE_KEY, f"body has the field {key} twice", param=key)


def _invalid(message: str) -> VeloxError:
    return VeloxError(Reason.INVALID_JSON, message)


def _bad(param: str, rule: str) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, f"{param} {rule}", param=param)
