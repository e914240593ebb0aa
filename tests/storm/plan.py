"""What one request of the storm is to meet, and the bytes that its answer must have: both follow from its mark.

Knows: faults, marks, expected bytes. Does not know: who asks (client.py), who answers (upstream.py), gateways.

The client sends its plan inside the request's body; the upstream does what the plan says. Every piece of an answer
names the mark and is filled from a hash of mark and number, so a piece that is missing, twice there, or another
client's can't go unseen.
"""

from __future__ import annotations

import enum
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, Self

__all__ = ["CONNECTION_WIDE", "FAULTS", "HARMLESS", "Fault", "Plan", "draw"]

DONE: Final = b"data: [DONE]\n\n"


class Fault(enum.StrEnum):
    """What the upstream does to an answer. Over HTTP/1.1 what is HTTP/2's own is done in the nearest way."""

    NONE = "none"
    SLOW = "slow"  # pauses between pieces
    DRIP = "drip"  # pieces torn apart in the middle of a line
    GOAWAY = "goaway"  # whole; the connection takes no new streams (HTTP/1.1: connection: close)
    CUT = "cut"  # RST_STREAM (HTTP/1.1: FIN) between two pieces, or inside one
    RESET = "reset"  # the whole connection is lost (HTTP/1.1: TCP reset)
    STALL = "stall"  # silence after some pieces, for ever
    SHORT = "short"  # ends properly before the length that it announced
    EARLY = "early"  # reset before a byte of an answer
    REFUSE = "refuse"  # REFUSED_STREAM (HTTP/1.1: a close before a byte)
    GOAWAY_LAST = "goaway_last"  # GOAWAY whose last id is below this stream's: surely not begun
    SILENT = "silent"  # takes the request and never answers
    ERROR_500 = "error_500"
    ERROR_429 = "error_429"
    BACK_OFF = "back_off"  # 429 with a Retry-After of some seconds


# The storm's faults: none of these leaves an answer whole but for the retry that follows.
FAULTS: Final = tuple(fault for fault in Fault if fault not in ("none", "slow", "drip", "goaway", "back_off"))
HARMLESS: Final = (Fault.NONE, Fault.SLOW, Fault.DRIP, Fault.GOAWAY)
# Those that take the other streams of an HTTP/2 connection with them.
CONNECTION_WIDE: Final = (Fault.RESET, Fault.GOAWAY_LAST)


@dataclass(frozen=True, slots=True)
class Plan:
    """One request. at: the piece at which the fault strikes. once: the next attempt at it is answered well.

    leaves_after: how many bytes of the reply the client takes before it leaves; -1: it stays, 0: it leaves
    `leaves_s` after it has asked. lazy_s: how long it waits before it reads the body.
    """

    mark: str
    stream: bool = True
    n_pieces: int = 5
    piece_bytes: int = 60
    fault: Fault = Fault.NONE
    at: int = 0
    once: bool = False
    leaves_after: int = -1
    leaves_s: float = 0.0
    lazy_s: float = 0.0

    def request_body(self) -> bytes:
        """Return a chat completion whose upstream-specific part is this plan; its model is the mark."""
        message = {"role": "user", "content": f"the answer of {self.mark}, please"}
        chat = {"model": self.mark, "stream": self.stream, "messages": [message], "storm": asdict(self)}
        return json.dumps(chat).encode()

    @classmethod
    def of_request(cls, body: bytes) -> Self:
        """Return the plan inside a request's body."""
        found = json.loads(body)["storm"]
        found["fault"] = Fault(found["fault"])
        return cls(**found)

    def piece(self, number: int) -> bytes:
        """Return one piece of the answer: an event of a stream, or a line of a document."""
        # Emoji: a piece that is torn apart is torn inside a character too.
        filler = hashlib.shake_256(f"{self.mark}/{number}".encode()).hexdigest(self.piece_bytes // 2 + 1)
        text = f'{{"mark":"{self.mark}","n":{number},"text":"\U0001f30d{filler}"}}'
        return f"data: {text}\n\n".encode() if self.stream else f"{text}\n".encode()

    def pieces(self) -> Iterator[bytes]:
        """Return the whole answer, piece by piece."""
        yield from map(self.piece, range(self.n_pieces))
        if self.stream:
            yield DONE

    def answer(self) -> bytes:
        """Return the bytes that a whole answer has."""
        return b"".join(self.pieces())

    def error_body(self, status: int) -> bytes:
        """Return what the upstream says where it refuses."""
        return json.dumps({"error": {"message": f"not now, {self.mark}", "type": "x", "code": status}}).encode()


def draw(number: int, seed: int) -> Plan:
    """Return the plan of the storm's `number`th request: 30 % meet a fault, some 15 % of the clients leave.

    The same seed gives the same plans.
    """
    dice = random.Random(f"{seed}/{number}")
    stream = dice.random() < 0.8
    n_pieces, piece_bytes = dice.randint(1, 30), dice.choice((2, 60, 60, 400, 2_000))
    if dice.random() < 0.02:
        n_pieces, piece_bytes = 40, 16_000  # above a stream's window
    # A lost connection takes up to a hundred streams with it: more often, and HTTP/2 would see no other fault.
    weights = [0.05 if fault in CONNECTION_WIDE else 1.0 for fault in FAULTS]
    fault = dice.choices(FAULTS, weights)[0] if dice.random() < 0.3 else Fault.NONE
    if fault is Fault.NONE and dice.random() < 0.1:
        fault = dice.choice(HARMLESS[1:])
    leaves_after = -1
    if dice.random() < 0.15:
        leaves_after = 0 if dice.random() < 0.5 else dice.randint(1, n_pieces * (piece_bytes + 40))
    return Plan(
        mark=f"m{seed}x{number}y{dice.getrandbits(40):x}",
        stream=stream,
        n_pieces=n_pieces,
        piece_bytes=piece_bytes,
        fault=fault,
        at=dice.randint(0, n_pieces - 1),
        once=dice.random() < 0.5,
        leaves_after=leaves_after,
        leaves_s=dice.choice((0.0005, 0.002, 0.01, 0.05, 0.3)),
        lazy_s=dice.choice((0.05, 0.3)) if dice.random() < 0.03 else 0.0,
    )
