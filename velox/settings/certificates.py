"""Certificates: the one that clients are shown, and the files that connections to upstreams are made with.

Knows: PEM files, which of them belong together, until when the certificate is valid. Does not know: which files are
watched, or what a connection does with them. All are checked before a handshake needs them.

Files are read once, and OpenSSL is given what was read: what was checked is what is used, also while somebody replaces
the files. Nothing that is said here shows anything of a key.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from velox.settings.problems import Problem, quoted

__all__ = [
    "CertificateError",
    "ServerCertificate",
    "ca_problem",
    "certificate_problems",
    "client_certificate_problem",
    "read_certificate",
]

_CERT: Final = "VELOX_TLS_CERT"
_KEY: Final = "VELOX_TLS_KEY"
_CLIENT_CA: Final = "VELOX_TLS_CLIENT_CA"
_FILE_BYTES: Final = 2**20
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----")
# PKCS #8's own label, and the header of the older forms (RFC 1421).
_LOCKED: Final = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED")
# What OpenSSL says, in words that name the remedy.
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": f"expected the private key of the certificate in {_CERT}, this is another one's",
    "KEY_TYPE_MISMATCH": f"expected the private key of the certificate in {_CERT}, this is another one's",
}


class CertificateError(Exception):
    """The files can't be used; `problem` is the one line that says which and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem: Final = problem


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """What clients are shown, and what they are asked for.

    client_ca_pem: b"" when clients need no certificate. key_kind: the algorithm of the key, as its object identifier.
    not_after_s: seconds since 1970.
    """

    chain_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    client_ca_pem: bytes = field(repr=False)
    key_kind: bytes
    not_after_s: int

    @property
    def not_after(self) -> str:
        """The end of its validity, for people."""
        return datetime.fromtimestamp(self.not_after_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def is_expired(self) -> bool:
        """True when no client will accept it any more."""
        return time.time() >= self.not_after_s

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use it for the handshakes that begin from now on. Raises OSError (ssl.SSLError is one)."""
        with _as_file(self.chain_pem) as chain, _as_file(self.key_pem) as key:
            # A key that asks for a password would block on the terminal: an empty one makes it an error.
            context.load_cert_chain(chain, key, password="")
        if self.client_ca_pem:
            context.load_verify_locations(cadata=self.client_ca_pem.decode("ascii", "replace"))
            context.verify_mode = ssl.CERT_REQUIRED


def read_certificate(cert_path: str, key_path: str, client_ca_path: str | None) -> ServerCertificate:
    """Return what the files hold, also when it has expired. Raises CertificateError when a server can't use it."""
    chain, key = _read(_CERT, cert_path), _read(_KEY, key_path)
    authorities = b"" if client_ca_path is None else _read(_CLIENT_CA, client_ca_path)
    first = _CERTIFICATE.search(chain)
    if first is None:
        raise _error(_CERT, cert_path, "expected a PEM certificate in it")
    if _LOCKED.search(key):
        remedy = "`openssl pkey -in LOCKED -out OPEN` makes one"
        raise _error(_KEY, key_path, f"expected a private key without a password: {remedy}")
    if not _PRIVATE_KEY.search(key):
        raise _error(_KEY, key_path, "expected a PEM private key in it")
    if client_ca_path is not None:
        # Only the certificates: what else the file says of them would be no PEM to OpenSSL.
        authorities = b"\n".join(_CERTIFICATE.findall(authorities)) + b"\n"
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError):
            raise _error(_CLIENT_CA, client_ca_path, "expected PEM certificates of authorities in it") from None
    try:
        kind, not_after_s = _kind_and_end(ssl.PEM_cert_to_DER_cert(first.group().decode("ascii", "replace")))
    except ValueError:  # binascii.Error is one
        raise _error(_CERT, cert_path, "expected a PEM certificate in it, this is damaged") from None
    found = ServerCertificate(chain, key, authorities, kind, not_after_s)
    try:
        found.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ssl.SSLError as exc:
        reason = exc.reason or "it is damaged"
        expected = _REASONS.get(reason)
        if expected is not None:
            raise _error(_KEY, key_path, expected) from None
        words = reason.replace("_", " ").lower()
        raise _error(_CERT, cert_path, f"expected a certificate and its key that OpenSSL takes ({words})") from None
    except OSError as exc:
        raise _error(_CERT, cert_path, f"can't be loaded ({exc.strerror})") from None
    return found


def certificate_problems(values: Mapping[str, Any]) -> Iterable[Problem]:
    """Say what is wrong with the TLS settings. `values` lacks the wrong ones."""
    cert, key, authorities = (values.get(f"tls_{name}_file") for name in ("cert", "key", "client_ca"))
    if cert is None or key is None:
        if cert is not None:
            yield Problem(_CERT, quoted(cert), f"expected {_KEY} with it: the certificate's private key")
        if key is not None:
            yield Problem(_KEY, quoted(key), f"expected {_CERT} with it: the certificate that the key belongs to")
        if authorities is not None and cert is None:
            expected = f"expected {_CERT} and {_KEY} with it: only TLS asks clients for certificates"
            yield Problem(_CLIENT_CA, quoted(authorities), expected)
        return
    try:
        read_certificate(cert, key, authorities)
    except CertificateError as exc:
        yield exc.problem
    listen = values.get("listen")
    if listen is not None and all(address.kind == "unix" for address in listen):
        expected = "expected IP:PORT in VELOX_LISTEN: unix sockets do not speak TLS"
        yield Problem(_CERT, quoted(cert), expected)


def ca_problem(path: str) -> str:
    """Return what was expected of a file of authorities, "" if it can be used."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as exc:  # ssl.SSLError is one
        return f"expected a PEM file of certificates ({exc.strerror or 'no certificate in it'})"
    return ""


def client_certificate_problem(cert: str, key: str | None) -> tuple[str, str]:
    """Return "cert" or "key", the file that is wrong, and what was expected of it; "", "" if they can be used.

    They must be readable and belong together. key: None: it is in the certificate's file.
    """
    for which, path in (("cert", cert), ("key", key)):
        if path is not None:
            try:
                Path(path).read_bytes()
            except OSError as exc:
                return which, f"expected a file that can be read ({exc.strerror})"
    try:
        # An empty password: a key that has one must be an error, and not ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, "")
    except ssl.SSLError as exc:
        why = (exc.reason or "no certificate in it").replace("_", " ").lower()
        return "cert", f"expected a PEM certificate and its own private key without a password ({why})"
    return "", ""


def _error(name: str, path: str, expected: str) -> CertificateError:
    return CertificateError(Problem(name, quoted(path), expected))


def _read(name: str, path: str) -> bytes:
    try:
        # A pipe or a device could hold up the caller for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _error(name, path, "expected a regular file")
            content = file.read(_FILE_BYTES + 1)
    except OSError as exc:
        raise _error(name, path, f"expected a file that can be read ({exc.strerror})") from None
    if len(content) > _FILE_BYTES:
        raise _error(name, path, f"expected at most {_FILE_BYTES} bytes")
    return content


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path that holds `content`, in memory only: OpenSSL's loader takes no bytes."""
    descriptor = os.memfd_create("velox-tls")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


# -- RFC 5280 §4.1 --------------------------------------------------------------------------------

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_TIME_FORMS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # UTCTime, GeneralizedTime


def _kind_and_end(der: bytes) -> tuple[bytes, int]:
    """Return the algorithm of a certificate's key, and notAfter. Raises ValueError when it is no certificate.

    tbsCertificate ::= SEQUENCE { [0] version, serial, signature, issuer, validity, subject, subjectPublicKeyInfo ... }
    The ssl module tells it of the other side's certificates only.
    """
    certificate = _enter(der, _SEQUENCE)
    fields = _children(_enter(certificate, _SEQUENCE))
    n_before = 4 if fields[0][0] == _VERSION else 3
    if len(fields) < n_before + 3:
        raise ValueError("no validity, or no key")
    times = _children(fields[n_before][1])
    key = _children(fields[n_before + 2][1])
    if len(times) != 2 or times[1][0] not in _TIME_FORMS:
        raise ValueError("no end of validity")
    tag, text = times[1]
    # %y: strptime's turn of the century is 1969, RFC 5280's 1950; a certificate that ended in between has ended anyhow.
    moment = datetime.strptime(text.decode("ascii", "replace"), _TIME_FORMS[tag]).replace(tzinfo=UTC)
    return key[0][1], int(moment.timestamp())


def _enter(der: bytes, tag: int) -> bytes:
    """Return the content of the element that `der` begins with."""
    found, content, _ = _element(der, 0)
    if found != tag:
        raise ValueError("another element")
    return content


def _children(content: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(content):
        tag, inner, at = _element(content, at)
        found.append((tag, inner))
    if not found:
        raise ValueError("nothing in it")
    return found


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """Return tag and content of the element at `at`, and where the next one begins (X.690 §8.1)."""
    if at + 2 > len(der):
        raise ValueError("cut")
    tag, length, at = der[at], der[at + 1], at + 2
    if length & 0x80:
        n_octets = length & 0x7F
        if not 1 <= n_octets <= 4 or at + n_octets > len(der):
            raise ValueError("no length")
        length, at = int.from_bytes(der[at : at + n_octets], "big"), at + n_octets
    if at + length > len(der):
        raise ValueError("cut")
    return tag, der[at : at + length], at + length
