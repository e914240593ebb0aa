"""What a model of the tests does: it calls tools, waits for what they print, and gives a last answer.

    PLAN = Plan(
        rounds=((Wanted("Bash", {"command": "echo one"}, "one"), Wanted("Bash", {"command": "echo two"}, "two")),),
        final="All done.",
    )

Each request tells all that was done before; told() finds where in the plan it stands, and turn() what comes next. What
came back under the wrong call, changed, or not at all is said by Wrong: the vendor would take it, the user would not.

Knows: calls, their results, texts. Does not know: any API (kinds.py and the modules of each).
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

__all__ = ["Answer", "Asked", "Call", "Done", "Plan", "Wanted", "Wrong"]

# To requests that the plan is not about: titles, summaries, checks whether a model is there.
ASIDE: Final = "Tools at work"


class Wrong(Exception):
    """What came back is not what the plan's calls and their results were."""


class Wanted(NamedTuple):
    """One call. tool: its name as the client declares it. result: what the text of its result must have in it."""

    tool: str
    arguments: dict[str, Any]
    result: str


class Call(NamedTuple):
    """A call as a model writes it. at: its number in the plan, from 0. tool: the name that the request declares."""

    at: int
    tool: str
    arguments: dict[str, Any]


class Answer(NamedTuple):
    """What the model says: reasoning, a text, calls. number: of the answer in the plan, from 0."""

    number: int
    text: str
    calls: tuple[Call, ...] = ()

    @property
    def thought(self) -> str:
        """Return the reasoning before it."""
        return f"Step {self.number} of the plan."


class Done(NamedTuple):
    """A call that stands in a request. result: its text; None where none is there."""

    tool: str
    arguments: Any
    result: str | None


class Asked(NamedTuple):
    """What a request has of tools. tools: the names that it declares. done: calls so far, in their order."""

    tools: tuple[str, ...]
    done: tuple[Done, ...]


class Plan(NamedTuple):
    """What the model does. rounds: the calls of each of its answers but the last. final: the text of the last.

    Without a `final` the last round is the last answer: the client takes its calls for the answer. n_questions: how
    often the user asks; all after the first question are answered with `final`, too.
    """

    rounds: tuple[tuple[Wanted, ...], ...]
    final: str | None
    n_questions: int = 1

    @property
    def n_requests(self) -> int:
        """Return how many requests the plan takes."""
        return len(self.rounds) + (self.n_questions if self.final is not None else 0)

    def answer(self, asked: Asked) -> Answer | None:
        """Return what the model says next; None where the request is none of the plan's. Raises Wrong."""
        wanted = [each for calls in self.rounds for each in calls]
        if not {each.tool for each in wanted} <= set(asked.tools):
            return None
        if len(asked.done) > len(wanted):
            raise Wrong(f"{len(asked.done)} calls have come back, {len(wanted)} were made")
        for at, (given, each) in enumerate(zip(asked.done, wanted, strict=False)):
            if given.tool != each.tool or given.arguments != each.arguments:
                raise Wrong(f"call {at} has come back as {given.tool}{json.dumps(given.arguments)}, it was {each}")
            if given.result is None or each.result not in given.result:
                raise Wrong(f"the result of call {at} ({each}) is {given.result!r}")
        n_before = 0
        for number, calls in enumerate(self.rounds):
            if n_before == len(asked.done):
                made = tuple(Call(n_before + n, each.tool, each.arguments) for n, each in enumerate(calls))
                return Answer(number, f"Now step {number + 1}.", made)
            n_before += len(calls)
        if n_before != len(asked.done):
            raise Wrong(f"{len(asked.done)} results have come back, which is in the midst of an answer's calls")
        if self.final is None:
            raise Wrong("it has asked again after the last calls")
        return Answer(len(self.rounds), self.final)
