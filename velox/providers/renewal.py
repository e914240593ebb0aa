"""Tokens and credentials that are renewed ahead of their expiry, outside the way of requests.

    Renewal        when to fetch again, and what holds until then: no clock, no loop
    RenewedSource  one coroutine that waits, fetches, and tells a Renewal

A fetch is made half a lifetime, but at most ten minutes, before the expiry. When it fails, what was fetched before
stays in use until it expires, the next tries wait longer and longer, and the reason is told. What an upstream refuses
before its time is fetched anew at once, but not more often than twice a minute. A request that comes before the first
fetch has ended, or finds what holds expired though no fetch has failed (the machine slept), can wait for the fetch.

A fetch asks through `FetchClient`, which the composition root implements: so what is asked and how an answer is read
has no socket in it. No error, repr or log has a secret: replies and bodies stay out of them.

Knows: lifetimes, pauses, reasons. Does not know: what is fetched, or from whom.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from velox.heads import Headers
from velox.providers.authority import NoCredentialsError

__all__ = [
    "Fetch",
    "FetchClient",
    "FetchError",
    "Fetched",
    "HttpRequest",
    "Renewal",
    "RenewedSource",
    "Reply",
    "one_line",
]

T = TypeVar("T")

# What AWS's SDKs do for credentials of some hours. Google's and Azure's servers give the same token until about five
# minutes before its expiry: then it is asked for again halfway through what is left.
_AHEAD_S: Final = 600.0
_JITTER: Final = 0.1  # of the wait: workers do not all ask at once
_FIRST_PAUSE_S: Final = 1.0
_LAST_PAUSE_S: Final = 60.0
_LEAST_WAIT_S: Final = 1.0
# The system's clock may be set, and machines sleep: how long one sleep is at most.
_MOST_SLEEP_S: Final = 60.0
# Who refuses what was fetched ahead of time will refuse the next one, too.
_EARLY_S: Final = 30.0
_MOST_REASON: Final = 300  # characters of what a server said
_EXPIRED: Final = "what came had expired already: is the clock of this machine right?"


class FetchError(Exception):
    """What was asked for did not come. reason: for the operator and clients, without any secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason


def one_line(text: str) -> str:
    """Return what a server said, as part of a reason."""
    return " ".join(text.split())[:_MOST_REASON]


# -- what is asked ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request. url: plain http only to this machine or its link. headers: names in lower case."""

    method: bytes
    url: str
    headers: Headers = field(default_factory=list, repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """Its answer, whatever the status. headers: names in lower case."""

    status: int
    body: bytes = field(repr=False)
    headers: Headers = field(default_factory=list, repr=False)


class FetchClient(Protocol):
    """The network and the files, for fetches."""

    async def ask(self, question: HttpRequest) -> Reply:
        """Send a request, without following redirects. Raises FetchError: there is no whole answer."""

    async def read(self, path: str) -> bytes | None:
        """Return a file's content; None: there is no such file. Raises FetchError: it can't be read or is too large."""


@dataclass(frozen=True, slots=True)
class Fetched(Generic[T]):
    """What a fetch brought. expires_at_s: Unix time; None: never. again_s: in how long to fetch again all the same."""

    value: T = field(repr=False)
    expires_at_s: float | None = None
    again_s: float | None = None


Fetch: TypeAlias = Callable[[], Awaitable[Fetched[T]]]


# -- when it is asked -----------------------------------------------------------------------------------


class Renewal(Generic[T]):
    """What was fetched, and when to fetch again. All times are Unix time. random: in [0, 1)."""

    __slots__ = ("_early_s", "_expires_at_s", "_next_s", "_pause_s", "_random", "_value", "problem", "version")

    def __init__(self, random: Callable[[], float] = random.random) -> None:
        self._random: Final = random
        self._value: T | None = None
        self._expires_at_s: float | None = None
        self._next_s: float | None = 0.0  # None: never
        self._early_s = 0.0  # the last fetch ahead of time
        self._pause_s = 0.0
        self.problem: str | None = None  # why the last fetch failed
        self.version = 0  # of what was fetched: one more with each that is another

    def __repr__(self) -> str:
        state = "none" if self._value is None else f"until {self._expires_at_s}"
        return f"<Renewal {state}{', failing' if self.problem else ''}>"

    @property
    def next_s(self) -> float | None:
        """When to fetch again; None: never."""
        return self._next_s

    def took(self, fetched: Fetched[T], now_s: float) -> None:
        """A fetch has succeeded, unless what it brought holds no more."""
        expires_at_s = fetched.expires_at_s
        if expires_at_s is not None and not now_s < expires_at_s:  # also of a time that is no number
            self.failed(_EXPIRED, now_s)
            return
        if fetched.value != self._value:
            self.version += 1
        self._value, self._expires_at_s = fetched.value, expires_at_s
        self._pause_s, self.problem = 0.0, None
        waits = [] if fetched.again_s is None else [fetched.again_s]
        if expires_at_s is not None:
            left_s = expires_at_s - now_s
            waits.append(left_s - min(_AHEAD_S, left_s / 2.0))
        if not waits:
            self._next_s = None
            return
        wait_s = min(waits) * (1.0 - _JITTER * self._random())
        self._next_s = now_s + max(wait_s, _LEAST_WAIT_S)

    def failed(self, reason: str, now_s: float) -> None:
        """A fetch has failed."""
        self.problem = reason
        self._pause_s = min(max(2.0 * self._pause_s, _FIRST_PAUSE_S), _LAST_PAUSE_S)
        self._next_s = now_s + self._pause_s * (1.0 + _JITTER * self._random())

    def hurries(self, now_s: float) -> bool:
        """What holds was refused. Say whether it is fetched ahead of time: not if that was done a moment ago."""
        if self._next_s is None or self.problem is not None or now_s - self._early_s < _EARLY_S:
            return False
        self._early_s = now_s
        return True

    def is_missing(self, now_s: float) -> bool:
        """Say whether nothing holds, and no fetch has said why."""
        has_expired = self._expires_at_s is not None and now_s >= self._expires_at_s
        return self.problem is None and (self._value is None or has_expired)

    def current(self, now_s: float) -> T:
        """Return what holds. Raises NoCredentialsError."""
        if self._value is None:
            raise NoCredentialsError(self.problem or "they have not been fetched yet")
        if self._expires_at_s is not None and now_s >= self._expires_at_s:
            raise NoCredentialsError(f"they have expired, and could not be renewed: {self.problem or 'not tried yet'}")
        return self._value


class RenewedSource(Generic[T]):
    """Fetches again and again.

    name: of what it is, for logs. on_problem: called with the name, and why a fetch failed when that is new; None: it
    works again. clock: Unix time.
    """

    def __init__(
        self,
        name: str,
        fetch: Fetch[T],
        *,
        clock: Callable[[], float],
        on_problem: Callable[[str, str | None], None] = lambda _name, _problem: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._name: Final = name
        self._fetch: Final = fetch
        self._clock: Final = clock
        self._on_problem: Final = on_problem
        self._sleep: Final = sleep
        self._renewal: Final[Renewal[T]] = Renewal(random)
        self._fetching: asyncio.Task[None] | None = None  # the last fetch
        self.current: Final = self._renewal.current  # without a frame: asked for each request

    def __repr__(self) -> str:
        return f"<RenewedSource {self._name} {self._renewal!r}>"

    @property
    def problem(self) -> str | None:
        """Why the last fetch failed; None: it did not."""
        return self._renewal.problem

    @property
    def version(self) -> int:
        """Another number after each fetch that brought something new."""
        return self._renewal.version

    def renewed(self, version: int) -> asyncio.Future[None] | None:
        """Fetch ahead of time, because `version` was refused: once for all that ask meanwhile.

        Return what is done once something newer holds, or could not be had; None: it is not fetched.
        """
        loop = asyncio.get_running_loop()
        if version != self._renewal.version:
            done = loop.create_future()
            done.set_result(None)
            return done
        if (self._fetching is None or self._fetching.done()) and not self._renewal.hurries(self._clock()):
            return None
        return self._fetched()

    def coming(self, now_s: float) -> asyncio.Future[None] | None:
        """Return the fetch that is worth waiting for, as nothing holds; None: something does, or the last one failed.

        now_s: Unix time.
        """
        return self._fetched() if self._renewal.is_missing(now_s) else None

    def _fetched(self) -> asyncio.Task[None]:
        """Return the fetch that runs; it begins now if none does."""
        if self._fetching is None or self._fetching.done():
            loop = asyncio.get_running_loop()
            self._fetching = loop.create_task(self.fetch(), name=f"fetch: {self._name}")
        return self._fetching

    async def run(self) -> None:
        """Fetch as often as it takes, for as long as this runs; return where it is never needed again."""
        while (next_s := self._renewal.next_s) is not None:
            wait_s = next_s - self._clock()
            if wait_s > 0.0:
                await self._sleep(min(wait_s, _MOST_SLEEP_S))
            else:
                await self._fetched()

    async def fetch(self) -> None:
        """Fetch once, now. Raises nothing: whether it failed is in `problem`."""
        before = self._renewal.problem
        try:
            fetched = await self._fetch()
        except FetchError as exc:
            self._renewal.failed(exc.reason, self._clock())
        except Exception as exc:
            # A bug, or a server that answers what nobody thought of: it must not end the renewal.
            self._renewal.failed(f"the answer could not be used ({type(exc).__name__})", self._clock())
        else:
            self._renewal.took(fetched, self._clock())
        if self._renewal.problem != before:
            self._on_problem(self._name, self._renewal.problem)
