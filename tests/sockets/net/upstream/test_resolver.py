"""A name's addresses: looked up once, kept fresh, kept when the name server fails, and never in anybody's way."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import PATIENCE_S
from tests.sockets.net.dialing import local, run
from velox.net.upstream.resolver import Place, Resolver, in_turn
from velox.outcomes import DnsResult

A, B = local(443, "192.0.2.1"), local(443, "192.0.2.2")
SIX: Place = (socket.AF_INET6, ("2001:db8::1", 443, 0, 0))
SIX_B: Place = (socket.AF_INET6, ("2001:db8::2", 443, 0, 0))
LONG_S = 3600.0


class Names:
    """A name server in the test's hand: what is to be answered, one answer a look-up, the last one for ever."""

    def __init__(self, *answers: Sequence[Place] | Exception) -> None:
        self.answers = list(answers)
        self.n_asked = 0
        self.n_running = 0
        self.n_most = 0  # at once
        self.open = threading.Event()
        self.open.set()

    def __call__(self, host: str, port: int) -> Sequence[Place]:
        self.n_asked += 1
        self.n_running += 1
        self.n_most = max(self.n_most, self.n_running)
        self.open.wait(10)
        self.n_running -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Heard:
    """A resolver and what it told."""

    def __init__(
        self, names: Callable[[str, int], Sequence[Place]], refresh_s: float | None, host: str = "a.test"
    ) -> None:
        self.results: list[DnsResult] = []
        self.addresses: list[frozenset[str]] = []
        self._changed = asyncio.Event()
        self.resolver = Resolver(
            host,
            443,
            asyncio.get_running_loop(),
            refresh_s=refresh_s,
            on_result=self._on_result,
            on_addresses=self.addresses.append,
            look_up=names,
        )

    def _on_result(self, result: DnsResult) -> None:
        self.results.append(result)
        self._changed.set()

    async def wait_results(self, n: int) -> list[DnsResult]:
        """Wait for the end of the `n`th look-up."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.results) < n:
                self._changed.clear()
                await self._changed.wait()
        await asyncio.sleep(0)
        return self.results[:n]


def test_name_is_looked_up_once_and_the_answer_kept() -> None:
    """The second who asks does not wait, not even for one turn of the loop."""

    async def scenario() -> None:
        names = Names([A, B])
        heard = Heard(names, LONG_S)
        assert await heard.resolver.places() == (A, B)
        assert await heard.resolver.places() == (A, B)
        assert (names.n_asked, heard.results) == (1, [DnsResult.CHANGED])
        assert heard.addresses == [{"192.0.2.1", "192.0.2.2"}]

    run(scenario())


@pytest.mark.parametrize(
    ("host", "place"), [("192.0.2.7", local(443, "192.0.2.7")), ("::1", (socket.AF_INET6, ("::1", 443, 0, 0)))]
)
def test_address_is_not_looked_up(host: str, place: Place) -> None:
    """There is nothing to ask, nothing to refresh, nothing to count."""

    async def scenario() -> None:
        names = Names(OSError("asked"))
        heard = Heard(names, 0.001, host)
        assert await heard.resolver.places() == (place,)
        assert (names.n_asked, heard.results) == (0, [])

    run(scenario())


def test_change_is_told_and_used() -> None:
    """F-4: the next look-up's addresses replace those of before."""

    async def scenario() -> None:
        heard = Heard(Names([A], [A], [B]), 0.01)
        assert await heard.resolver.places() == (A,)
        assert await heard.wait_results(3) == [DnsResult.CHANGED, DnsResult.SAME, DnsResult.CHANGED]
        assert await heard.resolver.places() == (B,)
        assert heard.addresses[:3] == [{"192.0.2.1"}, {"192.0.2.1"}, {"192.0.2.2"}]

    run(scenario())


def test_shuffled_answer_is_no_change() -> None:
    """Name servers rotate their answers; the order of the first one is kept, so that dials spread evenly."""

    async def scenario() -> None:
        heard = Heard(Names([A, B], [B, A]), 0.01)
        await heard.resolver.places()
        assert await heard.wait_results(2) == [DnsResult.CHANGED, DnsResult.SAME]
        assert await heard.resolver.places() == (A, B)

    run(scenario())


@pytest.mark.parametrize("failure", [socket.gaierror(socket.EAI_AGAIN, "no answer"), UnicodeError("label"), KeyError()])
def test_failure_keeps_the_last_good_answer(failure: Exception) -> None:
    """F-4: connections go on; it is asked again, and counted."""

    async def scenario() -> None:
        heard = Heard(Names([A], failure, [B]), 0.01)
        await heard.resolver.places()
        assert await heard.wait_results(2) == [DnsResult.CHANGED, DnsResult.FAILED]
        assert await heard.resolver.places() in ((A,), (B,))
        assert await heard.wait_results(3) == [DnsResult.CHANGED, DnsResult.FAILED, DnsResult.CHANGED]
        assert await heard.resolver.places() == (B,)
        assert frozenset() not in heard.addresses

    run(scenario())


def test_name_that_fails_at_first_is_asked_for_anew() -> None:
    """F-3: each who asks gets an answer of that moment, until there is a good one."""

    async def scenario() -> None:
        names = Names(socket.gaierror(socket.EAI_NONAME, "unknown"), [], [A])
        heard = Heard(names, LONG_S)
        for _ in range(2):
            with pytest.raises(socket.gaierror):
                await heard.resolver.places()
        assert await heard.resolver.places() == (A,)
        assert heard.results == [DnsResult.FAILED, DnsResult.FAILED, DnsResult.CHANGED]

    run(scenario())


def test_hung_look_up_is_one_for_all_who_ask_and_holds_up_nobody_else() -> None:
    """F-5: a hundred wait for one thread; one who gives up takes nothing from the others; another name answers."""

    async def scenario() -> None:
        names = Names([A])
        names.open.clear()
        hung, other = Heard(names, LONG_S), Heard(Names([B]), LONG_S)
        waiting = [asyncio.create_task(hung.resolver.places()) for _ in range(100)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await hung.resolver.places()
        assert await other.resolver.places() == (B,)
        waiting[0].cancel()
        names.open.set()
        assert await asyncio.gather(*waiting[1:]) == [(A,)] * 99
        assert names.n_asked == 1

    run(scenario())


def test_hung_look_up_does_not_delay_the_end() -> None:
    """The loop closes and the program goes on; what the thread brings afterwards is dropped without a word."""
    names = Names([A])
    names.open.clear()

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Heard(names, LONG_S).resolver.places()

    began_s = time.monotonic()
    run(scenario())
    assert time.monotonic() - began_s < 5
    thread = next(each for each in threading.enumerate() if each.name == "look-up")
    assert thread.daemon
    names.open.set()
    thread.join(10)


def test_refresh_asks_again_only_when_the_look_up_before_has_ended() -> None:
    """A silent name server is not asked by more and more threads; who asks meanwhile gets the last good answer."""

    async def scenario() -> None:
        names = Names([A])
        heard = Heard(names, 0.001)
        await heard.resolver.places()
        names.open.clear()
        async with asyncio.timeout(PATIENCE_S):
            while not names.n_running:
                await asyncio.sleep(0)
        assert await heard.resolver.places() == (A,)
        names.open.set()
        await heard.wait_results(20)
        assert names.n_most == 1

    run(scenario())


@pytest.mark.parametrize("closed_while", ["idle", "looking"])
def test_closed_name_is_looked_up_no_more(closed_while: str) -> None:
    """Its upstream is gone from the configuration: nothing leads to the pool any more. Who still asks is answered."""

    async def scenario() -> None:
        names = Names([A])
        heard = Heard(names, 0.001)
        await heard.resolver.places()
        if closed_while == "looking":
            names.open.clear()
            async with asyncio.timeout(PATIENCE_S):
                while not names.n_running:
                    await asyncio.sleep(0)
        n_asked = names.n_asked
        heard.resolver.close()
        names.open.set()
        await heard.wait_results(n_asked)
        await asyncio.sleep(0.01)
        assert names.n_asked == n_asked
        assert await heard.resolver.places() == (A,)

    run(scenario())


def test_name_for_one_question_is_looked_up_once() -> None:
    """Nothing is left of it when the question is answered."""

    async def scenario() -> None:
        names = Names([A])
        heard = Heard(names, None)
        assert await heard.resolver.places() == (A,)
        left = weakref.ref(heard.resolver)
        del heard
        gc.collect()
        assert left() is None

    run(scenario())


def test_systems_own_look_up_knows_this_machine() -> None:
    """Without a fake: localhost leads here, with the port; a name that can't be is an error of the right kind."""

    async def places(host: str) -> Sequence[Place]:
        loop = asyncio.get_running_loop()
        resolver = Resolver(host, 8080, loop, refresh_s=LONG_S, on_result=lambda _: None, on_addresses=lambda _: None)
        return await resolver.places()

    assert local(8080) in run(places("localhost"))
    with pytest.raises(UnicodeError):
        run(places("a" * 64 + ".test"))


# -- the order in which addresses are tried ------------------------------------------------------------------


def test_families_take_turns_and_the_favourites_is_first() -> None:
    """RFC 8305 §4: were the first family's way closed, the second address is one of the other."""
    assert in_turn([SIX, SIX_B, A, B], 0) == [SIX, A, SIX_B, B]
    assert in_turn([SIX, SIX_B, A, B], 1) == [SIX_B, B, SIX, A]
    assert in_turn([A, B, SIX], 0) == [A, SIX, B]


@given(st.lists(st.sampled_from([A, B, SIX, SIX_B]), unique=True, min_size=1), st.integers(0, 1000))
def test_every_address_has_its_turn(places: list[Place], n: int) -> None:
    """None is lost or doubled; over as many dials as a family has addresses, each is first of it once."""
    order = in_turn(places, n)
    assert sorted(map(str, order)) == sorted(map(str, places))
    assert order[0][0] == places[0][0]
    favourites = [place for place in places if place[0] == places[0][0]]
    firsts = {in_turn(places, n + i)[0] for i in range(len(favourites))}
    assert firsts == set(favourites)


def test_look_up_for_which_no_thread_can_be_had_has_failed() -> None:
    """At the limit of processes; when there is one again, it is made up for."""

    async def scenario() -> None:
        heard = Heard(Names([A]), LONG_S)
        usual = threading.stack_size(1 << 47)  # no address space holds it
        try:
            with pytest.raises(OSError, match="thread"):
                async with asyncio.timeout(PATIENCE_S):
                    await heard.resolver.places()
        finally:
            threading.stack_size(usual)
        assert heard.results == [DnsResult.FAILED]
        assert await heard.resolver.places() == (A,)

    run(scenario())
