"""Every way of a request through a gateway: who asks in which API, and what it is put into on its way up.

    LANES                    the ways, by the names that reports have
    configuration(origins)   the upstreams and routes that they need
    Lane.request()           one request: its path, its headers, its body

Knows: paths, bodies, which provider has which API. Does not know: how a request is sent, or what comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["LANES", "SECRETS", "Lane", "Request", "configuration"]

# What the upstreams' keys are, as the environment has them.
SECRETS: Final = {"SOAK_KEY": "key-of-the-provider-0123456789"}
_FORM: Final = "the-parts-of-a-form"


@dataclass(frozen=True)
class Request:
    """One request, as it goes to the gateway."""

    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Lane:
    """One way. model: what is asked for, which is how the route is found.

    write: makes path and body of a model, a text, and whether a stream is wanted. streams: it can be one.
    """

    name: str
    model: str
    write: Callable[[str, str, bool], tuple[str, bytes]]
    streams: bool = True
    form: str = "application/json"

    def request(self, text: str, *, stream: bool, fault: str = "", headers: Mapping[str, str] | None = None) -> Request:
        """Return a request. fault: which the provider is asked for, by the model's name; "": none."""
        path, body = self.write(f"{self.model}-soak-{fault}" if fault else self.model, text, stream)
        return Request(path, body, {"content-type": self.form, **(headers or {})})


# -- who asks -----------------------------------------------------------------------------------------


def _chat(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return "/v1/chat/completions", _json(model=model, messages=[{"role": "user", "content": text}], **more)


def _messages(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    asked = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": text}]}
    return "/v1/messages", _json(**asked, stream=stream)


def _responses(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    return "/v1/responses", _json(model=model, input=text, store=False, stream=stream)


def _generate(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    body = _json(contents=[{"role": "user", "parts": [{"text": text}]}])
    return f"/v1beta/models/{model}:" + ("streamGenerateContent?alt=sse" if stream else "generateContent"), body


def _generate_array(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    path, body = _generate(model, text, stream)
    return path.removesuffix("?alt=sse"), body


def _completions(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    return "/v1/completions", _json(model=model, prompt=text, stream=stream)


def _count_messages(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    return "/v1/messages/count_tokens", _json(model=model, messages=[{"role": "user", "content": text}])


def _count_responses(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    return "/v1/responses/input_tokens", _json(model=model, input=text)


def _count_generate(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    return f"/v1beta/models/{model}:countTokens", _json(contents=[{"role": "user", "parts": [{"text": text}]}])


def _embed(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    return "/v1/embeddings", _json(model=model, input=[text, "b", "c"])


def _embed_google(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    parts = [{"model": f"models/{model}", "content": {"parts": [{"text": each}]}} for each in (text, "b")]
    return f"/v1beta/models/{model}:batchEmbedContents", _json(requests=parts)


def _transcribe(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    parts = {'name="model"': model, 'name="file"; filename="a.wav"\r\ncontent-type: audio/wav': text}
    lines = "".join(
        f"--{_FORM}\r\ncontent-disposition: form-data; {name}\r\n\r\n{value}\r\n" for name, value in parts.items()
    )
    return "/v1/audio/transcriptions", f"{lines}--{_FORM}--\r\n".encode()


def _batch(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    asked = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return "/v1/batches", _json(**asked, metadata={"for": model})


def _list(model: str, text: str, stream: bool) -> tuple[str, bytes]:
    return "/v1/models", b""


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


# -- where it goes ------------------------------------------------------------------------------------

_UPSTREAMS: Final[Mapping[str, Mapping[str, object]]] = {
    "chat": {"provider": "vllm", "key": "env:SOAK_KEY"},
    "openai": {"provider": "openai", "key": "env:SOAK_KEY"},
    "anthropic": {"provider": "anthropic", "key": "env:SOAK_KEY"},
    "second": {"provider": "anthropic", "key": "env:SOAK_KEY"},
    "copy": {"provider": "anthropic", "key": "env:SOAK_KEY"},
    "gemini": {"provider": "gemini", "key": "env:SOAK_KEY"},
    "vertex": {"provider": "vertex", "project": "p1", "location": "eu", "key": "env:SOAK_KEY"},
    "bedrock": {"provider": "bedrock", "region": "eu-central-1", "key": "env:SOAK_KEY"},
    "plain": {"key": "env:SOAK_KEY"},
}
# Routes by the beginnings of models' names; the first that matches counts.
_ROUTES: Final[Mapping[str, Mapping[str, object]]] = {
    "claude-hedged*": {"to": ["anthropic", "second"], "hedge": {"after": "1ms", "at_most": "100%"}},
    "claude-mirrored*": {"to": "anthropic", "mirror": {"to": "copy", "percent": "100%"}},
    "claude-fallback*": {"to": "anthropic", "fallback": ["chat"]},
    "claude-balanced*": {"to": ["anthropic", "second"]},
    "my-claude*": {"to": "vertex"},
    "gemini-v*": {"to": "vertex"},
    "text-embedding-0*": {"to": "vertex"},
    "claude-*": {"to": "anthropic"},
    "gemini-*": {"to": "gemini"},
    "qwen-*": {"to": "chat"},
    "gpt-*": {"to": "openai"},
    "text-embedding-3*": {"to": "openai"},
    "eu.anthropic.*": {"to": "bedrock"},
    "*amazon.*": {"to": "bedrock"},
    "plain-*": {"to": "plain"},
}
# Of text: who asks, and the models of each API.
_ASKING: Final = {"chat": _chat, "messages": _messages, "responses": _responses, "generate": _generate}
_TEXT: Final = {
    "chat": "qwen-x",
    "responses": "gpt-5-x",
    "openai chat": "gpt-4o-x",
    "anthropic": "claude-x",
    "gemini": "gemini-2.5-flash",
    "vertex claude": "my-claude-x",
    "vertex gemini": "gemini-v-x",
    "bedrock claude": "eu.anthropic.claude-x",
    "bedrock nova": "us.amazon.nova-x",
}
_WAYS: Final = ("claude-hedged-x", "claude-mirrored-x", "claude-fallback-x", "claude-balanced-x")
_COUNTING: Final = {"messages": _count_messages, "responses": _count_responses, "generate": _count_generate}
_EMBEDDING: Final = {
    "openai": "text-embedding-3-small",
    "gemini": "gemini-embedding-001",
    "vertex": "text-embedding-005",
    "bedrock": "amazon.titan-embed-text-v2:0",
    "nova": "amazon.nova-2-multimodal-embeddings-v1:0",
}


def _lanes() -> Iterator[Lane]:
    for asking, write in _ASKING.items():
        for asked, model in _TEXT.items():
            yield Lane(f"{asking} to {asked}", model, write)
    yield Lane("generate, as an array, to anthropic", "claude-x", _generate_array)
    for model in _WAYS:
        kind = model.split("-")[1]
        yield Lane(f"chat, {kind}, to anthropic", model, _chat)
        yield Lane(f"messages, {kind}, to anthropic", model, _messages)
    for asking, write in _COUNTING.items():
        for asked, model in _TEXT.items():
            yield Lane(f"{asking} counted by {asked}", model, write, streams=False)
    for asked, model in _EMBEDDING.items():
        yield Lane(f"embeddings of {asked}", model, _embed, streams=False)
        yield Lane(f"gemini's embeddings of {asked}", model, _embed_google, streams=False)
    yield Lane("completions to openai", "gpt-4o-x", _completions)
    yield Lane("chat to a server without a provider", "plain-x", _chat)
    yield Lane("a form", "plain-x", _transcribe, streams=False, form=f"multipart/form-data; boundary={_FORM}")
    yield Lane("a batch", "plain-x", _batch, streams=False)
    yield Lane("the list of models", "plain-x", _list, streams=False)


LANES: Final = tuple(_lanes())


def configuration(origins: Mapping[str, str], origin: str, *, apart: bool = False) -> dict[str, Any]:
    """Return what a file of settings has for these lanes. origins: of upstreams by name; the others have `origin`.

    apart: what asks for a fault has upstreams of its own, as what is learned of one would harm those that ask for none.
    """
    upstreams = [{"name": name, "origin": origins.get(name, origin), **entry} for name, entry in _UPSTREAMS.items()]
    routes = [{"match": {"models": [model]}, **entry} for model, entry in _ROUTES.items()]
    if apart:
        upstreams += [{**each, "name": f"bad-{each['name']}"} for each in upstreams]
        bad = [
            {**_renamed(entry), "match": {"models": [f"{model.removesuffix('*')}*-soak-*"]}}
            for model, entry in _ROUTES.items()
        ]
        routes = bad + routes
    named = [{"name": f"r{n}", **entry} for n, entry in enumerate(routes)]
    return {"upstreams": upstreams, "routes": [*named, {"name": "rest", "to": "plain"}]}


def _renamed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a route to the upstreams of those that ask for a fault."""
    found = dict(entry)
    to = found["to"]
    found["to"] = [f"bad-{each}" for each in to] if isinstance(to, list) else f"bad-{to}"
    if "fallback" in found:
        found["fallback"] = [f"bad-{each}" for each in found["fallback"]]
    return found
