"""Observability in steps: timing, access log and traces, each beside a gateway that has metrics alone.

Knows: settings of the gateway. Does not know: who starts one, or what is measured of it. Metrics are in all of them:
they can't be switched off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

__all__ = ["OBSERVED", "Observed", "observability_settings"]

Observed: TypeAlias = Literal[
    "metrics alone",
    "timing, not asked for",
    "timing of each reply",
    "access log: errors",
    "access log: all",
    "traces: 0 %",
    "traces: 100 %",
    "traces: 100 %, with content",
    "access log, timing and traces of all",
]
OBSERVED: Final[Sequence[Observed]] = get_args(Observed)
_NOTHING: Final = {"VELOX_ACCESS_LOG": "off", "VELOX_SERVER_TIMING": "off"}
# Nobody is there, and nobody sends in what is measured.
_TRACES: Final = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
_LOG: Final = {"VELOX_ACCESS_LOG": "all", "VELOX_ACCESS_LOG_FILE": "/dev/null"}
_TIMING: Final = {"VELOX_SERVER_TIMING": "all"}
_SETTINGS: Final[Mapping[Observed, Mapping[str, str]]] = MappingProxyType(
    {
        "metrics alone": {},
        "timing, not asked for": {"VELOX_SERVER_TIMING": "asked"},
        "timing of each reply": _TIMING,
        "access log: errors": {"VELOX_ACCESS_LOG": "errors"},
        "access log: all": _LOG,
        "traces: 0 %": {**_TRACES, "OTEL_TRACES_SAMPLER": "always_off"},
        "traces: 100 %": _TRACES,
        "traces: 100 %, with content": {**_TRACES, "VELOX_TRACES_CONTENT": "*"},
        "access log, timing and traces of all": {**_LOG, **_TIMING, **_TRACES},
    }
)


def observability_settings(what: Observed) -> dict[str, str]:
    """Return the settings of a gateway with this much on."""
    return {**_NOTHING, **_SETTINGS[what]}
