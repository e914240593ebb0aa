"""The values of settings that are more than a number or a word.

Knows: what an address, an origin and a secret are. Does not know: how they are written in a variable.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

__all__ = ["Address", "Origin", "Secret", "SocketOwner"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener is bound. tcp: host (an IP literal) and port, 0 lets the kernel choose; unix: path."""

    kind: Literal["tcp", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect. A unix socket counts: file permissions guard it."""
        return self.kind == "unix" or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        return f"{_bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """Whom a unix socket's file is given to. text: as it was written. uid, gid: None leaves what it is."""

    text: str
    uid: int | None
    gid: int | None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go. base_path is "" or "/x", never "/x/"; an IPv6 host has no brackets.

    unix_path: the socket to connect to instead of host and port, which then only fill the Host header.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    base_path: str
    host_header: bytes
    unix_path: str = ""

    def __str__(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        return f"{self.scheme}://{self.host_header.decode('ascii')}{self.base_path}"


class Secret:
    """Text that no repr, str, format or traceback shows; `reveal` gives it out."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself, for the one place that sends it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __str__(self) -> str:
        return "hidden"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
