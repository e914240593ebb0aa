"""Where clients connect, in the ways that people are used to: `PORT`, an address without a port, options of `serve`.

Knows: how each of them, and VELOX_LISTEN, become one text for that setting. Does not know: what an address may be
(parse.py), or who gives which.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from velox.settings.checks.contradictions import Given

__all__ = ["HOST", "PORT", "listen_text"]

# How the command line's are called among the overrides; PORT is the variable of the environment, too, which platforms
# set (Cloud Run, Heroku, Railway, Render).
HOST: Final = "HOST"
PORT: Final = "PORT"
_USUAL_HOST: Final = "127.0.0.1"
_USUAL_PORT: Final = "8080"
_MOST_PORT: Final = 65535
_ONE: Final = "expected one address with a port beside --port: give all with --listen"


def listen_text(given: Given | None, environ: Mapping[str, str], options: Mapping[str, str]) -> Given | None:
    """Return VELOX_LISTEN as it then is, None where nothing says a thing of it.

    given: the setting itself, None where it is not set. options: HOST and PORT of the command line. A port of the
    command line replaces that of the setting; PORT is of addresses that have none. Raises ValueError for a port of the
    command line beside several addresses.
    """
    host, port = options.get(HOST, ""), options.get(PORT, "")
    usual = environ.get(PORT, "")
    usual = usual if usual.isascii() and usual.isdecimal() and 0 < int(usual) <= _MOST_PORT else ""
    texts = [each.strip() for each in given.text.split(",")] if given is not None else []
    if port and not host and len(texts) > 1:
        raise ValueError(_ONE)
    if host:
        of_setting = _port_of(texts[0]) if len(texts) == 1 else ""
        return Given(f"{_bracketed(host)}:{port or of_setting or usual or _USUAL_PORT}", "command line", "--host")
    if port:
        old = _host_of(texts[0]) if texts else _USUAL_HOST
        return Given(f"{old}:{port}", "command line", "--port")
    if given is None:
        return Given(f"{_USUAL_HOST}:{usual}", "environment", PORT) if usual else None
    with_ports = [f"{each}:{usual or _USUAL_PORT}" if _is_host(each) else each for each in texts]
    return given if with_ports == texts else given.with_text(",".join(with_ports))


def _is_host(text: str) -> bool:
    """Say whether this is an address without a port. An IPv6 address stands in brackets."""
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    elif ":" in text:
        return False
    try:
        return text == "localhost" or bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _host_of(text: str) -> str:
    """Return the host of an address, which is what stands before its port; of a unix socket the usual one."""
    if _is_host(text):
        return text
    return _USUAL_HOST if text.startswith("unix:") else text.rpartition(":")[0]


def _port_of(text: str) -> str:
    return "" if _is_host(text) or text.startswith("unix:") else text.rpartition(":")[2]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
