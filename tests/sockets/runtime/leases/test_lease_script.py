"""The script in a real Redis: exact, atomic, and not to be fooled by lost keys, clocks that jump, or late answers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.redis_server import FlipProxy, RedisServer, free_port, redis_server
from tests.e2e.watching import until
from tests.unit.runtime.leases.lease_buckets import Buckets
from velox.runtime.leases.lease_redis import (
    BucketAnswer,
    BucketQuery,
    BudgetQuery,
    LeaseRedis,
    RedisDownError,
    reachable,
)

SECOND = 10**9
MINUTE = 60 * SECOND
# For answers; a machine that is busy must not make a test fail.
PATIENT_S = 10.0
# Who is sure of the time at once, even if its clock is set back.
SURE_NS = -(10**18)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One server for the tests that only ask."""
    with redis_server() as running:
        yield running


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass
class Clock:
    """A gateway's, which the test sets."""

    ahead_ns: int = 0

    def __call__(self) -> int:
        return boot_ns() + self.ahead_ns


@contextlib.contextmanager
def gateway(
    url: str,
    name: str = "a",
    timeout_s: float = PATIENT_S,
    sure_after_ns: int = SURE_NS,
    clock: Callable[[], int] = boot_ns,
) -> Iterator[LeaseRedis]:
    connection = LeaseRedis(url, "velox:", timeout_s, name, sure_after_ns, clock)
    try:
        yield connection
    finally:
        connection.close()


def bucket(name: bytes | None = None, interval_ns: int = MINUTE, burst: int = 10, max_wait_ns: int = 0) -> BucketQuery:
    return BucketQuery(name or os.urandom(16), interval_ns, burst, max_wait_ns, -60 * MINUTE, recover=False)


def one(connection: LeaseRedis, ask: BucketQuery) -> BucketAnswer:
    return connection.ask((ask,))[1][0]


# -- the same as the model --------------------------------------------------------------------------------

questions = st.lists(
    st.builds(
        dict,
        ahead_ns=st.integers(-15, 15).map(lambda n: n * MINUTE),
        recover=st.booleans(),
        back=st.integers(0, 12),
        debt=st.integers(0, 5),
        since_ns=st.integers(0, 5).map(lambda n: n * MINUTE),
        want=st.integers(0, 4),
        pairs=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), max_size=4),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(questions, st.sampled_from([0, 3 * MINUTE]))
def test_script_says_what_the_model_says(server: RedisServer, asked: list[dict[str, object]], max_wait_ns: int) -> None:
    """The model that the unit tests stand on: the same grants, and times that differ by what the test took."""
    model, name = Buckets(), os.urandom(16)
    began = time.monotonic()
    with gateway(server.url) as connection:
        for question in asked:
            ask = bucket(name, max_wait_ns=max_wait_ns)._replace(**question)
            found, expected = one(connection, ask), model.ask((ask,), time.monotonic_ns())[0]
            took_ns = round((time.monotonic() - began) * SECOND) + SECOND
            assert found.granted == expected.granted or took_ns > MINUTE / 2
            assert abs(found.ahead_ns - expected.ahead_ns) <= took_ns
            assert abs(found.ready_ns - expected.ready_ns) <= took_ns


def test_many_buckets_are_asked_for_at_once(server: RedisServer) -> None:
    """Each answer is its bucket's, in the order of the questions."""
    with gateway(server.url) as connection:
        _, told = connection.ask([bucket(burst=n)._replace(pairs=[(1, 64)]) for n in range(1, 65)])

    assert [answer.granted for answer in told] == list(range(1, 65))


def test_fastest_and_slowest_limit_are_exact(server: RedisServer) -> None:
    """100 million tokens a minute and one request a minute: what a permit costs is not rounded down."""
    with gateway(server.url) as connection:
        for interval_ns, burst in ((600, 100_000_000), (667, 89_955_022), (60 * SECOND, 10_000_000)):
            name = os.urandom(16)
            ask = bucket(name, interval_ns, burst)._replace(pairs=[(burst, 2)])
            told = one(connection, ask)
            assert told.granted == burst
            assert interval_ns * burst <= told.ahead_ns <= interval_ns * burst + 100


# -- what is lost -------------------------------------------------------------------------------------------


def test_lost_bucket_starts_where_the_asker_knows_it(server: RedisServer) -> None:
    """Evicted, or a server that came back empty: no burst."""
    with gateway(server.url) as connection:
        ask = bucket()._replace(pairs=[(1, 20)])
        assert one(connection, ask).granted == 10
        with contextlib.closing(server.client()) as client:
            client.flushall()

        assert one(connection, ask._replace(ahead_ns=10 * MINUTE)).granted == 0


def test_known_bucket_counts_as_it_is_unless_the_asker_was_alone(server: RedisServer) -> None:
    """Old knowledge must not undo what others gave back since."""
    with gateway(server.url) as connection:
        ask = bucket()
        assert one(connection, ask._replace(pairs=[(5, 1)])).granted == 5

        told = one(connection, ask._replace(ahead_ns=9 * MINUTE))
        assert 4 * MINUTE < told.ahead_ns <= 5 * MINUTE
        told = one(connection, ask._replace(ahead_ns=9 * MINUTE, recover=True))
        assert 8 * MINUTE < told.ahead_ns <= 9 * MINUTE


def test_key_outlives_what_anybody_may_know_of_it(server: RedisServer) -> None:
    """A bucket that was given back is still there: else old knowledge would count for it."""
    with gateway(server.url) as connection, contextlib.closing(server.client()) as client:
        ask = bucket()
        one(connection, ask._replace(pairs=[(10, 1)]))
        one(connection, ask._replace(back=10))
        left_ms = client.pttl(f"velox:{{velox}}:{ask.name.hex()}")

    assert 10 * 60_000 < left_ms <= 11 * 60_000


# -- the time -----------------------------------------------------------------------------------------------

CLOCK, REPLICAS = "velox:{velox}:clock", "velox:{velox}:replicas"
COUNTS_NS = 5 * SECOND


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the server, which is empty."""
    with contextlib.closing(server.client()) as client:
        client.flushall()
        yield client


def jump(client: redis.Redis, seconds: int, *clocks: Clock) -> None:
    """Set Redis' time. A test can't: what Redis knows and the clocks of the gateways move the other way."""
    for clock in clocks:
        clock.ahead_ns -= seconds * SECOND
    for name in client.zrange(REPLICAS, 0, -1):
        client.zincrby(REPLICAS, -seconds * 10**7, name)
    for name in client.scan_iter("velox:{velox}:" + "?" * 32):
        client.decrby(name, seconds * 10**7)


def time_of(connection: LeaseRedis, clock: Callable[[], int], *, lives: bool = False) -> float:
    """Ask, and return by how many seconds Redis' time is ahead of the clock."""
    connection.ask((), counts_for_ns=COUNTS_NS if lives else None)
    return connection.now_ns / SECOND - clock() / SECOND


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize("jump_s", [-3600, -30, 30, 3600])
def test_clock_that_jumps_changes_nothing(server: RedisServer, client: redis.Redis, jump_s: int, lives: bool) -> None:
    """Redis' time is set by hand, or another machine's after a failover: the gateways' steps count."""
    clock = Clock()
    counts_for_ns = COUNTS_NS if lives else None
    with gateway(server.url, clock=clock) as connection, gateway(server.url, "b", clock=clock) as other:
        ask = bucket()._replace(pairs=[(1, 20)])
        assert connection.ask((ask,), counts_for_ns=counts_for_ns)[1][0].granted == 10
        for who in (other, connection):
            who.ask((), counts_for_ns=counts_for_ns)
        jump(client, jump_s, clock)

        told = [who.ask((ask,), counts_for_ns=counts_for_ns)[1][0] for who in (connection, other, connection)]
        assert [answer.granted for answer in told] == [0, 0, 0]
        assert all(9 * MINUTE < answer.ahead_ns <= 10 * MINUTE for answer in told)


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_gateway_that_comes_right_after_a_jump_does_not_argue(
    server: RedisServer, client: redis.Redis, jump_s: int
) -> None:
    """It takes the wrong time for right until the others have asked, and is no witness of it."""
    ask, clock = bucket()._replace(pairs=[(1, 20)]), Clock()
    with (
        gateway(server.url, clock=clock) as old,
        gateway(server.url, "b", sure_after_ns=MINUTE, clock=clock) as new,
    ):
        assert old.ask((ask,), counts_for_ns=COUNTS_NS)[1][0].granted == 10
        jump(client, jump_s, clock)
        new.ask((bucket(),), counts_for_ns=COUNTS_NS)
        told = [one(who, ask) for who in (old, new, old, new)]
        assert [answer.granted for answer in told] == [0, 0, 0, 0]
        assert all(9 * MINUTE < answer.ahead_ns <= 10 * MINUTE for answer in told)


def test_connection_that_takes_long_is_no_step_of_the_time(server: RedisServer, client: redis.Redis) -> None:
    """A resolver that needs 30 s: the time is taken when the question goes out."""

    class Slow:
        connection: LeaseRedis | None = None

        def __call__(self) -> int:
            return boot_ns() - (30 * SECOND if self.connection and "closed" in repr(self.connection) else 0)

    clock = Slow()
    with gateway(server.url, clock=clock) as connection:
        before = time_of(connection, boot_ns)
        clock.connection = connection
        connection.close()
        assert abs(time_of(connection, boot_ns) - before) < 1
        assert client.get(CLOCK) is None


def test_gateway_that_stood_still_takes_the_time_of_the_others(server: RedisServer, client: redis.Redis) -> None:
    """A paused machine: the others gave signs of life meanwhile, so it was not Redis' clock that jumped."""
    clock = Clock()
    with gateway(server.url, clock=clock) as stood, gateway(server.url, "b") as other:
        before = [time_of(who, boot_ns, lives=True) for who in (stood, other)]
        clock.ahead_ns = -30 * SECOND
        after = [time_of(who, boot_ns) for who in (stood, other, stood, other)]

    assert max(after + before) - min(after + before) < 1


def test_gateways_that_differ_set_the_time_once(server: RedisServer, client: redis.Redis) -> None:
    """Nobody else was heard, so the time goes back with it; and then it does not go to and fro."""
    clock = Clock()
    with gateway(server.url, clock=clock) as stood, gateway(server.url, "b") as other:
        before = [time_of(who, boot_ns) for who in (stood, other)]
        clock.ahead_ns = -30 * SECOND
        after = [time_of(who, boot_ns) for who in (stood, other, stood, other)]

    assert max(before) - min(before) < 1 and max(after) - min(after) < 1
    assert 29 < before[0] - after[0] < 31


@pytest.mark.parametrize("jump_s", [-30, 30])
def test_gateway_of_an_older_version_may_change_the_offset(
    server: RedisServer, client: redis.Redis, jump_s: int
) -> None:
    """It knows of no others and sets the time as it takes it: that is taken as it is."""
    with gateway(server.url) as one_gateway, gateway(server.url, "b") as other:
        before = time_of(one_gateway, boot_ns)
        time_of(other, boot_ns)
        client.set(CLOCK, jump_s * 10**7)
        after = [time_of(who, boot_ns) for who in (one_gateway, other)]

    assert all(abs(found - before - jump_s) < 1 for found in after)


@pytest.mark.parametrize("jump_s", [-30, 30])
@pytest.mark.parametrize("comes_back", ["without", "earlier"])
def test_offset_that_is_lost_is_restored(
    server: RedisServer, client: redis.Redis, jump_s: int, comes_back: str
) -> None:
    """Evicted, a server that came back empty, or a replica that lagged: no gateway changed it, and nothing steps."""
    clock = Clock()
    with gateway(server.url, clock=clock) as first, gateway(server.url, "b", clock=clock) as second:
        client.set(CLOCK, 7)
        for who in (first, second):
            who.ask((), counts_for_ns=COUNTS_NS)
        jump(client, jump_s, clock)
        before = [time_of(who, clock, lives=True) for who in (first, second)]
        assert abs(int(client.get(CLOCK) or 0) + jump_s * 10**7) < 10**7
        client.delete(CLOCK) if comes_back == "without" else client.set(CLOCK, 7)
        after = [time_of(who, clock, lives=True) for who in (second, first, second)]

    assert max(after + before) - min(after + before) < 1


def test_gateways_are_counted_while_they_live(server: RedisServer, client: redis.Redis) -> None:
    """Each that said something lately; not one that left, and not one that fell silent."""
    with gateway(server.url, "one") as first, gateway(server.url, "two") as second:
        assert first.ask((), counts_for_ns=5 * SECOND)[0] == 1
        assert second.ask((), counts_for_ns=5 * SECOND)[0] == 2
        assert first.ask(())[0] == -1
        second.ask((), counts_for_ns=-5 * SECOND)
        assert first.ask((), counts_for_ns=5 * SECOND)[0] == 1
        second.ask((), counts_for_ns=5 * SECOND)
        client.zincrby(REPLICAS, -6 * 10**7, "two")
        assert first.ask((), counts_for_ns=5 * SECOND)[0] == 1


def test_all_keys_are_in_one_slot(server: RedisServer, client: redis.Redis) -> None:
    """A cluster runs a script only if they are."""
    with gateway(server.url) as connection:
        connection.ask([bucket()._replace(want=1) for _ in range(2)], counts_for_ns=SECOND)
        names = list(client.scan_iter("velox:*"))

    assert len(names) >= 3
    assert len({redis.crc.key_slot(name) for name in names}) == 1


# -- what goes wrong ----------------------------------------------------------------------------------------


def test_script_that_was_flushed_is_sent_again(server: RedisServer) -> None:
    """A new server does not have it either."""
    with gateway(server.url) as connection, contextlib.closing(server.client()) as client:
        connection.ask(())
        client.script_flush()
        connection.ask(())


def test_paused_server_is_waited_for_no_longer_than_allowed() -> None:
    """It accepts connections and says nothing; then it goes on, and so do we."""
    with redis_server() as server, gateway(server.url, timeout_s=0.05) as connection:
        connection.ask(())
        server.pause()
        began = time.monotonic()
        for is_lost in (True, False):  # on the open connection, and on a new one
            with pytest.raises(RedisDownError, match="it did not answer in time") as caught:
                connection.ask((bucket(),))
            assert caught.value.is_lost is is_lost
        assert time.monotonic() - began < PATIENT_S
        server.resume()
        with gateway(server.url) as patient:
            assert one(patient, bucket()._replace(pairs=[(1, 1)])).granted == 1


@pytest.mark.parametrize(
    ("options", "password", "why"),
    [
        (("--maxmemory", "1"), "", r"its memory is used up \(maxmemory\)"),
        (("--replicaof", "127.0.0.1", "1", "--replica-serve-stale-data", "yes"), "", "it is a replica"),
        ((), "geheim", "it does not take the user or the password"),
    ],
)
def test_server_that_can_not_be_used_says_why(options: tuple[str, ...], password: str, why: str) -> None:
    """One line, and nothing of the URL in it."""
    with redis_server(*options, password=password) as server:
        url = server.url.replace("geheim", "s3cret")
        with gateway(url) as connection, pytest.raises(RedisDownError, match=why) as caught:
            connection.ask((bucket()._replace(pairs=[(1, 1)]),), counts_for_ns=SECOND)
        assert "s3cret" not in str(caught.value)
        assert caught.value.is_lost is ("memory" in why)  # by then something may have been written
        if password:
            assert reachable(server.url, "velox:", PATIENT_S) is None
            assert "password" in (reachable(url, "velox:", PATIENT_S) or "")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--maxmemory", "1"), "its memory is used up (maxmemory)"),
        (
            ("--replicaof", "127.0.0.1", "1", "--replica-serve-stale-data", "yes"),
            "it is a replica, and takes no writes",
        ),
    ],
)
def test_server_that_takes_no_writes_is_not_reachable(options: tuple[str, ...], why: str) -> None:
    with redis_server(*options) as server:
        assert reachable(server.url, "velox:", PATIENT_S) == why


def test_user_of_whom_too_little_is_allowed_is_not_reachable() -> None:
    """One who may do what the page asks for is; the check leaves nothing behind that lasts."""
    page = Path("docs/limits-replicas.md").read_text()
    commands = re.findall(r"`([A-Z]+)`", page[page.index("- **Version:**") : page.index("- **Keys:**")])
    assert len(commands) == 14
    forbids = "its user may not run all commands of the scripts, or not with their keys"
    with redis_server() as server, contextlib.closing(server.client()) as client:

        def check(*rules: str, has_budgets: bool = True) -> str | None:
            client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", *rules)
            url = server.url.replace("redis://", "redis://u:p@")
            return reachable(url, "velox:", PATIENT_S, has_budgets=has_budgets)

        enough = ("~velox:{velox}:*", *(f"+{command.lower()}" for command in commands))
        assert check(*enough) is None
        for command in ("evalsha", "time", "zadd", "set", "hset", "hmget"):
            assert check(*enough, f"-{command}") == forbids, command
        assert check(*enough, "-hset", has_budgets=False) is None
        assert check(*enough, "resetkeys", "~other:*") == forbids
        assert client.zcard("velox:{velox}:replicas") == 0


def test_server_that_is_not_there_is_not_reachable() -> None:
    """Nobody listens; and a name that nobody has."""
    with redis_server() as server:
        server.kill()
        assert reachable(server.url, "velox:", 0.05) == "no connection: Connection refused"
    assert (reachable("redis://nobody.invalid", "velox:", 0.05) or "").startswith("no connection")


@contextlib.contextmanager
def always(answer: bytes) -> Iterator[str]:
    """A server that answers everything the same; its URL."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    while client.recv(65_536):
                        client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, name="always")
        thread.start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*0\r\n",
        b"*3\r\n:0\r\n:1\r\n:0\r\n",  # as if nothing had been asked
        b"*6\r\n:0\r\n:1\r\n:0\r\n:1\r\n$1\r\nx\r\n:0\r\n",
        b"*5\r\n+a\r\n:0\r\n$1\r\nx\r\n$1\r\n1\r\n$-1\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_server_that_does_not_answer_as_redis_does_is_down(answer: bytes) -> None:
    """Whatever it is, and whichever script it is asked to run. What was asked may have been done."""
    budget = BudgetQuery(os.urandom(16), 1, 1000, 0, 0, 0, 0, 0, 60_000)
    with always(answer) as url, gateway(url) as connection:
        for ask in (
            lambda: connection.ask((bucket(),)),
            lambda: connection.ask_budgets((budget,), "a", "", 2000, 8),
        ):
            with pytest.raises(RedisDownError, match="does not answer as Redis") as caught:
                ask()
            assert caught.value.is_lost is not answer.startswith(b"HTTP")  # that fails before anything is asked
            assert repr(connection) == "<LeaseRedis closed>"


def test_failover_is_one_failed_question() -> None:
    """The name leads to another, empty server: the connection breaks, the next one goes there."""
    with redis_server() as first, redis_server() as second:
        proxy = FlipProxy(first.port)
        try:
            with gateway(proxy.url) as connection:
                ask = bucket()._replace(pairs=[(1, 20)])
                assert one(connection, ask).granted == 10
                first.kill()
                proxy.flip(second.port)
                with pytest.raises(RedisDownError):
                    one(connection, ask)
                assert one(connection, ask._replace(ahead_ns=10 * MINUTE, recover=True)).granted == 0
        finally:
            proxy.close()


def test_cluster_node_that_has_the_keys_is_found(tmp_path: Path) -> None:
    """The URL names any node: MOVED says which one it is, and the next question goes there."""

    def node(name: str) -> contextlib.AbstractContextManager[RedisServer]:
        (tmp_path / name).mkdir()
        bus = ("--cluster-port", str(free_port()))
        return redis_server("--cluster-enabled", "yes", *bus, "--dir", str(tmp_path / name))

    with node("one") as one_node, node("two") as two_node:
        first, second = one_node.client(), two_node.client()
        with contextlib.closing(first), contextlib.closing(second):
            slot = redis.crc.key_slot(b"velox:{velox}:clock")
            first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, slot - 1, slot + 1, 16383)
            second.execute_command("CLUSTER", "ADDSLOTSRANGE", slot, slot)
            bus_port = two_node.options[two_node.options.index("--cluster-port") + 1]
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", two_node.port, bus_port)
            for client in (first, second):
                until(lambda c=client: b"cluster_state:ok" in c.execute_command("CLUSTER", "INFO"), "the cluster", 30)

        with gateway(one_node.url) as connection:
            with pytest.raises(RedisDownError, match="on another node") as caught:
                connection.ask((bucket(),))
            assert not caught.value.is_lost
            assert one(connection, bucket()._replace(pairs=[(1, 1)])).granted == 1
