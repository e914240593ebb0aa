"""Text to value. Each parser returns the value or raises ValueError whose text says what was expected.

Knows: units, bounds and spellings. Does not know: which variable it reads. Messages never hold the text that
was given: it may be a secret.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final, Literal
from urllib.parse import urlsplit

from velox.types import Address, Origin, Secret

__all__ = [
    "address",
    "address_or_off",
    "count",
    "duration",
    "file_path",
    "host_names",
    "integer",
    "one_of",
    "origin",
    "origins",
    "path",
    "prefixes",
    "secret",
    "size",
    "size_or_off",
    "statuses",
    "switch",
]

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
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_VISIBLE: Final = re.compile(r"[!-~]+")
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


def size_or_off(low: int, high: int) -> Callable[[str], int | None]:
    """Return a parser of sizes, as size() has them, or the word off."""
    read = size(low, high)

    def parse(text: str) -> int | None:
        if text == "off":
            return None
        try:
            return read(text)
        except ValueError as exc:
            raise ValueError(f"{exc}, or off") from None

    return parse


def switch(text: str) -> bool:
    """Parse on or off."""
    match text.lower():
        case "on" | "true" | "yes" | "1":
            return True
        case "off" | "false" | "no" | "0":
            return False
        case _:
            raise ValueError("expected on or off")


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that takes one of `words` as it stands."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


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
        host = ""
    host = "127.0.0.1" if host == "localhost" else host
    try:
        return Address("tcp", host=str(ipaddress.ip_address(host)), port=integer(0, 65535)(port))
    except ValueError:
        raise ValueError("expected IP:PORT, [IPV6]:PORT, localhost:PORT or unix:PATH") from None


def address_or_off(text: str) -> Address | None:
    """Parse an address, or the word off."""
    if text == "off":
        return None
    try:
        return address(text)
    except ValueError as exc:
        raise ValueError(f"{exc}, or off") from None


def origin(text: str) -> Origin:
    """Parse http(s)://HOST[:PORT][/BASE] or unix:PATH.

    User info, query and fragment are refused: none would be sent.
    """
    if text.startswith("unix:"):
        return Origin("http", "localhost", 80, "", b"localhost", unix_path=address(text).path)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("expected http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]") from None
    # urlsplit drops TAB, CR and LF silently and strips spaces: only visible characters may come this far.
    if parts.scheme not in {"http", "https"} or not _VISIBLE.fullmatch(text) or not _is_host(host) or port == 0:
        raise ValueError("expected http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]")
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


def origins(text: str) -> tuple[Origin, ...]:
    """Parse origins with commas between them: where requests go first, and where next when it fails."""
    found = tuple(origin(item.strip()) for item in text.split(","))
    if len(set(map(str, found))) != len(found):
        raise ValueError("expected each origin once")
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


def host_names(text: str) -> frozenset[str]:
    """Parse names of hosts with commas between them."""
    names = [item.strip().lower().removesuffix(".") for item in text.split(",")]
    if not all(_HOST.fullmatch(name) and len(name) <= _HOST_CHARS for name in names):
        raise ValueError("expected names of hosts, commas between them, without port")
    return frozenset(names)


def secret(text: str) -> Secret:
    """Parse a credential that goes into a header: visible ASCII, so that it can't end the header's line."""
    if not _VISIBLE.fullmatch(text):
        raise ValueError("expected visible ASCII characters only: no space, line end or other control character")
    return Secret(text)


def file_path(text: str) -> str:
    """Parse the path of a file; whether it can be read is found where it is read."""
    if "\0" in text:
        raise ValueError("expected a path without NUL")
    return text


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            return ipaddress.ip_address(host).version == 6 and "%" not in host
        except ValueError:
            return False
    return len(host) <= _HOST_CHARS and _HOST.fullmatch(host) is not None
