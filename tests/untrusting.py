"""A TLS context for clients that never use TLS.

An SDK without one reads all authorities that the system trusts: 50 ms of a core for each client, and the tests make
hundreds.
"""

from __future__ import annotations

import ssl
from typing import Final

__all__ = ["NO_TRUST"]

NO_TRUST: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
