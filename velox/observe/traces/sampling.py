"""Which traces are recorded: by the head of a request (the samplers of OpenTelemetry's SDKs), and by its end.

Knows: the rules of https://opentelemetry.io/docs/specs/otel/trace/sdk/#sampling. Does not know: spans.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from velox.protocol.trace_context import TraceParent

__all__ = ["Sampler", "SamplerName", "TailRules"]

SamplerName: TypeAlias = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]
_PARENT_BASED: Final = "parentbased_"
_RANDOM_BITS: Final = 56  # of the trace id's end, which are random (W3C Trace Context, Level 2)
_RANDOM: Final = (1 << _RANDOM_BITS) - 1


class Sampler:
    """A head sampler. ratio: of traceidratio, from 0 to 1. follows_parent: a parent decides, where there is one."""

    __slots__ = ("_below", "follows_parent")

    def __init__(self, name: SamplerName, ratio: float) -> None:
        root = name.removeprefix(_PARENT_BASED)
        self.follows_parent: Final = root != name
        share = {"always_on": 1.0, "always_off": 0.0}.get(root, ratio)
        self._below: Final = round(share * (1 << _RANDOM_BITS))

    def wants(self, trace_id: bytes, parent: TraceParent | None) -> bool:
        """Say whether a request is recorded. The same trace gets the same answer from all that have the same ratio."""
        if parent is not None and self.follows_parent:
            return parent.is_sampled
        return self.wants_root(int.from_bytes(trace_id, "big"))

    def wants_root(self, trace_id: int) -> bool:
        """As wants(), where no parent decides."""
        return trace_id & _RANDOM < self._below


class TailRules(NamedTuple):
    """What is exported though the head sampler did not want it. slow_ns: what took so long; 0: nothing for that."""

    errors: bool = False
    slow_ns: int = 0

    def __bool__(self) -> bool:
        return self.errors or self.slow_ns > 0

    def wants(self, *, failed: bool, took_ns: int) -> bool:
        """Say whether it is exported all the same."""
        return (self.errors and failed) or (0 < self.slow_ns <= took_ns)
