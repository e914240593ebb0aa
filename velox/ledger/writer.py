"""Writes the records of one worker's calls.

Knows: when which record is written, and what stays of a call that no record has room for. Does not know: when a call
begins and ends (gateway/limits/calls.py), or who reads the records (collector.py).

    begin()    the call is noted as open: this is recorded, with the estimate, if the process is killed
    end()      its record is written, then it is open no more
    forget()   it did no work: no record
"""

from __future__ import annotations

from typing import Final, NamedTuple

from velox.ledger.record import MOST_NAMES, N_USUAL, Flag, call_body, name_bodies, number_bytes, rest_body
from velox.shm.record_ring import RecordRing

__all__ = ["CallNames", "CallWriter", "OpenCall"]

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


class OpenCall:
    """A call that has begun; as in record.Call. place: among the open ones of the ring."""

    __slots__ = ("agent", "attempt", "endpoint", "is_stream", "names", "number", "numbers", "place", "started_us")

    def __init__(
        self,
        number: int,
        attempt: int,
        endpoint: int,
        is_stream: bool,
        started_us: int,
        names: CallNames,
        numbers: _Numbers,
        place: int,
        agent: int,
    ) -> None:
        self.agent: Final = agent
        self.number: Final = number
        self.attempt: Final = attempt
        self.endpoint: Final = endpoint
        self.is_stream: Final = is_stream
        self.started_us: Final = started_us
        self.names: Final = names
        self.numbers: Final = numbers
        self.place: Final = place

    def __repr__(self) -> str:
        return f"<OpenCall {self.number:x}.{self.attempt} at {self.place}>"


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

    def begin(
        self,
        number: int,
        attempt: int,
        endpoint: int,
        is_stream: bool,
        started_us: int,
        names: CallNames,
        tokens: tuple[int | None, int | None],
        cost_nano: int | None = None,
        prices: str = "",
        agent: int = 0,
    ) -> OpenCall:
        """Note a call before it is sent. tokens: of the prompt and of the answer, estimated. prices: as in end().

        agent: the number of its client's family (protocol/agents.py).
        """
        numbers = self._sets.get(names)
        if numbers is None:
            numbers = self._find(names)
        n_input, n_output = tokens
        known = self._numbers.get
        body = call_body(
            self._process,
            number,
            attempt,
            endpoint,
            _KILLED_STATUS,
            _KILLED | is_stream,
            started_us,
            None,
            0,
            numbers.names,
            known(_KILLED_REASON) or self._number(_KILLED_REASON),
            (n_input, n_output, None, None, None, None),
            cost_nano,
            known(prices) or self._number(prices),
            numbers.owners,
            0,
            0,
            agent,
        )
        place = self._ring.open(body)
        return OpenCall(number, attempt, endpoint, is_stream, started_us, names, numbers, place, agent)

    def end(
        self,
        call: OpenCall,
        *,
        status: int,
        reason: str,
        flags: int,
        first_byte_us: int | None,
        duration_us: int,
        tokens: tuple[int | None, ...],
        cost_nano: int | None,
        prices: str,
        tier: str = "",
        answered: str = "",
    ) -> None:
        """Record a call. answered: the model that did, as its reply tells. prices: the label of its price.

        flags: of record.Flag; an integer, because each operation of an enum costs microseconds. tokens: as in
        record.Tokens, those of the end may be left off.
        """
        ring = self._ring
        # There may be room now for names that had none when it began.
        numbers = call.numbers if call.numbers.has_all else self._find(call.names)
        rest: bytes | None = None
        if any(tokens[N_USUAL:]):
            rest = rest_body(self._process, call.number, call.attempt, tokens)
            flags |= _HAS_REST
        known = self._numbers.get
        body = call_body(
            self._process,
            call.number,
            call.attempt,
            call.endpoint,
            status,
            flags | call.is_stream,
            call.started_us,
            first_byte_us,
            duration_us,
            numbers.names,
            known(reason) or self._number(reason),
            tokens,
            cost_nano,
            known(prices) or self._number(prices),
            numbers.owners,
            (known(tier) or self._number(tier)) if tier else 0,
            (known(answered) or self._number(answered)) if answered else 0,
            call.agent,
        )
        if (rest is not None and not ring.put(rest)) or not ring.put(body):
            ring.add_dropped((1, tokens[0] or 0, tokens[1] or 0, cost_nano or 0, cost_nano is None))
        ring.close(call.place)

    def forget(self, call: OpenCall) -> None:
        """Record nothing of a call."""
        self._ring.close(call.place)

    def _find(self, names: CallNames) -> _Numbers:
        if len(self._numbers) + len(names) >= MOST_NAMES:
            self._numbers.clear()
            self._sets.clear()
        elif len(self._sets) >= MOST_NAMES:
            self._sets.clear()  # the names in them keep their numbers
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
