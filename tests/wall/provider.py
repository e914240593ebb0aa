"""The wall: a fake provider that does one thing wrong for each model name, and logs how each attempt went.

Knows: which fault a request asks for, the how-manieth attempt it is, how it ended. Does not know: what a fault does
(faults*.py), HTTP (tests/e2e/recording*.py, on which it stands), gateways.

    with Provider(1, FAULTS, http2=True, certificates=certificates) as first:
        ...                                     # a request for model "500-once#7" fails the first time
        first.ends("500-once#7")                # ["answered", "answered"]

A model is `FAULT[@WALL]#TICKET`: the wall's number, where only one of them is to fail, and a ticket that makes it one
test's own. A fault that acts before the body is there, and so before the model is known, is asked for by the query:
`?fault=FAULT[@WALL]#TICKET` (with %23).
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tests.e2e.recorded_call import Call
from tests.e2e.recording import RecordingUpstream, healthy
from tests.e2e.upstreams import Certificates

__all__ = ["ANSWERED", "Early", "Fault", "Provider"]

ANSWERED: Final = "answered"

# A fault as a script; the second argument counts the attempts for this very model, from 1.
Fault = Callable[[Call, int], Awaitable[None]]
# What a fault does as soon as the head is there.
Early = Callable[[Call], None]


class Provider(RecordingUpstream):
    """One wall. number: 1, or 2 for the one that stands in. port: 0 for a free one.

    is_down: what the fault `flap` asks. calls: the log of attempts, oldest first; each has came_s, ended and ended_s.
    """

    def __init__(
        self,
        number: int,
        faults: Mapping[str, Fault],
        early: Mapping[str, Early],
        *,
        http2: bool = False,
        certificates: Certificates | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(http2=http2, certificates=certificates, script=self._misbehave)
        self.number: Final = number
        self.port = port
        self.is_down = False
        self._faults: Final = faults
        self._early: Final = early

    def attempts(self, model: str) -> list[Call]:
        """Return what came for a model, oldest first."""
        return [call for call in tuple(self.calls) if _model(call) == model]

    def wait_attempt(self, model: str, n: int = 1) -> Call:
        """Wait for the `n`th attempt at a model, whose body has come too."""
        self.wait(lambda: len(self.attempts(model)) >= n, f"attempt {n} for {model}")
        return self.attempts(model)[n - 1]

    def ends(self, model: str) -> list[str]:
        """Wait until every attempt that there is at a model has ended; return how."""
        calls = self.attempts(model)
        self.wait(lambda: all(call.ended for call in calls), f"the end of {calls}")
        return [call.ended for call in calls]

    def began(self, call: Call) -> None:
        """Let a fault that needs no model act."""
        early = self._early.get(self._fault(_queried(call)))
        if early is not None:
            early(call)

    async def _misbehave(self, call: Call) -> None:
        model = _model(call)
        name = self._fault(model)
        if name == "alive":
            await healthy(call)
        else:
            await self._faults[name](call, self.attempts(model).index(call) + 1)

    def _fault(self, model: str) -> str:
        """Return the fault that a model asks of this wall."""
        name, _, number = model.partition("#")[0].partition("@")
        return name if name and number in ("", str(self.number)) else "alive"


def _queried(call: Call) -> str:
    """Return the fault that the query asks for, or ""."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(call.target).query)
    return query["fault"][0] if "fault" in query else ""


def _model(call: Call) -> str:
    """Return the model of a request, or the fault of its query; "" for other requests."""
    found = _queried(call)
    if found or "chat/completions" not in call.target:
        return found
    model = json.loads(call.body)["model"]
    assert isinstance(model, str), call.body
    return model
