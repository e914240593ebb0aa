"""What is recorded of one call of an upstream, and how it lies in a ring.

Knows: the fields, and their bytes. Does not know: where the ring is (shm/record_ring.py), or what becomes of a record
(collector.py). No text of a request or reply is among them.

    name    a text that records refer to by number: of a key, a model, ... Longer ones take several records
    rest    units that few calls have (sound, pictures, searches, pages), of the call in the very next record
    call    one call of an upstream that did work, or may have

A number stands for a text from its name record on. Writers never use one again; readers keep the newest.
"""

from __future__ import annotations

import enum
import re
import struct
from typing import Final, NamedTuple, TypeAlias

from velox.prices.price import LABEL_SEPARATOR
from velox.protocol.agents import agent_name
from velox.shm.record_ring import BODY_BYTES

__all__ = [
    "KEY_ID_CHARS",
    "LAST_S",
    "MIRRORED",
    "MOST_INTEGER",
    "MOST_NAMES",
    "N_USUAL",
    "TAG_SEPARATOR",
    "Call",
    "CallRow",
    "Flag",
    "Kind",
    "NamePart",
    "NameParts",
    "Rest",
    "Texts",
    "Tokens",
    "call_body",
    "call_of",
    "key_id",
    "key_name",
    "name_bodies",
    "number_bytes",
    "process_of",
    "read_body",
    "read_row",
    "recorded_key",
    "rest_body",
    "row_of",
]

# Names that a writer remembers. When it has so many it forgets them all, and those that come get new numbers. 0 stands
# for no text.
MOST_NAMES: Final = 8192
# A call that is open while so many new names come is recorded without its own.
KEPT_NAMES: Final = 4 * MOST_NAMES
_MOST_KINDS: Final = 2048  # of a ring that its reader remembers: about a kilobyte each

KEY_ID_CHARS: Final = 16
# The key of copies for mirrors: no client is charged for them. A real key's begins with its ID.
MIRRORED: Final = "(mirror)"
_KEY_ID: Final = re.compile(rf"([0-9a-f]{{{KEY_ID_CHARS}}})(?: |\Z)")
_NAME: Final = 1
_CALL: Final = 2
_REST: Final = 3
_UNKNOWN: Final = 0xFFFF_FFFF
_MOST_COUNT: Final = _UNKNOWN - 1
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
# kind, attempt, endpoint, agent; status, flags; process, number; started, first byte, duration; 6 names; 6 kinds of
# tokens; names of its tier and of the model that answered; cost, name of its price; names of team, user, tags and path.
# What an earlier Velox did not record is 0 there, which stands for no text, and no agent.
# The numbers of texts that many calls have together are put there, and taken, as the bytes that they are.
_CALL_FORMAT: Final = struct.Struct("<BBBBHHIQQIQ20sI6I2IqI16s")
# Attempt, endpoint, agent, status and flags are read as one, too: few calls differ in them.
_READ_FORMAT: Final = struct.Struct("<B7sIQQIQ24s6I8sq20s")
_SHAPE_FORMAT: Final = struct.Struct("<BBBHH")
_NUMBERS_FORMAT: Final = struct.Struct("<6I2I5I")
# kind, attempt, number of units, -; process, number; units
_MOST_REST: Final = 27
_REST_FORMAT: Final = struct.Struct(f"<BBBxIQ{_MOST_REST}I")
# Tags are one name.
TAG_SEPARATOR: Final = ","

assert _NAME_FORMAT.size == BODY_BYTES
assert _CALL_FORMAT.size == _READ_FORMAT.size == BODY_BYTES
assert _REST_FORMAT.size == BODY_BYTES


class Flag(enum.IntFlag):
    """What more is to be said of a call.

    STREAM: the client asked for one. ESTIMATED: some of its tokens are a guess. ABORTED: the client left, or waited no
    longer. CUT: the upstream did not end its reply. LOST: no reply of it reached the client: another attempt did, or
    its process died. RECOVERED: its process died. MIRROR: it was a copy for a mirror, attempt 0 of its request.
    DRAINED: its client left, and it was read on until its usage was told.
    BILLED: its cost is what the upstream says that it takes. REGIONAL: it was kept within a region, which may cost
    more. OTHERS: another model worked for the answer, too, whose tokens are not known. HAS_REST: units of it are in the
    record before; of a call that was read: that record was damaged, and they are not known. CACHED: no upstream was
    asked: an answer that was kept was given again. JOINED: none was asked for this request: its reply is that of
    another request's call, where its tokens and its cost are.
    """

    STREAM = 1
    ESTIMATED = 2
    ABORTED = 4
    CUT = 8
    LOST = 16
    RECOVERED = 32
    MIRROR = 64
    DRAINED = 128
    BILLED = 256
    REGIONAL = 512
    OTHERS = 1024
    HAS_REST = 2048
    CACHED = 4096
    JOINED = 8192


class Tokens(NamedTuple):
    """What a call used; None: not known. input and output are totals, of which the others are parts.

    In the order of protocol.usage.tokens.TokenUsage and Units, whose words say what each is. web_searches are calls of
    a tool; those behind image_cached are no tokens, but what some models are paid by in their place.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_written: int | None = None
    cache_written_1h: int | None = None
    reasoning: int | None = None
    audio_input: int | None = None
    audio_cached: int | None = None
    audio_output: int | None = None
    image_input: int | None = None
    image_output: int | None = None
    web_searches: int | None = None
    image_cached: int | None = None
    sound_ms: int | None = None
    letters: int | None = None
    pictures: int | None = None
    video_ms: int | None = None
    pages: int | None = None
    annotated_pages: int | None = None
    search_units: int | None = None


# So many of them are in the record of a call; those behind them, which few calls have, are in one of their own.
N_USUAL: Final = 6
_N_OTHERS: Final = len(Tokens._fields) - N_USUAL
_NO_OTHERS: Final = (None,) * _N_OTHERS


NO_TOKENS: Final = Tokens()
_HAS_REST: Final = int(Flag.HAS_REST)


class Call(NamedTuple):
    """One call of an upstream.

    process, number: of the request's id, `vx-PROCESS-NUMBER` in hexadecimal. attempt: from 1, within the request; 0: a
    copy of it. endpoint: a value of types.Endpoint. status: that the client got, or would have got. started_us: Unix
    time. first_byte_us, duration_us: since then; None: no byte came. Names are texts, "" for none: key is `ID NAME`,
    its digest's first bytes in hexadecimal and its name, or MIRRORED; model: that the client asked for; upstream_model:
    that the upstream was asked for. reason: "ok", or the code of the error. tokens: each kind. cost_nano: in
    nano-dollars; None: not known. prices: version of the price that it was counted by; "" for none. team, user: ids of
    whose key it is. tags: of the key. account: id of a managed key; "" for others. path: that was asked, without what
    differs from call to call (endpoints.py). tier, answered_model: that the reply tells; "" for none. price:
    where the price stands, in the table or file of that version. agent: the family of the client's program
    (protocol/agents.py); "": not recorded.
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
    account: str = ""
    path: str = ""
    tier: str = ""
    answered_model: str = ""
    price: str = ""
    agent: str = ""

    @property
    def id(self) -> str:
        """Return the id of its request, as the client and the access log have it."""
        return f"vx-{self.process:08x}-{self.number:x}"

    @property
    def key_id(self) -> str:
        """Return the id of its key: of a managed one its own, of others the start of their digest; "" for none."""
        return self.account or key_id(self.key)


class Rest(NamedTuple):
    """The units of a call that are not in its own record, as in Tokens behind its first ones."""

    process: int
    number: int
    attempt: int
    units: tuple[int | None, ...]


class NamePart(NamedTuple):
    """One record of a name."""

    number: int
    part: int
    n_parts: int
    text: bytes


def recorded_key(caller_id: bytes, name: str) -> str:
    """Return what a record has for a key: two keys of one name differ in it."""
    return f"{caller_id.hex()} {name}"


def key_name(caller_id: bytes, name: str, account: str) -> str:
    """Return the name that records in a ring refer to for a key. account: the id of a managed one; "" for others."""
    return f"{account}{LABEL_SEPARATOR}{recorded_key(caller_id, name)}"


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


def number_bytes(*numbers: int) -> bytes:
    """Return numbers of texts as they lie in the record of a call."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def call_body(
    process: int,
    number: int,
    attempt: int,
    endpoint: int,
    status: int,
    flags: int,
    started_us: int,
    first_byte_us: int | None,
    duration_us: int,
    names: bytes,
    reason: int,
    tokens: tuple[int | None, ...],
    cost_nano: int | None,
    prices: int,
    owners: bytes = bytes(16),
    tier: int = 0,
    answered: int = 0,
    agent: int = 0,
) -> bytes:
    """Return the record of a call, without what is in its rest_body().

    names: number_bytes() of key, route, upstream, model, upstream_model. owners: of team, user, tags, path. reason,
    prices, tier, answered: numbers of its reason, the label of its price, its tier and the model that answered. agent:
    that of a family, which needs no text. tokens: the usual ones, and maybe others. The arguments are known by their
    places because names would take as long as the rest.
    """
    n_input, n_output, cached, written, written_1h, reasoning = tokens[:N_USUAL]
    return _CALL_FORMAT.pack(
        _CALL,
        attempt if attempt < 256 else 255,
        endpoint,
        agent,
        status,
        flags,
        process,
        number,
        started_us,
        _UNKNOWN if first_byte_us is None else first_byte_us if first_byte_us < _UNKNOWN else _MOST_COUNT,
        duration_us,
        names,
        reason,
        _UNKNOWN if n_input is None else n_input if n_input < _UNKNOWN else _MOST_COUNT,
        _UNKNOWN if n_output is None else n_output if n_output < _UNKNOWN else _MOST_COUNT,
        _UNKNOWN if cached is None else cached if cached < _UNKNOWN else _MOST_COUNT,
        _UNKNOWN if written is None else written if written < _UNKNOWN else _MOST_COUNT,
        _UNKNOWN if written_1h is None else written_1h if written_1h < _UNKNOWN else _MOST_COUNT,
        _UNKNOWN if reasoning is None else reasoning if reasoning < _UNKNOWN else _MOST_COUNT,
        tier,
        answered,
        _NO_COST if cost_nano is None else cost_nano,
        prices,
        owners,
    )


def rest_body(process: int, number: int, attempt: int, tokens: tuple[int | None, ...]) -> bytes:
    """Return the record of what call_body() leaves out, to be put right before it if there is any."""
    rest = tokens[N_USUAL:]
    units = [_UNKNOWN if n is None else min(n, _MOST_COUNT) for n in rest]
    fill = (_UNKNOWN,) * (_MOST_REST - len(units))
    return _REST_FORMAT.pack(_REST, min(attempt, 255), len(units), process, number, *units, *fill)


class Texts(NamedTuple):
    """The texts of a call, in the order in which Call has them: before its tokens, and behind its cost.

    names: of key, route, upstream, model, upstream_model, reason.
    """

    names: tuple[str, str, str, str, str, str]
    prices: str = ""
    team: str = ""
    user: str = ""
    tags: tuple[str, ...] = ()
    account: str = ""
    path: str = ""
    tier: str = ""
    answered_model: str = ""
    price: str = ""
    agent: str = ""


class Kind:
    """What calls have in common that were made alike; as in Call.

    Readers make one for many calls, and look it up by the object that it is: that costs less than by its values.
    """

    __slots__ = ("attempt", "endpoint", "flags", "status", "texts")

    def __init__(self, attempt: int, endpoint: int, status: int, flags: Flag, texts: Texts) -> None:
        self.attempt: Final = attempt
        self.endpoint: Final = endpoint
        self.status: Final = status
        self.flags: Final = flags
        self.texts: Final = texts

    def __repr__(self) -> str:
        return f"<Kind {self.attempt} {self.endpoint} {self.status} {self.flags!r} {self.texts}>"


# A call as it is read: the number of its record; started_us, process, number, first_byte_us, duration_us; tokens
# of the usual kinds; cost_nano; tokens of the other kinds, () if there are none; the rest.
CallRow: TypeAlias = tuple[
    int,
    int,
    int,
    int,
    int | None,
    int,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    tuple[int | None, ...],
    Kind,
]


def call_of(row: CallRow) -> Call:
    """Return a call that was read."""
    _, started_us, process, number, first_us, duration_us = row[:6]
    cost_nano, others, kind = row[12:]
    names, prices, team, user, tags, account, path, tier, answered_model, price, agent = kind.texts
    key, route, upstream, model, upstream_model, reason = names
    return Call(
        process,
        number,
        kind.attempt,
        kind.endpoint,
        kind.status,
        kind.flags,
        started_us,
        first_us,
        duration_us,
        key,
        route,
        upstream,
        model,
        upstream_model,
        reason,
        Tokens(*row[6:12], *others),
        cost_nano,
        prices,
        team,
        user,
        tags,
        account,
        path,
        tier,
        answered_model,
        price,
        agent,
    )


def row_of(record: int, call: Call) -> CallRow:
    """Return a call as one that was read. record: the number of its record."""
    names = (call.key, call.route, call.upstream, call.model, call.upstream_model, call.reason)
    told = (call.account, call.path, call.tier, call.answered_model, call.price, call.agent)
    texts = Texts(names, call.prices, call.team, call.user, call.tags, *told)
    n_input, n_output, cached, written, written_1h, reasoning = call.tokens[:N_USUAL]
    others = call.tokens[N_USUAL:]
    return (
        record,
        call.started_us,
        call.process,
        call.number,
        call.first_byte_us,
        call.duration_us,
        n_input,
        n_output,
        cached,
        written,
        written_1h,
        reasoning,
        call.cost_nano,
        () if others == _NO_OTHERS else others,
        Kind(call.attempt, call.endpoint, call.status, call.flags, texts),
    )


class NameParts:
    """The names of one ring, as far as they have been read. known: as an earlier reader had them."""

    def __init__(self, known: dict[int, str] | None = None) -> None:
        self._texts: Final = dict(known or {})
        self._begun: dict[int, list[bytes]] = {}
        # Calls of one caller for one model have the same numbers again and again.
        self._found: Final[dict[bytes, Kind]] = {}

    def add(self, part: NamePart) -> str | None:
        """Take one record; return the text that is whole with it."""
        pieces = self._begun.setdefault(part.number, [])
        if part.part == 0:
            pieces.clear()
        pieces.append(part.text)
        if len(pieces) < part.n_parts:
            return None
        del self._begun[part.number]
        text = b"".join(pieces).decode("utf-8", "replace")
        if self._texts.get(part.number, text) != text:
            self._found.clear()  # a writer that came later gave the number away anew
        self._texts[part.number] = text
        if len(self._texts) > KEPT_NAMES:
            del self._texts[next(iter(self._texts))]
        return text

    def forget_before(self, number: int) -> None:
        """Forget the names of lower numbers: no record that is still to be read refers to them."""
        for each in [known for known in self._texts if known < number]:
            del self._texts[each]
        self._found.clear()

    @property
    def texts(self) -> dict[int, str]:
        """All that are known, by number."""
        return dict(self._texts)

    def text(self, number: int) -> str:
        """Return a name; `?` for one whose record was lost."""
        return self._texts.get(number, "?") if number else ""

    def kind(self, shape: bytes, numbers: bytes) -> Kind:
        """Return what a call has in common with others. shape, numbers: as their formats have them."""
        found = self._found.get(shape + numbers)
        if found is None:
            found = self._kind(shape, numbers)
            if all(not number or number in self._texts for number in _NUMBERS_FORMAT.unpack(numbers)):
                if len(self._found) >= _MOST_KINDS:
                    self._found.clear()
                self._found[shape + numbers] = found
        return found

    def _kind(self, shape: bytes, numbers: bytes) -> Kind:
        attempt, endpoint, agent, status, flags = _SHAPE_FORMAT.unpack(shape)
        texts = self._of_call(numbers)._replace(agent=agent_name(agent))
        if attempt == 0:
            texts = texts._replace(names=(MIRRORED, *texts.names[1:]), account="")
        return Kind(attempt, endpoint, status, Flag(flags), texts)

    def _of_call(self, numbers: bytes) -> Texts:
        found = list(map(self.text, _NUMBERS_FORMAT.unpack(numbers)))
        key, route, upstream, model, upstream_model, reason = found[:6]
        tier, answered, price, team, user, tags, path = found[6:]
        account, separator, recorded = key.partition(LABEL_SEPARATOR)
        if not separator:
            account, recorded = "", key  # an earlier Velox wrote it
        version, _, place = price.partition(LABEL_SEPARATOR)
        return Texts(
            (recorded, route, upstream, model, upstream_model, reason),
            version,
            team,
            user,
            tuple(tags.split(TAG_SEPARATOR)) if tags else (),
            account,
            path,
            tier,
            answered,
            place,
        )


def read_body(body: bytes, names: NameParts, rest: Rest | None = None) -> Call | NamePart | Rest | None:
    """Read a record; None: it is of a kind that a later version writes. rest: that was read right before it."""
    found = read_row(0, body, names, rest)
    return found if found is None or isinstance(found, (NamePart, Rest)) else call_of(found)


def read_row(record: int, body: bytes, names: NameParts, rest: Rest | None) -> CallRow | NamePart | Rest | None:
    """Read a record as read_body() does, a call as a row. record: its number."""
    if body[0] == _CALL:
        return _read_call(record, body, names, rest)
    if body[0] == _NAME:
        _, part, n_parts, n_bytes, number, text = _NAME_FORMAT.unpack(body)
        return NamePart(number, part, n_parts, text[:n_bytes])
    if body[0] == _REST:
        _, attempt, n_units, process, number, *units = _REST_FORMAT.unpack(body)
        return Rest(process, number, attempt, tuple(_count(n) for n in units[:n_units]))
    return None


def process_of(body: bytes) -> int:
    """Return the process whose call a record is of."""
    process: int = _READ_FORMAT.unpack(body)[2]
    return process


def _read_call(record: int, body: bytes, names: NameParts, rest: Rest | None) -> CallRow:
    found = _READ_FORMAT.unpack(body)
    _, shape, process, number, started_us, first_us, duration_us, named = found[:8]
    n_input, n_output, cached, written, written_1h, reasoning, told, cost_nano, owned = found[8:]
    others: tuple[int | None, ...] = ()
    if rest is not None:
        attempt, endpoint, agent, status, flags = _SHAPE_FORMAT.unpack(shape)
        if flags & _HAS_REST and (rest.process, rest.number, rest.attempt) == (process, number, attempt):
            shape = _SHAPE_FORMAT.pack(attempt, endpoint, agent, status, flags & ~_HAS_REST)
            others = (rest.units + _NO_OTHERS)[:_N_OTHERS]
    return (
        record,
        started_us if started_us < _LAST_US else _LAST_US,
        process,
        number if number < MOST_INTEGER else MOST_INTEGER,
        None if first_us == _UNKNOWN else first_us,
        duration_us if duration_us < MOST_INTEGER else MOST_INTEGER,
        None if n_input == _UNKNOWN else n_input,
        None if n_output == _UNKNOWN else n_output,
        None if cached == _UNKNOWN else cached,
        None if written == _UNKNOWN else written,
        None if written_1h == _UNKNOWN else written_1h,
        None if reasoning == _UNKNOWN else reasoning,
        None if cost_nano == _NO_COST else cost_nano,
        others,
        names.kind(shape, named + told + owned),
    )


def _count(n: int) -> int | None:
    return None if n == _UNKNOWN else n
