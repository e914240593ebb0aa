"""Keys that clients must present, and what the holder of one may use."""

from __future__ import annotations

import hashlib

import pytest

from tests.unit.gateway.access.test_gateway_routes import head
from velox.errors import Reason, VeloxError
from velox.gateway.auth import Authenticator
from velox.heads import Headers
from velox.policy.patterns import matches
from velox.types import ANYONE, Caller, KeyEntry, KeyTerms, Priority, Rates


def entry(key: bytes, name: str = "", models: tuple[str, ...] = ()) -> KeyEntry:
    """Return a key as settings know it."""
    return KeyEntry(hashlib.sha256(key).digest(), name, KeyTerms(models=models))


KEY = b"vk-right"
KEYS = (entry(KEY), entry(b"other", "team-a", ("gpt-*",)))
AUTH = Authenticator(KEYS)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer vk-right")],
        [(b"authorization", b"bearer  vk-right")],
        [(b"authorization", b"BEARER vk-right\t")],
        [(b"x-api-key", b"vk-right")],
        [(b"api-key", b"vk-right")],
        [(b"authorization", b"Bearer vk-right"), (b"x-api-key", b"vk-right"), (b"api-key", b"")],
        [(b"authorization", b"Bearer "), (b"x-api-key", b"vk-right")],
        # C3, RC10: beside what is nobody's key here.
        [(b"authorization", b"Bearer sk-ant-oat01-of-a-login"), (b"x-api-key", KEY)],
        [(b"authorization", b"Bearer vk-right"), (b"x-api-key", b"vk-stale")],
        [(b"authorization", b"Bearer vk-right"), (b"x-goog-api-key", b"AIza")],
        [(b"authorization", b"Bearer vk-right"), (b"authorization", b"Bearer stale")],
        [(b"authorization", b"Basic dnM6cmlnaHQ="), (b"x-api-key", KEY)],
        [(b"authorization", b"vk-right"), (b"x-api-key", KEY)],
        [(b"x-api-key", b"k" * 9000), (b"api-key", b"vk-right")],
    ],
)
def test_right_key_passes_in_each_spelling(headers: Headers) -> None:
    """Authorization: Bearer, x-api-key and api-key, also together; a caller without a name is named by its digest."""
    digest = hashlib.sha256(KEY).digest()
    for given in (headers, headers[::-1]):
        assert AUTH.check(head(b"GET", b"/", given)) == Caller(digest[:4].hex(), id=digest[:8])


def test_key_with_spaces_inside_counts_as_it_is() -> None:
    """All that follows the scheme is the key, without the spaces around it; none inside is left out."""
    key = b"my secret  key"
    auth = Authenticator((entry(key), entry(b"other")))

    for field in ((b"authorization", b"Bearer   my secret  key"), (b"x-api-key", key), (b"api-key", key)):
        assert auth.check(head(b"GET", b"/", [field])).id == hashlib.sha256(key).digest()[:8]
    for wrong in (b"my secret key", b"my", b"my secret", b"key", b"other key"):
        with pytest.raises(VeloxError) as refused:
            auth.check(head(b"GET", b"/", [(b"authorization", b"Bearer " + wrong)]))
        assert refused.value.reason is Reason.AUTH_INVALID


def test_caller_has_all_that_is_said_of_its_key() -> None:
    """Name, models, limits and class go with the request; two keys of one name are two callers."""
    digest, rates = hashlib.sha256(b"other").digest(), Rates(rpm=60, burst=10)
    terms = KeyTerms(models=("gpt-*",), rates=rates, priority=Priority.LOW)
    auth = Authenticator((KeyEntry(digest, "team-a", terms), entry(b"next", "team-a")))

    caller = auth.check(head(b"GET", b"/", [(b"x-api-key", b"other")]))

    assert caller == Caller("team-a", terms, digest[:8])
    assert auth.check(head(b"GET", b"/", [(b"x-api-key", b"next")])).id != caller.id


NO_KEY: list[Headers] = [
    [],
    [(b"authorization", b"Bearer")],
    [(b"authorization", b"Bearer ")],
    [(b"authorization", b"Basic dnM6cmlnaHQ=")],
    [(b"authorization", b"vk-right")],
    [(b"authorization", b"vk-right ")],
    [(b"authorization", b"Bearer\tvk-right")],
    [(b"authorization", b"BearervK-right")],
    [(b"authorization", b"Bearer vk-right x")],
    [(b"authorization", b"Bearer " + b"k" * 9000)],
    [(b"authorization", b"Bearer vk-wrong")],
    [(b"authorization", b"Bearer vk-righ")],
    [(b"authorization", b"Bearer vk-right1")],
    [(b"authorization", b"Bearer VK-RIGHT")],
    [(b"authorization", b"Bearer vk-\xe9\xff")],
    [(b"authorization", b"Bearer " + hashlib.sha256(KEY).hexdigest().encode())],
    [(b"authorization", b"Bearer sha256:" + hashlib.sha256(KEY).hexdigest().encode())],
    [(b"x-api-key", b"Bearer vk-right")],
    [(b"x-other-api-key", b"vk-right")],
    [(b"cookie", b"api-key=vk-right")],
    [(b"proxy-authorization", b"Bearer vk-right")],
    [(b"authorization", b"Bearer sk-ant-oat01"), (b"x-api-key", b"vk-wrong")],
]


@pytest.mark.parametrize("headers", NO_KEY, ids=range(len(NO_KEY)))
def test_missing_wrong_and_malformed_key_get_the_same_answer(headers: Headers) -> None:
    """B-27: reason, status, message and headers are the same for all of them."""
    with pytest.raises(VeloxError) as refused:
        AUTH.check(head(b"GET", b"/", headers))

    error = refused.value
    assert (error.reason, error.status, error.param) == (Reason.AUTH_INVALID, 401, None)
    assert error.message == "no valid API key was given; send Authorization: Bearer KEY"
    assert error.headers == ((b"www-authenticate", b"Bearer"),)


@pytest.mark.parametrize(
    ("headers", "where"),
    [
        ([(b"authorization", b"Bearer vk-right"), (b"authorization", b"Bearer other")], "authorization"),
        ([(b"x-api-key", b"vk-right"), (b"x-api-key", b"other")], "x-api-key"),
        ([(b"x-api-key", b"vk-right"), (b"api-key", b"other")], "api-key and x-api-key"),
        ([(b"x-goog-api-key", b"other"), (b"authorization", b"Bearer vk-right")], "authorization and x-goog-api-key"),
        ([(b"x-api-key", b"stale"), (b"api-key", b"other"), (b"authorization", b"Bearer vk-right")], "api-key"),
    ],
)
def test_keys_of_two_callers_are_refused(headers: Headers, where: str) -> None:
    """B-27: whoever looks at the other one would take the request for somebody else's. RC10: it says where they are."""
    for given in (headers, headers[::-1]):
        with pytest.raises(VeloxError) as refused:
            AUTH.check(head(b"GET", b"/", given))
        assert (refused.value.reason, refused.value.status) == (Reason.BAD_REQUEST, 400)
        assert where in refused.value.message and "unset one" in refused.value.message


def test_two_secrets_of_one_key_are_one_caller() -> None:
    """A key that was rotated: the old secret in one place, the new one in another."""
    same = [KeyEntry(hashlib.sha256(key).digest(), "team", id=b"1" * 8) for key in (b"old", b"new")]
    given: Headers = [(b"authorization", b"Bearer old"), (b"x-api-key", b"new")]
    assert Authenticator(same).check(head(b"GET", b"/", given)).id == b"1" * 8


def test_no_configured_key_lets_everybody_in() -> None:
    """Without keys the listener is on loopback, or VELOX_AUTH=none was said."""
    assert Authenticator(()).check(head(b"GET", b"/")) is ANYONE


def test_key_of_nothing_lets_nobody_in() -> None:
    """A digest of the empty string must not be the key of all who have none."""
    auth = Authenticator((entry(b""), entry(KEY)))
    for headers in ([], [(b"x-api-key", b"")], [(b"authorization", b"Bearer ")]):
        with pytest.raises(VeloxError):
            auth.check(head(b"GET", b"/", headers))


def test_changed_keys_count_at_once_and_none_is_no_open_door() -> None:
    """A new key passes, an old one does not; a table without keys lets nobody in where there were some."""
    auth = Authenticator(KEYS)
    auth.change({**dict.fromkeys(key.digest for key in KEYS), entry(b"new").digest: entry(b"new")})

    assert auth.check(head(b"GET", b"/", [(b"x-api-key", b"new")]))
    with pytest.raises(VeloxError):
        auth.check(head(b"GET", b"/", [(b"x-api-key", KEY)]))
    auth.change({entry(b"new").digest: None})
    for key in (KEY, b"new"):
        with pytest.raises(VeloxError):
            auth.check(head(b"GET", b"/", [(b"x-api-key", key)]))


MATCHES = [
    ("gpt-4o", "gpt-4o", True),
    ("gpt-4o", "gpt-4o-mini", False),
    ("gpt-4o", "GPT-4o", False),
    ("gpt-4*", "gpt-4o-mini", True),
    ("gpt-4*", "gpt-4", True),
    ("gpt-4*", "xgpt-4", False),
    ("*-mini", "gpt-4o-mini", True),
    ("*-mini", "gpt-4o-mini-x", False),
    ("org/*/chat", "org/a/b/chat", True),
    ("org/*/chat", "org/chat", False),
    ("ab*ba", "aba", False),
    ("ab*ba", "abba", True),
    ("a*b*c", "a1b2c", True),
    ("a*b*c", "a1c2b", False),
    ("a*bc*c", "abc", False),
    ("*", "", True),
    ("*", "any", True),
    ("**", "any", True),
    ("", "any", False),
    (".*", "any", False),
    ("gpt-[4]", "gpt-4", False),
    ("gpt-4?", "gpt-4o", False),
]


@pytest.mark.parametrize(("pattern", "model", "wanted"), MATCHES)
def test_star_stands_for_any_text_and_nothing_else_is_special(pattern: str, model: str, wanted: bool) -> None:
    """Names are compared letter by letter; only `*` is more than itself."""
    assert matches(pattern, model) is wanted


def test_pattern_of_many_stars_costs_no_more_than_its_length() -> None:
    """A matcher that tries every way would not end: 30 stars in a name of 256 characters."""
    assert matches("*a" * 30 + "b", "a" * 256) is False
    assert matches("*a" * 30 + "*", "a" * 256) is True


PAGES = [
    "http://localhost:3000",
    "http://127.0.0.1",
    "https://[::1]:8443",
    "http://app.localhost:5173",
    "tauri://localhost",
]
ELSEWHERE = [
    *("https://evil.example", "null", "", "http://[", "http://127.0.0.1.evil.example", "http://localhost.evil.example"),
    *("http://xlocalhost", "http://10.0.0.1", "https://ui.example.evil", "http://\u00e9"),
]


@pytest.mark.parametrize("origin", [*PAGES, "https://ui.example"])
def test_page_of_this_machine_needs_no_key(origin: str) -> None:
    """Nor does one that the operator has named."""
    auth = Authenticator((), hosts=frozenset({"ui.example"}))
    assert auth.check(head(b"POST", b"/v1/files", [(b"origin", origin.encode())])) is ANYONE


@pytest.mark.parametrize("origin", ELSEWHERE)
def test_page_from_elsewhere_needs_a_key(origin: str) -> None:
    """A form needs no leave of ours to be sent here: without a key of its own it would use the provider's."""
    page = head(b"POST", b"/v1/files", [(b"origin", origin.encode()), (b"authorization", b"Bearer vk-right")])
    with pytest.raises(VeloxError) as refused:
        Authenticator((), hosts=frozenset({"ui.example"})).check(page)
    assert (refused.value.reason, refused.value.status) == (Reason.FORBIDDEN, 403)
    assert AUTH.check(page).id
