"""Refusals that our own choice of a target has caused are no final answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.composed import Stand, composed, in_order, settings_with, upstream_of
from tests.sockets.gateway.core_attempts import RULES, attempts, run, status_of, whole
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedStream, ScriptedUpstream, Step, request_head
from velox.net.upstream.interface import ReplySink, UpstreamRequest
from velox.types import ANYONE

JSON: Final = (b"content-type", b"application/json")


class Server(ScriptedUpstream):
    """Keeps the bodies that it was sent."""

    def __init__(self, *scripts: Sequence[Step]) -> None:
        super().__init__(*scripts)
        self.bodies: Final[list[dict[str, Any]]] = []

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        if request.method != b"HEAD":
            self.bodies.append(orjson.loads(request.body or b"null"))
        return super().open(request, sink)


def answers(status: int, document: object) -> list[Step]:
    return whole(status, orjson.dumps(document), JSON)


def refuses(message: str, status: int = 400, **fields: object) -> list[Step]:
    return answers(status, {"error": {"message": message, "type": "invalid_request_error", **fields}})


def asked(
    path: str,
    body: dict[str, Any],
    servers: dict[str, tuple[str, Server]],
) -> FakeClient:
    """Send a request to the servers in order, each with its provider's name; return what the client got."""
    return asked_in_turn(path, [body], servers)[0]


def asked_in_turn(
    path: str, bodies: Sequence[dict[str, Any]], servers: dict[str, tuple[str, Server]]
) -> list[FakeClient]:
    """Send requests one after the other through one gateway; return what the clients got."""
    clients = [FakeClient() for _ in bodies]

    async def main() -> None:
        entries = tuple(replace(upstream_of(name), provider=provider) for name, (provider, _) in servers.items())
        settings = settings_with(upstreams=entries, routes=(in_order("".join(servers)),))
        stands = {name: Stand(server.dial) for name, (_, server) in servers.items()}
        with composed(settings, stands, retry_rules=RULES) as made:
            for client, body in zip(clients, bodies, strict=True):
                made.gateway.submit(client, request_head(path=path.encode()), orjson.dumps(body), ANYONE)
                async with asyncio.timeout(PATIENCE_S):
                    await client.finished.wait()

    run(main)
    return clients


CHAT_ANSWER: Final = answers(
    200,
    {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    },
)
RESPONSE: Final = answers(
    200,
    {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "gpt-5",
        "output": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "hello"}],
            }
        ],
    },
)
MESSAGE: Final = answers(
    200,
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-8",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
)
CONTENT: Final = answers(
    200, {"candidates": [{"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP"}]}
)

REASONING: Final = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E_A"}
RESPONSES_BODY: Final = {
    "model": "gpt-5",
    "store": False,
    "input": [{"role": "user", "content": "a"}, REASONING, {"role": "user", "content": "b"}],
}
MESSAGES_BODY: Final = {
    "model": "claude-opus-4-8",
    "max_tokens": 5,
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "3f9a0c11d2e4b5a6978812cd"},
                {"type": "text", "text": "t"},
            ],
        },
        {"role": "user", "content": "b"},
    ],
}
GENERATE_BODY: Final = {
    "contents": [
        {"role": "user", "parts": [{"text": "a"}]},
        {
            "role": "model",
            "parts": [
                {"text": "so", "thought": True, "thoughtSignature": "Zm9v"},
                {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "Zm9v"},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
    ]
}
_ENCRYPTED: Final = refuses("The encrypted content E_A could not be verified.", code="invalid_encrypted_content")
_SIGNATURE: Final = refuses("messages.1.content.0: Invalid `signature` in `thinking` block")
_THOUGHT: Final = answers(400, {"error": {"code": 400, "message": "Corrupted thought signature."}})


@pytest.mark.parametrize(
    ("provider", "path", "body", "error", "answer", "marks"),
    [
        ("openai", "/v1/responses", RESPONSES_BODY, _ENCRYPTED, RESPONSE, ("E_A", "rs_1")),
        ("anthropic", "/v1/messages", MESSAGES_BODY, _SIGNATURE, MESSAGE, ("3f9a0c11", "thinking")),
        ("gemini", "/v1beta/models/gemini-3-pro:generateContent", GENERATE_BODY, _THOUGHT, CONTENT, ("Zm9v", '"so"')),
    ],
)
def test_reasoning_that_the_server_has_not_made_is_left_out_and_asked_once_more(
    provider: str, path: str, body: dict[str, Any], error: list[Step], answer: list[Step], marks: tuple[str, ...]
) -> None:
    """C28, C29: another key, resource or server has made it: once more there without it, and not 400 for ever."""
    server, other = Server(error, answer), Server(answer)

    client = asked(path, body, {"a": (provider, server), "b": (provider, other)})

    assert status_of(client) == 200 and b"hello" in client.written
    assert attempts(server, other) == [2, 0]
    before, after = (orjson.dumps(each).decode() for each in server.bodies)
    assert all(mark in before and mark not in after for mark in marks)
    assert '"b"' in after or "functionResponse" in after
    assert "functionCall" not in before or "skip_thought_signature_validator" in after, "calls are checked"


def test_reasoning_is_left_out_where_the_request_is_translated_too() -> None:
    """C28: the client of another API has it tagged; its maker's name says nothing of the key."""
    sealed = "velox.openai.rs_1.E_A"
    content = [{"type": "thinking", "thinking": "x", "signature": sealed}, {"type": "text", "text": "t"}]
    messages = [MESSAGES_BODY["messages"][0], {"role": "assistant", "content": content}, MESSAGES_BODY["messages"][2]]
    server = Server(_ENCRYPTED, RESPONSE)

    client = asked("/v1/messages", {**MESSAGES_BODY, "model": "gpt-5", "messages": messages}, {"a": ("openai", server)})

    assert status_of(client) == 200 and attempts(server) == [2]
    before, after = (orjson.dumps(each).decode() for each in server.bodies)
    assert "E_A" in before and "E_A" not in after


def test_conversation_that_goes_on_elsewhere_costs_one_refusal() -> None:
    """C28: later turns repeat what was refused: it is left out before they are sent; what is new there goes back."""
    server = Server(_ENCRYPTED, RESPONSE, RESPONSE)
    new = {**REASONING, "id": "rs_2", "encrypted_content": "E_B"}
    later = {**RESPONSES_BODY, "input": [*RESPONSES_BODY["input"], new, {"role": "user", "content": "c"}]}

    clients = asked_in_turn("/v1/responses", [RESPONSES_BODY, later], {"a": ("openai", server)})

    assert [status_of(client) for client in clients] == [200, 200]
    first, again, second = (orjson.dumps(each).decode() for each in server.bodies)
    assert "E_A" in first and "E_A" not in again
    assert "E_A" not in second and "E_B" in second


def test_reasoning_is_left_out_once_only() -> None:
    """A second refusal is the client's; so is the first one where there is nothing to leave out."""
    server = Server(_ENCRYPTED)
    client = asked("/v1/responses", RESPONSES_BODY, {"a": ("openai", server)})
    assert status_of(client) == 400 and b"invalid_encrypted_content" in client.written and attempts(server) == [2]

    server = Server(_ENCRYPTED)
    client = asked("/v1/responses", {"model": "gpt-5", "input": "a"}, {"a": ("openai", server)})
    assert status_of(client) == 400 and attempts(server) == [1]


CODEX: Final = {"model": "gpt-5", "messages": [{"role": "user", "content": "a"}], "verbosity": "low"}
_UNKNOWN: Final = answers(422, {"error": "Failed to deserialize: tools[0].type: unknown variant `custom`"})


@pytest.mark.parametrize(
    "error", [_UNKNOWN, refuses("x: Extra inputs are not permitted"), refuses("Unrecognized request argument: x")]
)
def test_server_that_does_not_know_a_field_is_passed_over(error: list[Step]) -> None:
    """C1: what one server lacks another may have; where there is none of another kind, the client hears of it."""
    first, other = Server(error), Server(CHAT_ANSWER)
    client = asked("/v1/chat/completions", CODEX, {"a": ("groq", first), "b": ("mistral", other)})
    assert status_of(client) == 200 and attempts(first, other) == [1, 1]

    first, other = Server(error), Server(CHAT_ANSWER)
    client = asked("/v1/chat/completions", CODEX, {"a": ("groq", first), "b": ("groq", other)})
    assert status_of(client) in (400, 422) and attempts(first, other) == [1, 0], "it would refuse it, too"


def test_error_about_the_request_itself_is_the_clients() -> None:
    """It would be refused by everybody: one attempt, as it came."""
    first, other = Server(refuses("messages: at least one message is required")), Server(CHAT_ANSWER)
    client = asked("/v1/chat/completions", CODEX, {"a": ("groq", first), "b": ("mistral", other)})
    assert status_of(client) == 400 and b"at least one message" in client.written and attempts(first, other) == [1, 0]


@pytest.mark.parametrize("error", [_UNKNOWN, refuses("I don't like it"), refuses("The model `x` does not exist", 404)])
def test_refusal_of_a_fallback_does_not_hide_the_failure_that_led_to_it(error: list[Step]) -> None:
    """C1: OpenAI 503, then xAI 422: the client hears of the 503, which its SDK tries again."""
    first, second = Server(answers(503, {"error": {"message": "busy"}})), Server(error)
    client = asked("/v1/chat/completions", CODEX, {"a": ("openai", first), "b": ("xai", second)})
    assert status_of(client) == 503 and attempts(first, second) == [1, 1], client.written
    assert b"the fallback b refused" in client.written


def test_refusal_of_a_fallback_leads_to_the_next_one() -> None:
    """C1: with one failure and one refusal behind it, the third is asked."""
    servers = Server(answers(503, {})), Server(_UNKNOWN), Server(CHAT_ANSWER)
    a, b, c = servers
    named = {"a": ("openai", a), "b": ("xai", b), "c": ("mistral", c)}
    client = asked("/v1/chat/completions", CODEX, named)
    assert status_of(client) == 200 and attempts(*servers) == [1, 1, 1]


def test_refusal_of_another_server_of_the_same_kind_is_the_clients() -> None:
    """Both take the same requests: what one refuses the other would, and the client can mend it now."""
    first, second = Server(answers(503, {})), Server(refuses("messages: at least one message is required"))
    client = asked("/v1/chat/completions", CODEX, {"a": ("openai", first), "b": ("openai", second)})
    assert status_of(client) == 400 and attempts(first, second) == [1, 1]
