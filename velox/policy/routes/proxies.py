"""Outgoing proxies: which one stands before an origin, by an upstream's own word or by the environment's.

Knows: what HTTPS_PROXY, HTTP_PROXY and NO_PROXY mean for a host. Does not know: how they are written
(settings/routing/proxies.py), or how a proxy is spoken to (net/upstream/proxied.py).
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from velox.types import Origin, Secret

__all__ = ["NO_PROXIES", "EnvironmentProxies", "Proxy", "proxy_of"]

_LOCALHOST: Final = "localhost"
# Where clouds give credentials to their machines: from there only.
_METADATA: Final = frozenset({"metadata.google.internal", "metadata"})


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy. scheme: of the connection to it. login: USER:PASSWORD that it is told; None: none.

    where: the variable that names it, "" for an upstream's own field. As a text it has no password.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    login: Secret | None = field(default=None, repr=False)
    where: str = field(default="", compare=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def authorization(self) -> bytes:
        """The value of Proxy-Authorization (RFC 7617), b"" for none."""
        if self.login is None:
            return b""
        return b"Basic " + base64.b64encode(self.login.reveal().encode("utf-8"))


@dataclass(frozen=True, slots=True)
class EnvironmentProxies:
    """What the environment says. direct: hosts without one, each "*", a domain, an address, or a network.

    A domain stands for those below it. With `:PORT` behind it, it is for that port only.
    """

    http: Proxy | None = None
    https: Proxy | None = None
    direct: tuple[str, ...] = ()

    def of(self, scheme: str, host: str, port: int) -> Proxy | None:
        """Return the proxy before a host, None for none. This machine has none, nor what gives it credentials."""
        proxy = self.https if scheme == "https" else self.http
        if proxy is None or host == _LOCALHOST or host in _METADATA:
            return None
        address = _address(host)
        if address is not None and (address.is_loopback or address.is_link_local):
            return None
        return None if any(_covers(each, host, port) for each in self.direct) else proxy

    def each(self) -> Iterator[Proxy]:
        """Return those that there are."""
        yield from (proxy for proxy in (self.https, self.http) if proxy is not None)


NO_PROXIES: Final = EnvironmentProxies()


def proxy_of(own: Proxy | Literal["usual", "off"], origin: Origin, environment: EnvironmentProxies) -> Proxy | None:
    """Return the proxy before an origin. own: what its upstream says of it."""
    if origin.unix_path or own == "off":
        return None
    return environment.of(origin.scheme, origin.host.lower(), origin.port) if own == "usual" else own


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _covers(entry: str, host: str, port: int) -> bool:
    """Say whether an entry of NO_PROXY is about a host."""
    if entry == "*":
        return True
    address = _address(host)
    try:
        if address is not None and address in ipaddress.ip_network(entry.strip("[]"), strict=False):
            return True
    except ValueError:
        pass
    name, colon, of_port = entry.rpartition(":")
    if colon and of_port.isdecimal() and (":" not in name or name.startswith("[")):
        if int(of_port) != port:
            return False
        entry = name
    domain = entry.strip("[]").removeprefix("*").removeprefix(".")
    return bool(domain) and (host == domain or (address is None and host.endswith(f".{domain}")))
