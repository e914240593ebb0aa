"""Connections beyond the limits are refused, and none is counted twice or for ever."""

from __future__ import annotations

import pytest

from velox.errors import Reason
from velox.net.client.connection_limiter import ConnectionLimiter, address_of


def test_limiter_takes_up_to_its_limit_and_has_room_again_when_one_leaves() -> None:
    """n - 1, n, n + 1."""
    limiter = ConnectionLimiter(2)

    entered = [limiter.enter(("127.0.0.1", port)) for port in range(3)]
    assert [error and error.reason for _, error in entered] == [None, None, Reason.CONN_LIMIT]
    limiter.leave("", was_refused=True)
    assert limiter.enter(("127.0.0.1", 9))[1] is not None, "one that was refused left no room"
    limiter.leave(entered[0][0], was_refused=False)
    assert limiter.enter(("127.0.0.1", 9))[1] is None


def test_limiter_counts_each_address_and_forgets_it() -> None:
    """One address is full, another is not; what is kept does not grow with addresses that were seen."""
    limiter = ConnectionLimiter(100, per_address=1)

    first, error = limiter.enter(("192.0.2.1", 1))
    assert error is None
    _, refused = limiter.enter(("192.0.2.1", 2))
    assert refused is not None and "VELOX_MAX_CONNECTIONS_PER_ADDRESS" in refused.message
    assert limiter.enter(("192.0.2.2", 1))[1] is None
    limiter.leave(first, was_refused=False)
    assert limiter.enter(("192.0.2.1", 3))[1] is None
    for host in ("192.0.2.1", "192.0.2.2"):
        limiter.leave(host, was_refused=False)
    assert repr(limiter).startswith("<ConnectionLimiter 0/100")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_limiter_takes_an_ipv6_prefix_for_one_address(one: str, other: str, same: bool) -> None:
    """A /64 is what one subscriber has; addresses that are IPv4 in truth are told apart."""
    limiter = ConnectionLimiter(100, per_address=1)
    limiter.enter((one, 1, 0, 0))

    assert (limiter.enter((other, 1, 0, 0))[1] is not None) is same


def test_limiter_does_not_count_unix_sockets_by_address() -> None:
    """They have none; who may connect is a matter of file permissions."""
    limiter = ConnectionLimiter(100, per_address=1)

    assert [limiter.enter("")[1] for _ in range(3)] == [None] * 3


def test_limiter_lets_only_a_few_refused_connections_linger() -> None:
    """Each holds a descriptor of the reserve."""
    limiter = ConnectionLimiter(1)
    limiter.enter("")
    lingering = []
    for _ in range(20):
        limiter.enter("")
        lingering.append(limiter.may_linger)

    assert lingering == [True] * 16 + [False] * 4
    for _ in range(20):
        limiter.leave("", was_refused=True)
    assert limiter.may_linger


def test_connection_over_the_limit_takes_the_place_of_one_that_is_ended() -> None:
    """One for one, also before those that were ended have left; it is refused where none can be."""
    waiting = [1, 2]

    def make_room() -> bool:
        return bool(waiting) and bool(waiting.pop())

    limiter = ConnectionLimiter(2, make_room=make_room)
    assert [limiter.enter(None)[1] is None for _ in range(5)] == [True, True, True, True, False]
    for _ in range(2):
        limiter.leave("", was_refused=False)  # those that were ended
    assert limiter.enter(None)[1] is not None
    limiter.leave("", was_refused=False)
    assert limiter.enter(None)[1] is None


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::1"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::1"),
        ("", ""),
        (None, ""),
    ],
)
def test_address_of_a_peer_is_that_of_its_host(peer: object, address: str) -> None:
    """As the access log has it: without port and zone, IPv4 as such; a unix socket has none."""
    assert address_of(peer) == address
