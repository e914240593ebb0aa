"""Closed lists of what can happen to clients' connections, as labels of metrics.

Knows: the lists. Does not know: which cell counts what (series.py), or who finds out.
"""

from __future__ import annotations

import enum

__all__ = ["TlsFailure"]


class TlsFailure(enum.IntEnum):
    """Why a TLS handshake with a client did not end well."""

    PLAIN_HTTP = 0  # a request in plain text
    NOT_TLS = 1  # neither that nor a handshake
    VERSION = 2  # the client knows no TLS as new as 1.2
    CIPHER = 3  # no cipher, group or signature in common
    CLIENT_CERTIFICATE = 4  # none, or none that VELOX_TLS_CLIENT_CA signed
    REFUSED = 5  # by the client; mostly it does not trust our certificate
    TIMEOUT = 6
    CLOSED = 7  # by the client, in the middle
    LIMIT = 8  # too many connections
    OTHER = 9
