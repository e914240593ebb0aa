"""Reads the figures of a running gateway through its admin listener: what `velox top` shows.

Knows: the request, and why it may have no answer. Does not know: where the listener is, or its token
(settings/loading.py), or what the figures are.
"""

from __future__ import annotations

import http.client
from typing import Final

from velox.admin.call import AdminConnection, only
from velox.types import Address, Secret

__all__ = ["MetricsError", "read_metrics"]

_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 64 * 2**20
_ASKS: Final = "it asks for a token: set VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE as the gateway has it"
_ELSEWHERE: Final = "if its admin listener is elsewhere, give --config, VELOX_CONFIG or --admin as the gateway has it"


class MetricsError(Exception):
    """The figures can't be read; the message says why and what to do."""


def read_metrics(address: Address, token: Secret | None, cert: str | None) -> str:
    """Return the metrics page. cert: file with the certificate that the listener shows; None: it has no TLS.

    Raises MetricsError.
    """
    headers = {} if token is None else {"Authorization": f"Bearer {token.reveal()}"}
    try:
        connection = AdminConnection(address, None if cert is None else only(cert), _TIMEOUT_S)
    except OSError as exc:
        raise MetricsError(f"VELOX_ADMIN_TLS_CERT is {cert!r}: it can't be read ({exc.strerror})") from exc
    try:
        connection.request("GET", "/metrics", headers=headers)
        reply = connection.getresponse()
        status, body = reply.status, reply.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
        raise MetricsError(f"the gateway can't be reached at {address} ({why}); {_ELSEWHERE}") from exc
    finally:
        connection.close()
    if status != 200:
        raise MetricsError(_ASKS if status == 401 else f"the gateway at {address} says {status}")
    return body.decode("utf-8", "replace")
