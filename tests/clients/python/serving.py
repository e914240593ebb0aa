"""What the programs of this folder share: each runs in an environment of its own, and asks clients as lines of JSON do.

    serve({"chat": chat, "responses": responses})

A line in has the client's name, and what is given to its function: the gateway's address and key, a model, and whether
the answer is streamed. A line out has what it returned, or its traceback. Only the standard library is used here.

Knows: the lines, the tool that agents have. Does not know: any client, or who asks (tests/clients/workers.py).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["ASKED", "CITIES", "LOOK", "Gateway", "look", "serve"]

ASKED = "How is the weather in Oslo and Rome? If one is cold, look at Lima too."
CITIES = {"Oslo": "cold", "Rome": "warm", "Lima": "grey"}


class Gateway(NamedTuple):
    """Where a client asks, and for which model. is_streamed: it reads the answer while it comes."""

    base_url: str
    key: str
    model: str
    is_streamed: bool

    @property
    def openai(self) -> str:
        """Return the base of OpenAI's paths."""
        return f"{self.base_url}/v1"


def look(city: str) -> str:
    """Look at the weather of a city."""
    return CITIES[city]


# The same tool as Chat Completions describes it, for clients that make no schema of a function.
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": look.__doc__,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def serve(clients: Mapping[str, Callable[[Gateway], Any]]) -> None:
    """Ask clients until standard input ends."""
    # Clients print what they like: not among the lines.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            said: dict[str, Any] = {"said": clients[job.pop("client")](Gateway(**job))}
        except BaseException:
            said = {"error": traceback.format_exc()}
        out.write(json.dumps(said) + "\n")
