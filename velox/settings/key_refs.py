"""The credentials of upstreams: each by reference, never in the file itself.

Knows: `env:NAME` and `file:PATH`, and how the secret is read from there. Does not know: which upstream it is for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Final

from velox.policy.routes import KeyRef
from velox.settings import parse
from velox.settings.keys import read_key_file
from velox.settings.problems import quoted
from velox.types import Secret

__all__ = ["key_ref_parser", "variable_key"]

_FORMS: Final = "expected env:NAME or file:PATH, and never a key itself"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# A name that may be shown: who writes `env:` before a key has seldom one like this.
_USUAL_NAME: Final = re.compile(r"[A-Z][A-Z0-9]{0,31}(?:_[A-Z0-9]{1,31}){1,7}")
_LONGEST_BYTES: Final = 16 * 1024


def key_ref_parser(environ: Mapping[str, str]) -> Callable[[str], KeyRef]:
    """Return a parser of references, which reads what they point to. Its messages never hold what may be a key."""

    def read(text: str) -> KeyRef:
        kind, _, rest = text.partition(":")
        if kind == "env" and _NAME.fullmatch(rest):
            return _found(text, _from_environment(rest, environ))
        if kind == "file" and rest and "\0" not in rest:
            return _found(text, _from_file(rest))
        raise ValueError(_FORMS)

    return read


def variable_key(name: str, secret: Secret) -> KeyRef:
    """Return the credential that was given in the variable `name`."""
    return _found(f"env:{name}", secret)


def _found(ref: str, secret: Secret) -> KeyRef:
    return KeyRef(ref, hashlib.sha256(secret.reveal().encode("ascii")).digest(), secret)


def _from_environment(name: str, environ: Mapping[str, str]) -> Secret:
    shown = name if _USUAL_NAME.fullmatch(name) else "that is named here"
    text = environ.get(name, "")
    if not text:
        raise ValueError(f"expected a key in the variable {shown}, which is not set")
    try:
        return parse.secret(text)
    except ValueError as exc:
        raise ValueError(f"in the variable {shown}, {exc}") from None


def _from_file(path: str) -> Secret:
    shown = quoted(path) if "/" in path else "that is named here"
    try:
        content = read_key_file(path)
        if len(content) > _LONGEST_BYTES:
            raise ValueError(f"it is over {_LONGEST_BYTES} bytes")
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise ValueError(f"expected a key in the file {shown}, which can't be read ({why})") from None
    text = content.decode("latin-1").strip(" \t\r\n")
    if not text:
        raise ValueError(f"expected a key in the file {shown}, which is empty")
    try:
        return parse.secret(text)
    except ValueError as exc:
        raise ValueError(f"in the file {shown}, {exc}") from None
