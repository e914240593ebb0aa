"""What is recorded of one call of an upstream, and how it lies in a ring.

Knows: the fields, and their bytes. Does not know: where the ring is (shm/record_ring.py), or what becomes of a record
(collector.py). No text of a request or reply is among them.

    name    a text that records refer to by number: of a key, a model, ... Longer ones take several records
    call    one call of an upstream that did work, or may have

A number stands for a text from its name record on. Writers never use one again; readers keep the newest.
"""

from __future__ import annotations

import enum
import re
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from velox.shm.record_ring import BODY_BYTES

__all__ = [
    "KEY_ID_CHARS",
    "LAST_S",
    "MIRRORED",
    "MOST_INTEGER",
    "MOST_NAMES",
    "TAG_SEPARATOR",
    "Call",
    "Flag",
    "NamePart",
    "NameParts",
    "call_body",
    "key_id",
    "name_bodies",
    "read_body",
    "recorded_key",
]

# Names that a writer remembers. When it has so many it forgets them all, and those that come get new numbers. 0 stands
# for no text.
MOST_NAMES: Final = 8192
# A call that is open while so many new names come is recorded without its own.
KEPT_NAMES: Final = 4 * MOST_NAMES

KEY_ID_CHARS: Final = 16
# The key of copies for mirrors: no client is charged for them. A real key's begins with its ID.
MIRRORED: Final = "(mirror)"
_KEY_ID: Final = re.compile(rf"([0-9a-f]{{{KEY_ID_CHARS}}})(?: |\Z)")
_NAME: Final = 1
_CALL: Final = 2
_UNKNOWN: Final = 0xFFFF_FFFF
# Of what a record has 64 bits for without a sign, databases have one bit less, and times beyond the year 9999 no date.
MOST_INTEGER: Final = (1 << 63) - 1
LAST_S: Final = 253_402_300_799
_LAST_US: Final = LAST_S * 1_000_000 + 999_999
_NO_COST: Final = -1
# kind, part, parts, bytes of text in it, number, text
_NAME_FORMAT: Final = struct.Struct("<BBBBI116s")
_TEXT_BYTES: Final = 116
# No more of a text: a client makes up names of models. What is cut off is replaced by a mark. All tags of a key fit.
_MOST_TEXT: Final = 5 * _TEXT_BYTES
_CUT: Final = "…".encode()
# kind, attempt, endpoint, -; status, flags; process, number; started, first byte, duration; 6 names; 8 kinds of tokens;
# cost, name of the version of its price; names of team, user and tags, which a record of an earlier Velox has none of
_CALL_FORMAT: Final = struct.Struct("<BBBxHHIQQIQ6I8IqI3I")
# Tags are one name.
TAG_SEPARATOR: Final = ","
_FILL: Final = bytes(BODY_BYTES - _CALL_FORMAT.size)

assert _NAME_FORMAT.size == BODY_BYTES


class Flag(enum.IntFlag):
    """What more is to be said of a call.

    STREAM: the client asked for one. ESTIMATED: some of its tokens are a guess. ABORTED: the client left, or waited no
    longer. CUT: the upstream did not end its reply. LOST: no reply of it reached the client: another attempt did, or
    its process died. RECOVERED: its process died. MIRROR: it was a copy for a mirror, attempt 0 of its request.
    DRAINED: its client left, and it was read on until its usage was told.
    """

    STREAM = 1
    ESTIMATED = 2
    ABORTED = 4
    CUT = 8
    LOST = 16
    RECOVERED = 32
    MIRROR = 64
    DRAINED = 128


class Tokens(NamedTuple):
    """Tokens of a call; None: not known. input and output are totals, of which the others are parts."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_written: int | None = None
    cache_written_1h: int | None = None
    reasoning: int | None = None


NO_TOKENS: Final = Tokens()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an upstream.

    process, number: of the request's id, `vx-PROCESS-NUMBER` in hexadecimal. attempt: from 1, within the request; 0: a
    copy of it. endpoint: a value of types.Endpoint. status: that the client got, or would have got. started_us: Unix
    time. first_byte_us, duration_us: since then; None: no byte came. Names are texts, "" for none: key is `ID NAME`,
    its digest's first bytes in hexadecimal and its name, or MIRRORED; model: that the client asked for; upstream_model:
    that the upstream was asked for. reason: "ok", or the code of the error. tokens: each kind. cost_nano: in
    nano-dollars; None: not known. prices: version of the price that it was counted by; "" for none. team, user: ids of
    whose key it is. tags: of the key.
    """

    process: int
    number: int
    attempt: int
    endpoint: int
    status: int
    flags: Flag
    started_us: int
    first_byte_us: int | None
    duration_us: int
    key: str
    route: str
    upstream: str
    model: str
    upstream_model: str
    reason: str
    tokens: Tokens = NO_TOKENS
    cost_nano: int | None = None
    prices: str = ""
    team: str = ""
    user: str = ""
    tags: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the id of its request, as the client and the access log have it."""
        return f"vx-{self.process:08x}-{self.number:x}"


class NamePart(NamedTuple):
    """One record of a name."""

    number: int
    part: int
    n_parts: int
    text: bytes


def recorded_key(caller_id: bytes, name: str) -> str:
    """Return what a record has for a key: two keys of one name differ in it."""
    return f"{caller_id.hex()} {name}"


def key_id(text: str) -> str:
    """Return the ID in what a record has for a key, or in what begins like that; "" if none is in it."""
    match = _KEY_ID.match(text)
    return match[1] if match else ""


def name_bodies(number: int, text: str) -> list[bytes]:
    """Return the records of a name."""
    data = text.encode("utf-8", "replace")
    if len(data) > _MOST_TEXT:
        data = data[: _MOST_TEXT - len(_CUT)].decode("utf-8", "ignore").encode() + _CUT
    pieces = [data[at : at + _TEXT_BYTES] for at in range(0, len(data), _TEXT_BYTES)] or [b""]
    return [_NAME_FORMAT.pack(_NAME, part, len(pieces), len(piece), number, piece) for part, piece in enumerate(pieces)]


def call_body(
    *,
    process: int,
    number: int,
    attempt: int,
    endpoint: int,
    status: int,
    flags: int,
    started_us: int,
    first_byte_us: int | None,
    duration_us: int,
    names: tuple[int, int, int, int, int, int],
    tokens: Tokens,
    cost_nano: int | None,
    prices: int,
    owners: tuple[int, int, int] = (0, 0, 0),
) -> bytes:
    """Return the record of a call.

    names: numbers of key, route, upstream, model, upstream_model, reason. owners: of team, user, tags.
    """
    kinds = [_UNKNOWN if n is None else n if n < _UNKNOWN else _UNKNOWN - 1 for n in tokens]
    packed = _CALL_FORMAT.pack(
        _CALL,
        attempt if attempt < 256 else 255,
        endpoint,
        status,
        flags,
        process,
        number,
        started_us,
        _UNKNOWN if first_byte_us is None else min(first_byte_us, _UNKNOWN - 1),
        duration_us,
        *names,
        *kinds,
        0,
        0,
        _NO_COST if cost_nano is None else cost_nano,
        prices,
        *owners,
    )
    return packed + _FILL


class NameParts:
    """The names of one ring, as far as they have been read. known: as an earlier reader had them."""

    def __init__(self, known: dict[int, str] | None = None) -> None:
        self._texts: Final = dict(known or {})
        self._begun: dict[int, list[bytes]] = {}

    def add(self, part: NamePart) -> str | None:
        """Take one record; return the text that is whole with it."""
        pieces = self._begun.setdefault(part.number, [])
        if part.part == 0:
            pieces.clear()
        pieces.append(part.text)
        if len(pieces) < part.n_parts:
            return None
        del self._begun[part.number]
        text = self._texts[part.number] = b"".join(pieces).decode("utf-8", "replace")
        if len(self._texts) > KEPT_NAMES:
            del self._texts[next(iter(self._texts))]
        return text

    def text(self, number: int) -> str:
        """Return a name; `?` for one whose record was lost."""
        return self._texts.get(number, "?") if number else ""


def read_body(body: bytes, names: NameParts) -> Call | NamePart | None:
    """Read a record; None: it is of a kind that a later version writes."""
    if body[0] == _NAME:
        _, part, n_parts, n_bytes, number, text = _NAME_FORMAT.unpack(body)
        return NamePart(number, part, n_parts, text[:n_bytes])
    if body[0] != _CALL:
        return None
    found = _CALL_FORMAT.unpack_from(body)
    _, attempt, endpoint, status, flags, process, number, started_us, first_us, duration_us = found[:10]
    number, started_us, duration_us = (
        min(number, MOST_INTEGER),
        min(started_us, _LAST_US),
        min(duration_us, MOST_INTEGER),
    )
    key, route, upstream, model, upstream_model, reason = (names.text(n) for n in found[10:16])
    if attempt == 0:
        key = MIRRORED
    tokens = Tokens(*(None if n == _UNKNOWN else n for n in found[16:22]))
    cost, prices = found[24:26]
    team, user, tags = (names.text(n) for n in found[26:29])
    return Call(
        process,
        number,
        attempt,
        endpoint,
        status,
        Flag(flags),
        started_us,
        None if first_us == _UNKNOWN else first_us,
        duration_us,
        key,
        route,
        upstream,
        model,
        upstream_model,
        reason,
        tokens,
        None if cost == _NO_COST else cost,
        names.text(prices),
        team,
        user,
        tuple(tags.split(TAG_SEPARATOR)) if tags else (),
    )
