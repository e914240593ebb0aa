"""All cases, and how one is played.

Knows: which cases there are. Does not know: what they say, who is at the other end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from tests.h2spec.frames import FRAMES
from tests.h2spec.generic import GENERIC, HPACK
from tests.h2spec.messages import BEYOND, MESSAGES
from tests.h2spec.talker import Case, Line, Verdict

__all__ = ["ALL_CASES", "H2SPEC_CASES", "Connect", "EngineName", "play"]

EngineName: TypeAlias = Literal["ngh2", "h2"]
Connect: TypeAlias = Callable[[], Line]

H2SPEC_CASES: Final[Sequence[Case]] = [*GENERIC, *FRAMES, *MESSAGES, *HPACK]
ALL_CASES: Final[Sequence[Case]] = [*H2SPEC_CASES, *BEYOND]


def play(case: Case, connect: Connect) -> Verdict:
    """Play one case on a connection of its own; what it stumbles over is what it got."""
    try:
        return case.run(connect())
    except AssertionError as error:
        return Verdict(False, got=str(error))
