"""How things ended, and why: the closed sets of outcomes that policy decides on, and that metrics and logs count.

Knows: names and numbers. Does not know: who counts them, or under which metric name (velox.observe.series).
"""

from __future__ import annotations

import enum
from typing import Final

from velox.errors import Reason

__all__ = [
    "SHED_REASONS",
    "AttemptOutcome",
    "CacheResult",
    "ConnectionEnd",
    "Decision",
    "DnsResult",
    "Hedged",
    "JoinResult",
    "KeyHolder",
    "LeaseResult",
    "Mirrored",
    "Phase",
    "Refusal",
    "Retry",
    "RetryDenied",
    "SpanEnd",
    "StreamEnd",
    "TlsFailure",
    "TokenCount",
    "Unit",
]


class AttemptOutcome(enum.IntEnum):
    """How one attempt at an upstream ended."""

    OK = 0
    STATUS_4XX = 1
    STATUS_5XX = 2
    CONNECT_ERROR = 3
    TLS_ERROR = 4
    RESET = 5
    PROTOCOL = 6
    TIMEOUT = 7
    TRUNCATED = 8
    CANCELLED = 9


class StreamEnd(enum.IntEnum):
    """How a streamed reply ended for the client."""

    DONE = 0
    CLIENT_ABORT = 1
    CUT = 2
    STALL = 3
    DRAINING = 4
    ERROR = 5


class Phase(enum.IntEnum):
    """Where Velox itself spends time on a request. FORWARD: all until it is sent, the queue and the other steps too."""

    PARSE = 0
    LIMIT = 1
    CONNECT = 2
    RELAY = 3
    FORWARD = 4


class Unit(enum.IntEnum):
    """What a limit counts."""

    REQUESTS = 0
    TOKENS = 1
    CONCURRENCY = 2


class Decision(enum.IntEnum):
    """What one limit said of a request."""

    GRANTED = 0
    WAITED = 1
    REFUSED = 2


class KeyHolder(enum.IntEnum):
    """Who was wrong about a key, and was corrected by a comparison."""

    FILES = 0  # in which the ledger's process keeps managed keys for the supervisor
    SUPERVISOR = 1
    WORKER = 2


class LeaseResult(enum.IntEnum):
    """What came of a limit's permits that were asked for in Redis, or brought back there."""

    GRANTED = 0
    REFUSED = 1  # not all that requests were waiting for
    RETURNED = 2
    FAILED = 3  # the whole question: Redis could not be asked


class SpanEnd(enum.IntEnum):
    """What became of spans of traces."""

    SENT = 0
    NO_ROOM = 1  # between a worker and the exporter
    UNSENT = 2  # no answer of the collector, or none that was worth anything, until they were given up
    REFUSED = 3  # by the collector
    UNREAD = 4  # what a worker has noted can't be read


class TokenCount(enum.IntEnum):
    """Tokens of models, where a limit counts them: charged in advance, then used as the answers tell."""

    ESTIMATED = 0
    INPUT = 1
    OUTPUT = 2
    REFUNDED = 3


class Retry(enum.IntEnum):
    """Why a request was tried again."""

    CONNECT = 0
    STALE = 1
    REFUSED = 2
    GOAWAY = 3
    RESET = 4
    TIMEOUT = 5
    RATE_LIMITED = 6
    STATUS = 7
    UNKNOWN_MODEL = 8
    BROKEN = 9


class Refusal(enum.StrEnum):
    """What an upstream's error says of a request that another model could answer. The names are those of `for`."""

    CONTEXT_LENGTH = "context_length"
    CONTENT_FILTER = "content_filter"


class RetryDenied(enum.IntEnum):
    """Why a request that could have been tried again was not."""

    BUDGET = 0
    WAIT = 1
    DEADLINE = 2


class ConnectionEnd(enum.IntEnum):
    """Why an upstream connection takes no more requests."""

    CLOSED = 0  # by the upstream, between two requests
    LOST = 1  # by the upstream, inside a reply
    LAST = 2  # the reply said so, or came before the request's end
    GOAWAY = 3
    EXTRA_DATA = 4
    PROTOCOL = 5
    CANCELLED = 6
    AGE = 7
    REQUESTS = 8
    IDLE = 9
    PING = 10
    MOVED = 11
    SHUTDOWN = 12


class DnsResult(enum.IntEnum):
    """What a look-up of an upstream's name brought."""

    SAME = 0
    CHANGED = 1
    FAILED = 2


class Hedged(enum.IntEnum):
    """What came of a second try while the first had not answered."""

    WON = 0  # its first byte came first
    LOST = 1  # the first try's did, or the client left
    FAILED = 2
    DENIED = 3  # it was due, and there was no budget for it, or nobody to try


class CacheResult(enum.IntEnum):
    """What the cache had for a request of a route that has one."""

    HIT = 0  # an answer that is kept
    MISS = 1
    BYPASS = 2  # it was not asked: the request is none for it, or its client said so


class JoinResult(enum.IntEnum):
    """How a request of a route that joins calls got its reply."""

    LEADER = 0  # of a call that others could join
    JOINED = 1  # of the call of an equal request
    RETRY = 2  # of its client's first call
    ALONE = 3  # by itself: nobody may share it, there was no room, or the call that it had joined failed
    REFUSED = 4  # an error: its Idempotency-Key was another request's


class Drained(enum.IntEnum):
    """What came of a stream whose client had left, and whose usage somebody counts."""

    WHOLE = 0  # it was read to its end
    CUT = 1  # it took too long, was too much, or failed, or the worker left
    DENIED = 2  # it was not read on: too many were


class Mirrored(enum.IntEnum):
    """What came of a copy of a request."""

    ANSWERED = 0
    FAILED = 1
    DROPPED = 2  # not sent: too many were under way, or the mirror's API can't say it


# The reasons for which Velox refuses work because it has too much of it, lacks what it needs for it, or is about to
# stop.
SHED_REASONS: Final = (
    Reason.QUEUE_FULL,
    Reason.QUEUE_TIMEOUT,
    Reason.CONN_LIMIT,
    Reason.DRAINING,
    Reason.OVERLOAD_MEMORY,
    Reason.LIMITS_UNAVAILABLE,
    Reason.ANSWERS_UNAVAILABLE,
    Reason.LEDGER_FULL,
)


class TlsFailure(enum.IntEnum):
    """Why a TLS handshake with a client did not end well."""

    PLAIN_HTTP = 0  # a request in plain text
    NOT_TLS = 1  # neither that nor a handshake
    VERSION = 2  # the client knows no TLS as new as 1.2
    CIPHER = 3  # no cipher, group or signature in common
    CLIENT_CERTIFICATE = 4  # none, or none that VELOX_TLS_CLIENT_CA signed
    REFUSED = 5  # by the client; mostly it does not trust our certificate
    TIMEOUT = 6
    CLOSED = 7  # by the client, in the middle
    LIMIT = 8  # too many connections
    OTHER = 9
