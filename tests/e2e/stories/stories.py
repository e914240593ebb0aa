"""The stories: one request each, or the few that belong together, and what is special about it.

Knows: what clients send and upstreams answer. Does not know: how a page is made (stage.py).
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import zlib
from collections.abc import Callable
from typing import Any, Final

import httpx

from tests.e2e.harness import until
from tests.e2e.raw_http import read_reply
from tests.e2e.stories.stage import (
    APP,
    Stage,
    broken,
    cut,
    events,
    held,
    managed_key,
    reply_text,
    revoke_key,
    silent,
    stream,
    whole,
)
from tests.e2e.websocket_upstreams import connect

__all__ = ["BEFORE", "STORIES"]

Story = Callable[[Stage], None]
STORIES: Final[dict[str, Story]] = {}
# What must be there before a story begins.
BEFORE: Final[dict[str, Story]] = {
    "managed-key": lambda stage: managed_key(stage, "guest"),
    "revoked-key": lambda stage: revoke_key(stage, "guest"),
}
JsonObject = dict[str, Any]

CHATS: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
USAGE: Final = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
CLAUDE_USAGE: Final = {"input_tokens": 9, "output_tokens": 3}
BUSY: Final = {"error": {"message": "busy", "type": "server_error", "code": None, "param": None}}


def story(play: Story) -> Story:
    """List a story under its name."""
    STORIES[play.__name__.removeprefix("tell_").replace("_", "-")] = play
    return play


def chat(model: str = "gpt-4o", **more: object) -> JsonObject:
    """Return a chat's request."""
    return {"model": model, "messages": [{"role": "user", "content": "Say hi."}], **more}


def completion(text: str = "Hi there.", model: str = "gpt-4o-2024-11-20") -> JsonObject:
    """Return what OpenAI answers to it."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": model,
        "choices": [choice],
        "usage": USAGE,
    }


def chunk(delta: object = None, finish: str | None = None, **more: object) -> JsonObject:
    """Return an event of a chat's stream."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    fixed = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "gpt-4o"}
    return {**fixed, "choices": choices, **more}


def chunks(*, usage: bool = True) -> list[bytes]:
    """Return a chat's stream. usage: told at its end, as where Velox or the client asks for it."""
    told = [chunk(usage=USAGE)] if usage else []
    return events(
        chunk({"role": "assistant", "content": "Hi"}), chunk({"content": " there."}), chunk({}, "stop"), *told, "[DONE]"
    )


def message(text: str = "Hi there.") -> JsonObject:
    """Return what Anthropic answers."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": CLAUDE_USAGE,
    }


def message_events() -> list[bytes]:
    """Return what it streams."""
    begun = {**message(), "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    return events(
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi there."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
        names=True,
    )


def generated() -> JsonObject:
    """Return what Gemini answers."""
    candidate = {"content": {"role": "model", "parts": [{"text": "Hi there."}]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 3, "totalTokenCount": 12}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash", "responseId": "r1"}


# -- Requests that pass ------------------------------------------------------------------------------


@story
def tell_plain(stage: Stage) -> None:
    """A plain chat completion passes byte for byte; the client's key is replaced by the upstream's."""
    stage.plays("one", whole(completion(), 200, ("x-request-id", "req_1"), ("server", "upstream")))
    stage.ask("POST", CHATS, chat(), {"user-agent": "app/1.0", "cookie": "a=b", "x-forwarded-for": "192.0.2.1"})


@story
def tell_stream(stage: Stage) -> None:
    """A stream passes event by event. Its client asks for the usage itself."""
    stage.plays("one", stream(chunks()))
    stage.ask("POST", CHATS, chat(stream=True, stream_options={"include_usage": True}))


@story
def tell_stream_usage(stage: Stage) -> None:
    """Where the client does not ask for the usage, Velox does, and keeps it from the client."""
    stage.plays("one", stream(chunks()))
    stage.ask("POST", CHATS, chat(stream=True))


@story
def tell_renamed(stage: Stage) -> None:
    """An alias: the upstream is asked for another name, and no other byte of the body changes."""
    stage.plays("one", whole(completion()))
    stage.ask("POST", CHATS, b'{ "model" : "fast", "messages":[] , "n":1.0}')


@story
def tell_compressed(stage: Stage) -> None:
    """A body that came in gzip is read, and goes up as it is without."""
    stage.plays("one", whole(completion()))
    packer = zlib.compressobj(level=0, wbits=31)  # gzip, of the same length by every library
    packed = packer.compress(json.dumps(chat()).encode()) + packer.flush()
    stage.ask("POST", CHATS, packed, {"content-encoding": "gzip"})


@story
def tell_embeddings(stage: Stage) -> None:
    """Vectors: no completion tokens."""
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    stage.plays("one", whole({"object": "list", "data": [vector], "model": "text-embedding-3-small", "usage": usage}))
    stage.ask("POST", "/v1/embeddings", {"model": "text-embedding-3-small", "input": "Say hi."})


@story
def tell_form(stage: Stage) -> None:
    """A transcription: the model stands in a form."""
    form = (
        b'--b1\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
        b'--b1\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b1--\r\n'
    )
    usage = {"type": "tokens", "input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    stage.plays("one", whole({"text": "Hi there.", "usage": usage}))
    stage.ask("POST", "/v1/audio/transcriptions", form, {"content-type": "multipart/form-data; boundary=b1"})


@story
def tell_http2(stage: Stage) -> None:
    """The client speaks HTTP/2, the upstream HTTP/1.1."""
    stage.plays("one", whole(completion()))
    _, data = stage.request("POST", CHATS, chat(), {"te": "trailers"})
    headers = {"authorization": f"Bearer {APP}", "content-type": "application/json", "te": "trailers"}
    with httpx.Client(http1=False, http2=True, trust_env=False) as client:
        client.headers.clear()
        reply = client.post(stage.velox.base_url + CHATS, content=data, headers=headers)
    assert reply.http_version == "HTTP/2"
    fields = "".join(f"{name}: {value}\n" for name, value in reply.headers.items())
    stage.tell("the client gets, over HTTP/2", f"{reply.status_code}\n{fields}\n{reply.text}")


@story
def tell_copied(stage: Stage) -> None:
    """A mirror gets a copy. Its answer is discarded, and is no call of the client's."""
    stage.plays("two", whole(completion("Another answer.")))
    stage.plays("one", whole(completion()))
    stage.ask("POST", CHATS, chat("copied"))
    stage.velox.wait_metric('velox_mirrored_requests_total{outcome="answered"}', lambda n: n == 1)


# -- Translations ------------------------------------------------------------------------------------


@story
def tell_translated(stage: Stage) -> None:
    """A client of OpenAI's API, a model of Anthropic's."""
    stage.plays("claude", whole(message()))
    stage.ask("POST", CHATS, chat("claude-sonnet-4-5", max_tokens=50, stop=["."], seed=1))


@story
def tell_translated_stream(stage: Stage) -> None:
    """The same as a stream: other events, another end."""
    stage.plays("claude", stream(message_events()))
    asked = chat("claude-sonnet-4-5", max_tokens=50, stream=True, stream_options={"include_usage": True})
    stage.ask("POST", CHATS, asked)


@story
def tell_translated_error(stage: Stage) -> None:
    """What Anthropic refuses reaches a client of OpenAI's in OpenAI's shape."""
    error = {"type": "invalid_request_error", "message": "messages: roles must alternate"}
    stage.plays("claude", whole({"type": "error", "error": error, "request_id": "req_1"}, 400))
    stage.ask("POST", CHATS, chat("claude-sonnet-4-5", max_tokens=50))


@story
def tell_messages_to_chat(stage: Stage) -> None:
    """A client of Anthropic's API, a model of OpenAI's."""
    stage.plays("one", whole(completion()))
    asked = {**chat(), "max_tokens": 50, "system": "Be short."}
    stage.ask("POST", MESSAGES, asked, {"anthropic-version": "2023-06-01"})


@story
def tell_messages_to_chat_stream(stage: Stage) -> None:
    """The same as a stream, whose usage Velox asks for."""
    stage.plays("one", stream(chunks()))
    stage.ask("POST", MESSAGES, {**chat(), "max_tokens": 50, "stream": True}, {"anthropic-version": "2023-06-01"})


@story
def tell_gemini_to_messages(stage: Stage) -> None:
    """A client of Gemini's API, whose model stands in the path, and a model of Anthropic's."""
    stage.plays("claude", whole(message()))
    asked = {"contents": [{"role": "user", "parts": [{"text": "Say hi."}]}]}
    stage.ask("POST", "/v1beta/models/claude-sonnet-4-5:generateContent", asked, {"x-goog-api-key": APP}, key="")


@story
def tell_chat_to_gemini(stage: Stage) -> None:
    """A client of OpenAI's API, a model of Google's."""
    stage.plays("gemini", whole(generated()))
    stage.ask("POST", CHATS, chat("gemini-2.5-flash", temperature=0.5))


@story
def tell_responses_kept(stage: Stage) -> None:
    """Responses at a model of Anthropic's: the answer is kept, and the next request goes on from it."""
    stage.plays("claude", whole(message("One.")), whole(message("Two.")))
    made = stage.ask(
        "POST", "/v1/responses", {"model": "claude-sonnet-4-5", "input": "Count.", "max_output_tokens": 50}
    )
    more = {"previous_response_id": made.json()["id"], "max_output_tokens": 50}
    stage.ask("POST", "/v1/responses", {"model": "claude-sonnet-4-5", "input": "Go on.", **more})


@story
def tell_counted(stage: Stage) -> None:
    """Tokens are counted by the model's provider; that costs nothing."""
    stage.plays("claude", whole({"input_tokens": 9}))
    asked = {"model": "claude-sonnet-4-5", "messages": chat()["messages"]}
    stage.ask("POST", f"{MESSAGES}/count_tokens", asked, {"anthropic-version": "2023-06-01"})


# -- Upstreams that fail -----------------------------------------------------------------------------


@story
def tell_refused_upstream(stage: Stage) -> None:
    """A 400 of the upstream's is the client's, unchanged, and no other attempt follows."""
    error = {"message": "no such field: x", "type": "invalid_request_error", "param": "x", "code": None}
    stage.plays("one", whole({"error": error}, 400))
    stage.ask("POST", CHATS, chat(x=1))


@story
def tell_retried(stage: Stage) -> None:
    """A 503 is asked again at the same upstream: there is no other."""
    stage.plays("one", whole(BUSY, 503), whole(completion()))
    stage.ask("POST", CHATS, chat())


@story
def tell_retries_end(stage: Stage) -> None:
    """The last failure is the client's when no attempt is left."""
    stage.plays("one", whole(BUSY, 503), whole(BUSY, 503, ("retry-after", "7")))
    stage.ask("POST", CHATS, chat())


@story
def tell_fallback(stage: Stage) -> None:
    """Nobody listens at the first upstream: the fallback answers."""
    stage.plays("two", whole(completion()))
    stage.ask("POST", CHATS, chat("falls"))


@story
def tell_fallback_reset(stage: Stage) -> None:
    """The first upstream resets the connection when it has the request."""
    stage.plays("one", broken())
    stage.plays("two", whole(completion()))
    stage.ask("POST", CHATS, chat("turns"))


@story
def tell_fallback_stream(stage: Stage) -> None:
    """A stream that begins with an error is a failure; nothing of it reaches the client."""
    stage.plays("one", stream(events(BUSY)))
    stage.plays("two", stream(chunks()))
    stage.ask("POST", CHATS, chat("turns", stream=True))


@story
def tell_unreachable(stage: Stage) -> None:
    """Nobody listens, and there is no fallback."""
    stage.ask("POST", CHATS, chat("lone"))


@story
def tell_timeout(stage: Stage) -> None:
    """The upstream is silent for longer than it may be."""
    stage.plays("one", silent())
    stage.ask("POST", CHATS, chat("hasty"))


@story
def tell_hedged(stage: Stage) -> None:
    """The first upstream is slow: the second is asked as well, is faster, and the first is left."""
    stage.plays("one", silent())
    stage.plays("two", stream(chunks()))
    stage.ask("POST", CHATS, chat("hedged", stream=True))


@story
def tell_cut_stream(stage: Stage) -> None:
    """The upstream breaks off inside a stream: the client gets an error, and no end."""
    stage.plays("one", cut(chunks()[:2]))
    stage.ask_cut("POST", CHATS, chat(stream=True))


@story
def tell_cut_translated(stage: Stage) -> None:
    """The same where the stream is translated."""
    stage.plays("claude", cut(message_events()[:3]))
    stage.ask_cut("POST", CHATS, chat("claude-sonnet-4-5", max_tokens=50, stream=True))


# -- Clients that leave ------------------------------------------------------------------------------


@story
def tell_client_leaves(stage: Stage) -> None:
    """The client leaves before the answer has begun: the upstream is left at once."""
    stage.plays("one", silent())
    head, data = stage.request("POST", CHATS, chat())
    with stage.velox.connect() as sock:
        sock.sendall(head + data)
        stage.call("one")
    stage.tell("the client", "leaves")


@story
def tell_client_leaves_stream(stage: Stage) -> None:
    """The client leaves inside a stream: it is read on, for the usage at its end."""
    stage.plays("one", held(chunks()[:1], chunks()[1:]))
    head, data = stage.request("POST", CHATS, chat(stream=True))
    with stage.velox.connect() as sock:
        sock.sendall(head + data)
        until_first_event(sock)
    stage.tell("the client", "leaves after the first event")
    stage.velox.wait_metric("velox_client_connections", lambda n: n == 0)
    stage.servers["one"].step()


# -- Answers of Velox's own --------------------------------------------------------------------------


@story
def tell_no_key(stage: Stage) -> None:
    """Without a key."""
    stage.ask("POST", CHATS, chat(), key="")


@story
def tell_managed_key(stage: Stage) -> None:
    """A key that was made while the gateway runs."""
    stage.plays("one", whole(completion()))
    stage.ask("POST", CHATS, chat(), key=stage.secrets["guest"])


@story
def tell_revoked_key(stage: Stage) -> None:
    """The same key, when it was deleted."""
    stage.ask("POST", CHATS, chat(), key=stage.secrets["guest"])


@story
def tell_other_model(stage: Stage) -> None:
    """A key that is for other models."""
    stage.ask("POST", CHATS, chat("gpt-4o-mini"), key="vk-narrow-000005")


@story
def tell_unknown_model(stage: Stage) -> None:
    """No route has the model."""
    stage.ask("POST", CHATS, chat("nobody-has-this"))


@story
def tell_limit(stage: Stage) -> None:
    """A key of one request a minute asks twice."""
    stage.plays("one", whole(completion()))
    stage.ask("POST", CHATS, chat(), key="vk-slow-00000003")
    stage.ask("POST", CHATS, chat(), key="vk-slow-00000003")


@story
def tell_token_limit(stage: Stage) -> None:
    """Tokens are charged by estimate, and settled by what the answer tells; the second request is too large."""
    stage.plays("one", whole(completion()))
    stage.ask("POST", CHATS, chat(max_tokens=100), key="vk-thrifty-00006")
    stage.ask("POST", CHATS, chat(max_tokens=5000), key="vk-thrifty-00006")


@story
def tell_budget(stage: Stage) -> None:
    """The budget of a key is spent by its first request."""
    stage.plays("one", whole(completion()))
    stage.ask("POST", CHATS, chat(), key="vk-poor-00000004")
    stage.ask("POST", CHATS, chat(), key="vk-poor-00000004")


@story
def tell_large_body(stage: Stage) -> None:
    """A body beyond the limit is refused by its length."""
    stage.ask("POST", CHATS, chat(user="x" * 16384))


@story
def tell_bad_json(stage: Stage) -> None:
    """A body that is no JSON."""
    stage.ask("POST", CHATS, b'{"model": "gpt-4o", "messages": [}')


@story
def tell_bad_message(stage: Stage) -> None:
    """A request with two lengths is refused, and its connection closed."""
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nhost: velox.test\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"
    stage.tell("the client sends", raw.decode().replace("\r", ""))
    stage.n_logged = 1
    with stage.velox.connect() as sock:
        sock.sendall(raw)
        stage.tell("the client gets", reply_text(read_reply(sock)))


@story
def tell_models(stage: Stage) -> None:
    """The list of models is Velox's own where keys are for some of them."""
    stage.ask("GET", "/v1/models", key="vk-narrow-000005")


@story
def tell_health(stage: Stage) -> None:
    """A probe of a load balancer needs no key, and goes nowhere."""
    stage.ask("GET", "/health", key="", n_logged=0)


@story
def tell_cors(stage: Stage) -> None:
    """A page of a browser asks before it asks, and then reads the answer."""
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    stage.ask("OPTIONS", CHATS, headers={**asks, "access-control-request-headers": "authorization"}, key="", n_logged=0)
    stage.plays("one", whole(completion(), 200, ("access-control-allow-origin", "*")))
    stage.ask("POST", CHATS, chat(), {"origin": "https://app.example"})


# -- Objects, WebSockets -----------------------------------------------------------------------------


@story
def tell_file(stage: Stage) -> None:
    """A file belongs to the key that made it: another one gets 404, and the upstream is not asked."""
    form = b'--b1\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b1--\r\n'
    stage.plays("one", whole({"id": "file-abc12345", "object": "file", "purpose": "user_data"}))
    stage.ask("POST", "/v1/files", form, {"content-type": "multipart/form-data; boundary=b1"})
    stage.ask("GET", "/v1/files/file-abc12345", key="vk-other-0000002")


@story
def tell_batch(stage: Stage) -> None:
    """A batch of a file that its key has made."""
    stage.plays("one", whole({"id": "batch_abc12345", "object": "batch", "input_file_id": "file-abc12345"}))
    asked = {"input_file_id": "file-abc12345", "endpoint": CHATS, "completion_window": "24h"}
    stage.ask("POST", "/v1/batches", asked)


@story
def tell_websocket(stage: Stage) -> None:
    """A WebSocket: two messages, and the client closes."""
    stage.tell("the client opens", "GET /v1/realtime?model=gpt-realtime")
    stage.n_logged = 1
    with connect(stage.velox, "/v1/realtime?model=gpt-realtime", authorization=f"Bearer {APP}") as ws:
        for sent in ("hello", '{"type":"session.update"}'):
            ws.send(sent)
            stage.tell("the client sends and gets", f"> {sent}\n< {ws.recv()!s}")
        ws.close(1000, "done")
    stage.tell("the client closes", "1000 done")


@story
def tell_websocket_refused(stage: Stage) -> None:
    """A WebSocket whose upstream can't be reached gets a reply, not a close."""
    handshake = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    stage.ask("GET", "/v1/realtime?model=lone", headers=handshake)


# -- The end: the last story, which stops the gateway --------------------------------------------------


@story
def tell_drain(stage: Stage) -> None:
    """The gateway is stopped: a stream that runs ends whole, and who connects then is not served."""
    stage.plays("one", held(chunks()[:1], chunks()[1:]))
    head, data = stage.request("POST", CHATS, chat(stream=True))
    with stage.velox.connect() as sock:
        sock.sendall(head + data)
        got = until_first_event(sock)
        stage.velox.signal(signal.SIGTERM)
        until(lambda: not accepts(stage), "nobody is let in")
        stage.servers["one"].step()
        stage.tell("the client gets", reply_text(read_reply(sock, start=got)))
    assert stage.velox.wait() == 0


def until_first_event(sock: socket.socket) -> bytes:
    """Read until the first event of a stream has come; return what came."""
    got = b""
    while b'"Hi"' not in got:
        got += sock.recv(4096)
    return got


def accepts(stage: Stage) -> bool:
    """Tell whether the gateway's port takes a connection."""
    with contextlib.suppress(OSError):
        stage.velox.connect(1.0).close()
        return True
    return False
