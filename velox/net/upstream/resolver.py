"""The addresses of one upstream's name, kept fresh.

Knows: the system's resolver, threads, when to look again. Does not know: how an address is connected to (dialer.py),
or which connections a change concerns (pool.py).

getaddrinfo can't be interrupted, and it may hang for as long as resolv.conf allows. So each look-up has a thread of its
own, not one of a pool's few: a name server that is silent holds up those who wait for this very name, and neither
another upstream, nor the loop, nor the exit (the thread is a daemon). There is at most one look-up of a name at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from velox.net.upstream.interface import Address
from velox.outcomes import DnsResult

__all__ = ["LookUp", "Place", "Resolver", "in_turn"]

# What getaddrinfo gives that matters: the family, and the address as connect() takes it.
Place: TypeAlias = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]

# Runs in a thread. Raises OSError (socket.gaierror is one) or UnicodeError (a name that IDNA can't write).
LookUp: TypeAlias = Callable[[str, int], Sequence[Place]]


def _system_look_up(host: str, port: int) -> Sequence[Place]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]  # AF_INET and AF_INET6 only


class Resolver:
    """One name. The first who asks waits for a look-up; from then on the last good answer is at hand.

    on_result: called with the result of each look-up.  on_addresses: called with the addresses of each that succeeded.
    A host that is an address is not looked up. refresh_s: from one look-up to the next; None: the first good answer
    stays.
    """

    def __init__(
        self,
        host: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        *,
        refresh_s: float | None,
        on_result: Callable[[DnsResult], None],
        on_addresses: Callable[[frozenset[Address]], None],
        look_up: LookUp = _system_look_up,
    ) -> None:
        self._host: Final = host
        self._port: Final = port
        self._loop: Final = loop
        self._refresh_s: Final = refresh_s
        self._on_result: Final = on_result
        self._on_addresses: Final = on_addresses
        self._look_up: Final = look_up
        self._places: tuple[Place, ...] = _literal(host, port)
        self._flight: asyncio.Future[None] | None = None  # done when the look-up under way has ended
        self._timer: asyncio.TimerHandle | None = None  # to the next one
        self._is_closed = False
        self._failure: OSError | UnicodeError = socket.gaierror(socket.EAI_AGAIN, "not looked up")

    def __repr__(self) -> str:
        state = "looking" if self._flight else "idle"
        return f"<Resolver {self._host} {state} addresses={len(self._places)}>"

    async def places(self) -> tuple[Place, ...]:
        """Return where the name leads to, the system's favourite first; never empty.

        Waits only while no look-up has succeeded yet; the caller bounds the wait. Raises OSError or UnicodeError.
        """
        if not self._places:
            flight = self._flight or self._start()
            await asyncio.shield(flight)  # others wait for it too
            if not self._places:
                raise self._failure
        return self._places

    def close(self) -> None:
        """Look up no more by itself. Who asks all the same gets the last good answer, or has it looked up."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()  # it leads here, and from here to the pool

    def _start(self) -> asyncio.Future[None]:
        self._flight = flight = self._loop.create_future()
        try:
            threading.Thread(target=self._run, name="look-up", daemon=True).start()
        except RuntimeError as exc:  # no thread can be had now: a look-up that failed, not one that never ends
            self._loop.call_soon(self._ended, OSError(f"no thread for the look-up ({exc})"))
        return flight

    def _run(self) -> None:
        """In the thread: look up, and hand the answer to the loop."""
        answer: Sequence[Place] | OSError | UnicodeError
        try:
            answer = self._look_up(self._host, self._port) or socket.gaierror(socket.EAI_NONAME, "no address")
        except (OSError, UnicodeError) as exc:
            answer = exc
        except Exception as exc:  # a bug, but one that nobody may wait for in vain
            answer = OSError(f"{type(exc).__name__} in the look-up")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ended, answer)

    def _ended(self, answer: Sequence[Place] | OSError | UnicodeError) -> None:
        flight, self._flight = self._flight, None
        assert flight is not None, "_start made it"
        if isinstance(answer, OSError | UnicodeError):
            self._failure = answer
            self._on_result(DnsResult.FAILED)
        else:
            self._take(tuple(dict.fromkeys(answer)))
        if self._places and self._refresh_s is not None and not self._is_closed:
            # Without an answer to keep fresh, the next who asks looks up.
            self._timer = self._loop.call_later(self._refresh_s, self._start)
        flight.set_result(None)

    def _take(self, places: tuple[Place, ...]) -> None:
        # A name server may shuffle its answers: the same addresses in another order are no news.
        if set(places) == set(self._places):
            self._on_result(DnsResult.SAME)
        else:
            self._places = places
            self._on_result(DnsResult.CHANGED)
        # Also when nothing changed: a dial that was under way may have ended at an old address.
        self._on_addresses(frozenset(address[0] for _, address in places))


def in_turn(places: Sequence[Place], n: int) -> list[Place]:
    """Return the order in which to try them the `n`th time: families take turns (RFC 8305 §4), and so do the
    addresses of a family, so that several connections spread. The favourite's family stays first.
    """
    families = dict.fromkeys(family for family, _ in places)
    rows = []
    for family in families:
        row = [place for place in places if place[0] == family]
        first = n % len(row)
        rows.append(row[first:] + row[:first])
    longest = max(map(len, rows), default=0)
    return [row[i] for i in range(longest) for row in rows if i < len(row)]


def _literal(host: str, port: int) -> tuple[Place, ...]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ()
    if address.version == 6:
        return ((socket.AF_INET6, (host, port, 0, 0)),)
    return ((socket.AF_INET, (host, port)),)
