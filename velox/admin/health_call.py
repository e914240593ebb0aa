"""Asks a running gateway whether it is alive, through its admin listener: what `velox health` does.

Knows: the request, and what its answer means. Does not know: where the listener is (settings/loading.py).
"""

from __future__ import annotations

import http.client
from typing import Final

from velox.admin.call import AdminConnection, only
from velox.types import Address

__all__ = ["call_health"]

_TIMEOUT_S: Final = 2.0
_MOST_BYTES: Final = 4096


def call_health(address: Address, cert: str | None = None) -> str:
    """Return why the gateway is not healthy, "" if it is: a worker runs or starts. No token is needed.

    cert: file with the certificate that the listener shows; None: it has no TLS.
    """
    try:
        connection = AdminConnection(address, None if cert is None else only(cert), _TIMEOUT_S)
    except OSError as exc:
        return f"VELOX_ADMIN_TLS_CERT is {cert!r}: it can't be read ({exc.strerror})"
    try:
        connection.request("GET", "/healthz")
        reply = connection.getresponse()
        status = reply.status
        reply.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
        elsewhere = "if its admin listener is elsewhere, set VELOX_CONFIG or VELOX_ADMIN_LISTEN as the gateway has it"
        return f"the gateway can't be reached at {address} ({why}); {elsewhere}"
    finally:
        connection.close()
    return "" if status == 200 else f"the gateway at {address} says {status}"
