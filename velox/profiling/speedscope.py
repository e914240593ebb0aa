"""A profile as speedscope opens it, each worker as a profile of its own.

Knows: that format (https://www.speedscope.app/file-format-schema.json). Does not know: where a profile came from.
"""

from __future__ import annotations

from typing import Final

import orjson

from velox.build import DESCRIPTION
from velox.profiling.samples import Frame, Profile

__all__ = ["speedscope"]

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def speedscope(profile: Profile) -> bytes:
    """Return the profile as a JSON file: stacks from the caller inwards, with their CPU time or their bytes."""
    index: dict[Frame, int] = {}
    profiles = []
    for worker, samples in profile.workers.items():
        stacks = [[index.setdefault(frame, len(index)) for frame in stack] for stack in samples]
        weights = [cost.amount for cost in samples.values()]
        times = {"unit": profile.measure.amount[1], "startValue": 0, "endValue": sum(weights)}
        profiles.append({"type": "sampled", "name": worker, **times, "samples": stacks, "weights": weights})
    about = [f"{name} did not answer" for name in profile.missing]
    return orjson.dumps(
        {
            "$schema": _SCHEMA,
            "exporter": f"velox {DESCRIPTION}",
            "name": "; ".join(filter(None, ["velox", profile.unseen, *about])),
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(frame) for frame in index]},
            "profiles": profiles,
        }
    )


def _frame(frame: Frame) -> dict[str, str | int]:
    shown: dict[str, str | int] = {"name": frame.dotted}
    if frame.file:
        shown["file"] = frame.file
    if frame.line:
        shown["line"] = frame.line
    return shown
