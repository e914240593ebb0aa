"""The variables of WebSockets; see variables.py.

Knows: name, field, parser, default and meaning of each. Does not know: where a value came from.
"""

from __future__ import annotations

from typing import Final

from velox.settings import parse
from velox.settings.variable import DAY_S, TIMEOUT, Variable

__all__ = ["TUNNEL_VARIABLES"]

TUNNEL_VARIABLES: Final = (
    Variable(
        "VELOX_MAX_TUNNELS",
        "max_tunnels",
        parse.integer(1, 10_000_000),
        "1024",
        "WebSockets at once, over all workers, each of which is an exchange too; more get 503 `conn_limit`",
    ),
    Variable(
        "VELOX_TUNNEL_IDLE_TIMEOUT",
        "tunnel_idle_timeout_s",
        TIMEOUT,
        "300s",
        "how long a WebSocket is kept without a byte either way; a ping is some",
    ),
    Variable(
        "VELOX_TUNNEL_TIMEOUT",
        "tunnel_timeout_s",
        parse.duration(0.0, DAY_S),
        "0s",
        "longest life of a WebSocket; 0: no limit",
    ),
)
