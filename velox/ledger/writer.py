"""Writes the records of one worker's calls.

Knows: when which record is written, and what stays of a call that no record has room for. Does not know: when a call
begins and ends (gateway/limits/calls.py), or who reads the records (collector.py).

    begin()    the call is noted as open: this is recorded, with the estimate, if the process is killed
    end()      its record is written, then it is open no more
    forget()   it did no work: no record
"""

from __future__ import annotations

from typing import Final, NamedTuple

from velox.ledger.record import MOST_NAMES, Flag, Tokens, call_body, name_bodies, number_bytes, rest_body
from velox.shm.record_ring import RecordRing

__all__ = ["CallNames", "CallStart", "CallWriter", "OpenCall"]

_HAS_REST: Final = int(Flag.HAS_REST)
_KILLED: Final = int(Flag.ESTIMATED | Flag.LOST | Flag.RECOVERED)
# Reason and status of a call whose process died.
_KILLED_REASON: Final = "killed"
_KILLED_STATUS: Final = 0
_N_NAMES: Final = 5  # of CallNames; the others are the owners


class CallNames(NamedTuple):
    """The texts of a call, as in record.Call. key: as key_name() makes it. tags: with commas between."""

    key: str
    route: str
    upstream: str
    model: str
    upstream_model: str
    team: str = ""
    user: str = ""
    tags: str = ""
    path: str = ""


class _Numbers(NamedTuple):
    """Those of a call's texts, as its record has them (call_body()).

    has_all: False: some text has none yet, for the ring was full.
    """

    names: bytes
    owners: bytes
    has_all: bool


class CallStart(NamedTuple):
    """What is known of a call when it begins; as in record.Call. tokens: estimated. prices: label of its price."""

    number: int
    attempt: int
    endpoint: int
    is_stream: bool
    started_us: int
    names: CallNames
    tokens: Tokens
    cost_nano: int | None = None
    prices: str = ""


class OpenCall(NamedTuple):
    """A call that has begun. place: among the open ones of the ring."""

    start: CallStart
    place: int
    numbers: _Numbers


class CallWriter:
    """The writer of one process.

    ring: which this process is the writer of (RecordRing.begin()). process: a random number, the same as in the ids of
    its requests.
    """

    def __init__(self, ring: RecordRing, process: int) -> None:
        self._ring: Final = ring
        self._process: Final = process
        self._numbers: Final[dict[str, int]] = {}
        self._sets: Final[dict[CallNames, _Numbers]] = {}

    def __repr__(self) -> str:
        return f"<CallWriter {self._ring!r}, {len(self._numbers)} names>"

    @property
    def is_full(self) -> bool:
        """True while nothing can be recorded."""
        return self._ring.is_full

    @property
    def has_room(self) -> bool:
        """True while one more call can be recorded, whatever those that are open may still need."""
        return self._ring.has_room

    def begin(self, start: CallStart) -> OpenCall:
        """Note a call before it is sent."""
        numbers = self._sets.get(start.names)
        if numbers is None:
            numbers = self._find(start.names)
        body = call_body(
            process=self._process,
            number=start.number,
            attempt=start.attempt,
            endpoint=start.endpoint,
            status=_KILLED_STATUS,
            flags=_KILLED | start.is_stream,
            started_us=start.started_us,
            first_byte_us=None,
            duration_us=0,
            names=numbers.names,
            reason=self._number(_KILLED_REASON),
            tokens=start.tokens,
            cost_nano=start.cost_nano,
            prices=self._number(start.prices),
            owners=numbers.owners,
        )
        return OpenCall(start, self._ring.open(body), numbers)

    def end(
        self,
        call: OpenCall,
        *,
        status: int,
        reason: str,
        flags: int,
        first_byte_us: int | None,
        duration_us: int,
        tokens: Tokens,
        cost_nano: int | None,
        prices: str,
        tier: str = "",
        answered: str = "",
    ) -> None:
        """Record a call. answered: the model that did, as its reply tells. prices: the label of its price.

        flags: of record.Flag; an integer, because each operation of an enum costs microseconds.
        """
        start, ring = call.start, self._ring
        # There may be room now for names that had none when it began.
        numbers = call.numbers if call.numbers.has_all else self._find(start.names)
        rest = rest_body(process=self._process, number=start.number, attempt=start.attempt, tokens=tokens)
        if rest is not None:
            flags |= _HAS_REST
        body = call_body(
            process=self._process,
            number=start.number,
            attempt=start.attempt,
            endpoint=start.endpoint,
            status=status,
            flags=flags | start.is_stream,
            started_us=start.started_us,
            first_byte_us=first_byte_us,
            duration_us=duration_us,
            names=numbers.names,
            reason=self._number(reason),
            tokens=tokens,
            cost_nano=cost_nano,
            prices=self._number(prices),
            owners=numbers.owners,
            tier=self._number(tier),
            answered=self._number(answered),
        )
        if (rest is not None and not ring.put(rest)) or not ring.put(body):
            ring.add_dropped((1, tokens.input or 0, tokens.output or 0, cost_nano or 0, cost_nano is None))
        ring.close(call.place)

    def forget(self, call: OpenCall) -> None:
        """Record nothing of a call."""
        self._ring.close(call.place)

    def _find(self, names: CallNames) -> _Numbers:
        if len(self._numbers) + len(names) >= MOST_NAMES or len(self._sets) >= MOST_NAMES:
            self._numbers.clear()
            self._sets.clear()
        found = [self._number(name) for name in names]
        has_all = all(bool(number) == bool(name) for number, name in zip(found, names, strict=True))
        numbers = _Numbers(number_bytes(*found[:_N_NAMES]), number_bytes(*found[_N_NAMES:]), has_all)
        if has_all:
            self._sets[names] = numbers
        return numbers

    def _number(self, text: str) -> int:
        """Return the number of a text, which is recorded at its first use. 0: there is no room for it."""
        if not text:
            return 0
        number = self._numbers.get(text)
        if number is not None:
            return number
        number = self._ring.next_name()
        for body in name_bodies(number, text):
            if not self._ring.put(body):
                return 0
        self._numbers[text] = number
        return number
