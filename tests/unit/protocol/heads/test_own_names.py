"""Which hosts can only be meant for this machine."""

from __future__ import annotations

import pytest

from velox.protocol.heads.own_names import is_local, is_own

NAMES = frozenset({"gateway.example"})


@pytest.mark.parametrize(
    "name",
    ["localhost", "LocalHost.", "app.localhost", "127.0.0.1", "10.1.2.3", "[::1]", "Gateway.Example", "[fe80::1]"],
)
def test_address_and_name_of_ours_is_own(name: str) -> None:
    """In any letter case, also with the dot of the root."""
    assert is_own(name, NAMES)


@pytest.mark.parametrize(
    "name",
    ["", ".", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "2130706433", "127.1", "xlocalhost"],
)
def test_name_that_a_page_could_have_is_not(name: str) -> None:
    """Nor one that browsers read as an address: they send that address."""
    assert not is_own(name, NAMES)


def test_local_names() -> None:
    """An address is none."""
    assert is_local("localhost") and is_local("a.b.localhost")
    assert not is_local("127.0.0.1") and not is_local("localhost.") and not is_local("notlocalhost")
