"""Buffers that are used again, beside new ones: a parser's own, and what a socket is read into.

Knows: both ways of each. Does not know: what is in the bytes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Final, TypeAlias

from bench.micro.bodies import SIZES, chat
from bench.micro.candidates import Answers, Candidate, Case, Subject, Timed, calls
from velox.net.client.plain_socket import read_view
from velox.protocol.json.body import BodyReader

__all__ = ["SUBJECT"]

_Receive: TypeAlias = Callable[[socket.socket], bytes]

# As much as asyncio and uvloop ask a socket for, at once.
_LOOPS_BYTES: Final = 256 * 1024
_SEGMENTS: Final = {"750 B": 750, "60 KB": 60_000}


# -- parsers ------------------------------------------------------------------------------------------------------


def _kept_parser(size: int) -> Timed:
    return calls(partial(BodyReader().read, chat(size)))


def _new_parser(size: int) -> Timed:
    body = chat(size)
    return calls(lambda: BodyReader().read(body))


def _parsed(is_kept: bool) -> Answers:
    kept = BodyReader()
    return {size: (kept if is_kept else BodyReader()).read(chat(n)) for size, n in SIZES.items()}


# -- sockets ------------------------------------------------------------------------------------------------------


def _into_one() -> _Receive:
    """Return how Velox reads: into a buffer that all connections share, of which what came is copied."""
    view = read_view()
    return lambda source: bytes(view[: source.recv_into(view)])


def _into_new(size: int) -> _Receive:
    """Return the usual way: new bytes each time, of which what was not needed is given back."""
    return lambda source: source.recv(size)


def _received(make: Callable[[], _Receive]) -> Answers:
    receive = make()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found: dict[str, object] = {}
        for name, size in _SEGMENTS.items():
            theirs.send(chat(size))
            found[name] = receive(ours)
        return found


def _reads(make: Callable[[], _Receive], size: int) -> Timed:
    receive, data = make(), chat(size)

    def timed(n: int) -> float:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            laps = repeat(None, n)
            began_s = time.thread_time()
            for _ in laps:
                theirs.send(data)
                receive(ours)
            return time.thread_time() - began_s

    return timed


SUBJECT: Final = Subject(
    "buffers",
    "a body or a read",
    (
        *(
            Case(
                f"parse {size}",
                (
                    Candidate("Velox: one parser", partial(_kept_parser, n), partial(_parsed, True)),
                    Candidate("a new parser each time", partial(_new_parser, n), partial(_parsed, False)),
                ),
            )
            for size, n in SIZES.items()
        ),
        *(
            Case(
                f"send and receive {name}",
                (
                    Candidate(
                        "Velox: one buffer, copied", partial(_reads, _into_one, n), partial(_received, _into_one)
                    ),
                    *(
                        Candidate(
                            f"new bytes of {limit // 1024} KiB",
                            partial(_reads, partial(_into_new, limit), n),
                            partial(_received, partial(_into_new, limit)),
                        )
                        for limit in (64 * 1024, _LOOPS_BYTES)
                    ),
                ),
            )
            for name, n in _SEGMENTS.items()
        ),
    ),
)
