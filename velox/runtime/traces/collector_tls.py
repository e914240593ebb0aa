"""TLS with a collector that has authorities of its own, or asks for a certificate.

Knows: when its files are read again. Does not know: whether they fit (settings/telemetry.py), or who connects.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from velox.settings.telemetry import CollectorTls

__all__ = ["CollectorTrust"]


class CollectorTrust:
    """Makes the context, and again once a file is another one: certificates of clients often last a day."""

    def __init__(self, files: CollectorTls) -> None:
        self._files: Final = files
        self._state: tuple[tuple[int, int, int], ...] = ()
        self._context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return "<CollectorTrust>"

    def context(self) -> ssl.SSLContext:
        """Return it. Files that are no good are not taken while there is one. Raises OSError, as ssl.SSLError is."""
        try:
            state = self._look()
            if self._context is None or state != self._state:
                self._context = self._make()
                self._state = state
        except OSError:
            if self._context is None:
                raise
        return self._context

    def _make(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.create_default_context(cafile=files.ca_file)
        if files.cert_file is not None:
            # A key that asks for a password would block on the terminal: an empty one makes it an error.
            context.load_cert_chain(files.cert_file, files.key_file, password="")
        return context

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        found = [
            Path(name).stat() for name in (self._files.ca_file, self._files.cert_file, self._files.key_file) if name
        ]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)
