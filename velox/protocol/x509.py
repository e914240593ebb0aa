"""What is read of an X.509 certificate: the algorithm of its key, and the end of its validity (RFC 5280 §4.1).

Knows: DER (X.690 §8.1), as far as these two fields need it. Does not know: whether the certificate is trusted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["key_kind_and_end"]

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_TIME_FORMS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # UTCTime, GeneralizedTime


def key_kind_and_end(der: bytes) -> tuple[bytes, int]:
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
