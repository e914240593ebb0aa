"""What the tests of routes share: a gateway with a file of upstreams and routes, simulators by name, and who answered.

Knows: how the file is given, the headers that tell of an answer's way. Does not know: what a test asks.

    with named("left", "right") as sims, routed({"upstreams": [sims["left"], sims["right"]]}) as velox:
        answer = ask(velox.openai(), "gpt-4o")
        assert (answer.sim, answer.upstream, answer.attempts) == ("left", "left", 1)
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
import yaml
from openai.types.chat import ChatCompletionUserMessageParam

from tests.e2e.harness import VeloxProcess
from tests.e2e.upstreams import start_sim

__all__ = ["MESSAGES", "Answer", "Entry", "ask", "ask_stream", "crowd", "named", "nobody", "routed", "shares"]

MESSAGES: Final[list[ChatCompletionUserMessageParam]] = [{"role": "user", "content": "Say something about gateways."}]

Entry = dict[str, Any]  # an entry of the file, as YAML has it


@contextlib.contextmanager
def routed(config: Mapping[str, object], *, launcher: tuple[str, ...] = (), **settings: str) -> Iterator[VeloxProcess]:
    """Run a gateway with this file, of one worker unless settings (lower case: VELOX_...) differ.

    launcher: see VeloxProcess.
    """
    env = {name if name.isupper() else f"VELOX_{name.upper()}": value for name, value in settings.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "velox.yaml")
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        defaults = {"VELOX_CONFIG": str(path), "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0"}
        with VeloxProcess({**defaults, **env}, launcher=launcher) as velox:
            yield velox


@contextlib.contextmanager
def named(*names: str, **options: str) -> Iterator[dict[str, Entry]]:
    """Start a simulator for each name; return their entries under `upstreams`. options: more for those of a name."""
    with contextlib.ExitStack() as running, ThreadPoolExecutor(len(names)) as starters:
        sims = [start_sim("--name", name, *options.get(name, "").split()) for name in names]
        started = list(starters.map(lambda sim: sim.__enter__(), sims))
        for sim in sims:
            running.push(sim.__exit__)
        yield {name: {"name": name, "origin": sim.url} for name, sim in zip(names, started, strict=True)}


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """Keep a port at which nobody listens; yield its origin. A free one may be the gateway's by then."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{kept.getsockname()[1]}"


@dataclass(frozen=True)
class Answer:
    """sim: who answered; upstream, attempts, tried: what the gateway says of it. model: what the upstream was asked."""

    sim: str
    upstream: str
    attempts: int
    tried: str
    model: str
    text: str
    headers: Mapping[str, str]


def ask(sdk: openai.OpenAI, model: str = "m", **more: Any) -> Answer:
    """Ask for a chat completion. more: of the SDK's own arguments. Raises what the SDK raises."""
    raw = sdk.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, **more)
    reply = raw.parse()
    return _answer(raw.headers, reply.model, reply.choices[0].message.content or "")


def ask_stream(sdk: openai.OpenAI, model: str = "m", **more: Any) -> Answer:
    """Ask for a streamed one, and read it to its end."""
    raw = sdk.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, stream=True, **more)
    chunks = list(raw.parse())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return _answer(raw.headers, chunks[0].model, text)


def _answer(headers: Mapping[str, str], model: str, text: str) -> Answer:
    return Answer(
        sim=headers.get("x-sim-name", ""),
        upstream=headers.get("x-velox-upstream", ""),
        attempts=int(headers.get("x-velox-attempts", "0")),
        tried=headers.get("x-velox-tried", ""),
        model=model,
        text=text,
        headers=headers,
    )


def crowd(n: int, call: Callable[[int], Answer], *, at_once: int = 8) -> list[Answer]:
    """Ask n times, so many at once. Raises the first failure that a client sees."""
    with ThreadPoolExecutor(at_once) as clients:
        return list(clients.map(call, range(n)))


def shares(answers: list[Answer]) -> Counter[str]:
    """Count the answers of each simulator."""
    return Counter(answer.sim for answer in answers)
