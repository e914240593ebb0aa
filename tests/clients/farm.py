"""Five upstreams behind one gateway, for clients that are programs of other people.

    with farm() as running:
        with running.playing("gemini", PLAN) as played:     # the model of that kind does what the plan says
            run_client(running.velox.base_url, played.model.name)
        # leaving the block fails where a request was refused, or the plan was not done to its end
        played.n_requests, played.aside                     # of the plan; of others (titles, checks)

Knows: the gateway's file, which model is asked, what was refused. Does not know: clients (running.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.clients.models import MODELS, ConverseModel, Model
from tests.clients.plan import ASIDE, Answer, Plan, Wrong
from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_agents import is_signed
from tests.e2e.test_bedrock import ACCESS, SECRET, TOKEN
from tests.vendors.vendor import as_request

__all__ = ["CODEX_NAMES", "KEY", "KINDS", "MODEL_NAMES", "Farm", "Played", "farm"]

KINDS: Final = tuple(model.kind for model in MODELS)
# What clients ask for.
MODEL_NAMES: Final = {model.kind: model.name for model in MODELS}
# Names that Codex knows, and has tools of their own for, on models of other kinds.
CODEX_NAMES: Final = {
    "chat": "gpt-6-luna",
    "messages": "gpt-6-sol",
    "gemini": "gpt-6-astra",
    "converse": "gpt-6.1-terra",
}


@dataclass
class Played:
    """What a model was asked under a plan. refusals: what the vendor would have said, and what was wrong with results.

    requests: bodies that were the plan's. aside: those that were not.
    """

    model: Model
    plan: Plan
    requests: list[Any] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    aside: list[Any] = field(default_factory=list)

    @property
    def n_requests(self) -> int:
        """Return how many requests were the plan's."""
        return len(self.requests)


class Farm:
    """The gateway and what stands behind it. velox: a running gateway that asks for KEY."""

    def __init__(self, velox: VeloxProcess, upstreams: dict[str, RecordingUpstream]) -> None:
        self.velox: Final = velox
        self._upstreams: Final = upstreams

    @contextlib.contextmanager
    def playing(self, kind: str, plan: Plan) -> Iterator[Played]:
        """Have the model of a kind do what a plan says. Fails at the end for what was refused, or was not done."""
        played = Played(next(model for model in MODELS if model.kind == kind)(), plan)

        async def play(call: Call) -> None:
            request = as_request(call.method, call.target, call.headers, call.body)
            model = played.model
            if request.method != "POST" or not model.path.fullmatch(request.path):
                await call.reply(404, (("content-type", "application/json"),), b'{"error":{"message":"Not Found"}}')
                return
            reply = model.refuse(request)
            if reply is None and isinstance(model, ConverseModel) and not is_signed(call):
                reply = model.error("The request signature we calculated does not match the signature you provided.")
            if reply is not None:
                played.refusals.append(f"{reply.body.decode()}\n{call.body.decode()}")
            elif "count" in request.path.casefold():
                reply = model.write(request, Answer(0, ""))
            else:
                try:
                    answer = plan.answer(model.read(request))
                except Wrong as wrong:
                    played.refusals.append(f"{wrong}\n{call.body.decode()}")
                    reply = model.error(str(wrong))
                else:
                    if answer is None:
                        played.aside.append(json.loads(call.body))
                    else:
                        played.requests.append(json.loads(call.body))
                    reply = model.write(request, answer or Answer(0, ASIDE))
            await call.reply(reply.status, reply.fields, reply.body)

        with self._upstreams[kind].playing(play):
            yield played
        assert not played.refusals, "\n\n".join(played.refusals)[:6000]
        assert played.n_requests == plan.n_requests, (
            f"{played.n_requests} requests of the plan, {len(played.aside)} others: {json.dumps(played.aside)[:4000]}"
        )


@contextlib.contextmanager
def farm(**settings: str) -> Iterator[Farm]:
    """Start five upstreams, and a gateway that routes a model of each to it. settings: more of the gateway's."""
    with contextlib.ExitStack() as stack:
        upstreams = {kind: stack.enter_context(RecordingUpstream()) for kind in KINDS}
        entries = [{**model.entry, "origin": upstreams[model.kind].upstream.url} for model in MODELS]
        routes: list[dict[str, Any]] = [
            {"name": model.kind, "match": {"models": [model.name]}, "to": model.entry["name"]} for model in MODELS
        ]
        routes += [
            {
                "name": f"alias-{kind}",
                "match": {"models": [alias]},
                "to": {"upstream": kind, "model": MODEL_NAMES[kind]},
            }
            for kind, alias in CODEX_NAMES.items()
        ]
        aws = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
        config = {"upstreams": entries, "routes": routes}
        given = {"VELOX_API_KEYS": KEY, "MODEL_KEY": "sk-model-0123456789", **aws, **settings}
        given.setdefault("VELOX_CORS_ORIGINS", "http://127.0.0.1:*")
        yield Farm(stack.enter_context(routed(config, **given)), upstreams)
