"""Tokens and credentials are renewed ahead of their expiry, and stay in use while that fails."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.providers.authority import NoCredentialsError
from velox.providers.renewal import Fetched, FetchError, Renewal, RenewedSource, Reply, one_line

_NOW = 1_790_000_000.0


def _renewal(jitter: float = 0.0) -> Renewal[str]:
    return Renewal(lambda: jitter)


def _next(renewal: Renewal[str]) -> float:
    assert renewal.next_s is not None
    return renewal.next_s - _NOW


def test_nothing_was_fetched_yet() -> None:
    renewal = _renewal()
    assert renewal.next_s == 0.0
    with pytest.raises(NoCredentialsError, match="not been fetched yet"):
        renewal.current(_NOW)


@pytest.mark.parametrize(
    ("lifetime_s", "wait_s"),
    [(6 * 3600.0, 6 * 3600.0 - 600.0), (3600.0, 3000.0), (600.0, 300.0), (1.0, 1.0)],
)
def test_renewed_ten_minutes_or_half_a_lifetime_ahead(lifetime_s: float, wait_s: float) -> None:
    renewal = _renewal()
    renewal.took(Fetched("a", _NOW + lifetime_s), _NOW)

    assert _next(renewal) == wait_s


def test_what_never_expires_is_not_fetched_again_unless_it_may_change() -> None:
    lasting = _renewal()
    lasting.took(Fetched("a"), _NOW)
    assert lasting.next_s is None and lasting.current(_NOW + 1e9) == "a"

    renewal = _renewal()
    renewal.took(Fetched("b", None, 60.0), _NOW)
    assert _next(renewal) == 60.0
    renewal.took(Fetched("c", _NOW + 3600.0, 60.0), _NOW)
    assert _next(renewal) == 60.0


def test_failures_wait_longer_and_keep_what_holds() -> None:
    renewal = _renewal()
    renewal.took(Fetched("a", _NOW + 100.0), _NOW)
    waits = []
    for _ in range(8):
        renewal.failed("it answered 500", _NOW)
        waits.append(_next(renewal))
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert renewal.problem == "it answered 500" and renewal.current(_NOW + 99.9) == "a"

    with pytest.raises(NoCredentialsError, match="expired, and could not be renewed: it answered 500"):
        renewal.current(_NOW + 100.0)

    renewal.took(Fetched("b", _NOW + 3600.0), _NOW)
    assert not renewal.problem and renewal.current(_NOW + 200.0) == "b"
    renewal.failed("again", _NOW)
    assert _next(renewal) == 1.0


@given(st.floats(0.0, 1.0, exclude_max=True), st.floats(2.0, 1e6))
def test_jitter_never_waits_for_the_expiry(jitter: float, lifetime_s: float) -> None:
    renewal = _renewal(jitter)
    renewal.took(Fetched("a", _NOW + lifetime_s), _NOW)

    assert 1.0 <= _next(renewal) <= max(lifetime_s - min(600.0, lifetime_s / 2.0), 1.0) + 1e-6


@pytest.mark.parametrize("expires_at_s", [_NOW, _NOW - 3600.0, float("nan")])
def test_what_comes_expired_is_a_failure_and_replaces_nothing(expires_at_s: float) -> None:
    """A clock that is wrong, or a server that gives old credentials, is not asked again every second."""
    renewal = _renewal()
    renewal.took(Fetched("a", _NOW + 100.0), _NOW)
    waits = []
    for _ in range(3):
        renewal.took(Fetched("b", expires_at_s), _NOW)
        waits.append(_next(renewal))

    assert waits == [1.0, 2.0, 4.0] and renewal.current(_NOW) == "a" and renewal.version == 1
    with pytest.raises(NoCredentialsError, match="expired already: is the clock of this machine right"):
        renewal.current(_NOW + 100.0)


class _World:
    """A clock that sleeping moves, and answers that come one after the other."""

    def __init__(self, *answers: Fetched[str] | Exception) -> None:
        self.now_s = _NOW
        self.answers = list(answers)
        self.fetched_s: list[float] = []
        self.problems: list[str | None] = []

    async def fetch(self) -> Fetched[str]:
        self.fetched_s.append(self.now_s - _NOW)
        if not self.answers:
            raise asyncio.CancelledError
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(self, wait_s: float) -> None:
        assert 0.0 < wait_s <= 60.0
        self.now_s += wait_s

    def source(self) -> RenewedSource[str]:
        return RenewedSource(
            "token",
            self.fetch,
            clock=lambda: self.now_s,
            on_problem=lambda name, problem: self.problems.append(problem),
            sleep=self.sleep,
            random=lambda: 0.0,
        )


def test_source_fetches_when_it_is_time_and_tells_new_problems_once() -> None:
    world = _World(
        Fetched("a", _NOW + 3600.0),
        FetchError("refused"),
        FetchError("refused"),
        ValueError("secret"),
        Fetched("b", _NOW + 7200.0),
    )
    source = world.source()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(source.run())

    assert world.fetched_s == [0.0, 3000.0, 3001.0, 3003.0, 3007.0, 6600.0]
    assert world.problems == ["refused", "the answer could not be used (ValueError)", None]
    assert source.current(world.now_s) == "b"


def test_source_ends_where_nothing_is_renewed() -> None:
    world = _World(Fetched("a"))
    source = world.source()

    asyncio.run(source.run())

    assert world.fetched_s == [0.0] and source.current(_NOW) == "a"


def test_secrets_are_in_no_repr() -> None:
    world = _World(Fetched("secret", _NOW + 10.0))
    source = world.source()
    asyncio.run(source.fetch())

    assert source.current(_NOW) == "secret"
    for each in (source, Fetched("secret"), Reply(200, b"secret")):
        assert "secret" not in repr(each)


def test_reason_is_one_short_line() -> None:
    assert one_line("a\n b\r\n\tc" + "x" * 999) == "a b c" + "x" * 295


# -- ahead of time ------------------------------------------------------------------------------------------


def test_what_is_refused_is_fetched_at_once_but_not_again_and_again() -> None:
    renewal = _renewal()
    assert not Renewal[str]().hurries(0.0)  # the clock of a machine that has just started
    renewal.took(Fetched("a", _NOW + 3600.0), _NOW)

    assert renewal.hurries(_NOW)
    assert not renewal.hurries(_NOW + 29.0)
    assert renewal.hurries(_NOW + 30.0)
    renewal.failed("no route", _NOW + 60.0)  # it is tried anyway
    assert not renewal.hurries(_NOW + 100.0)


def test_what_never_changes_is_not_fetched_because_it_is_refused() -> None:
    renewal = _renewal()
    renewal.took(Fetched("a"), _NOW)
    assert not renewal.hurries(_NOW)


def test_versions_count_what_is_new() -> None:
    renewal = _renewal()
    renewal.took(Fetched("a", None, 60.0), _NOW)
    assert renewal.version == 1
    renewal.took(Fetched("a", None, 60.0), _NOW)
    assert renewal.version == 1
    renewal.took(Fetched("b", None, 60.0), _NOW)
    assert renewal.version == 2


def test_all_that_are_refused_at_once_wait_for_one_fetch() -> None:
    async def main() -> None:
        n_fetches = 0

        async def fetch() -> Fetched[str]:
            nonlocal n_fetches
            n_fetches += 1
            await asyncio.sleep(0)
            return Fetched(f"token {n_fetches}", _NOW + 3600.0)

        source = RenewedSource("a token", fetch, clock=lambda: _NOW)
        await source.fetch()
        first, second = source.renewed(1), source.renewed(1)
        assert first is not None and first is second
        await first
        assert (n_fetches, source.current(_NOW), source.version) == (2, "token 2", 2)

        late = source.renewed(1)  # of a request that was sent before
        assert late is not None and late.done()
        assert source.renewed(2) is None and n_fetches == 2

    asyncio.run(main())


# -- what holds nothing yet -----------------------------------------------------------------------------


def test_first_fetch_is_what_requests_wait_for() -> None:
    async def main() -> None:
        given, n_fetches = asyncio.Event(), 0

        async def fetch() -> Fetched[str]:
            nonlocal n_fetches
            n_fetches += 1
            await given.wait()
            return Fetched("a", _NOW + 3600.0)

        source = RenewedSource("a token", fetch, clock=lambda: _NOW)
        first = source.coming(_NOW)
        renewing = asyncio.create_task(source.run())
        assert first is not None and source.coming(_NOW) is first

        given.set()
        await first
        assert source.current(_NOW) == "a" and source.coming(_NOW) is None and n_fetches == 1
        renewing.cancel()

    asyncio.run(main())


def test_after_a_failure_nobody_waits() -> None:
    world = _World(FetchError("refused"))
    source = world.source()
    asyncio.run(source.fetch())

    assert source.coming(_NOW) is None


def test_what_expired_while_the_machine_slept_is_fetched_for_the_request_that_finds_it() -> None:
    async def main() -> None:
        world = _World(Fetched("a", _NOW + 3600.0), Fetched("b", _NOW + 9000.0))
        source = world.source()
        await source.fetch()
        assert source.coming(_NOW + 3599.0) is None

        world.now_s = _NOW + 5000.0
        coming = source.coming(world.now_s)
        assert coming is not None
        await coming
        assert source.current(world.now_s) == "b"

    asyncio.run(main())
