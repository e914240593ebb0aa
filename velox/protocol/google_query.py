"""The system parameters of Google's APIs in a query: those by which a client would change what Velox reads.

Every API of Google's takes them beside its own (https://cloud.google.com/apis/docs/system-parameters): `fields` leaves
parts of an answer out, its usage as well; `alt` and `callback` put it into another form; `$httpMethod`, `$httpHeaders`
and `$req` make another request of it. Each may have a `$` in front of its name, and be percent-encoded.

Knows: names. Does not know: which upstreams are Google's (gateway/translation/forward.py, providers/target.py).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = ["is_googles", "without_system_parameters"]

_PATHS: Final = (b"/v1beta", b"/v1alpha", b"/upload/v1")
_MODELS: Final = b"models/"
_ALT: Final = b"alt"
# What an answer may be, of those that are read: JSON, and events.
_READ: Final = frozenset({b"json", b"sse"})
# In the place of `alt`, that of a file which is fetched.
_MEDIA: Final = b"media"
# Without their `$`. Whoever pays, or asks, is said by the credential.
_ALWAYS: Final = frozenset({b"callback", b"quotauser", b"userproject", b".xgafv", b"xgafv", b"userip"})
# They change an answer only, which of these methods is nobody's usage: a list may be asked for by its names alone.
_OF_ANSWERS: Final = frozenset({b"fields", b"prettyprint"})
_READING: Final = frozenset({b"GET", b"HEAD"})
# A client may write any bytes.
_UNTOLD: Final = re.compile(rb"[^a-z0-9$._-]")
_LONGEST_NAME: Final = 32
# A client's key at the provider, or at this gateway.
_CREDENTIALS: Final = frozenset({b"key", b"access_token", b"oauth_token", b"api_key", b"api-key"})


def is_googles(path: bytes) -> bool:
    """Return True for a path that only an API of Google's has: of its versions, or `.../models/NAME:VERB`."""
    return path.startswith(_PATHS) or (_MODELS in path and b":" in path[path.rfind(b"/") :])


def without_system_parameters(query: bytes, method: bytes, *, keeps_key: bool = False) -> tuple[bytes, list[str]]:
    """Return a query without what a client may not say, and the names that were dropped, without secrets.

    keeps_key: a credential in it is the client's own at the provider, and goes up.
    """
    kept: list[bytes] = []
    dropped: list[str] = []
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        name = unquote_to_bytes(name).lower()
        if name.lstrip(b"$") in _CREDENTIALS:
            if keeps_key:
                kept.append(part)
        elif _may_pass(name, unquote_to_bytes(value).lower(), method):
            kept.append(part)
        else:
            dropped.append(_UNTOLD.sub(b"?", name[:_LONGEST_NAME]).decode("ascii"))
    return b"&".join(kept), dropped


def _may_pass(name: bytes, value: bytes, method: bytes) -> bool:
    bare = name.lstrip(b"$")
    if bare == _ALT:
        return value in _READ or (value == _MEDIA and method in _READING)
    if bare in _ALWAYS or (bare in _OF_ANSWERS and method not in _READING):
        return False
    return bare in _OF_ANSWERS or not name.startswith(b"$")
