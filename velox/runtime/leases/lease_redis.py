"""The connection to Redis: one connection, one script, and what can go wrong. The only file that imports `redis`.

Knows: how a question is sent to the script and an answer is read. Does not know: what a gateway does with the answer,
or while Redis is down (leases/lease_manager.py).

It blocks on purpose: one question is out at a time. Demands that arrive meanwhile wait in the lease manager's pipe, and
the next question takes all of them. A question that was sent and fails may still have been processed by Redis: its
permits are lost. After any failure the connection is closed.

The script, lease.lua, keeps the buckets of all gateways, in Redis' own time. It is GCRA, as in
policy.limits.token_bucket, for many buckets at once:

    KEYS   the clock's offset, the gateways' last signs of life, then one per bucket
    ARGV   what the caller takes the time for (0: unknown) and by how much it may err, the offsets it knows, its name,
           for how long a gateway counts; then for each bucket: interval, burst, max_wait, ahead, recover, back, debt,
           since, want, and the number of pairs (permits, how often)
    reply  the time, the number of gateways (-1: no name was given), the offset; then for each bucket: permits granted,
           by how much the TAT is ahead of now, and in how much time the granted ones may be used

Times are in units of 100 ns since 2023-11-14, so that a Lua number (53 bits) holds them exactly until 2052. The cost
of a permit is rounded up to such a unit and what is given back is rounded down: too little, never too much.

A missing bucket is full, or was lost by a restart, a failover or an eviction. The caller says how far ahead it
knows the TAT to be (below 0: how far behind), and a lost bucket starts there. An existing bucket counts as it is, since
others may have given permits back meanwhile; unless the connection is new (recover) and the server may lag behind: then
the later TAT counts. A key outlives the longest TAT that any gateway may know of by a minute, so that a bucket that
ended by itself is not taken for lost.

A debt is what was used before it was asked for, at some time in the last `since`. It counts as if all of it had been
used at the beginning of that time, so a gateway that was alone for long is not charged for the time that has passed.

Redis' time may jump, by hand or by a failover to a machine with another clock. The caller says what the time should
be, by its own clock's steps since the last answer; if that differs, the script changes the offset. Only steps
count, so no gateway needs the right time. The caller takes Redis' time as it is if

    the offset is one it does not know: another gateway changed it, one of an older version perhaps, and two that differ
        would set it to and fro. An offset that was lost, or an earlier one from a replica that lagged, is no reason
    another gateway gave a sign of life after what the caller takes for now: then it was the caller that stood still (a
        paused machine). Who does not know the time is no witness: its sign is no newer than the newest one

All keys have one hash tag, {velox}: on a cluster they are in one slot, as one script needs them to be.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, MovedError, NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.retry import Retry

__all__ = [
    "SCRIPT",
    "UNIT_NS",
    "BucketAnswer",
    "BucketQuery",
    "BudgetQuery",
    "LeaseRedis",
    "RedisDownError",
    "reachable",
]

UNIT_NS: Final = 100

SCRIPT: Final = Path(__file__).with_name("lease.lua").read_text("utf-8")
BUDGET_SCRIPT: Final = Path(__file__).with_name("budget.lua").read_text("utf-8")


# A connection may take longer than a request would wait: none waits for it.
_CONNECT_S: Final = 1.0
# By so much the time that is expected may be wrong: a question is under way.
_LEAST_TOLERANCE_NS: Final = 1_000_000_000
# Who has just come does not say what the time should be: if Redis' clock was set a moment ago, the other gateways know
# it and this one does not. By then each of them has asked: they do once a second.
_SURE_AFTER_NS: Final = 2_000_000_000
# A server may come back with an earlier offset: a replica that lagged, a snapshot.
_KNOWN_OFFSETS: Final = 8
# What the script answers to a question whose number is none of a later one; and how often a number is looked for.
_LATE: Final = b"late"
_TRIES: Final = 3
# A gateway is heard of within this time: what is older is none.
_CHECK_NS: Final = 5_000_000_000
# How Redis 6 and 7, and Valkey, refuse a command of a script.
_FORBIDDEN: Final = re.compile(r"can't run this command|ACL failure|NOPERM")
# Errors with which Redis refuses a whole script, or its first write.
_NOTHING_DONE: Final = (redis.AuthenticationError, redis.BusyLoadingError, MovedError, redis.ReadOnlyError)


def _now_ns() -> int:
    # Goes on while the machine sleeps, as Redis' time does.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@cache
def _digest(script: str) -> str:
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


class BucketQuery(NamedTuple):
    """What is asked of one bucket. The script says what each means."""

    name: bytes
    interval_ns: int
    burst: int
    max_wait_ns: int
    ahead_ns: int
    recover: bool
    back: int = 0
    debt: int = 0
    since_ns: int = 0
    want: int = 0
    pairs: Sequence[tuple[int, int]] = ()


class BucketAnswer(NamedTuple):
    """The answer for one bucket."""

    granted: int
    ahead_ns: int
    ready_ns: int


class BudgetQuery(NamedTuple):
    """What is asked for one budget. used: spent, and held by requests that have room. had: what it was granted.

    needs: of requests that wait, in all. least: the smallest of them. ttl_ms: for how long Redis must know of it.
    """

    name: bytes
    number: int
    limit: int
    used: int
    spent: int
    had: int
    needs: int
    least: int
    ttl_ms: int


class RedisDownError(Exception):
    """Redis can't be asked. The text says why, without anything of the URL.

    is_lost: it may have done what was asked all the same.
    """

    def __init__(self, why: str, *, is_lost: bool) -> None:
        super().__init__(why)
        self.is_lost: Final = is_lost


class LeaseRedis:
    """The connection of one gateway. Not open before the first question.

    replica: its name among the others. sure_after_ns: after its first answer it knows what Redis' time should be.
    clock: nanoseconds, of which only steps count.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        timeout_s: float,
        replica: str,
        sure_after_ns: int = _SURE_AFTER_NS,
        clock: Callable[[], int] = _now_ns,
    ) -> None:
        self._url: Final = url
        self._timeout_s: Final = timeout_s
        self._replica: Final = replica
        self._tag: Final = f"{prefix}{{velox}}:"
        self._tolerance: Final = max(_LEAST_TOLERANCE_NS, round(2e9 * timeout_s)) // UNIT_NS
        self._connection: Any = None  # the library's own types say little
        self._moved: tuple[str, int] | None = None  # the node of a cluster that has our slot
        self._now = 0  # the time of the last answer,
        self._heard_ns = 0  # at this moment,
        self._first_ns = 0  # and first at this one
        self._offsets: Final[deque[int]] = deque(maxlen=_KNOWN_OFFSETS)  # the newest is the last
        self._sure_after_ns: Final = sure_after_ns
        self._clock: Final = clock
        self._n_asked = 0  # the number of the last question for budgets

    def __repr__(self) -> str:
        return f"<LeaseRedis {'closed' if self._connection is None else 'open'}>"

    @property
    def now_ns(self) -> int:
        """Redis' time at the last answer; 0: there was none."""
        return self._now * UNIT_NS

    def ask(self, asks: Sequence[BucketQuery], *, counts_for_ns: int | None = None) -> tuple[int, list[BucketAnswer]]:
        """Return the number of gateways, and the answer for each bucket. Raises RedisDownError.

        counts_for_ns: this gateway counts as one for so long; below 0: not any more; None: nothing new of that, and the
        number is -1.
        """
        keys = [f"{self._tag}clock", f"{self._tag}replicas", *(f"{self._tag}{ask.name.hex()}" for ask in asks)]
        self._connect()  # may take longer than the time that is expected may be wrong
        now_ns = self._clock()
        is_sure = self._now and now_ns - self._first_ns >= self._sure_after_ns
        expected = self._now + (now_ns - self._heard_ns) // UNIT_NS if is_sure else 0
        replica = "" if counts_for_ns is None else self._replica
        known = f" {' '.join(map(str, self._offsets))} "
        arguments: list[Any] = [expected, self._tolerance, known, replica, (counts_for_ns or 0) // UNIT_NS]
        for ask in asks:
            arguments += (ask.interval_ns, ask.burst, ask.max_wait_ns // UNIT_NS, -(-ask.ahead_ns // UNIT_NS))
            arguments += (int(ask.recover), ask.back, ask.debt, ask.since_ns // UNIT_NS, ask.want, len(ask.pairs))
            for pair in ask.pairs:
                arguments += pair
        with self._failures(is_sent=True):
            now, replicas, offset, *answers = _integers(self._run(len(keys), [*keys, *arguments]), 3 + 3 * len(asks))
        self._now, self._heard_ns = now, self._clock()
        self._first_ns = self._first_ns or self._heard_ns
        if offset not in self._offsets:
            self._offsets.append(offset)
        triples = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        return replicas, [BucketAnswer(granted, ahead * UNIT_NS, ready * UNIT_NS) for granted, ahead, ready in triples]

    def ask_budgets(
        self, asks: Sequence[BudgetQuery], name: str, life: str, grace_ms: int, parts: int
    ) -> tuple[str, bool, list[tuple[int, int, int]]]:
        """Return which life of Redis this is, whether it may have forgotten something, and for each budget what this
        gateway is granted, and what others spent and are granted. Raises RedisDownError. See leases/budget_manager.py.

        A question that was given up may reach Redis after a later one, and tells what was true before that. So they
        are numbered, and one that is late changes nothing. Who has just come is told the last number.
        """
        keys = [f"{self._tag}budgets", f"{self._tag}budgets:{name}"]
        keys += [f"{self._tag}budget:{ask.name.hex()}:{ask.number}" for ask in asks]
        arguments: list[Any] = []
        for ask in asks:
            arguments += (ask.limit, ask.used, ask.spent, ask.had, ask.needs, ask.least, parts, ask.ttl_ms)
        with self._failures(is_sent=True):
            for _ in range(_TRIES):
                self._n_asked += 1
                head = (life, name, os.urandom(8).hex(), grace_ms, self._n_asked)
                found, *numbers = self._run(len(keys), [*keys, *head, *arguments], BUDGET_SCRIPT)
                if found != _LATE:
                    break
                (self._n_asked,) = map(int, numbers)
            if not isinstance(found, bytes) or found == _LATE:
                raise TypeError("expected a life of Redis")
            is_unsure, *answers = _integers([int(number) for number in numbers], 1 + 3 * len(asks))
        triples = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        return found.decode("latin-1"), bool(is_unsure), list(triples)

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _run(self, n_keys: int, arguments: list[Any], script: str = SCRIPT) -> list[Any]:
        connection = self._connect()
        with self._failures(is_sent=True):
            try:
                return self._command(connection, "EVALSHA", _digest(script), n_keys, *arguments)
            except NoScriptError:  # a new server, or SCRIPT FLUSH; nothing was done
                return self._command(connection, "EVAL", script, n_keys, *arguments)

    @contextmanager
    def _failures(self, *, is_sent: bool) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError, TypeError, ValueError) as exc:  # the last two: of an answer of another shape
            self.close()
            self._moved = (exc.host, exc.port) if isinstance(exc, MovedError) else None
            why = _why(exc, is_sent=is_sent)
            raise RedisDownError(why, is_lost=is_sent and not isinstance(exc, _NOTHING_DONE)) from exc

    def _command(self, connection: Any, *words: Any) -> list[Any]:
        connection.send_command(*words, check_health=False)
        reply: list[Any] = connection.read_response()
        return reply

    def _connect(self) -> Any:
        """Return the connection. Not a client: that would open another one in silence, and who asks must know of it."""
        if self._connection is None:
            with self._failures(is_sent=False):
                pool = redis.ConnectionPool.from_url(
                    self._url,
                    socket_timeout=self._timeout_s,
                    socket_connect_timeout=max(_CONNECT_S, self._timeout_s),
                    retry=Retry(NoBackoff(), 0),  # a question that failed may have been answered
                    protocol=2,
                )
                if self._moved is not None:
                    pool.connection_kwargs.update(host=self._moved[0], port=self._moved[1])
                self._connection = pool.make_connection()
                self._connection.connect()
        return self._connection


def reachable(url: str, prefix: str, timeout_s: float, *, has_budgets: bool = True) -> str | None:
    """Ask once for all that a gateway asks for; return why it can't be asked, None if it can.

    Written is as well: a replica answers what writes nothing, and so does a server whose memory is used up.
    """
    # Of names that nobody else has. It counts as a gateway in between, for some milliseconds.
    bucket = BucketQuery(os.urandom(16), _CHECK_NS, 1, 0, 0, recover=False, want=1)
    budget = BudgetQuery(os.urandom(16), number=1, limit=1, used=1, spent=1, had=0, needs=0, least=0, ttl_ms=1)
    name = os.urandom(8).hex()
    connection = LeaseRedis(url, prefix, max(timeout_s, _CONNECT_S), name)
    try:
        connection.ask((bucket,))
        connection.ask((), counts_for_ns=_CHECK_NS)
        connection.ask((), counts_for_ns=-_CHECK_NS)
        if has_budgets:
            connection.ask_budgets((budget,), name, "", 0, 1)
    except RedisDownError as exc:
        return str(exc)
    finally:
        connection.close()
    return None


def _integers(reply: Any, n: int) -> list[int]:
    """Return the n integers of a reply. Raises ValueError."""
    if not isinstance(reply, list) or len(reply) != n or not all(isinstance(each, int) for each in reply):
        raise ValueError(f"expected {n} integers")
    return reply


def _why(exc: Exception, *, is_sent: bool) -> str:
    """Say what went wrong in words of our own: a library's message may hold the URL, or what was asked."""
    if isinstance(exc, redis.AuthenticationError):
        return "it does not take the user or the password of VELOX_REDIS_URL"
    if isinstance(exc, redis.TimeoutError):
        return "it did not answer in time"
    if isinstance(exc, redis.BusyLoadingError):
        return "it is loading its data"
    if isinstance(exc, redis.ReadOnlyError):
        return "it is a replica, and takes no writes"
    if isinstance(exc, redis.OutOfMemoryError):
        return "its memory is used up (maxmemory)"
    if isinstance(exc, MovedError):
        return "the keys are on another node of the cluster"
    if isinstance(exc, NoPermissionError) or (isinstance(exc, ResponseError) and _FORBIDDEN.search(str(exc))):
        return "its user may not run all commands of the scripts, or not with their keys"
    if isinstance(exc, ResponseError):
        return f"it answered an error ({type(exc).__name__})"
    if isinstance(exc, InvalidResponse) or (is_sent and isinstance(exc, (TypeError, ValueError))):
        return "it does not answer as Redis does"
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f"no connection: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return "no connection"
