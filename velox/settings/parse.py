"""Text to value. Each parser returns the value or raises ValueError whose text says what was expected.

Knows: units, bounds and spellings, and the users and groups of this machine. Does not know: which setting it reads.
Messages never contain the given text: it may be a secret.
"""

from __future__ import annotations

import datetime
import grp
import ipaddress
import math
import pwd
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit

from velox.ledger.postgres_url import driver_url
from velox.policy.request_tags import TagSource
from velox.policy.routes.entries import Delay, HashOn
from velox.policy.spellings import KEY_NAME, MODEL_PATTERN, OWNER, TAG, Spelling
from velox.settings.mail_url import is_mail_url, mail_target
from velox.types import Address, Origin, Secret, SocketOwner

__all__ = [
    "DAY_S",
    "OPTIONAL_TIMEOUT",
    "TIMEOUT",
    "address",
    "address_or_off",
    "addresses",
    "concurrency",
    "count",
    "database_url",
    "delay",
    "duration",
    "file_mode",
    "file_path",
    "hash_on",
    "header_name",
    "header_value",
    "host_names",
    "integer",
    "key_name",
    "model_name",
    "model_pattern",
    "moment",
    "name",
    "one_of",
    "origin",
    "origins",
    "owner",
    "path",
    "pattern",
    "percent",
    "prefixes",
    "public_url",
    "redis_prefix",
    "redis_url",
    "route_names",
    "secret",
    "size",
    "size_or_off",
    "socket_owner",
    "statuses",
    "switch",
    "tag",
    "tag_sources",
    "unquoted",
    "webhook_url",
]

T = TypeVar("T")
U = TypeVar("U")

# [0-9] and fullmatch throughout: int() would also take other scripts' digits, " 12" and "1_2".
_INTEGER: Final = re.compile(r"[0-9]{1,15}")
_COUNT: Final = re.compile(r"([0-9]{1,15})([kM]?)")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_SIZE: Final = re.compile(r"([0-9]{1,15})(B|KB|MB|GB|KiB|MiB|GiB)?", re.IGNORECASE)
_TIMES: Final = {"": 1, "k": 10**3, "M": 10**6}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
# RFC 3986 pchar without "%": an escape in a configured path would only ask which side decodes it.
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*")
# RFC 6454 §6.2: scheme, host and port; here with `*` for any text.
_WEB_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9*._-]+|\[[0-9a-f:.]+\])(?::([0-9*]{1,5}))?")
_USUAL_PORTS: Final[Mapping[str, str]] = MappingProxyType({"http": "80", "https": "443"})
_ENDPOINT: Final = re.compile(r"(?:/v1)?/(?:(?:chat/)?completions|messages|responses|embeddings)$")
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_VISIBLE: Final = re.compile(r"[!-~]+")
_PERCENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%?")
_PERCENTILE: Final = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,2})?)")
# RFC 9110 §5.6.2.
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2}))?"
)
_ADDRESS_FORMS: Final = "expected IP:PORT, [IPV6]:PORT, localhost:PORT or unix:PATH"
_ORIGIN_FORMS: Final = "expected http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]"
_MODE: Final = re.compile(r"0?[0-7]{3}")
_REDIS_QUERY: Final = re.compile(r"(?:db=[0-9]{1,5})?")
_REDIS_DATABASE: Final = re.compile(r"/?|/[0-9]{1,5}")
_REDIS_FORMS: Final = (
    "expected redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], the same with rediss://, or"
    " unix://[USER:PASSWORD@]/PATH[?db=DATABASE]"
)
DAY_S: Final = 86_400.0
_MOST_CONCURRENCY: Final = 10_000_000
_MAX_ADDRESSES: Final = 16
_MAX_ID: Final = 2**32 - 2  # (uid_t) -1 means "leave it" to chown(2)
_UNIX_PATH_BYTES: Final = 107  # sockaddr_un.sun_path is 108 on Linux, with the closing NUL
_HOST_CHARS: Final = 253  # RFC 1035 §2.3.4, as text


def integer(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return int(text)

    return parse


def count(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`, which may end in k (thousands) or M (millions)."""

    def parse(text: str) -> int:
        match = _COUNT.fullmatch(text)
        n = int(match[1]) * _TIMES[match[2]] if match else -1
        if not low <= n <= high:
            raise ValueError(f"expected a whole number from {low} to {high}, for example 500, 200k or 2M")
        return n

    return parse


def duration(low_s: float, high_s: float) -> Callable[[str], float]:
    """Return a parser of durations with a unit, in seconds. A bare number but 0 is refused: no unit."""

    def parse(text: str) -> float:
        match = _DURATION.fullmatch(text)
        if match is None and text != "0":
            raise ValueError("expected a number with its unit (ms, s, m or h), for example 500ms or 25s")
        seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
        if not low_s <= seconds <= high_s:
            raise ValueError(f"expected a duration from {low_s:g}s to {high_s:g}s")
        return seconds

    return parse


def size(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of sizes in bytes; KiB, MiB, GiB are powers of 1024, KB, MB, GB of 1000."""

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError("expected bytes, or a whole number with its unit, for example 65536, 64MiB or 1GB")
        n_bytes = int(match[1]) * _BYTES[(match[2] or "B").lower()]
        if not low <= n_bytes <= high:
            raise ValueError(f"expected a size from {low} to {high} bytes")
        return n_bytes

    return parse


def switch_or_auto(text: str) -> bool | None:
    """Parse on, off or auto; None: auto."""
    if text.lower() == "auto":
        return None
    try:
        return switch(text)
    except ValueError:
        raise ValueError("expected on, off or auto") from None


def switch(text: str) -> bool:
    """Parse on or off."""
    match text.lower():
        case "on" | "true" | "yes" | "1":
            return True
        case "off" | "false" | "no" | "0":
            return False
        case _:
            raise ValueError("expected on or off")


def percent(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of shares in percent, with or without the sign."""

    def read(text: str) -> float:
        match = _PERCENT.fullmatch(text)
        if match is None or not low <= float(match[1]) <= high:
            raise ValueError(f"expected percent from {low:g} to {high:g}, for example 5 or 0.5%")
        return float(match[1])

    return read


def one_of(*words: str) -> Callable[[str], Any]:
    """Return a parser that takes one of `words` as it stands."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


def _matching(pattern: str, expected: str) -> Callable[[str], str]:
    """Return a parser of texts that `pattern` matches as a whole."""
    return _spelled(Spelling(pattern, expected))


def _spelled(spelling: Spelling, expected: str = "") -> Callable[[str], str]:
    """Return a parser of texts of one kind. expected: what its error says instead."""

    def parse(text: str) -> str:
        if not spelling.matches(text):
            raise ValueError(f"expected {expected or spelling.expected}")
        return text

    return parse


def _or_word(parse: Callable[[str], T], words: Mapping[str, U]) -> Callable[[str], T | U]:
    """Return a parser that also takes each of `words`, for the value that it stands for."""
    *others, last = words

    def parse_or_word(text: str) -> T | U:
        if text in words:
            return words[text]
        try:
            return parse(text)
        except ValueError as exc:
            raise ValueError(f"{exc}, {' '.join([*others, 'or', last])}") from None

    return parse_or_word


def size_or_off(low: int, high: int) -> Callable[[str], int | None]:
    """Return a parser of sizes, as size() has them, or the word off."""
    return _or_word(size(low, high), {"off": None})


def address(text: str) -> Address:
    """Parse HOST:PORT or unix:PATH. HOST is an IP literal: no resolver decides what is loopback."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or path.startswith("@") or "\0" in path or len(path.encode()) > _UNIX_PATH_BYTES:
            raise ValueError(f"expected unix:PATH with a path of 1 to {_UNIX_PATH_BYTES} bytes")
        return Address("unix", path=path)
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{_ADDRESS_FORMS}: an IPv6 address stands in brackets")
    if not host:
        raise ValueError(f"{_ADDRESS_FORMS}, such as 127.0.0.1:8080, or 0.0.0.0:8080 for all addresses")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        found = str(ipaddress.ip_address(host))
    except ValueError:
        raise ValueError(f"{_ADDRESS_FORMS}: names are not looked up here") from None
    try:
        return Address("tcp", host=found, port=integer(0, 65535)(port))
    except ValueError:
        raise ValueError("expected a port from 0 to 65535 after the last colon, or unix:PATH") from None


address_or_off: Final = _or_word(address, {"off": None})


def addresses(text: str) -> tuple[Address, ...]:
    """Parse addresses with commas between them."""
    found = tuple(address(item.strip()) for item in text.split(","))
    if len(found) > _MAX_ADDRESSES:
        raise ValueError(f"expected at most {_MAX_ADDRESSES} addresses")
    fixed = [each for each in found if each.kind == "unix" or each.port]  # port 0 is another one each time
    if len(set(fixed)) != len(fixed):
        raise ValueError("expected each address once")
    for one in fixed:
        # Of both versions there may be one each: then [::] is bound for its own version alone
        # (runtime/processes/listeners.py).
        if any(one is not each and one.is_ipv6 == each.is_ipv6 and one.includes(each) for each in fixed):
            raise ValueError(f"expected {one} without others of its port: it stands for all of them")
    return found


def file_mode(text: str) -> int:
    """Parse an octal mode of three digits, as chmod takes it."""
    if not _MODE.fullmatch(text):
        raise ValueError("expected an octal mode such as 0660")
    return int(text, 8)


def socket_owner(text: str) -> SocketOwner:
    """Parse USER, USER:GROUP or :GROUP; each a name that this machine knows, or a number."""
    user, _, group = text.partition(":")
    if not (user or group) or ":" in group:
        raise ValueError("expected USER, USER:GROUP or :GROUP, names or numbers")
    uid = _id_of(user)
    gid = _id_of(group)
    try:
        if user and uid is None:
            uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ValueError("expected a user that this machine knows, or its number") from None
    try:
        if group and gid is None:
            gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise ValueError("expected a group that this machine knows, or its number") from None
    return SocketOwner(text, uid, gid)


def origin(text: str) -> Origin:
    """Parse http(s)://HOST[:PORT][/BASE] or unix:PATH.

    User info, query and fragment are refused: none would be sent.
    """
    if text.startswith("unix:"):
        return Origin("http", "localhost", 80, "", b"localhost", unix_path=address(text).path)
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        raise ValueError(_ORIGIN_FORMS) from None
    # urlsplit drops TAB, CR and LF silently and strips spaces: only visible characters may come this far.
    if parts.scheme not in {"http", "https"} or not _VISIBLE.fullmatch(text) or not _is_host(host):
        raise ValueError(_ORIGIN_FORMS)
    port = _port_of(parts)
    if "@" in parts.netloc:
        raise ValueError("expected a URL without user or password: give the key in OPENAI_API_KEY")
    if "?" in text or "#" in text:
        raise ValueError("expected a URL without query and fragment")
    base_path = parts.path.rstrip("/")
    if base_path:
        path(base_path)
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    usual_port = 443 if scheme == "https" else 80
    named = f"[{host}]" if ":" in host else host
    host_header = named if port in {None, usual_port} else f"{named}:{port}"
    return Origin(scheme, host, usual_port if port is None else port, base_path, host_header.encode("ascii"))


def public_url(text: str) -> Origin | None:
    """Parse a URL of this gateway, with a path if it has one; "": none."""
    if not text:
        return None
    found = origin(text)
    if found.unix_path:
        raise ValueError(_ORIGIN_FORMS)
    return found


def endpoint_problem(origin: Origin) -> str:
    """Return what is wrong with an origin that ends with an endpoint, to which requests' own paths are added; or ""."""
    found = _ENDPOINT.search(origin.base_path)
    return "" if found is None else f"expected it without {found[0]} at its end: the paths of requests have that"


def origins(text: str) -> tuple[Origin, ...]:
    """Parse origins with commas between them: where requests go first, and where next when it fails."""
    found = tuple(origin(item.strip()) for item in text.split(","))
    if len(set(map(str, found))) != len(found):
        raise ValueError("expected each origin once")
    for each in found:
        if expected := endpoint_problem(each):
            raise ValueError(expected)
    return found


def statuses(text: str) -> frozenset[int]:
    """Parse `none`, or HTTP statuses from 400 to 599 with commas between them."""
    if text == "none":
        return frozenset()
    return frozenset(integer(400, 599)(item.strip()) for item in text.split(","))


def path(text: str) -> str:
    """Parse an absolute path without query, escapes, dot segments and empty segments."""
    segments = text.split("/")[1:]
    inner_empty = "" in segments[:-1]
    if not text or not _PATH.fullmatch(text) or inner_empty or {".", ".."} & set(segments):
        raise ValueError("expected a path such as /v1/models: no query, no %, no // and no dot segments")
    return text


def prefixes(text: str) -> tuple[str, ...]:
    """Parse `*`, which is every path, or path prefixes with commas between them."""
    if text == "*":
        return ("/",)
    return tuple(dict.fromkeys(path(item.strip()).rstrip("/") or "/" for item in text.split(",")))


def path_patterns(text: str) -> tuple[str, ...]:
    """Parse `*`, which is every path, or whole paths with commas between them, `*` for one segment."""
    if text in ("", "*"):
        return (text,) if text else ()
    return tuple(dict.fromkeys(path(item.strip()).rstrip("/") or "/" for item in text.split(",")))


def host_names(text: str) -> frozenset[str]:
    """Parse names of hosts with commas between them."""
    names = [item.strip().lower().removesuffix(".") for item in text.split(",")]
    if not all(_HOST.fullmatch(name) and len(name) <= _HOST_CHARS for name in names):
        raise ValueError("expected names of hosts, commas between them, without port")
    return frozenset(names)


def networks(text: str) -> tuple[str, ...]:
    """Parse addresses, networks, or `unix`, with commas between them."""
    found: list[str] = []
    for item in (each.strip() for each in text.split(",")):
        try:
            found.append(item if item == "unix" else str(ipaddress.ip_network(item)))
        except ValueError:
            raise ValueError("expected addresses or networks as 10.0.0.0/8, or unix, commas between them") from None
    return tuple(dict.fromkeys(found))


def caller_labels(text: str) -> tuple[str, ...]:
    """Parse `team` and `key`, with a comma between them."""
    found = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    if not set(found) <= {"team", "key"}:
        raise ValueError("expected team, key, or both with a comma between them")
    return found


def tag_sources(text: str) -> tuple[TagSource, ...]:
    """Parse `tags`, `user` and `session`, with commas between them."""
    found = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    if not set(found) <= {"tags", "user", "session"}:
        raise ValueError("expected tags, user, session, or some of them with commas between them")
    return cast(tuple[TagSource, ...], found)


def route_names(text: str) -> tuple[str, ...]:
    """Parse names with commas between them."""
    return tuple(dict.fromkeys(filter(None, (item.strip() for item in text.split(",")))))


def pattern(text: str) -> str:
    """Check a regular expression, which must not match an empty text."""
    try:
        found = re.compile(text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise ValueError(f"expected a regular expression: {exc}") from None
    if found.search("") is not None:
        raise ValueError("expected a regular expression that does not match an empty text")
    return text


def web_origins(text: str) -> tuple[str, ...]:
    """Parse origins of web pages with commas between them."""
    found = tuple(dict.fromkeys(item.strip().lower() for item in text.split(",")))
    for item in found:
        match = _WEB_ORIGIN.fullmatch(item)
        if match is None and item not in ("*", "null"):
            raise ValueError("expected origins of web pages, as https://app.example:8443 without a path, or *")
        if match is not None and _USUAL_PORTS.get(match[1]) == match[2]:
            raise ValueError(f"expected origins as browsers send them: without the usual port {match[2]}")
    return found


def secret(text: str) -> Secret:
    """Parse a credential that goes into a header: visible ASCII, so that it can't end the header's line."""
    if not _VISIBLE.fullmatch(text):
        raise ValueError("expected visible ASCII characters only: no space, line end or other control character")
    unquoted(text)
    return Secret(text)


def unquoted(text: str) -> None:
    """Refuse a credential in quotes. `docker run --env-file` keeps them, and nobody would be let in by such a key."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        raise ValueError("expected no quotes around it: they count as a part of it here, as in a file of --env-file")


def webhook_url(text: str) -> Secret:
    """Parse the URL of a webhook, or of a mail server. It may contain a credential: no message shows a part of it."""
    if is_mail_url(text):
        mail_target(text)
        return Secret(text)
    expected = "expected https://host[:port]/path, or http://, without a user, password or fragment"
    try:
        parts = urlsplit(text)
        is_whole = bool(parts.scheme in {"http", "https"} and parts.hostname)
        _port_of(parts)
    except ValueError:
        raise ValueError(expected) from None
    if not is_whole or not _VISIBLE.fullmatch(text) or "#" in text or "@" in parts.netloc:
        raise ValueError(expected)
    return Secret(text)


def redis_url(text: str) -> Secret:
    """Parse the URL of a Redis. It may contain a password, so no message shows any part of it."""
    try:
        parts = urlsplit(text)
        host, scheme = parts.hostname or "", parts.scheme
    except ValueError:
        raise ValueError(_REDIS_FORMS) from None
    if scheme in {"redis", "rediss"}:
        _port_of(parts)
    if not _VISIBLE.fullmatch(text) or "#" in text:
        raise ValueError(_REDIS_FORMS)
    if scheme in {"redis", "rediss"}:
        if not host or not _REDIS_DATABASE.fullmatch(parts.path) or "?" in text:
            raise ValueError(_REDIS_FORMS)
    elif scheme != "unix" or host or not unquote(parts.path).strip("/") or not _REDIS_QUERY.fullmatch(parts.query):
        raise ValueError(_REDIS_FORMS)
    return Secret(text)


def database_url(text: str) -> Secret:
    """Parse the URL of a PostgreSQL. It may contain a password, so no message shows any part of it."""
    expected = "expected postgresql://USER:PASSWORD@HOST[:PORT]/NAME"
    try:
        parts = urlsplit(text)
        _port_of(parts)
    except ValueError:
        raise ValueError(expected) from None
    is_one = parts.scheme in {"postgres", "postgresql"} and len(parts.path) > 1
    if not is_one or not _VISIBLE.fullmatch(text) or "#" in text:
        raise ValueError(expected)
    driver_url(text)
    return Secret(text)


def delay(text: str) -> Delay:
    """Parse p50 to p99.99, or a duration."""
    match = _PERCENTILE.fullmatch(text)
    if match is not None and float(match[1]) >= 50.0:
        return Delay(percentile=float(match[1]))
    try:
        return Delay(seconds=duration(0.001, 600.0)(text))
    except ValueError as exc:
        raise ValueError(f"{exc}, or a percentile from p50 to p99.99") from None


def hash_on(text: str) -> HashOn:
    """Parse user, header:NAME or prefix."""
    kind, _, rest = text.partition(":")
    if text == "user":
        return HashOn("user")
    if text == "prefix":
        return HashOn("prefix")
    try:
        if kind == "header":
            return HashOn("header", header_name(rest).encode("ascii"))
    except ValueError:
        pass  # reported below, with the other forms
    raise ValueError("expected user, header:NAME or prefix")


def header_name(text: str) -> str:
    """Parse the name of a field; return it in lower case."""
    if not _TOKEN.fullmatch(text):
        raise ValueError("expected the name of a header field, such as x-team")
    return text.lower()


# A timeout that can't be switched off, and one that 0 switches off.
TIMEOUT: Final = duration(0.001, DAY_S)
OPTIONAL_TIMEOUT: Final = duration(0.0, DAY_S)
# The path of a file; whether it can be read is found where it is read.
file_path: Final = _matching(r"[^\0]*", "a path without NUL")
# A number of requests, `auto`, or `off`, which is 0.
concurrency: Final[Callable[[str], int | Literal["auto"]]] = _or_word(
    integer(1, _MOST_CONCURRENCY), {"auto": "auto", "off": 0}
)
redis_prefix: Final = _matching(r"[!-~]{1,64}", "1 to 64 visible ASCII characters")
# RFC 9110 §5.5; what is beyond ASCII reads differently on each side.
header_value: Final = _matching(
    r"[!-~](?:[ \t!-~]{0,4094}[!-~])?", "1 to 4096 visible ASCII characters, spaces only inside"
)
# Of an upstream or a route; both are labels of metrics.
name: Final = _matching(r"[A-Za-z0-9._-]{1,64}", "a name of 1 to 64 letters, digits, `.`, `_` and `-`")
# `*` stands for any text.
model_pattern: Final = _spelled(MODEL_PATTERN)
model_name: Final = _matching(
    r"[!-)+-~]{1,256}", "the name of one model, 1 to 256 visible ASCII characters without `*`"
)
tag: Final = _spelled(TAG)
key_name: Final = _spelled(KEY_NAME, "names of keys, and never a key itself")
owner: Final = _spelled(OWNER)


def moment(text: str) -> int:
    """Parse a date, or a date and time with its zone (RFC 3339), to Unix seconds. A date begins at midnight UTC."""
    match = _MOMENT.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        found = datetime.datetime.fromisoformat(text.upper() if match[1] else f"{text}T00:00:00Z")
    except ValueError:
        raise ValueError("expected a date such as 2027-01-31, or 2027-01-31T12:00:00Z") from None
    return math.ceil(found.timestamp())


def _port_of(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("expected a port from 1 to 65535")
    return port


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            return ipaddress.ip_address(host).version == 6 and "%" not in host
        except ValueError:
            return False
    return len(host) <= _HOST_CHARS and _HOST.fullmatch(host) is not None


def _id_of(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal()):
        return None
    return integer(0, _MAX_ID)(text)
