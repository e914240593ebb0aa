"""What a reply passes between its upstream and the client, in which order, and why there.

    ERROR_GATE    the very first: an error inside a reply of status 200 is found before anybody takes it for an answer
    ADDRESSES     the upstream's addresses become the gateway's, before anything keeps or repeats them
    REDACTION     no error shows the key that went up; before a translation, whose own texts would hide it
    TRANSLATION   all that follows reads and writes the client's dialect
    METERING      every answer is counted, also one that a later filter refuses or cuts
    USAGE_EVENT   the event with the usage, that the gateway has asked for, goes no further once it is counted
    OWNERSHIP     new objects are noted as the caller's, and others' are left out of lists, as the client would see them
    KEPT_ANSWER   an answer is kept as its client gets it; a large one in a thread, before the client gets the end
    JOIN          those that share a call get its reply as any client of its dialect does
    CACHE         an answer is kept for equal requests, as any client of its dialect gets it
    BODY_BUDGET   gives back the memory that earlier answers have added to the request's body
    COST          tells the cost of what METERING has counted
    HEADERS       the operator's rules have the last word of what an upstream has said
    TIMING        what took how long, when all else is done
    LITELLM       the same and more for clients of LiteLLM, with the cost that COST knows
    TRACE         a trace's content is kept as the client gets it

Hooks will read and change a reply after BODY_BUDGET.

Knows: the order, which filters.insert_in_order() goes by. Does not know: what a filter does, or which a reply has: some
are of the request (exchange.py), some of the reply's head (reply.py).
"""

from __future__ import annotations

import enum

__all__ = ["FilterOrder"]


class FilterOrder(enum.IntEnum):
    """The order of the filters: a reply passes the smallest first."""

    ERROR_GATE = enum.auto()
    ADDRESSES = enum.auto()
    REDACTION = enum.auto()
    TRANSLATION = enum.auto()
    METERING = enum.auto()
    USAGE_EVENT = enum.auto()
    OWNERSHIP = enum.auto()
    KEPT_ANSWER = enum.auto()
    JOIN = enum.auto()
    CACHE = enum.auto()
    BODY_BUDGET = enum.auto()
    COST = enum.auto()
    HEADERS = enum.auto()
    TIMING = enum.auto()
    LITELLM = enum.auto()
    TRACE = enum.auto()
