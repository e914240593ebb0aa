"""Gateways with budgets, whose calls all cost the same.

Knows: what each call costs, and how gateways are run with budgets. Does not know: what a test asks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.harness import VeloxProcess
from tests.e2e.raw_http import RawReply
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import routed

__all__ = ["COST_NANO", "Priced", "ask", "ask_held", "ask_in_vain", "reply_held"]

Entry = dict[str, Any]
# What each call costs: 1,000 tokens in at 1 $ a million, 100 out at 10 $.
COST_NANO = 1000 * 1000 + 100 * 10_000
CHAT = {"prompt_tokens": 1000, "completion_tokens": 100}


class Priced:
    """A gateway with an upstream whose calls all cost 0.002 $."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prices = folder / "prices.yaml"
        self.prices.write_text("prices:\n  - {model: own*, input: 1, output: 10}\n")
        self.n_calls = 0
        self.is_silent = False
        self.tells_usage = True

    async def answer(self, call: Call) -> None:
        self.n_calls += 1
        if self.is_silent:
            await call.left.wait()
            return
        if not self.tells_usage:
            told: Entry = {"choices": []}
        elif call.target.endswith("/messages"):
            told = {
                "type": "message",
                "role": "assistant",
                "usage": {"input_tokens": 1000, "output_tokens": 100},
            }
        else:
            told = {"choices": [], "usage": CHAT}
        await call.reply(200, JSON, json.dumps(told).encode())

    @contextlib.contextmanager
    def running(
        self, budgets: Sequence[Entry], workers: int = 1, routes: Sequence[Entry] = (), **more: str
    ) -> Iterator[VeloxProcess]:
        """Run one gateway."""
        with self.gateways(1, budgets, workers, routes, **more) as found:
            yield found[0]

    @contextlib.contextmanager
    def gateways(
        self, n: int, budgets: Sequence[Entry], workers: int = 1, routes: Sequence[Entry] = (), **more: str
    ) -> Iterator[list[VeloxProcess]]:
        """Run several, each with a ledger of its own."""
        with contextlib.ExitStack() as running:
            upstream = running.enter_context(RecordingUpstream())
            running.enter_context(upstream.playing(self.answer))
            entry = {"name": "one", "provider": "openai", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
            config = {"upstreams": [entry], "budgets": list(budgets), **({"routes": list(routes)} if routes else {})}
            common = {"MODEL_KEY": "sk-model-0123456789", "workers": str(workers), "prices": str(self.prices)}
            found = []
            for at in range(n):
                folder = self.folder / ("ledger" if not at else f"ledger-{at}")
                settings = {**common, "ledger": str(folder), **more}
                found.append(running.enter_context(routed(config, **settings)))
            yield found


def ask(velox: VeloxProcess, model: str = "own", **more: Any) -> int:
    body = {"model": model, "messages": [], "max_tokens": 100, **more}
    return velox.request("POST", "/v1/chat/completions", json.dumps(body).encode()).status


def reply_held(velox: VeloxProcess, max_tokens: int = 100) -> RawReply:
    """Ask what a strict budget holds a little more for than it costs; or what it never has room for."""
    messages = [{"role": "user", "content": "word " * 1000}]
    body = {"model": "own", "messages": messages, "max_tokens": max_tokens}
    return velox.request("POST", "/v1/chat/completions", json.dumps(body).encode())


def ask_held(velox: VeloxProcess, max_tokens: int = 100) -> int:
    return reply_held(velox, max_tokens).status


def ask_in_vain(velox: VeloxProcess) -> None:
    with contextlib.suppress(OSError):
        ask(velox)
