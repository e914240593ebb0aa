"""What each kind of setting may look like: the edges, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from velox.settings import parse
from velox.types import Address, Secret


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("25s", 25.0), ("500ms", 0.5), ("1m", 60.0), ("0.5h", 1800.0), ("0", 0.0), ("0s", 0.0), ("1.5s", 1.5)],
)
def test_duration_with_unit_is_seconds(text: str, seconds: float) -> None:
    """A duration is a number with its unit; 0 needs none."""
    assert parse.duration(0, 3600)(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["5", "1.5", "s", "5 s", " 5s", "5s\n", "-1s", "1e3s", "5sec", "5S", ".5s", "\u0665s", ""]
)
def test_duration_without_known_unit_is_refused(text: str) -> None:
    """A bare number is not a duration: seconds and milliseconds are a thousand apart."""
    with pytest.raises(ValueError, match="unit"):
        parse.duration(0, 3600)(text)


@pytest.mark.parametrize(("text", "right"), [("9ms", False), ("10ms", True), ("60s", True), ("61s", False)])
def test_duration_bounds_are_inclusive(text: str, right: bool) -> None:
    """Bounds belong to the range."""
    assert _accepts(parse.duration(0.01, 60), text) is right


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("65536", 65536),
        ("64MiB", 64 << 20),
        ("1GB", 10**9),
        ("1gib", 1 << 30),
        ("2KB", 2000),
        ("2KiB", 2048),
        ("7B", 7),
    ],
)
def test_size_with_unit_is_bytes(text: str, n_bytes: int) -> None:
    """KiB, MiB, GiB are powers of 1024, KB, MB, GB of 1000; a bare number is bytes."""
    assert parse.size(1, 1 << 40)(text) == n_bytes


@pytest.mark.parametrize("text", ["1.5MiB", "64M", "64Mi", "-1", "0x10", "1_000", "MiB", "1 MiB", "\uff16\uff14", ""])
def test_size_with_unknown_unit_is_refused(text: str) -> None:
    """A size that needs guessing is refused."""
    with pytest.raises(ValueError, match="unit"):
        parse.size(1, 1 << 40)(text)


@pytest.mark.parametrize(("text", "right"), [("0", False), ("1", True), ("10", True), ("11", False)])
def test_integer_and_size_bounds_are_inclusive(text: str, right: bool) -> None:
    """n-1 is refused, n is taken, at both ends."""
    assert _accepts(parse.integer(1, 10), text) is right
    assert _accepts(parse.size(1, 10), text) is right


@pytest.mark.parametrize("text", ["-1", "+1", "1.0", "1e3", "1_0", " 1", "1\n", "\u0663", "9" * 5000, ""])
def test_integer_other_than_digits_is_refused(text: str) -> None:
    """Only ASCII digits are a number: not what else Python's int() takes."""
    with pytest.raises(ValueError, match="whole number from 0 to 10"):
        parse.integer(0, 10)(text)


@pytest.mark.parametrize(("text", "n"), [("0", 0), ("7", 7), ("200k", 200_000), ("2M", 2_000_000), ("0k", 0)])
def test_count_may_be_in_thousands_or_millions(text: str, n: int) -> None:
    """k and M, as people write limits."""
    assert parse.count(0, 2_000_000)(text) == n


@pytest.mark.parametrize(
    "text", ["-1", "2M1", "2000001", "3M", "1.5M", "1e6", "2m", "2K", "2G", "2 k", "k", "", "2k\n"]
)
def test_count_of_another_form_is_refused(text: str) -> None:
    """m could be a thousandth and K 1024; a fraction is no number of requests."""
    with pytest.raises(ValueError, match="from 0 to 2000000, for example 500, 200k or 2M"):
        parse.count(0, 2_000_000)(text)


def test_switch_takes_the_usual_words() -> None:
    """on and off, in the spellings people use."""
    assert all(parse.switch(word) for word in ("on", "ON", "true", "yes", "1"))
    assert not any(parse.switch(word) for word in ("off", "Off", "false", "no", "0"))
    assert not _accepts(parse.switch, "maybe")


def test_word_outside_the_list_is_refused_and_the_list_is_named() -> None:
    """A refusal names what would have been right."""
    with pytest.raises(ValueError, match="expected auto, on or off"):
        parse.one_of("auto", "on", "off")("On")


@pytest.mark.parametrize(
    ("text", "expected", "is_loopback"),
    [
        ("127.0.0.1:8080", Address("tcp", "127.0.0.1", 8080), True),
        ("127.9.9.9:0", Address("tcp", "127.9.9.9", 0), True),
        ("localhost:1", Address("tcp", "127.0.0.1", 1), True),
        ("[::1]:65535", Address("tcp", "::1", 65535), True),
        ("0.0.0.0:80", Address("tcp", "0.0.0.0", 80), False),
        ("[::]:80", Address("tcp", "::", 80), False),
        ("192.0.2.7:80", Address("tcp", "192.0.2.7", 80), False),
        ("unix:/run/velox.sock", Address("unix", path="/run/velox.sock"), True),
    ],
)
def test_address_is_ip_and_port_or_unix_path(text: str, expected: Address, is_loopback: bool) -> None:
    """Loopback and unix sockets are this machine only; the wildcard addresses are not."""
    parsed = parse.address(text)

    assert parsed == expected
    assert parsed.is_loopback is is_loopback
    assert parse.address(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "8080",
        ":8080",
        "*:80",
        "example.com:80",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.1:80",
        "::1:80",
        "[127.0.0.1]:80",
        "http://127.0.0.1:80",
        "unix:",
        "unix:@abstract",
        "unix:" + "x" * 108,
        "",
    ],
)
def test_address_of_another_form_is_refused(text: str) -> None:
    """A name would have to be resolved before anyone knows whether it is loopback."""
    with pytest.raises(ValueError, match="unix:PATH"):
        parse.address(text)


def test_unix_path_of_107_bytes_is_taken() -> None:
    """Linux has room for 107 bytes and a NUL."""
    assert parse.address("unix:" + "x" * 107).path == "x" * 107


def test_admin_address_may_be_off() -> None:
    """The word off is no address."""
    assert parse.address_or_off("off") is None
    assert parse.address_or_off("127.0.0.1:1") == Address("tcp", "127.0.0.1", 1)
    assert not _accepts(parse.address_or_off, "on")


@pytest.mark.parametrize(
    ("text", "host", "port", "base_path", "host_header"),
    [
        ("https://api.openai.com", "api.openai.com", 443, "", b"api.openai.com"),
        ("https://API.OpenAI.com/", "api.openai.com", 443, "", b"api.openai.com"),
        ("https://api.openai.com:443", "api.openai.com", 443, "", b"api.openai.com"),
        ("http://127.0.0.1:9000/base/", "127.0.0.1", 9000, "/base", b"127.0.0.1:9000"),
        ("http://[::1]", "::1", 80, "", b"[::1]"),
        ("http://[::1]:9000/a/b", "::1", 9000, "/a/b", b"[::1]:9000"),
        ("https://h:80", "h", 80, "", b"h:80"),
    ],
)
def test_origin_has_host_port_base_and_host_header(
    text: str, host: str, port: int, base_path: str, host_header: bytes
) -> None:
    """Host names the port only where it is not the scheme's own (RFC 9110 §7.2)."""
    parsed = parse.origin(text)

    assert (parsed.host, parsed.port, parsed.base_path, parsed.host_header) == (
        host,
        port,
        base_path,
        host_header,
    )
    assert parse.origin(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "api.openai.com",
        "//api.openai.com",
        "ftp://h",
        "https://",
        "https://h:0",
        "https://h:65536",
        "https://h:x",
        "https://user:pass@h",
        "https://user@h",
        "https://h?x=1",
        "https://h/?",
        "https://h/#f",
        "https://h/a b",
        "https://h/\r\nx: y",
        "https://h\t/",
        "https://h/a/../b",
        "https://h/%2e%2e",
        "https://h//a",
        "https://h/a\\b",
        "https://[::1",
        "https://[::1%25lo]/",
        "https://a..b",
        "https://-a",
        "https://hé",
    ],
)
def test_origin_that_two_parsers_could_read_differently_is_refused(text: str) -> None:
    """User info, query, fragment, escapes, dot segments and control characters have no place in an origin."""
    with pytest.raises(ValueError, match="expected"):
        parse.origin(text)


def test_paths_star_is_every_path_and_prefixes_lose_their_last_slash() -> None:
    """`/v1/` and `/v1` are the same prefix; duplicates go."""
    assert parse.prefixes("*") == ("/",)
    assert parse.prefixes("/v1/, /v2,/v1") == ("/v1", "/v2")


@pytest.mark.parametrize("text", ["v1", "/v1,", "/v1?x", "/a//b", "/a/../b", "/%61", "*,/v1", "/a b", ""])
def test_path_with_query_escape_or_dots_is_refused(text: str) -> None:
    """What is configured is compared with a path byte for byte, so it must be plain."""
    assert not _accepts(parse.prefixes, text)


def test_origins_of_pages_are_as_browsers_send_them() -> None:
    """Scheme, host and a port that is not the usual one; a path, or a name alone, would match no page."""
    text = "https://App.example, http://localhost:*, http://[::1]:3000, https://*.app.example, null, *"
    assert parse.web_origins(text) == (
        *("https://app.example", "http://localhost:*", "http://[::1]:3000", "https://*.app.example", "null", "*"),
    )
    for text in ("app.example", "https://app.example/", "https://app.example/x", "https://a b", "https://", "", "a,,b"):
        assert not _accepts(parse.web_origins, text), text
    for text in ("https://app.example:443", "http://app.example:80"):
        assert not _accepts(parse.web_origins, text), text


def test_networks_are_addresses_networks_or_unix() -> None:
    """A network with bits of a host is a mistake: it may have been meant as that host."""
    assert parse.networks("10.0.0.0/8, 192.0.2.7,2001:db8::/32 ,unix,unix") == (
        *("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "unix"),
    )
    for text in ("10.0.0.1/8", "proxy.example", "*", "10.0.0.0/33", "10.0.0.0/8,", "unix:/run/x"):
        assert not _accepts(parse.networks, text), text


def test_host_names_are_names_without_a_port() -> None:
    """Lower-case, as they are compared; a port or an address of another form is none."""
    assert parse.host_names("Velox.Example., b") == {"velox.example", "b"}
    for text in ("", "a,", "a:80", "a b", "*.example", "http://a", "a/b", "é"):
        assert not _accepts(parse.host_names, text), text


def test_secret_is_shown_by_reveal_only() -> None:
    """repr, str and format hide it."""
    secret = parse.secret("sk-123")

    assert secret.reveal() == "sk-123"
    assert "123" not in f"{secret!r}{secret!s}{secret}{Secret('sk-123')!r}"


@pytest.mark.parametrize("text", ["sk-1\r\nx: y", "sk-1\n", "sk 1", "sk-\x00", "sk-é"])
def test_secret_with_control_characters_is_refused(text: str) -> None:
    """A credential goes into a header line, which it must not end."""
    with pytest.raises(ValueError, match="visible ASCII"):
        parse.secret(text)


def _accepts(parser: Callable[[str], object], text: str) -> bool:
    try:
        parser(text)
    except ValueError:
        return False
    return True


def test_origins_keep_their_order() -> None:
    """Where requests go first, and where next; spaces after commas are no part of them."""
    found = parse.origins("https://a.test, http://b.test:8080/base,unix:/run/up.sock")

    assert [str(origin) for origin in found] == ["https://a.test", "http://b.test:8080/base", "unix:/run/up.sock"]
    assert found[2].host_header == b"localhost" and found[2].unix_path == "/run/up.sock"


@pytest.mark.parametrize(
    "text",
    ["", ",", "https://a.test,", "a.test,https://b.test", "https://a.test,https://A.test:443/", "unix:/x,unix:/x"],
)
def test_origins_that_are_empty_wrong_or_the_same_are_refused(text: str) -> None:
    """The same origin twice would count one failure as two upstreams out."""
    with pytest.raises(ValueError, match="expected"):
        parse.origins(text)


@pytest.mark.parametrize("text", ["unix:", "unix:@abstract", "unix:/" + "x" * 107, "unix:/a\0b"])
def test_unix_origin_needs_a_path_that_fits(text: str) -> None:
    """As for VELOX_LISTEN: sockaddr_un takes 107 bytes."""
    with pytest.raises(ValueError, match="unix:PATH"):
        parse.origin(text)
    assert parse.origin("unix:/" + "x" * 106).unix_path


def test_statuses_are_a_list_or_none() -> None:
    """Statuses of errors only."""
    assert parse.statuses("none") == frozenset()
    assert parse.statuses("429, 503,429") == {429, 503}
    assert parse.statuses("400,599") == {400, 599}
    for text in ("", "399", "600", "5xx", "429,", "none,429", "-1"):
        with pytest.raises(ValueError, match="whole number from 400 to 599"):
            parse.statuses(text)
