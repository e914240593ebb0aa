"""The certificate of the admin listener: read at the start, and again when its files have changed.

Knows: when a file has changed, and that files which can't be used change nothing. Does not know: connections. The
supervisor makes it; the admin process looks at the files, so that nothing passes between the two.
"""

from __future__ import annotations

import logging
from typing import Final

from velox.net.client.tls_context import renewed_context, server_context
from velox.policy.settled import Settled
from velox.runtime.file_state import FileState, file_state
from velox.settings import Settings
from velox.settings.checks.certificates import ADMIN_NAMES, CertificateError, read_certificate

__all__ = ["AdminCertificate"]

_PROTOCOLS: Final = ("http/1.1",)
_BAD_FOR_S: Final = 2.0


class AdminCertificate:
    """context: for the handshakes that begin from now on. Raises CertificateError."""

    def __init__(self, cert: str, key: str, logger: logging.Logger) -> None:
        self._files: Final = cert, key
        self._logger: Final = logger
        # Before the files are read: what changes while they are is a change.
        self._seen: Final[Settled[tuple[FileState, ...]]] = Settled(self._mark())
        self._now = read_certificate(cert, key, None, ADMIN_NAMES)
        self.context = server_context(self._now, _PROTOCOLS)

    def __repr__(self) -> str:
        return f"<AdminCertificate {self._files[0]} until {self._now.not_after}>"

    @property
    def not_after_s(self) -> int:
        """Return when it expires, Unix time."""
        return self._now.not_after_s

    @classmethod
    def of(cls, settings: Settings, logger: logging.Logger) -> AdminCertificate | None:
        """Return that of a gateway; None: no TLS. Raises CertificateError."""
        cert, key = settings.admin_tls_cert_file, settings.admin_tls_key_file
        return None if cert is None or key is None else cls(cert, key, logger)

    def look(self, now_s: float) -> None:
        """Look at the files if it is time. now_s: monotonic."""
        if not self._seen.is_due(now_s):
            return
        mark = self._mark()
        if not self._seen.see(mark, now_s):
            return
        try:
            found = read_certificate(*self._files, None, ADMIN_NAMES)
            context = renewed_context(self.context, self._now, found, _PROTOCOLS)
        except (CertificateError, OSError) as exc:
            if self._seen.doubtful_s(now_s) >= _BAD_FOR_S:
                self._seen.take(mark)
                self._logger.error(
                    "the new TLS certificate can't be used, the previous one stays in use: %(error)s", {"error": exc}
                )
            return
        self._seen.take(mark)
        if found != self._now:
            self._now, self.context = found, context
            self._logger.info(
                "the admin listener's certificate is new, and valid until %(not_after)s", {"not_after": found.not_after}
            )

    def _mark(self) -> tuple[FileState, ...]:
        return tuple(map(file_state, self._files))
