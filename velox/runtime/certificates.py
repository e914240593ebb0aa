"""The certificate of the gateway: looked after by the supervisor, taken over by each worker.

Knows: when its files have changed, and that a pair which can't be used changes nothing. Does not know: what is in a
certificate (settings/certificate.py), or what connections do with it.

Files may be written over, replaced, or reached through a symbolic link that is swapped (Kubernetes, certbot): what is
looked at is what the path leads to. A change is read once it has settled (policy/settled.py), and a pair must not fit
for a while before that is said, because certificate and key are two files that change one after the other.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import orjson

from velox.net.client.tls import TlsIngress
from velox.net.client.tls_context import renewed_context, server_context
from velox.policy.settled import Settled
from velox.settings import Settings
from velox.settings.certificate import CertificateError, ServerCertificate, read_certificate
from velox.shm.board import Board
from velox.shm.status import GatewayStatus

__all__ = ["Certificates"]

_BAD_FOR_S: Final = 2.0
_BOARD_BYTES: Final = 8 * 2**20  # three files of 1 MiB, as text
_Mark = tuple[tuple[int, ...] | str, ...]


class Certificates:
    """Of one gateway; a worker has the copy that it was forked with. Raises CertificateError."""

    def __init__(
        self,
        files: tuple[str, str, str | None],
        protocols: tuple[str, ...],
        status: GatewayStatus,
        logger: logging.Logger,
    ) -> None:
        self._files: Final = files  # certificate, key, authorities of clients
        self._protocols: Final = protocols
        self._status: Final = status
        self._logger: Final = logger
        self._board: Final = Board(_BOARD_BYTES)
        # Before the files are read: what changes while they are is a change.
        self._files_seen: Final = Settled(self._mark())
        self._now = read_certificate(*files)
        self.context = server_context(self._now, protocols)
        status.tls_not_after_s = self._now.not_after_s
        self._warn_if_expired()

    def __repr__(self) -> str:
        return f"<Certificates {self._files[0]} until {self._now.not_after}>"

    @classmethod
    def of(cls, settings: Settings, status: GatewayStatus, logger: logging.Logger) -> Certificates | None:
        """Return what the settings ask for; None: no TLS. Raises CertificateError."""
        if settings.tls_cert_file is None or settings.tls_key_file is None:
            return None
        files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
        protocols = ("h2", "http/1.1") if settings.listen_http2 else ("http/1.1",)
        return cls(files, protocols, status, logger)

    # -- the supervisor -------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """Look at the files if it is time. now_s: monotonic."""
        if not self._files_seen.is_due(now_s):
            return
        mark = self._mark()
        if self._files_seen.see(mark, now_s):
            self._judge(mark, now_s)

    def _judge(self, mark: _Mark, now_s: float) -> None:
        try:
            found = read_certificate(*self._files)
            context = renewed_context(self.context, self._now, found, self._protocols)
        except (CertificateError, OSError) as exc:
            if self._files_seen.doubtful_s(now_s) >= _BAD_FOR_S:
                self._files_seen.take(mark)
                self._status.count_tls_reload(taken=False)
                self._logger.error("the new certificate can't be used, the one before stays: %s", exc)
            return
        self._files_seen.take(mark)
        if found == self._now:
            return
        self._now, self.context = found, context
        self._board.publish(_text_of(found))
        self._status.tls_not_after_s = found.not_after_s
        self._status.count_tls_reload(taken=True)
        self._logger.info("the new TLS files are in use; the certificate is valid until %s", found.not_after)
        self._warn_if_expired()

    def _warn_if_expired(self) -> None:
        if self._now.is_expired:
            self._logger.warning("the certificate in VELOX_TLS_CERT has expired on %s", self._now.not_after)

    def _mark(self) -> _Mark:
        """Return what tells the files of now from others."""
        mark: list[tuple[int, ...] | str] = []
        for path in self._files:
            try:
                found = None if path is None else Path(path).stat()
            except OSError as exc:
                mark.append(exc.strerror or "")
                continue
            if found is not None:
                mark.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        return tuple(mark)

    # -- a worker -------------------------------------------------------------------------------------

    def follow(self, tls: TlsIngress) -> None:
        """Use the certificate that came since the last call, if one did, for the handshakes from now on."""
        text = self._board.news()
        if text is None:
            return
        found = _certificate_of(text)
        try:
            self.context = renewed_context(self.context, self._now, found, self._protocols)
        except OSError as exc:
            # It was good a moment ago, in the supervisor: this is about memory or descriptors.
            self._logger.error("the new certificate could not be taken over: %s", exc.strerror)
            return
        self._now = found
        tls.context = self.context


def _text_of(certificate: ServerCertificate) -> bytes:
    parts = (certificate.chain_pem, certificate.key_pem, certificate.client_ca_pem, certificate.key_kind)
    # latin-1 gives each byte a character: comments in a file may be in any encoding.
    return orjson.dumps([*(part.decode("latin-1") for part in parts), certificate.not_after_s])


def _certificate_of(text: bytes) -> ServerCertificate:
    *parts, not_after_s = orjson.loads(text)
    chain, key, authorities, kind = (part.encode("latin-1") for part in parts)
    return ServerCertificate(chain, key, authorities, kind, not_after_s)
