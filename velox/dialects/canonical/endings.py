"""Why a model stopped, by what it said: the rule that every reader of answers and streams uses.

The upstream's word for the end and its blocks may contradict each other: servers say `tool_calls` and call nothing
(earendil-works/pi#9681), or `stop` behind a call (sgl-project/sglang#2877, openvinotoolkit/model_server#3927). Agents
go by the word: behind `tool_calls` they wait for a call, behind `stop` they don't run the one that is there.

Knows: stop reasons and whether there is a call. Does not know: any dialect's words.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.canonical.model import Stop, StopReason

__all__ = ["settled"]

# Ends that say nothing against a call. The others are cut or withheld: their calls are not to be run.
_PLAIN_ENDS: Final = (StopReason.END, StopReason.STOP_STRING, StopReason.PAUSE)


def settled(stop: Stop, *, has_calls: bool) -> Stop:
    """Return the stop that agrees with the answer's blocks. has_calls: a tool of the client's is called in it."""
    if not has_calls:
        if stop.reason is not StopReason.TOOLS:
            return stop
        return Stop(StopReason.END, unknown=stop.unknown)
    if stop.reason not in _PLAIN_ENDS:
        return stop
    return msgspec.structs.replace(stop, reason=StopReason.TOOLS, sequence=None)
