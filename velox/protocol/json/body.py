"""Reads the few fields of a request's JSON body that Velox acts on.

Knows: JSON objects, which top-level fields count, what their values may be. Does not know: routes, policies.
simdjson checks the whole document and gives the fields; the body itself goes upstream unchanged.

Two traps shape this file. simdjson returns the first of two equal keys and every upstream takes the last, so
a second one is refused. And a parser's objects forbid its next parse while they live, so none leaves `_scan`,
not even in the traceback of an error: the checks that raise come after it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterable, Sequence
from typing import Final, NoReturn, TypeAlias

import simdjson

from velox.errors import Reason, VeloxError
from velox.protocol.json.outline import MOST_MEMBERS, Outline
from velox.protocol.json.skim import Skimmed, skim
from velox.protocol.json.value_count import has_over, has_over_in_steps
from velox.types import BodyFields

__all__ = ["LARGE_BYTES", "BodyReader"]

# From here on a parse takes long enough, 0.4 ms, for other requests to notice.
LARGE_BYTES: Final = 1024 * 1024

# The parser's buffers grow to the largest body seen and never shrink: larger ones get a parser of their own.
_KEPT_BYTES: Final = 8 * 1024 * 1024
# The standard library's parser makes Python objects of everything: at worst 40 bytes and 0.1 µs for a byte, during
# which no other request moves. 8 MiB of "[]," held the loop for 0.6 s; 1 MiB stays under 0.1 s.
_TOLERANT_BYTES: Final = 1024 * 1024
_TOLERANT_VALUES: Final = 20_000
# To parse more, of values or bytes, takes over 5 ms: of such a body an outline is made, in slices.
_MOST_PARSED: Final = 200_000
_MOST_PARSED_BYTES: Final = 2 * 1024 * 1024
_OUTLINED_BYTES: Final = 32 * 1024  # of a slice
_COUNTED_BYTES: Final = 256 * 1024
# Each costs a step of Python. No API takes as many.
_MOST_NAMES: Final = 10_000
_MODEL_CHARS: Final = 256
_USER_CHARS: Final = 256
# Python refuses to convert over 4,300 digits, and takes quadratic time below that.
_INT_DIGITS: Final = 1000

# The largest one counts: which of them an upstream goes by is its own affair.
_MOST_USED: Final = "max_tokens"
_MAX_TOKENS: Final = ("max_completion_tokens", "max_output_tokens", _MOST_USED)
# The larger one counts: `best_of` answers are made, of which the best `n` are sent.
_CHOICES: Final = ("n", "best_of")
# Longer ones are no count.
_COUNT_CHARS: Final = 20
_OPTIONS: Final = "stream_options"
_PROMPT: Final = "prompt"
# What asks the upstream to keep the answer: OpenAI's, and xAI's, whose answer is fetched later.
# https://docs.x.ai/docs/guides/deferred-chat-completions
_STORES: Final = frozenset({"store", "deferred"})
_CROWDED: Final = ""  # in place of the name of a field that is there twice: there are too many
_FLAT: Final = re.compile(rb'"prompt"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*-?[0-9]')
_USER: Final = "user"
_FIELDS: Final = frozenset({"model", "stream", _USER, *_STORES, _OPTIONS, _PROMPT, *_MAX_TOKENS, *_CHOICES})
_ABSENT: Final = object()
# Stands for stream_options that ask for the usage.
_ASKS: Final = object()
# Control characters (C0, DEL, C1), and surrogates, which UTF-8 can't carry.
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class _Pairs:
    """An object as the standard library's parser saw it: every key, the second one of a name too."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs: Final = pairs


_COMPOUND: Final = frozenset({simdjson.Object, simdjson.Array, _Pairs, list})
# The values of the fields that count (... for an object or array, or _ASKS), and a field that is there twice.
_Fields: TypeAlias = tuple[dict[str, object], str | None]


class BodyReader:
    """Reads bodies, one after the other; one per worker, whose parser's buffers are used again and again."""

    __slots__ = ("_parser",)

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def read_in_steps(self, body: bytes | bytearray) -> Generator[None, None, BodyFields]:
        """Do what `read` does; yields between slices of the work."""
        skimmed = yield from skim(body, self._check_content)
        data = skimmed.data
        if len(data) > _MOST_PARSED_BYTES or (
            len(data) >= LARGE_BYTES and (yield from has_over_in_steps(data, _MOST_PARSED))
        ):
            return (yield from self._read_outline(data))
        return self.read(data, skimmed)

    def _read_outline(self, data: bytes | bytearray) -> Generator[None, None, BodyFields]:
        """Read what counts of a body of very many values. The rest is the upstream's to check."""
        outline = Outline(*_FIELDS)
        for at in range(0, len(data), _OUTLINED_BYTES):
            outline.feed(bytes(data[at : at + _OUTLINED_BYTES]))
            yield
        text = outline.text()
        if text is None:
            raise _invalid(
                f"body is no JSON object, or has over {MOST_MEMBERS} fields beside over {_MOST_PARSED:,} values or"
                " 2 MiB of short strings"
            )
        fields = self.read(text)
        if b'"prompt":null' in text:  # or it is too long for an outline
            fields.n_prompts = yield from _most_prompts(data)
        return fields

    def read(self, body: bytes | bytearray, skimmed: Skimmed | None = None) -> BodyFields:
        """Return what Velox acts on. The body is not changed. skimmed: what of a larger one it is; None: it is all.

        Raises VeloxError: INVALID_JSON (says where), DUPLICATE_KEY and BAD_REQUEST (with the field as param).
        A body that simdjson refuses and most upstreams accept (lone surrogates, huge numbers) is read too.
        """
        parser = self._parser if len(body) <= _KEPT_BYTES else simdjson.Parser()
        try:
            found = _scan(parser, body)
        # ValueError: not strict JSON, not UTF-8. RuntimeError: too deep, or an integer of over 64 bits.
        except (ValueError, RuntimeError):
            found = _scan_tolerantly(skimmed or Skimmed(body))
        if found is None:
            raise _invalid("body is JSON but not an object")
        values, repeated = found
        return _fields(values, repeated)

    def _check_content(self, data: bytes, offset: int) -> None:
        """Raise INVALID_JSON if `data` may not stand between two quotes. offset: where in the body it begins."""
        try:
            # In an array the string stays the parser's; alone it would become a Python one.
            self._parser.parse(b'["%b"]' % data)
        except (ValueError, RuntimeError):
            pass
        else:
            return
        try:
            text = data.decode()
            json.loads(f'"{text}"')
        except UnicodeDecodeError as exc:
            raise _invalid(f"body is not UTF-8: byte {offset + exc.start}") from None
        except json.JSONDecodeError as exc:
            at = offset + len(text[: max(0, exc.pos - 1)].encode())
            raise _invalid(f"body is not JSON: {exc.msg[0].lower()}{exc.msg[1:]} byte {at}") from None


def _most_prompts(data: bytes | bytearray) -> Generator[None, None, int]:
    """Return how many prompts a body may have: a list of numbers is one, else each text and each list may be one."""
    at = -1
    for start in range(0, len(data), _COUNTED_BYTES):
        at = data.find(b'"prompt"', start, start + _COUNTED_BYTES + len(b'"prompt"'))
        if at >= 0:
            break
        yield
    if at >= 0 and _FLAT.match(data, at) is not None:
        return 1
    n = 0
    for start in range(0, len(data), _COUNTED_BYTES):
        end = start + _COUNTED_BYTES
        n += data.count(b"[", start, end) + data.count(b'"', start, end)
        yield
    return max(1, n)


def _scan(parser: simdjson.Parser, body: bytes | bytearray) -> _Fields | None:
    """Return the fields that count as plain values; None when the document is no object."""
    document = parser.parse(body)
    # Compared by type: isinstance with these asks an abstract base class, and takes longer than the parse.
    if type(document) is not simdjson.Object:
        return None
    if len(document) > _MOST_NAMES:
        return {}, _CROWDED
    values: dict[str, object] = {}
    for key in document:
        if key in _FIELDS:
            if key in values:
                if key in _STORES:
                    values[key] = ...  # it is never read to refuse a request, so twice it means the worse
                    continue
                # No further: a value is looked for from the first field on, so that a look for each of a hundred
                # thousand fields of one name would take minutes.
                return values, key
            value = document[key]
            if type(value) not in _COMPOUND:
                values[key] = value
            elif key == _PROMPT and type(value) is simdjson.Array:
                values[key] = _Prompts(value)
            elif key == _OPTIONS and type(value) is simdjson.Object:
                values[key] = _asking(value.items())
            else:
                values[key] = ...
    return values, None


def _asking(options: Iterable[tuple[str, object]]) -> object:
    """Return _ASKS if stream_options ask for the usage. Of two fields the last counts, as for upstreams."""
    asks = False
    for key, value in options:
        if key == "include_usage":
            asks = value is True
    return _ASKS if asks else ...


class _Prompts:
    """How many prompts a list is: texts, or lists of tokens, each of which gets answers; of tokens it is one."""

    __slots__ = ("n",)

    def __init__(self, given: Sequence[object]) -> None:
        n = len(given)
        self.n: Final = n if n and type(given[0]) not in (int, float) else 1


def _scan_tolerantly(skimmed: Skimmed) -> _Fields | None:
    """Do what `_scan` does with the parser that most upstreams use; raise INVALID_JSON if it refuses too."""
    body = skimmed.data
    try:
        # json.loads would guess UTF-16 and UTF-32. simdjson passes a byte order mark, so this does.
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise _invalid(f"body is not UTF-8: byte {skimmed.origin(exc.start)}") from None
    if len(body) > _TOLERANT_BYTES or has_over(body, _TOLERANT_VALUES):
        raise _invalid(
            "body is not strict JSON, which a body must be that has over 1 MiB beside its long strings, or over"
            f" {_TOLERANT_VALUES:,} values"
        )
    try:
        document = _TOLERANT.decode(text)
    except json.JSONDecodeError as exc:
        place = f"line {exc.lineno}, column {exc.colno}, character {exc.pos}"
        if skimmed.cuts:
            place = f"byte {skimmed.origin(len(text[: exc.pos].encode()))}"
        raise _invalid(f"body is not JSON: {exc.msg[0].lower()}{exc.msg[1:]} at {place}") from None
    except RecursionError:
        raise _invalid("body is nested too deeply") from None
    if not isinstance(document, _Pairs):
        return None
    found = [(key, _plain(key, value)) for key, value in document.pairs if key in _FIELDS]
    names = [name for name, _ in found if name not in _STORES]
    return dict(found), next((name for name in names if names.count(name) > 1), None)


def _plain(key: str, value: object) -> object:
    if key == _PROMPT and isinstance(value, list):
        return _Prompts(value)
    if key == _OPTIONS and isinstance(value, _Pairs):
        return _asking(value.pairs)
    return ... if type(value) in _COMPOUND else value


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"body is not JSON: it has {name}")


def _read_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INT_DIGITS else float(digits)


_TOLERANT: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_refuse_constant, parse_int=_read_int)


def _fields(values: dict[str, object], repeated: str | None) -> BodyFields:
    """Check the fields that are there, and take those that most bodies have out of `values`."""
    if repeated is not None:
        if repeated == _CROWDED:
            raise VeloxError(Reason.BAD_REQUEST, f"body has over {_MOST_NAMES:,} fields")
        raise VeloxError(Reason.DUPLICATE_KEY, f"body has the field {repeated} twice", param=repeated)
    stream = values.pop("stream", None)
    if stream is not None and not isinstance(stream, bool):
        raise _bad("stream", "must be true, false or null")
    model = values.pop("model", _ABSENT)
    if isinstance(model, str):
        # What is printable is fit, and quicker to see; some that is not printable is fit too, as a no-break space.
        if not 1 <= len(model) <= _MODEL_CHARS or not (model.isprintable() or not _UNFIT.search(model)):
            raise _bad("model", f"must have 1 to {_MODEL_CHARS} characters, none of them a control character")
    elif model is _ABSENT:
        model = None
    else:
        raise _bad("model", "must be a string")
    fields = BodyFields(model, stream or False)
    if values:
        most = values.get(_MOST_USED)
        if len(values) == 1 and type(most) is int and most >= 0:
            fields.max_tokens = most  # nearly always all that there is
        else:
            _add_rare(fields, values)
    return fields


def _add_rare(fields: BodyFields, values: dict[str, object]) -> None:
    for name, value in values.items():
        if name in _MAX_TOKENS:
            if value is not None:
                # By type: bool is an int to Python, and not to JSON.
                if type(value) is not int or value < 0:
                    raise _bad(name, "must be an integer of 0 or more, or null")
                if fields.max_tokens is None or value > fields.max_tokens:
                    fields.max_tokens = value
        elif name == _USER:
            # What else it may be is between client and upstream. A long one may be left out of a large body
            # (body_skim).
            if isinstance(value, str) and 1 <= len(value) <= _USER_CHARS:
                fields.user = value.encode(errors="replace").decode()
        elif name in _CHOICES:
            fields.n = max(fields.n, _count(value))
        elif name == _PROMPT:
            if isinstance(value, _Prompts):
                fields.n_prompts = value.n
        elif name == _OPTIONS:
            fields.include_usage = value is _ASKS
        else:
            fields.stores = fields.stores or value not in (None, False)


def _count(value: object) -> int:
    """Return a number of answers, as lenient upstreams read it: 4.0 and "4" are four. What is none is the upstream's to
    refuse, and counts as one."""
    try:
        if isinstance(value, str):
            value = float(value) if len(value) <= _COUNT_CHARS else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return math.ceil(value)
    except (ValueError, OverflowError):
        pass  # no number, or none that is finite
    return 1


def _invalid(message: str) -> VeloxError:
    return VeloxError(Reason.INVALID_JSON, message)


def _bad(param: str, rule: str) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, f"{param} {rule}", param=param)
