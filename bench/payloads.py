"""What is sent and answered while measuring: the sizes of a short chat, and bodies as large as they get.

Knows: bytes. Does not know: who sends them.
"""

from __future__ import annotations

import base64
import random
from typing import Final, Literal

import orjson

__all__ = [
    "API_KEY",
    "CHAT_PATH",
    "CHAT_REPLY",
    "SSE_CHUNK",
    "SSE_LAST",
    "SSE_STOP",
    "chat_body",
    "large_body",
    "sse_chunk",
]

CHAT_PATH: Final = "/v1/chat/completions"
# Not a secret: the key that this bench's gateway asks of this bench's client.
API_KEY: Final = "bench-key-0123456789"

_CHAT_BYTES: Final = 750
_REPLY_BYTES: Final = 600
_WORDS: Final = ("model", "reads", "what", "it", "was", "told", "and", "answers", "with", "words")


def _padded(document: dict[str, object], text_of: dict[str, object], size: int) -> bytes:
    """Return the document with text_of["content"] filled so that it has `size` bytes."""
    text_of["content"] = ""
    text = " ".join(_WORDS * (size // 40))
    text_of["content"] = text[: size - len(orjson.dumps(document))]
    return orjson.dumps(document)


def chat_body(*, stream: bool, size: int = _CHAT_BYTES) -> bytes:
    """Return a chat request of `size` bytes."""
    message: dict[str, object] = {"role": "user"}
    document: dict[str, object] = {
        "model": "gpt-bench",
        "stream": stream,
        "max_tokens": 256,
        "temperature": 0.7,
        "messages": [{"role": "system", "content": "You are a helpful assistant."}, message],
    }
    return _padded(document, message, size)


def _chat_reply() -> bytes:
    message: dict[str, object] = {"role": "assistant"}
    document: dict[str, object] = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "gpt-bench",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 120, "completion_tokens": 80, "total_tokens": 200},
    }
    return _padded(document, message, _REPLY_BYTES)


CHAT_REPLY: Final = _chat_reply()
SSE_CHUNK: Final = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"gpt-bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
_STAMPED: Final = SSE_CHUNK.replace(b" token", b" %d")
# A model's last word. LiteLLM takes a stream without it for one that was cut off.
SSE_STOP: Final = SSE_CHUNK.replace(b'{"content":" token"}', b"{}").replace(b":null", b':"stop"')
SSE_LAST: Final = b"data: [DONE]\n\n"


def sse_chunk(now_ns: int) -> bytes:
    """Return one event of a streamed answer. now_ns: when it is written, which is the token that it holds."""
    return _STAMPED % now_ns


def large_body(kind: Literal["image", "text"], size: int) -> bytes:
    """Return a chat request of about `size` bytes: one base64 image, or many messages of escaped text."""
    source = random.Random(size)
    if kind == "image":
        image = base64.b64encode(source.randbytes(size * 3 // 4)).decode()
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + image}}
        messages: list[dict[str, object]] = [{"role": "user", "content": [part]}]
    else:
        text = "".join(source.choice(_WORDS) + source.choice((" ", " ", ", ", '\n"', "é ")) for _ in range(400))
        n_messages = size // (len(orjson.dumps(text)) + 30)
        messages = [{"role": "user", "content": text} for _ in range(n_messages)]
    return orjson.dumps({"model": "gpt-bench", "stream": False, "messages": messages})
