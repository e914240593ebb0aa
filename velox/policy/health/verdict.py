"""What the end of an attempt says of the member that it went to, and of the key that it carried.

Knows: the classes of ends. Does not know: what follows from one (member.py, keys.py).

    4xx                               the request was wrong: the member is well
    401, 403                          the same, and the key may be no good
    429                               the account has had enough for now: nothing of the member; the key rests
    503                               the member is busy: no fault; three in a row and it rests
    other 5xx, transport, time-outs   faults
    cut replies                       faults of a kind that begins well
    given up from this side           nothing; after a long silence as good as a fault
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from velox.errors import Reason

__all__ = ["SILENT_S", "Verdict", "of_failure", "of_giving_up", "of_status"]

# Who waits longer for a first byte is hardly impatient. Arbitrary; models that think first take 5 to 30 s, but then a
# run of these without one answer in between is rare, and a mistake costs one probe.
SILENT_S: Final = 10.0


class Verdict(IntEnum):
    """One of the classes above."""

    WELL = 0
    NOTHING = 1
    KEY = 2
    QUOTA = 3
    BUSY = 4
    FAULT = 5
    CUT = 6
    SILENT = 7


_OF_STATUS: Final = {401: Verdict.KEY, 403: Verdict.KEY, 429: Verdict.QUOTA, 503: Verdict.BUSY}
_CUTS: Final = frozenset({Reason.UPSTREAM_TRUNCATED, Reason.UPSTREAM_IDLE_TIMEOUT})


def of_status(status: int) -> Verdict:
    """Judge a whole reply."""
    found = _OF_STATUS.get(status)
    if found is not None:
        return found
    return Verdict.FAULT if status >= 500 else Verdict.WELL


def of_failure(reason: Reason, *, unprocessed: bool = False) -> Verdict:
    """Judge an attempt without a whole reply. reason: not UPSTREAM_STATUS, which has a status to judge by.

    unprocessed: the member surely did no work and can be reached: it refused the stream, or closed an idle connection.
    """
    if reason is Reason.UPSTREAM_REDIRECT:
        return Verdict.WELL
    if unprocessed or reason is Reason.UPSTREAM_TOTAL_TIMEOUT:  # a reply may be long
        return Verdict.NOTHING
    return Verdict.CUT if reason in _CUTS else Verdict.FAULT


def of_giving_up(waited_s: float, *, answered: bool) -> Verdict:
    """Judge an attempt that was ended from this side: the client left, or a hedge was faster.

    answered: a byte had come. A member that stalls would else never be found out by clients who leave before the
    time-out: only their silence tells of it.
    """
    return Verdict.SILENT if waited_s >= SILENT_S and not answered else Verdict.NOTHING
