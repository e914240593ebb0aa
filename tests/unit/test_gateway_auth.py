"""Keys that clients must present."""

from __future__ import annotations

import hashlib

import pytest

from tests.unit.test_gateway_routes import head
from velox.errors import Reason, VeloxError
from velox.gateway.auth import Authenticator
from velox.types import Headers

KEY = b"vk-right"
AUTH = Authenticator(frozenset({hashlib.sha256(KEY).digest(), hashlib.sha256(b"other").digest()}))


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer vk-right")],
        [(b"authorization", b"bearer  vk-right")],
        [(b"x-api-key", b"vk-right")],
        [(b"api-key", b"vk-right")],
    ],
)
def test_right_key_passes_in_each_spelling(headers: Headers) -> None:
    """A key is taken from Authorization: Bearer, x-api-key and api-key; the caller is named by its digest."""
    assert AUTH.check(head(b"GET", b"/", headers)) == hashlib.sha256(KEY).digest()[:4].hex()


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], Reason.AUTH_MISSING),
        ([(b"authorization", b"Bearer")], Reason.AUTH_MISSING),
        ([(b"authorization", b"Bearer ")], Reason.AUTH_MISSING),
        ([(b"authorization", b"Basic dnM6cmlnaHQ=")], Reason.AUTH_MISSING),
        ([(b"authorization", b"Bearer " + b"k" * 9000)], Reason.AUTH_MISSING),
        ([(b"authorization", b"Bearer vk-wrong")], Reason.AUTH_INVALID),
        ([(b"authorization", b"Bearer vk-wrong"), (b"x-api-key", KEY)], Reason.AUTH_INVALID),
    ],
)
def test_missing_and_wrong_key_get_the_same_answer(headers: Headers, reason: Reason) -> None:
    """R-AUTH-2: both are 401 with the same message; only the code tells them apart."""
    with pytest.raises(VeloxError) as refused:
        AUTH.check(head(b"GET", b"/", headers))

    assert refused.value.reason is reason
    assert refused.value.status == 401
    assert refused.value.message == "no valid API key was given; send Authorization: Bearer KEY"


def test_no_configured_key_lets_everybody_in() -> None:
    """Without keys the listener is on loopback, or VELOX_AUTH=none was said."""
    assert Authenticator(frozenset()).check(head(b"GET", b"/")) == ""
