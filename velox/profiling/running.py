"""What a worker tells of itself while it runs: requests, connections, long turns of its loop. Values only.

Knows: the rows, and how they travel as JSON. Does not know: who makes them or shows them.

No prompt, no query, no header but the names of models; each text has 256 characters at most.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "CachedBy",
    "CachedParts",
    "LongTurn",
    "LongTurns",
    "OpenConnection",
    "OpenConnections",
    "RunningRequest",
    "RunningRequests",
    "short",
]

_MOST_TEXT: Final = 256


class RunningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has not ended. age_s: since it came whole.

    phase: what it waits for: `queue`, `parse`, `limit`, `capacity`, `connect`, `ttfb` (the reply's first byte),
    `stream` (its client has had the beginning), `backoff`, `renewal`, `translate`, `models`, `drain`. endpoint: its
    kind. route_name, upstream: of the last attempt. tried: the attempts before, and how each ended. key: the name
    of the client's key; key_id: of a managed key its id, of others the digest's begin. address: the client's.
    """

    id: str
    phase: str
    age_s: float
    endpoint: str
    route_name: str = ""
    upstream: str = ""
    model: str = ""
    key: str = ""
    key_id: str = ""
    attempts: int = 0
    tried: tuple[str, ...] = ()
    stream: bool = False
    websocket: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    address: str = ""
    worker: int = 0


class RunningRequests(msgspec.Struct, frozen=True):
    """The oldest requests of a worker. total: how many there are."""

    total: int
    rows: list[RunningRequest]


class OpenConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection. side: `client` or `upstream`. peer: its address; upstream: whose it is.

    state: of a client's `handshake`, `idle`, `head`, `body`, `answering`, `flushing`, `linger`, `closed`, or of HTTP/2
    `new`, `open`, `noticed`, `leaving`; of an upstream's `idle`, `busy`, `retired`. streams: that run. begun: requests
    since it was made, upstream's only. bytes_in: from the peer; bytes_out: that the peer's kernel has acknowledged;
    both as the kernel counts them, None of a unix socket.
    """

    side: str
    peer: str
    protocol: str
    state: str
    streams: int
    age_s: float
    upstream: str = ""
    tls: bool = False
    begun: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    worker: int = 0


class OpenConnections(msgspec.Struct, frozen=True):
    """The connections of a worker, those of clients first. total: how many there are."""

    total: int
    rows: list[OpenConnection]


class LongTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a worker's loop that lasted too long. at_s: when it ended, Unix time. lasted_s: at least.

    stack: where it was when it had lasted for the threshold, callers first; empty: nowhere in Python's code.
    """

    at_s: float
    lasted_s: float
    stack: tuple[str, ...]
    worker: int = 0


class LongTurns(msgspec.Struct, frozen=True):
    """The last long turns of a worker, the newest first. total: since it started. threshold_s: from which on."""

    total: int
    threshold_s: float
    rows: list[LongTurn]
    unseen: str = ""


class CachedBy(msgspec.Struct, frozen=True):
    """Whose answers of the cache are meant. route: its name. key: its name or id. "": any."""

    route: str = ""
    key: str = ""


class CachedParts(msgspec.Struct, frozen=True):
    """What a worker knows of that. has_cache: some route keeps answers. has_route: there is this route.

    partitions: those of the key; of all keys of this name.
    """

    has_cache: bool
    has_route: bool
    partitions: list[str]


def short(text: str) -> str:
    """Return the begin of a text, with what UTF-8 can't say replaced."""
    return text[:_MOST_TEXT].encode("utf-8", "replace").decode()
