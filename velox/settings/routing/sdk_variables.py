"""Variables that SDKs and HTTP clients read, as settings of this gateway: where its upstream is, whose certificates it
trusts.

    OPENAI_BASE_URL=https://llm.example.com/v1       VELOX_UPSTREAM_ORIGIN=https://llm.example.com
    ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL       the origin of the upstream that their key makes (found.py)
    REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE               VELOX_UPSTREAM_CA_FILE

An application beside the gateway has the gateway's own address in such a variable, often in the same environment. To
send requests there would be a loop. So a URL that is this gateway's is passed over, and one that may be is told of and
not used: plain HTTP to the port of this gateway under a name that nothing here knows, or a host that is called velox.

Knows: the names, what stands at the end of such a URL, and how a gateway's own address looks. Does not know: names that
only a resolver or a load balancer could tell; those are for VELOX_HOSTS and VELOX_PUBLIC_URL to say.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from velox.settings import parse
from velox.settings.checks.certificates import ca_problem
from velox.settings.problems import quoted
from velox.types import Address, Origin

__all__ = ["BaseUrl", "OwnPlaces", "base_url", "ca_bundle"]

_LOOPBACK: Final = frozenset({"localhost", "host.docker.internal", "host.containers.internal", "0.0.0.0", "::"})
_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_OPENSSL: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # OpenSSL reads these itself, as does every upstream's context


class _Variables(NamedTuple):
    """Those of one provider's SDKs, the first one goes first. end: what stands at the end of each, and not in origins.

    needs_end: without it, the SDK would ask for other paths than those that Velox is asked for.
    """

    names: tuple[str, ...]
    end: str
    needs_end: bool


_OF_PROVIDERS: Final[Mapping[str, _Variables]] = MappingProxyType(
    {
        "openai": _Variables(("OPENAI_BASE_URL", "OPENAI_API_BASE"), "/v1", needs_end=True),
        "anthropic": _Variables(("ANTHROPIC_BASE_URL",), "/v1", needs_end=False),
        "gemini": _Variables(("GOOGLE_GEMINI_BASE_URL",), "/v1beta", needs_end=False),
    }
)


@dataclass(frozen=True, slots=True)
class OwnPlaces:
    """Where clients reach this gateway. hosts: its names, lower-case. public: how clients reach it by a proxy."""

    listen: tuple[Address, ...] = ()
    hosts: frozenset[str] = frozenset()
    public: Origin | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OwnPlaces:
        """Return what the variables say, by field. An invalid one is missing."""
        return cls(values.get("listen") or (), values.get("hosts") or frozenset(), values.get("public_url"))

    def have(self, origin: Origin) -> bool:
        """Say whether an origin is this gateway."""
        if self.public is not None and (origin.host, origin.port) == (self.public.host, self.public.port):
            return True
        if origin.unix_path:
            return any(each.path == origin.unix_path for each in self.listen)
        named = {*self.hosts, socket.gethostname().lower()}
        return any(
            origin.port == each.port and (_is_here(origin.host) or origin.host in named or origin.host == each.host)
            for each in self.listen
        )

    def may_have(self, origin: Origin) -> bool:
        """Say whether it may be this gateway, under a name that nothing here knows."""
        if "velox" in origin.host:
            return True
        ports = {each.port for each in self.listen}
        return origin.scheme == "http" and origin.port in ports and not _is_address(origin.host)


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """What a variable says. origin None: it is not used, and why says the reason, "" where none needs to be told."""

    name: str
    origin: Origin | None = None
    why: str = ""


def base_url(provider: str, environ: Mapping[str, str], own: OwnPlaces) -> BaseUrl | None:
    """Return what a provider's variable says of the place of its API; None: there is none, or none is set."""
    known = _OF_PROVIDERS.get(provider)
    name = "" if known is None else next((each for each in known.names if environ.get(each)), "")
    if known is None or not name:
        return None
    text = environ[name].rstrip("/")
    try:
        origin = parse.origin(text)
    except ValueError:
        return BaseUrl(name, why="it is no http(s)://HOST[:PORT][/PATH] without a user, a query and a fragment")
    if own.have(origin):
        return BaseUrl(name)
    instead = "VELOX_UPSTREAM_ORIGIN" if provider == "openai" else "`origin` of an upstream"
    if own.may_have(origin):
        return BaseUrl(name, why=f"{origin} may be this gateway itself; if it is another server, {instead} says so")
    if known.needs_end and not origin.base_path.endswith(known.end):
        why = f"it does not end with {known.end}, and clients of this gateway ask for {known.end}/...; {instead} can"
        return BaseUrl(name, why=f"{why} name it all the same")
    return BaseUrl(name, replace(origin, base_path=origin.base_path.removesuffix(known.end)))


def ca_bundle(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the variable that names the authorities of upstreams, its file, and why it can't be used; "" for none.

    It is one of the HTTP clients that many SDKs are built on. A variable of OpenSSL itself goes first.
    """
    if any(environ.get(name) for name in _OPENSSL):
        return "", "", ""
    name = next((each for each in _BUNDLES if environ.get(each)), "")
    if not name:
        return "", "", ""
    expected = ca_problem(environ[name])
    return (name, "", f"{quoted(environ[name])}: {expected}") if expected else (name, environ[name], "")


def _is_here(host: str) -> bool:
    return host in _LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False
