"""Every place of a JSON body at which a server may read the id of an object: a file, a response, a vector store, ...

Knows: the fields whose values are ids, at any depth, and what ids look like. Does not know: whose an object is.

Three rules, so that a field that is new, or is written in another way, is not missed: a text under one of the names is
an id, whatever it looks like; any other text is one if it begins as the ids of the API do; and any text that is a name,
a path or an address of one of Google's objects, as `files/ID`, names that. Most bodies have none of them, which
mentions_objects() sees without a parse.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from itertools import islice, pairwise, repeat
from typing import Final, NamedTuple, cast
from urllib.parse import unquote, unquote_to_bytes

import simdjson

from velox.protocol.json.skim import skim
from velox.protocol.json.value_count import has_over_in_steps
from velox.protocol.named_models import DoubtError, Pairs, body_fields, folded

__all__ = [
    "ESCAPE",
    "GOOGLES",
    "NamedId",
    "form_ids",
    "google_names",
    "is_id_field",
    "is_json",
    "looking_for_mentions",
    "mentions_objects",
    "named_ids",
    "query_ids",
]

# Fields of the API. A list under a name holds ids; of an object under one, its `id` is one.
_FIELDS: Final = (
    *("file_id", "file_ids", "input_file_id", "training_file", "validation_file", "upload_id", "batch_id"),
    *("previous_response_id", "response_id", "conversation", "conversation_id", "assistant_id", "thread_id"),
    *("vector_store_id", "vector_store_ids", "container", "container_id", "eval_id", "video_id"),
    *("comparison_response_id", "previous_interaction_id", "interaction_id", "skill_id", "memory_store_id"),
    *("vault_id", "vault_ids", "user_profile_id", "dataset_id"),
)
# Fields that name an object of Google's, or something else: an address of elsewhere, or a name that people read.
_NAMING: Final = (
    *("file_uri", "file_name", "uri", "cached_content", "tuned_model", "file_search_store_names"),
    *("file_search_store_name", "responses_file"),
)
# Of these names, ids that begin in another way are the provider's own.
_BEGIN_WITH: Final = {folded("skill_id"): "skill_"}
_QUERY_FOLDED: Final = frozenset(map(folded, ("call_id", "session_id")))
_NAMING_FOLDED: Final = frozenset(map(folded, _NAMING))
_FOLDED: Final = frozenset(map(folded, _FIELDS))
# How ids begin, before `-` or `_`. "assistant": a file at Azure.
_BEGINNINGS: Final = (
    *("file", "assistant", "upload", "resp", "conv", "batch", "msgbatch", "ftjob", "vs", "asst", "thread"),
    *("cntr", "container", "eval", "video", "chatcmpl", "skill", "vault", "vlt", "memstore", "rtc"),
)
_ID: Final = re.compile(rf"(?:{'|'.join(_BEGINNINGS)})[-_][A-Za-z0-9_.-]{{1,250}}")
_INITIALS: Final = "".join(sorted({word[0] for word in (*_BEGINNINGS, *_FIELDS)}))
# To look for an initial first takes half the time: most texts have another one.
_MENTIONS: Final = re.compile(
    rf'"(?=[{_INITIALS}])(?:(?:{"|".join(_BEGINNINGS)})[-_]|(?:{"|".join(_FIELDS)})")'.encode()
)
# What the name of a collection of Google's ends with, in small letters, and what follows: a slash, also an escaped one.
# To look for each alone takes a tenth of the time that a pattern of all takes.
_ENDS_OF_GOOGLES: Final = tuple(
    end + slash
    for end in (b"iles", b"ontents", b"tores", b"orpora", b"odels", b"obs", b"atches", b"perations", b"nteractions")
    for slash in (b"/", b"\\", b"%")
)
_ESCAPED_GOOGLES: Final = re.compile(rb"%[0-9a-f]{2}[a-z]{0,20}[/\\%]")
# A character that need not be escaped, but is: it could be part of a name or an id.
ESCAPE: Final = rb"\u00"
# A part of a form whose whole content is an id, whatever its head says: a field that names an object, as `video[id]`.
_FORM_ID: Final = re.compile(rf"\n\r?\n({_ID.pattern})\r?\n--".encode())
_QUERY_ID: Final = re.compile(rf"=({_ID.pattern})&".encode())
_LONGEST_FORM_ID: Final = 1024  # also if each of its characters is escaped
_SPACE: Final = r"[ \t\r\n\0\xef\xbb\xbf\xfe\xff]"
_JSON: Final = re.compile(rf"{_SPACE}{{1000}}|{_SPACE}{{0,999}}[{{\[]".encode())  # no form has so much of it
_ESCAPED: Final = re.compile(rb"\\u00[2-7]")
# The collections of Google's, in small letters, as its ids are written.
GOOGLES: Final = frozenset(
    {"files", "cachedcontents", "filesearchstores", "corpora", "ragstores", "tunedmodels", "tuningjobs"}
    | {"batches", "batchpredictionjobs", "operations", "generatedfiles", "interactions"}
)
_SEPARATORS: Final = re.compile(r"[/\\]+")
_END: Final = re.compile(r"[?#;]")
_DECODINGS: Final = 4
_MOST_CHARS: Final = 256
_MOST_NAME_CHARS: Final = 4096  # of a text that is an address; ids of it may be escaped
_LONG_BYTES: Final = 12 * _MOST_NAME_CHARS  # of such a text, if each of its characters is two escapes
_MANY: Final = 1024  # fields of an object; simdjson looks through all of them for each, in a millisecond
_PER_STEP: Final = 500  # values, about half a millisecond
# A request of agents has some thousands of them.
_MOST_VALUES: Final = 100_000
_TOO_MANY: Final = "the body has too many values to be looked through"
_MOST_FORM_IDS: Final = 1000
_SLICE_BYTES: Final = 64 * 1024
# The patterns of mentions take up to 70 ns for a byte.
_MENTION_SLICE_BYTES: Final = 16 * 1024
_LONGEST_MENTION: Final = 64
# As in body.py.
_TOLERANT_BYTES: Final = 1024 * 1024


class NamedId(NamedTuple):
    """An id in a body. name: of the field that is for ids; None: it only looks like one."""

    text: str
    name: str | None


def mentions_objects(body: bytes | bytearray) -> bool:
    """Say whether named_ids() may find anything, or can't read it."""
    return _MENTIONS.search(body) is not None or _mentions_googles(body) or _is_hidden(body)


def _mentions_googles(body: bytes | bytearray) -> bool:
    small = body.lower()
    return any(map(small.__contains__, _ENDS_OF_GOOGLES)) or _ESCAPED_GOOGLES.search(small) is not None


def looking_for_mentions(body: bytes | bytearray) -> Generator[None, None, bool]:
    """Do what mentions_objects() does; yields between slices of the work."""
    if b"\0" in body[:4]:
        return True
    for at in range(0, len(body), _MENTION_SLICE_BYTES):
        end = at + _MENTION_SLICE_BYTES + _LONGEST_MENTION
        if _MENTIONS.search(body, at, end) is not None or _mentions_googles(body[at:end]):
            return True
        if body.find(ESCAPE, at, end) >= 0 and _ESCAPED.search(body, at, end) is not None:
            return True
        yield
    return False


def _is_hidden(body: bytes | bytearray) -> bool:
    """Say whether names or ids may be written otherwise: escaped, or in UTF-16 or UTF-32 (RFC 4627 §3)."""
    return b"\0" in body[:4] or (ESCAPE in body and _ESCAPED.search(body) is not None)


def named_ids(body: bytes | bytearray) -> Generator[None, None, list[NamedId]]:
    """Return every id that a body names, each once; yields between slices of the work.

    Raises DoubtError: it is no JSON that every server reads the same way, or has too much in it to be looked through.
    """
    # Each value but the first has a comma before it; an object counts twice there.
    if len(body) > _TOLERANT_BYTES:
        if (yield from has_over_in_steps(body, 2 * _MOST_VALUES)):
            raise DoubtError(_TOO_MANY)
        body = (yield from skim(body, _passes, _LONG_BYTES)).data
    try:
        # A parser of its own: its objects live from one step to the next, and forbid another parse.
        return (yield from _walk(simdjson.Parser().parse(body)))
    except (ValueError, RuntimeError, KeyError):  # as most upstreams read it (body.py)
        if len(body) > _TOLERANT_BYTES:
            raise DoubtError("the body is no strict JSON") from None
    return (yield from _walk(body_fields(body)))


def _passes(_data: bytes, _offset: int) -> None:
    """Check nothing: the body was checked when it was read."""


def form_ids(body: bytes | bytearray) -> Generator[None, None, list[str]]:
    """Return every id that a form in parts has for a field; yields between slices of the work. Raises DoubtError."""
    return _fields(body, _FORM_ID)


def query_ids(body: bytes | bytearray) -> Generator[None, None, list[str]]:
    """As form_ids(), of a form that is written as a query is."""
    return _fields(body, _QUERY_ID, is_query=True)


def _fields(
    body: bytes | bytearray, pattern: re.Pattern[bytes], *, is_query: bool = False
) -> Generator[None, None, list[str]]:
    found: dict[str, None] = {}
    for at in range(0, len(body), _SLICE_BYTES):
        end = at + _SLICE_BYTES + _LONGEST_FORM_ID
        piece = bytes(body[at:end])
        if is_query:
            piece = unquote_to_bytes(piece if end < len(body) else piece + b"&")
        found |= dict.fromkeys(each.decode("ascii") for each in pattern.findall(piece))
        if len(found) > _MOST_FORM_IDS:
            raise DoubtError("the form has too many fields that name objects")
        yield
    return list(found)


def google_names(text: str) -> tuple[str, ...]:
    """Return the objects that a text names as Google's API does, each as `kind/id` in small letters; outer ones first.

    It may be a name, a path or an address: escaped for URLs up to four times, in any case, with slashes of any kind.
    """
    for _ in range(_DECODINGS):
        if "%" not in text:
            break
        text = unquote(text)
    path = _END.split(text, maxsplit=1)[0].lower()
    words = [word.partition(":")[0].strip() for word in _SEPARATORS.split(path)]
    return tuple(
        f"{word}/{follows}"
        for word, follows in pairwise(words)
        if word in GOOGLES and follows and follows not in GOOGLES
    )


def is_id_field(name: str) -> bool:
    """Say whether a field of a query holds the id of an object: a call that a WebSocket joins, for one."""
    short = folded(name)
    return short in _FOLDED or short in _QUERY_FOLDED


def is_json(body: bytes | bytearray) -> bool:
    """Say whether a body begins as JSON does, in any encoding: some servers read it so, whatever it is called."""
    return _JSON.match(body) is not None


def _walk(document: object) -> Generator[None, None, list[NamedId]]:
    found: dict[NamedId, None] = {}
    names: dict[str, str | None] = {}  # as they stand there, to the one that counts
    # What is being gone through, the innermost last. Not a list of all that is still to come, which would be 2 GB for
    # the 64 MiB of an array of numbers.
    todo: list[Iterator[tuple[str | None, object]]] = [iter([(None, document)])]
    n = 0
    while todo:
        pair = next(todo[-1], None)
        if pair is None:
            todo.pop()
            continue
        name, value = pair
        n += 1
        if n > _MOST_VALUES:
            raise DoubtError(_TOO_MANY)
        if not n % _PER_STEP:
            yield
        if isinstance(value, str):
            _note(value, name, found)
        elif (pairs := _pairs(value)) is not None:
            todo.append(_named(pairs, name, names))
        elif type(value) is simdjson.Array or isinstance(value, list):
            todo.append(zip(repeat(name), value))
    return list(found)


def _note(text: str, name: str | None, found: dict[NamedId, None]) -> None:
    """Add what a text names. name: of its field, if that is for ids."""
    is_naming = name is not None and folded(name) in _NAMING_FOLDED
    if len(text) <= _MOST_NAME_CHARS and ("/" in text or "%" in text or "\\" in text):
        for each in google_names(text):
            found[NamedId(each, name)] = None
    elif is_naming and len(text) > _MOST_NAME_CHARS:
        raise DoubtError("the body names an object by a very long text")
    if is_naming or not 0 < len(text) <= _MOST_CHARS:
        return
    begin = "" if name is None else _BEGIN_WITH.get(folded(name), "")
    if name is not None and text.startswith(begin):
        found[NamedId(text, name)] = None
    elif _ID.fullmatch(text):
        found[NamedId(text, None)] = None


def _named(
    pairs: Iterable[tuple[str, object]], name: str | None, names: dict[str, str | None]
) -> Iterator[tuple[str | None, object]]:
    """Yield the values of an object, each with the name that counts for it. name: of the object itself."""
    for key, value in pairs:
        if key not in names:
            names[key] = key if (short := folded(key)) in _FOLDED or short in _NAMING_FOLDED else None
        yield name if key == "id" else names[key], value


def _pairs(value: object) -> Iterable[tuple[str, object]] | None:
    """Return the fields of an object, the second one of a name, too; None: it is none. Raises DoubtError."""
    if type(value) is simdjson.Object:
        keys = list(islice(value, _MANY + 1))
        if len(keys) <= _MANY and len(set(keys)) == len(keys):
            return [(key, value[key]) for key in keys]
        # Python objects of all that is inside are up to 30 times as large. items() would leave out what an inner object
        # has twice.
        inside = cast(bytes, value.mini)  # as it is, whatever its stub says
        if len(inside) > _TOLERANT_BYTES:
            raise DoubtError("the body has too many fields in one object, or one of them twice")
        return body_fields(inside)
    return value if isinstance(value, Pairs) else None
