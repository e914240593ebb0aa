"""The target of a request, and which paths may pass through.

Knows: origin-form (RFC 9112 §3.2.1), absolute-form (§3.2.2), and the spellings that two servers could read as two
paths.
Does not know: routes. A target that passes is used byte for byte, for auth, for routing and upstream alike.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from velox.errors import Reason, VeloxError

__all__ = ["SERVER", "origin_form", "split_target"]

# The target of a request about a server as a whole (RFC 9112 §3.2.4). Only OPTIONS may have it.
SERVER: Final = b"*"

# What nearly every request looks like: no segment empty or dotted in front, nothing encoded, no ";".
# The query is any visible ASCII but "#" (no fragment goes to a server) and "\" (some servers read it as "/").
_PLAIN: Final = re.compile(
    rb"(?=/)((?:/[A-Za-z0-9_~:@!$&'()*+,=-][A-Za-z0-9._~:@!$&'()*+,=-]*)*/?)(?:\?([!\"$-\[\]-~]*))?"
)
_TARGET: Final = re.compile(rb"/[!\"$-\[\]-~]*")
_ABSOLUTE: Final = re.compile(
    rb"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(?=[/?]|\Z)", re.IGNORECASE
)
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_MOST_PORTS: Final = 65535
_BAD_DECODED: Final = re.compile(rb"[\x00-\x1f\x7f\\;]|//|/\.\.?(?:/|$)")


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Return (path, query) of a request's target; the query comes without its "?".

    Raises VeloxError BAD_REQUEST for absolute-form, authority-form and `*`, for a fragment, and for a path
    that is ambiguous once decoded: dot segments, controls, `\\`, `;`, `//`, broken or overlong escapes.
    A lone encoded slash (`org%2Fname`) is fine.
    """
    plain = _PLAIN.fullmatch(target)
    if plain is not None:
        return plain[1], plain[2] or b""
    if not _TARGET.fullmatch(target):
        raise _refused(
            "request target is no path from '/' on, in visible ASCII, without '#' and '\\', and no URL of VELOX_HOSTS"
        )
    path, _, query = target.partition(b"?")
    _check_unusual(path)
    return path, query


def origin_form(target: bytes, hosts: frozenset[bytes]) -> bytes:
    """Return a target from its path on. hosts: names of this server, in lower case.

    RFC 9112 §3.2.2 wants absolute-form understood, and its host to count instead of the Host field's. One that is none
    of ours is left as it is, and refused as any target that is no path: Velox is nobody's forward proxy, and what such
    a client sends is not for our upstreams.
    """
    found = None if target.startswith(b"/") else _ABSOLUTE.match(target)
    if found is None or found[1].lower() not in hosts or (found[2] and int(found[2]) > _MOST_PORTS):
        return target
    rest = target[found.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _check_unusual(path: bytes) -> None:
    if _BAD_ESCAPE.search(path):
        raise _refused("request path has a '%' that no two hexadecimal digits follow")
    decoded = unquote_to_bytes(path)
    if _BAD_DECODED.search(decoded):
        raise _refused("request path has a dot segment, an empty segment, ';', '\\' or a control character")
    try:
        decoded.decode()
    except UnicodeDecodeError:
        raise _refused("request path is not UTF-8 once decoded") from None


def _refused(message: str) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, message, close=True)
