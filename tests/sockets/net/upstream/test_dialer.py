"""The way to one connection over TCP and unix sockets: which address, how long, what a failure says, what is left.

TLS is in test_dialer_tls.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.net.dialing import Owner, dialed, dialer_to, full_listener, is_through, local, nothing_left, run
from velox.errors import Reason
from velox.net.upstream.dialer import Dialer
from velox.net.upstream.http1 import Http1Connection
from velox.net.upstream.interface import UpstreamFailure
from velox.net.upstream.resolver import Place
from velox.outcomes import ConnectionEnd, Retry


@contextlib.asynccontextmanager
async def server(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Listen, and let the kernel accept."""
    with socket.create_server((host, port)) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """A port that is bound and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def failure_of(dialer: Dialer) -> UpstreamFailure:
    """Dial in vain."""
    with pytest.raises(UpstreamFailure) as caught:
        await dialer.dial(Owner())
    assert caught.value.unprocessed is Retry.CONNECT
    assert "127.0" not in caught.value.message and "/" not in caught.value.message
    return caught.value


def test_connection_knows_its_address() -> None:
    """The pool retires by it; it is the address and not the name."""

    async def scenario() -> None:
        async with server() as port, nothing_left(), dialed(dialer_to(local(port))) as connection:
            assert connection.address == "127.0.0.1"

    run(scenario())


def test_connection_is_watched_by_the_kernel() -> None:
    """One that a NAT has forgotten is found within 45 s, and not by a request."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with nothing_left(), dialed(dialer_to(local(listener.getsockname()[1]))) as connection:
                assert isinstance(connection, Http1Connection) and connection._transport is not None
                sock = connection._transport.get_extra_info("socket")
                options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert [sock.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [30, 5, 3]

    run(scenario())


def test_refused_connection_says_so() -> None:
    """F-1: upstream_connect, free to retry, no address in the message."""

    async def scenario() -> None:
        with refused_port() as port:
            async with nothing_left():
                failure = await failure_of(dialer_to(local(port)))
        assert (failure.reason, failure.message) == (
            Reason.UPSTREAM_CONNECT,
            "the upstream could not be reached: Connection refused",
        )

    run(scenario())


def test_black_hole_ends_with_the_connect_timeout() -> None:
    """F-2: upstream_connect also where two addresses are silent; one time-out for both together."""

    async def scenario() -> None:
        with full_listener() as one, full_listener() as two:
            async with nothing_left(), asyncio.timeout(PATIENCE_S):
                failure = await failure_of(dialer_to(local(one), local(two), connect_timeout_s=0.6))
        assert (failure.reason, failure.message) == (
            Reason.UPSTREAM_CONNECT,
            "the upstream could not be reached: time-out",
        )

    run(scenario())


def test_name_that_is_not_answered_ends_with_the_connect_timeout() -> None:
    """F-5: upstream_dns; the thread that hangs is the only thing left."""
    answered = threading.Event()

    def hang(host: str, port: int) -> Sequence[Place]:
        answered.wait(10)
        return []

    async def scenario() -> None:
        async with nothing_left(), asyncio.timeout(PATIENCE_S):
            failure = await failure_of(dialer_to(look_up=hang, connect_timeout_s=0.05))
            assert (failure.reason, failure.message) == (
                Reason.UPSTREAM_DNS,
                "the upstream's name could not be resolved: time-out",
            )
            answered.set()

    run(scenario())


def test_name_that_fails_says_why() -> None:
    """F-3: upstream_dns with the system's words."""

    def unknown(host: str, port: int) -> Sequence[Place]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def scenario() -> None:
        failure = await failure_of(dialer_to(look_up=unknown))
        assert failure.reason is Reason.UPSTREAM_DNS
        assert failure.message.endswith(": Name or service not known")

    run(scenario())


# -- several addresses ---------------------------------------------------------------------------------------


def test_silent_address_costs_a_quarter_of_a_second() -> None:
    """RFC 8305 §5: the next address is tried beside it, wins, and the first is given up."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with full_listener() as silent:
            async with server("127.0.0.2") as port, nothing_left():
                dialer = dialer_to(local(silent), local(port, "127.0.0.2"))
                for _ in range(2):  # in one of both the silent address is first
                    began_s = loop.time()
                    async with dialed(dialer) as connection:
                        assert connection.address == "127.0.0.2"
                        assert loop.time() - began_s < 2

    run(scenario())


def test_refused_address_costs_nothing() -> None:
    """The next one is tried at once, however many refuse; the time-out leaves no room for a head start."""

    async def scenario() -> None:
        with contextlib.ExitStack() as stack:
            refused = [local(stack.enter_context(refused_port())) for _ in range(5)]
            async with server("127.0.0.2") as port, nothing_left():
                dialer = dialer_to(*refused, local(port, "127.0.0.2"), connect_timeout_s=0.24)
                for _ in range(6):
                    async with dialed(dialer) as connection:
                        assert connection.address == "127.0.0.2"

    run(scenario())


def test_dials_spread_over_the_addresses() -> None:
    """Six connections over three addresses: two each."""

    async def scenario() -> None:
        async with server("0.0.0.0") as port, nothing_left(), contextlib.AsyncExitStack() as stack:
            hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
            dialer = dialer_to(*(local(port, host) for host in hosts))
            found = [(await stack.enter_async_context(dialed(dialer))).address for _ in range(6)]
            assert sorted(found) == sorted(hosts * 2)

    run(scenario())


def test_machine_without_ipv6_uses_the_other_family() -> None:
    """An address that can't be reached from here is one of those that failed."""

    async def scenario() -> None:
        six: Place = (socket.AF_INET6, ("2001:db8::1", 443, 0, 0))  # documentation prefix: no route, or a black hole
        async with server() as port, nothing_left(), dialed(dialer_to(six, local(port))) as connection:
            assert connection.address == "127.0.0.1"

    run(scenario())


# -- unix sockets --------------------------------------------------------------------------------------------


def test_unix_socket_is_dialed_without_a_name(tmp_path: Path) -> None:
    """Its address is its path; the name only fills the Host header."""

    def never(host: str, port: int) -> Sequence[Place]:
        raise AssertionError("looked up")

    async def scenario() -> None:
        path = str(tmp_path / "upstream.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            async with nothing_left(), dialed(dialer_to(look_up=never, unix_path=path)) as connection:
                assert connection.address == path
                listener.accept()[0].close()

    run(scenario())


def test_unix_socket_that_is_missing_or_not_listening_says_so(tmp_path: Path) -> None:
    """upstream_connect; the path is not in the message."""

    async def scenario() -> None:
        path = str(tmp_path / "upstream.sock")
        async with nothing_left():
            missing = await failure_of(dialer_to(unix_path=path))
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(path)
                refused = await failure_of(dialer_to(unix_path=path))
        assert {missing.reason, refused.reason} == {Reason.UPSTREAM_CONNECT}
        assert missing.message.endswith(": No such file or directory")
        assert refused.message.endswith(": Connection refused")

    run(scenario())


def test_unix_socket_with_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """The kernel says EAGAIN at once: until the time-out it is tried again, and a place that comes free is taken."""

    async def scenario() -> None:
        path = str(tmp_path / "upstream.sock")
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as filler:
            listener.bind(path)
            listener.listen(0)
            filler.connect(path)
            async with nothing_left():
                late = await failure_of(dialer_to(unix_path=path, connect_timeout_s=0.05))
                assert late.message.endswith(": time-out")
                dial = asyncio.create_task(dialer_to(unix_path=path).dial(Owner()))
                await asyncio.sleep(0)
                assert not dial.done()
                listener.accept()[0].close()
                (await dial).abort(ConnectionEnd.SHUTDOWN)
                listener.accept()[0].close()

    run(scenario())


# -- cancelled -----------------------------------------------------------------------------------------------


async def cancelled_after(dialer: Dialer, ready: Callable[[], bool]) -> None:
    """Dial, wait until the phase is reached, and leave."""
    dial = asyncio.create_task(dialer.dial(Owner()))
    async with asyncio.timeout(PATIENCE_S):
        while not ready():
            await asyncio.sleep(0)
    dial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dial


@pytest.mark.parametrize("outcome", [[], [local(1)], OSError("late"), KeyError("bug")], ids=repr)
def test_cancel_while_resolving_leaves_nothing(outcome: list[Place] | Exception) -> None:
    """Whatever the thread brings when nobody waits any more."""
    asked, answered = threading.Event(), threading.Event()

    def hang(host: str, port: int) -> Sequence[Place]:
        asked.set()
        answered.wait(10)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def scenario() -> None:
        async with nothing_left():
            await cancelled_after(dialer_to(look_up=hang), asked.is_set)
            answered.set()
            while "look-up" in {each.name for each in threading.enumerate()}:
                await asyncio.sleep(0)

    run(scenario())


def test_cancel_while_connecting_leaves_nothing() -> None:
    """Two connects are under way; both sockets are closed."""

    async def scenario() -> None:
        with full_listener() as one, full_listener() as two:
            async with nothing_left():
                await cancelled_after(
                    dialer_to(local(one), local(two)),
                    lambda: sum(task.get_name() == "dial-address" for task in asyncio.all_tasks()) == 2,
                )

    run(scenario())


def test_cancel_at_any_turn_of_the_loop_leaves_nothing() -> None:
    """A dial that succeeds, cancelled after 0, 1, 2, ... turns, until it is through before."""

    async def scenario() -> None:
        async with server("0.0.0.0") as port, nothing_left():
            n_turns = 0
            while not await is_through(dialer_to(local(port), local(port, "127.0.0.2")), n_turns):
                n_turns += 1
            assert n_turns > 3

    run(scenario())
