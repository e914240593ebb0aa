"""Replies that are made up, and written in any way that JSON may be: for the readers themselves, without a gateway.

Knows: how a document with a usage may look, and be spelled. Does not know: what of it counts (bookkeeper.py).
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

__all__ = ["MadeReply", "made_reply"]

_WORDS = (
    *(
        "usage",
        "service_tier",
        "model",
        "response",
        "type",
        '"usage":{',
        "\\",
        '\\"',
        '\\\\"',
        "}{][",
        "é\u2028",
        "\n\n",
        "",
    ),
    *("data: {", "flex", "exam", "usageMetadata"),
)
_TIERS = ("flex", "priority", "batch", "default", "auto", None)
_MODELS = ("exam", "exam-big", "exam-2026-11-23")


class MadeReply:
    """One made reply. dialect: as the bookkeeper takes it. pieces: of its body."""

    def __init__(self, seed: int) -> None:
        chance = self._chance = random.Random(seed)
        self.dialect = chance.choice(("openai", "openai", "anthropic", "google"))
        self.is_stream = chance.random() < 0.4
        self.body = self._stream() if self.is_stream else self._written(self._members(self.dialect)).encode()
        n = chance.choice((1, 1, 2, 5, 40))
        cuts = sorted({0, len(self.body), *(chance.randrange(len(self.body)) for _ in range(n - 1))})
        self.pieces = [self.body[start:end] for start, end in itertools.pairwise(cuts)]

    # -- documents ------------------------------------------------------------------------------------

    def _members(self, dialect: str) -> list[tuple[str, Any]]:
        """Return the members of an answer, in any order, with others between them; some are there twice."""
        chance = self._chance
        members = [(chance.choice(_WORDS) + "x", self._noise(3)) for _ in range(chance.randrange(5))]
        if dialect == "google":
            told: list[tuple[str, Any]] = [("usageMetadata", self._generate())]
            members += [("modelVersion", "gem-exam")] * chance.randrange(2)
        elif dialect == "anthropic":
            told = [("usage", self._messages()), ("model", "cla-exam"), ("type", "message")]
        else:
            told = [("usage", self._chat())]
            members += [("service_tier", chance.choice(_TIERS)) for _ in range(chance.randrange(3))]
            members += [("model", chance.choice(_MODELS)) for _ in range(chance.randrange(3))]
        members += told * chance.choice((1, 1, 1, 2))
        if chance.random() < 0.1:
            members.append(("pad", chance.choice(_WORDS) * chance.randrange(30_000)))
        chance.shuffle(members)
        return members

    def _noise(self, depth: int) -> Any:
        chance = self._chance
        kind = chance.randrange(8 if depth else 5)
        if kind < 3:
            return chance.choice(_WORDS)
        if kind < 5:
            return chance.choice((None, True, 0, -1.5, 1e22, [], {}))
        if kind == 5:
            return [self._noise(depth - 1) for _ in range(chance.randrange(4))]
        if kind == 6:
            return {"usage": self._chat(), "service_tier": chance.choice(_TIERS), "model": "exam-big"}
        return {chance.choice(_WORDS): self._noise(depth - 1) for _ in range(chance.randrange(4))}

    def _chat(self) -> dict[str, Any]:
        chance = self._chance
        given, made = chance.randrange(1, 200_000), chance.randrange(1, 30_000)
        cached = chance.randrange(given)
        return {
            "prompt_tokens": given,
            "completion_tokens": made,
            "prompt_tokens_details": chance.choice(
                (None, {"cached_tokens": cached}, {"cached_tokens": 0, "audio_tokens": cached})
            ),
            "completion_tokens_details": chance.choice((None, {}, {"reasoning_tokens": chance.randrange(made)})),
        }

    def _messages(self) -> dict[str, Any]:
        chance = self._chance
        written = chance.randrange(1000)
        return {
            "input_tokens": chance.randrange(1, 9000),
            "cache_read_input_tokens": chance.randrange(9000),
            "cache_creation_input_tokens": written,
            "cache_creation": {"ephemeral_1h_input_tokens": chance.randrange(written + 1)},
            "output_tokens": chance.randrange(1, 9000),
            "service_tier": chance.choice(("standard", "priority", "batch")),
        }

    def _generate(self) -> dict[str, Any]:
        chance = self._chance
        given = chance.randrange(1, 100_000)
        traffic = chance.choice(("ON_DEMAND", "ON_DEMAND_FLEX", "ON_DEMAND_PRIORITY", None))
        return {
            "promptTokenCount": given,
            "cachedContentTokenCount": chance.randrange(given),
            "candidatesTokenCount": chance.randrange(1, 5000),
            "thoughtsTokenCount": chance.randrange(5000),
            "trafficType": traffic,
        }

    def _stream(self) -> bytes:
        chance = self._chance
        events = []
        if self.dialect == "anthropic":
            begun = [member for member in self._members("anthropic") if member[0] != "type"]
            first = [("message", _Members(begun)), ("type", "message_start")]
            chance.shuffle(first)
            events = [first, [("type", "message_delta"), ("usage", {"output_tokens": chance.randrange(1, 9000)})]]
        elif self.dialect == "openai" and chance.random() < 0.5:
            last = [("response", _Members(self._members("openai"))), ("type", "response.completed")]
            chance.shuffle(last)
            events = [[("type", "response.output_text.delta"), ("delta", chance.choice(_WORDS))], last]
        else:
            events = [[("choices", []), ("x", self._noise(2))], self._members(self.dialect)]
        end = chance.choice((b"\n\n", b"\r\n\r\n"))
        name = chance.choice((b"", b"event: usage\n", b": usage\n"))
        return b"".join(name + b"data: " + self._written(event, has_lines=False).encode() + end for event in events)

    # -- spelling -------------------------------------------------------------------------------------

    def _written(self, value: Any, *, has_lines: bool = True) -> str:
        """Write JSON: a list of pairs at the top is an object."""
        blanks = ("", "", " ", "\t", *(("\n  ", "\r\n") if has_lines else ()))
        blank = self._chance.choice(blanks)

        def write(value: Any) -> str:
            if isinstance(value, dict):
                value = _Members(list(value.items()))
            if isinstance(value, _Members):
                members = (f"{self._string(name)}{blank}:{blank}{write(each)}" for name, each in value.pairs)
                return "{" + blank + f",{blank}".join(members) + blank + "}"
            if isinstance(value, list):
                return "[" + f",{blank}".join(map(write, value)) + blank + "]"
            if isinstance(value, str):
                return self._string(value)
            is_count = type(value) is int and value >= 0 and self._chance.random() < 0.1
            return f"{value}.0" if is_count else json.dumps(value)

        return write(_Members(value))

    def _string(self, text: str) -> str:
        if self._chance.random() < 0.8 or len(text) > 100:
            return json.dumps(text, ensure_ascii=self._chance.random() < 0.5)
        letters = (
            f"\\u{ord(each):04x}" if self._chance.random() < 0.4 and ord(each) < 0xFFFF else json.dumps(each)[1:-1]
            for each in text
        )
        return '"' + "".join(letters) + '"'


class _Members:
    """Members of an object, of equal names, too."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def made_reply(seed: int) -> MadeReply:
    """Return a reply; the same for the same seed."""
    return MadeReply(seed)
