"""The client's address as proxies in front say it: read from the end, and only from who is trusted."""

from __future__ import annotations

import pytest

from velox.policy.proxies import NO_PROXIES, TrustedProxies

PROXIES = TrustedProxies(("10.0.0.0/8", "2001:db8::/32", "unix"))


def told(address: str, *values: str, proxies: TrustedProxies = PROXIES) -> str | None:
    return proxies.client_of(address, [(b"x-forwarded-for", value.encode()) for value in values])


def test_nobody_is_believed_who_is_not_named() -> None:
    """A client that connects itself can write what it likes."""
    assert told("192.0.2.7", "198.51.100.1") is None
    assert told("10.0.0.1", "198.51.100.1", proxies=NO_PROXIES) is None
    assert told("", "198.51.100.1", proxies=TrustedProxies(("10.0.0.0/8",))) is None
    assert not NO_PROXIES and PROXIES


@pytest.mark.parametrize("address", ["10.1.2.3", "2001:db8::1", ""])
def test_the_last_address_that_is_no_proxys_is_the_clients(address: str) -> None:
    """What stands before it may be invented; several lines are one list."""
    assert told(address, "198.51.100.1") == "198.51.100.1"
    assert told(address, "203.0.113.9, 198.51.100.1, 10.0.0.5", "10.0.0.6") == "198.51.100.1"
    assert told(address, "203.0.113.9", "2001:db8:1::2, 10.0.0.6") == "203.0.113.9"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("198.51.100.1:4711", "198.51.100.1"),
        ("[2001:0DB9::1]:4711", "2001:db9::1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_address_is_shown_in_one_form(text: str, found: str) -> None:
    """With a port as some proxies write it, in brackets, mapped into IPv6, with a zone."""
    assert told("10.0.0.1", text) == found


@pytest.mark.parametrize(
    "text", ["", "unknown", "198.51.100.1, _hidden", "evil\n", "10.0.0.2", ",", "1.2.3.4.5", "[", "::1::"]
)
def test_what_is_no_address_is_not_shown(text: str) -> None:
    """An answer that holds anything but an address says nothing."""
    assert told("10.0.0.1", text) is None


def test_long_list_is_read_from_its_end_and_no_further() -> None:
    """Sixteen hops at most are looked at."""
    assert told("10.0.0.1", "203.0.113.9," * 10_000 + "198.51.100.1") == "198.51.100.1"
    assert told("10.0.0.1", "198.51.100.1" + ", 10.0.0.2" * 16) is None
    assert told("10.0.0.1", "198.51.100.1" + ", 10.0.0.2" * 15) == "198.51.100.1"
