"""Certificates: the one that clients are shown, and the files that connections to upstreams are made with.

Knows: PEM files, which of them belong together, until when the certificate is valid. Does not know: which files are
watched, or what a connection does with them. All are checked before a handshake needs them.

Files are read once, and OpenSSL gets the content that was checked, even if the files are replaced meanwhile. No message
shows any part of a key.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final

from velox.net.client.tls_context import ServerCertificate
from velox.protocol.x509 import key_kind_and_end
from velox.settings.problems import Problem, quoted
from velox.settings.telemetry import CollectorTls
from velox.settings.yaml.tree import read_regular_file

__all__ = [
    "ADMIN_NAMES",
    "CLIENT_NAMES",
    "CertificateError",
    "ca_problem",
    "certificate_problems",
    "client_certificate_problem",
    "collector_problems",
    "read_certificate",
]

_CERT: Final = "VELOX_TLS_CERT"
_KEY: Final = "VELOX_TLS_KEY"
_CLIENT_CA: Final = "VELOX_TLS_CLIENT_CA"
CLIENT_NAMES: Final = (_CERT, _KEY)
ADMIN_NAMES: Final = ("VELOX_ADMIN_TLS_CERT", "VELOX_ADMIN_TLS_KEY")
_FILE_BYTES: Final = 2**20
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----")
# PKCS #8's own label, and the header of the older forms (RFC 1421).
_LOCKED: Final = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED")
# What OpenSSL says, in words that name the remedy.
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "expected the private key of the certificate in {cert}, this is another one's",
    "KEY_TYPE_MISMATCH": "expected the private key of the certificate in {cert}, this is another one's",
}


class CertificateError(Exception):
    """The files can't be used; `problem` is the one line that says which and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem: Final = problem


def read_certificate(
    cert_path: str, key_path: str, client_ca_path: str | None, names: tuple[str, str] = CLIENT_NAMES
) -> ServerCertificate:
    """Return what the files hold, also when it has expired. Raises CertificateError when a server can't use it.

    names: of the settings that name certificate and key.
    """
    cert_name, key_name = names
    chain, key = _read(cert_name, cert_path), _read(key_name, key_path)
    authorities = b"" if client_ca_path is None else _read(_CLIENT_CA, client_ca_path)
    first = _CERTIFICATE.search(chain)
    if first is None:
        raise _error(cert_name, cert_path, "expected a PEM certificate in it")
    if _LOCKED.search(key):
        remedy = "`openssl pkey -in LOCKED -out OPEN` makes one"
        raise _error(key_name, key_path, f"expected a private key without a password: {remedy}")
    if not _PRIVATE_KEY.search(key):
        raise _error(key_name, key_path, "expected a PEM private key in it")
    if client_ca_path is not None:
        # Only the certificates: what else the file says of them would be no PEM to OpenSSL.
        authorities = b"\n".join(_CERTIFICATE.findall(authorities)) + b"\n"
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError):
            raise _error(_CLIENT_CA, client_ca_path, "expected PEM certificates of authorities in it") from None
    try:
        kind, not_after_s = key_kind_and_end(ssl.PEM_cert_to_DER_cert(first.group().decode("ascii", "replace")))
    except ValueError:  # binascii.Error is one
        raise _error(cert_name, cert_path, "expected a PEM certificate in it, this is damaged") from None
    found = ServerCertificate(chain, key, authorities, kind, not_after_s)
    try:
        found.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ssl.SSLError as exc:
        reason = exc.reason or "it is damaged"
        expected = _REASONS.get(reason)
        if expected is not None:
            raise _error(key_name, key_path, expected.format(cert=cert_name)) from None
        words = reason.replace("_", " ").lower()
        raise _error(cert_name, cert_path, f"expected a certificate and its key that OpenSSL takes ({words})") from None
    except OSError as exc:
        raise _error(cert_name, cert_path, f"can't be loaded ({exc.strerror})") from None
    return found


def certificate_problems(values: Mapping[str, Any]) -> Iterable[Problem]:
    """Say what is wrong with the TLS settings. `values` lacks the wrong ones."""
    yield from _of_admin(values)
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


def _of_admin(values: Mapping[str, Any]) -> Iterable[Problem]:
    cert, key, listen = (values.get(name) for name in ("admin_tls_cert_file", "admin_tls_key_file", "admin_listen"))
    cert_name, key_name = ADMIN_NAMES
    if cert is None:
        if key is not None:
            expected = f"expected {cert_name} with it: the certificate that the key belongs to"
            yield Problem(key_name, quoted(key), expected)
        return
    if key is None:
        yield Problem(cert_name, quoted(cert), f"expected {key_name} with it: the certificate's private key")
    else:
        try:
            read_certificate(cert, key, None, ADMIN_NAMES)
        except CertificateError as exc:
            yield exc.problem
    if listen is not None and listen.kind == "unix":
        yield Problem(cert_name, quoted(cert), "expected IP:PORT in VELOX_ADMIN_LISTEN: unix sockets do not speak TLS")


def ca_problem(path: str) -> str:
    """Return what was expected of a file of authorities, "" if it can be used."""
    try:
        read_regular_file(path, 0)  # OpenSSL would wait for what comes out of a pipe
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
                read_regular_file(path, 0)
            except OSError as exc:
                return which, f"expected a file that can be read ({exc.strerror})"
    try:
        # An empty password: a key that has one must be an error, and not ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, "")
    except ssl.SSLError as exc:
        why = (exc.reason or "no certificate in it").replace("_", " ").lower()
        return "cert", f"expected a PEM certificate and its own private key without a password ({why})"
    return "", ""


def collector_problems(files: CollectorTls) -> Iterable[Problem]:
    """Say what is wrong with the files of TLS with a collector of traces."""
    if files.ca_file is not None and (wrong := ca_problem(files.ca_file)):
        yield Problem(files.ca_name, quoted(files.ca_file), wrong)
    if files.cert_file is not None:
        which, wrong = client_certificate_problem(files.cert_file, files.key_file)
        if which == "cert":
            yield Problem(files.cert_name, quoted(files.cert_file), wrong)
        elif which:
            yield Problem(files.key_name, quoted(files.key_file or ""), wrong)
    elif files.key_file is not None:
        expected = f"expected {files.cert_name} with it: the certificate that the key belongs to"
        yield Problem(files.key_name, quoted(files.key_file), expected)


def _error(name: str, path: str, expected: str) -> CertificateError:
    return CertificateError(Problem(name, quoted(path), expected))


def _read(name: str, path: str) -> bytes:
    try:
        content = read_regular_file(path, _FILE_BYTES)
    except OSError as exc:
        raise _error(name, path, f"expected a file that can be read ({exc.strerror})") from None
    if len(content) > _FILE_BYTES:
        raise _error(name, path, f"expected at most {_FILE_BYTES} bytes")
    return content
