"""Parameters that an upstream has in each query, in place of the client's of the same names."""

from __future__ import annotations

import pytest

from velox.gateway.translation.own_query import OwnQuery

QUERY = OwnQuery((("api-version", "2024-10-21"), ("key", "a b&c=d")))
OURS = b"api-version=2024-10-21&key=a%20b%26c%3Dd"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v1/x", b"/v1/x?" + OURS),
        (b"/v1/x?", b"/v1/x?" + OURS),
        (b"/v1/x?a=1&&b", b"/v1/x?a=1&b&" + OURS),
        (b"/v1/x?key=mine&a=1", b"/v1/x?a=1&" + OURS),
        (b"/v1/x?KEY=mine&k%65y=2&Api-Version", b"/v1/x?" + OURS),
        (b"/v1/x?keys=1&api=2", b"/v1/x?keys=1&api=2&" + OURS),
        (b"/v1/x?a=?key=1", b"/v1/x?a=?key=1&" + OURS),
        (b"/v1/x?%zz=1", b"/v1/x?%zz=1&" + OURS),
    ],
)
def test_clients_parameters_of_these_names_are_left_out(target: bytes, expected: bytes) -> None:
    """However they are spelled: the server may take the first or the last of a name."""
    assert QUERY.on(target) == expected


def test_no_repr_has_a_value() -> None:
    assert "2024" not in repr(QUERY)
