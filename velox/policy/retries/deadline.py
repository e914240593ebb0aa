"""What a client says of time, of its own retries, of its hurry and of what it wants to know, in its request's headers.

Knows: the headers, and what of them is believed. Does not know: a clock, what happens at the deadline, or which class
of the queue a key may ask for.

`x-request-timeout-ms`, `x-velox-priority`, `x-velox-cost` and `x-velox-timing` are Velox's own: a value that can't be
read is refused, because the client counts on it. So it is with `x-litellm-timeout` and `x-litellm-num-retries`, where a
gateway reads LiteLLM's (docs.litellm.ai/docs/proxy/request_headers). The SDKs (openai-python, openai-node and their
kin) send their time-out and which try this is without being asked; what can't be read there is passed over.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Final

from velox.errors import Reason, VeloxError
from velox.heads import Headers
from velox.types import Priority, Timing

__all__ = ["LITELLM_TERMS", "ClientTerms", "client_terms"]

TIMEOUT_HEADER: Final = b"x-request-timeout-ms"
PRIORITY_HEADER: Final = b"x-velox-priority"
COST_HEADER: Final = b"x-velox-cost"
TIMING_HEADER: Final = b"x-velox-timing"
MAX_TIMEOUT_MS: Final = 86_400_000  # a day, as for the settings
_SDK_TIMEOUTS: Final = (b"x-stainless-read-timeout", b"x-stainless-timeout")  # seconds; Python's SDK, Node's
_SDK_RETRY_COUNT: Final = b"x-stainless-retry-count"
_LITELLM_TIMEOUT: Final = b"x-litellm-timeout"
_LITELLM_RETRIES: Final = b"x-litellm-num-retries"
LITELLM_TERMS: Final = frozenset({_LITELLM_TIMEOUT, _LITELLM_RETRIES})
_READ: Final = frozenset(
    {TIMEOUT_HEADER, PRIORITY_HEADER, COST_HEADER, TIMING_HEADER, _SDK_RETRY_COUNT, *_SDK_TIMEOUTS}
)
_MS: Final = re.compile(rb"[0-9]{1,9}")
_SECONDS: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_RETRIES: Final = re.compile(rb"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """timeout_s: how long the client waits for the reply's first byte; infinite if it does not say.

    retries_itself: this request is a retry of the client's SDK already. priority: the class that it asks for, if any.
    wants_cost: its answer is to tell what it cost. timing: what it is to tell of the time that it took. retries: the
    most further attempts that it wants, None for as many as the gateway makes.
    """

    timeout_s: float = math.inf
    retries_itself: bool = False
    priority: Priority | None = None
    wants_cost: bool = False
    timing: Timing = Timing.NOTHING
    retries: int | None = None


_NONE: Final = ClientTerms()
_TIMINGS: Final = {b"0": Timing.NOTHING, b"1": Timing.HEAD, b"stream": Timing.STREAM}
_PRIORITIES: Final = {priority.name.lower().encode(): priority for priority in Priority}


def client_terms(headers: Headers, *, is_litellms: bool = False) -> ClientTerms:
    """Read them. Raises VeloxError(BAD_REQUEST) for one of Velox's own that can't be read.

    is_litellms: LiteLLM's are read, too, as strictly. Of two time-outs the gateway's own holds, then LiteLLM's.
    """
    terms = _own_terms(headers)
    if not is_litellms:
        return terms
    for name, value in [field for field in headers if field[0] in LITELLM_TERMS]:
        if name == _LITELLM_RETRIES:
            terms = replace(terms, retries=_retries(value))
        else:
            timeout_s = _litellm_s(value)
            if all(field[0] != TIMEOUT_HEADER for field in headers):
                terms = replace(terms, timeout_s=timeout_s)
    return terms


def _own_terms(headers: Headers) -> ClientTerms:
    own_s = sdk_s = math.inf
    retries_itself = wants_cost = False
    priority: Priority | None = None
    timing = Timing.NOTHING
    for name, value in [field for field in headers if field[0] in _READ]:
        if name == TIMEOUT_HEADER:
            own_s = _own_s(value)
        elif name in _SDK_TIMEOUTS:
            # Node's SDK rounds down: 0 is less than a second, not no time at all.
            if _SECONDS.fullmatch(value) and float(value) > 0:
                sdk_s = min(sdk_s, float(value))
        elif name == _SDK_RETRY_COUNT:
            retries_itself = value.isdigit() and value.strip(b"0") != b""
        elif name == PRIORITY_HEADER:
            priority = _priority(value, priority)
        elif name == COST_HEADER:
            wants_cost = _switch(value)
        elif name == TIMING_HEADER:
            timing = _timing(value)
    timeout_s = own_s if own_s < math.inf else sdk_s
    if not (retries_itself or wants_cost or timing) and priority is None and timeout_s == math.inf:
        return _NONE
    return ClientTerms(timeout_s, retries_itself, priority, wants_cost, timing)


def _own_s(value: bytes) -> float:
    if _MS.fullmatch(value) is None or not 1 <= int(value) <= MAX_TIMEOUT_MS:
        name = TIMEOUT_HEADER.decode()
        message = f"header {name} is no time-out: expected milliseconds, a whole number from 1 to {MAX_TIMEOUT_MS}"
        raise VeloxError(Reason.BAD_REQUEST, message, param=name)
    return int(value) / 1000.0


def _litellm_s(value: bytes) -> float:
    if _SECONDS.fullmatch(value) is None or not 0.0 < float(value) <= MAX_TIMEOUT_MS / 1000:
        name = _LITELLM_TIMEOUT.decode()
        message = f"header {name} is no time-out: expected seconds, above 0 and at most {MAX_TIMEOUT_MS // 1000}"
        raise VeloxError(Reason.BAD_REQUEST, message, param=name)
    return float(value)


def _retries(value: bytes) -> int:
    if _RETRIES.fullmatch(value) is None:
        name = _LITELLM_RETRIES.decode()
        raise VeloxError(Reason.BAD_REQUEST, f"header {name} must be a whole number from 0 to 9999", param=name)
    return int(value)


def _switch(value: bytes) -> bool:
    if value.lower() not in (b"true", b"false"):
        name = COST_HEADER.decode()
        raise VeloxError(Reason.BAD_REQUEST, f"header {name} must be true or false", param=name)
    return value.lower() == b"true"


def _timing(value: bytes) -> Timing:
    found = _TIMINGS.get(value.lower())
    if found is None:
        name = TIMING_HEADER.decode()
        raise VeloxError(Reason.BAD_REQUEST, f"header {name} must be 1, stream or 0", param=name)
    return found


def _priority(value: bytes, known: Priority | None) -> Priority:
    found = _PRIORITIES.get(value.lower())
    if found is None or known not in (None, found):
        name = PRIORITY_HEADER.decode()
        raise VeloxError(Reason.BAD_REQUEST, f"header {name} must be high, normal or low, once", param=name)
    return found
