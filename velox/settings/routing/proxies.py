"""Outgoing proxies as they are written: `proxy` of an upstream, and the variables that other programs read.

    proxy: http://proxy.example:3128      its own; `off`: none
    proxy: env:EGRESS_PROXY               where it has a password
    HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, and the same in lower case, which come first as in curl

Knows: what a URL of one may have. Does not know: which host is asked by which (policy/routes/proxies.py). No message
has a URL: a password may stand in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from velox.policy.routes.proxies import EnvironmentProxies, Proxy
from velox.types import Secret

__all__ = ["environment_proxies", "parse_proxy"]

_FORMS: Final = "expected http://HOST:PORT or https://HOST:PORT of a proxy"
_USUAL_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_OF_FILE: Final = "expected `off`, http(s)://HOST:PORT without a password, or env:NAME for one that may have it"
_ENV: Final = "env:"


def parse_proxy(text: str, environ: Mapping[str, str]) -> Proxy | Literal["off"]:
    """Return what an upstream's field says. Raises ValueError with what is expected."""
    if text == "off":
        return "off"
    if text.startswith(_ENV):
        found = environ.get(text.removeprefix(_ENV), "")
        if not found:
            raise ValueError(f"{_FORMS} in that variable, which is not set or empty")
        return _proxy(found)
    try:
        proxy = _proxy(text)
    except ValueError:
        raise ValueError(_OF_FILE) from None
    if proxy.login is not None:
        raise ValueError(_OF_FILE)
    return proxy


def environment_proxies(environ: Mapping[str, str]) -> tuple[EnvironmentProxies, tuple[str, ...]]:
    """Return what the environment says, and the names of variables that can't be used."""
    unusable: list[str] = []
    http = _first(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), environ, unusable)
    https = _first(("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"), environ, unusable)
    direct = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    entries = tuple(each.strip().lower() for each in direct.replace(" ", ",").split(",") if each.strip())
    return EnvironmentProxies(http, https, entries), tuple(dict.fromkeys(unusable))


def _first(names: tuple[str, ...], environ: Mapping[str, str], unusable: list[str]) -> Proxy | None:
    """Return the proxy of the first of these variables that is set."""
    name = next((each for each in names if environ.get(each)), "")
    if not name:
        return None
    try:
        return replace(_proxy(environ[name]), where=name)
    except ValueError:
        unusable.append(name)
        return None


def _proxy(text: str) -> Proxy:
    """Return a proxy by its URL; without a scheme it is http."""
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
        login = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    except ValueError:
        raise ValueError(_FORMS) from None
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    if not host or not host.isascii() or port == 0 or parts.scheme not in _USUAL_PORTS or not text.isprintable():
        raise ValueError(_FORMS)
    if parts.path not in ("", "/") or parts.query or parts.fragment or (login is not None and not login.isprintable()):
        raise ValueError(_FORMS)
    return Proxy(scheme, host, port or _USUAL_PORTS[scheme], None if login is None else Secret(login))
