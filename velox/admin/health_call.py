"""Asks a running gateway whether it is alive, through its admin listener: what `velox health` does.

Knows: the request, and what its answer means. Does not know: where the listener is (settings/loading.py).
"""

from __future__ import annotations

import http.client
from typing import Final

from velox.admin.call import AdminConnection, anyone, why_unreached
from velox.types import Address

__all__ = ["call_health"]

_TIMEOUT_S: Final = 2.0
_MOST_BYTES: Final = 4096


def call_health(address: Address, *, has_tls: bool = False) -> str:
    """Return why the gateway is not healthy, "" if it is: a worker runs or starts. No token is sent.

    Whatever certificate the listener shows: while the files hold one that can't be used, the gateway goes on with the
    one before, and must not be stopped for that by whoever asks for its health.
    """
    connection = AdminConnection(address, anyone() if has_tls else None, _TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        reply = connection.getresponse()
        status = reply.status
        reply.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        elsewhere = "if its admin listener is elsewhere, set VELOX_CONFIG or VELOX_ADMIN_LISTEN as the gateway has it"
        return f"the gateway can't be reached at {address} ({why_unreached(exc)}); {elsewhere}"
    finally:
        connection.close()
    return "" if status == 200 else f"the gateway at {address} says {status}"
