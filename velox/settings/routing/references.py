"""Secrets of upstreams, which never stand in the file: `env:NAME` is what a variable holds, `file:PATH` what a file.

    ReferenceReader.key()     a credential, of `keys`
    ReferenceReader.value()   what a header or a parameter of the query is, where it is given by reference

No message has what may be a secret: neither the value, nor what was written by mistake in place of a reference.

Knows: references, and what a name of a variable or a file looks like that may be shown. Does not know: which fields may
have one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from velox.policy.routes.entries import KeyRef
from velox.settings import parse
from velox.settings.callers.keys import read_key_file
from velox.settings.problems import quoted
from velox.types import Secret

__all__ = ["ReferenceReader", "found_key", "is_reference", "path_of"]

_FORMS: Final = "expected env:NAME or file:PATH, and never a key itself"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# A name that may be shown: a key written after `env:` by mistake rarely looks like this.
_USUAL_NAME: Final = re.compile(
    r"[A-Z][A-Z0-9]{0,31}(?:_[A-Z0-9]{1,31}){1,7}|[A-Z]{1,16}[0-9]{0,2}|[a-z]{1,16}(?:_[a-z]{1,16}){1,4}[0-9]{0,2}"
)
_USUAL_FILE: Final = re.compile(r".*/.*|[A-Za-z_-]{1,24}[0-9]{0,2}\.[a-z]{1,4}", re.DOTALL)
_LONGEST_BYTES: Final = 16 * 1024


class ReferenceReader:
    """Reads what references point to. environ: where `env:NAME` is looked up.

    missing: gets what is wrong with one that leads nowhere, which then is no problem: for who asks nothing of
    upstreams. None: it is one.
    """

    def __init__(self, environ: Mapping[str, str], missing: list[str] | None) -> None:
        self._environ: Final = environ
        self._missing: Final = missing

    def key(self, text: str) -> KeyRef:
        """Return a credential. Raises ValueError."""
        kind, _, rest = text.partition(":")
        is_variable = kind == "env" and bool(_NAME.fullmatch(rest))
        if not is_variable and (kind != "file" or not rest or "\0" in rest):
            raise ValueError(_FORMS)
        try:
            found = self._secret(rest) if is_variable else _secret_in_file(rest)
            return found_key(text, found)
        except ValueError as exc:
            if self._missing is None:
                raise
            self._missing.append(str(exc))
            return KeyRef(text, hashlib.sha256(text.encode()).digest(), Secret(""))

    def value(self, text: str) -> str:
        """Return what a reference of is_reference() stands for. Raises ValueError."""
        kind, _, rest = text.partition(":")
        if kind == "env" and not _NAME.fullmatch(rest):
            raise ValueError("expected env:NAME with the name of a variable")
        try:
            return self._variable(rest, "a value") if kind == "env" else _text_in_file(rest, "a value")
        except ValueError as exc:
            if self._missing is None:
                raise
            self._missing.append(str(exc))
            return "-"

    def _variable(self, name: str, what: str) -> str:
        text = self._environ.get(name, "")
        if not text:
            shown = name if _USUAL_NAME.fullmatch(name) else "that is named here"
            state = "empty" if name in self._environ else "not set"
            raise ValueError(f"expected {what} in the variable {shown}, which is {state}")
        return text

    def _secret(self, name: str) -> Secret:
        text = self._variable(name, "a key")
        try:
            return parse.secret(text)
        except ValueError as exc:
            shown = name if _USUAL_NAME.fullmatch(name) else "that is named here"
            raise ValueError(f"in the variable {shown}, {exc}") from None


def found_key(ref: str, secret: Secret) -> KeyRef:
    """Return a credential that was found. ref: how it is called."""
    return KeyRef(ref, hashlib.sha256(secret.reveal().encode("ascii")).digest(), secret)


def is_reference(text: str) -> bool:
    """Say whether a value is one, right or wrong: as a text of its own it would go up in place of a secret."""
    return text.startswith(("env:", "file:"))


def path_of(text: str) -> str:
    """Return the path of a reference to a file, "" for any other text."""
    path = text.removeprefix("file:") if text.startswith("file:") else ""
    return "" if "\0" in path else path


def _secret_in_file(path: str) -> Secret:
    text = _text_in_file(path, "a key")
    try:
        return parse.secret(text)
    except ValueError as exc:
        raise ValueError(f"in the file {_shown(path)}, {exc}") from None


def _text_in_file(path: str, what: str) -> str:
    """Return what a file has, without surrounding space."""
    try:
        if not path or "\0" in path:
            raise ValueError("expected file:PATH")
        content = read_key_file(path)
        if len(content) > _LONGEST_BYTES:
            raise ValueError(f"it is over {_LONGEST_BYTES} bytes")
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise ValueError(f"expected {what} in the file {_shown(path)}, which can't be read ({why})") from None
    text = content.decode("latin-1").strip(" \t\r\n")
    if not text:
        raise ValueError(f"expected {what} in the file {_shown(path)}, which is empty")
    return text


def _shown(path: str) -> str:
    return quoted(path) if _USUAL_FILE.fullmatch(path) else "that is named here"
