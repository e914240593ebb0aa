"""All that is measured, subject by subject.

Knows: which subjects there are. Does not know: what is in them.
"""

from __future__ import annotations

from typing import Final

from bench.micro import bodies, buckets, buffers, contested, counters, events, frames, ingress, queues
from bench.micro.candidates import Candidate, Case, Subject

__all__ = ["SUBJECTS", "find"]

SUBJECTS: Final = (
    bodies.SUBJECT,
    buffers.SUBJECT,
    Subject("buckets", "a request", (*buckets.CASES, *contested.CASES)),
    queues.SUBJECT,
    ingress.SUBJECT,
    frames.SUBJECT,
    events.SUBJECT,
    counters.SUBJECT,
)


def find(subject: str, case: str, candidate: str) -> tuple[Case, Candidate]:
    """Return what is called so. Raises KeyError."""
    for each in SUBJECTS:
        for found in each.cases if each.name == subject else ():
            for one in found.candidates if found.name == case else ():
                if one.name == candidate:
                    return found, one
    raise KeyError(f"{subject} / {case} / {candidate}")
