"""The answers of /v1/chat/completions and of the older /v1/completions.

Knows: their JSON, whole and in chunks. Does not know: HTTP, pace, how a request was read.

All chunks of one answer begin with the same bytes (id, time, model) and go on with bytes that are the same
for all answers; the second part is built once, so that a chunk costs one concatenation.
"""

from __future__ import annotations

from typing import Final

import orjson

from velox_sim.shapes import Job, Text, TokenStream

__all__ = ["ENDS", "FINGERPRINT", "ChatWriter", "CompletionWriter", "chat_lead", "last_events", "usage"]

FINGERPRINT: Final = "fp_velox_sim"
_DONE: Final = b"data: [DONE]\n\n"
# With stream_options.include_usage each chunk but the last says null: there are two kinds of chunks.
ENDS: Final = {False: b"]}\n\n", True: b'],"usage":null}\n\n'}


class ChatWriter:
    """Writes chat completions (object chat.completion and chat.completion.chunk)."""

    def __init__(self, text: Text) -> None:
        self._text: Final = text
        self._rests: Final = {
            usage: tuple(_delta(b'{"content":%b}' % token) + end for token in text.tokens_json)
            for usage, end in ENDS.items()
        }

    def whole(self, job: Job) -> bytes:
        """Return the answer as one object."""
        message: dict[str, object] = {
            "role": "assistant",
            "content": self._text.first(job.n_tokens),
            "refusal": None,
            "annotations": [],
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(job)}
        return orjson.dumps(
            {
                "id": f"chatcmpl-{job.key}",
                "object": "chat.completion",
                "created": job.created,
                "model": job.model,
                "choices": [choice],
                "usage": usage(job),
                "service_tier": "default",
                "system_fingerprint": FINGERPRINT,
            }
        )

    def stream(self, job: Job) -> TokenStream:
        """Return the answer in chunks: role, one a token, finish, usage if asked for, and the [DONE] mark."""
        lead = chat_lead(job)
        end = ENDS[job.include_usage]
        opening = lead + _delta(b'{"role":"assistant","content":"","refusal":null}') + end
        closing = lead + _delta(b"{}", b'"%b"' % _finish(job).encode()) + end + last_events(lead, job)
        return TokenStream(opening, lead, self._rests[job.include_usage], job.n_tokens, closing)


class CompletionWriter:
    """Writes text completions; whole and chunk have the same object name, text_completion."""

    def __init__(self, text: Text) -> None:
        self._text: Final = text
        self._rests: Final = {
            usage: tuple(_text_choice(token) + end for token in text.tokens_json) for usage, end in ENDS.items()
        }

    def whole(self, job: Job) -> bytes:
        """Return the answer as one object."""
        text = self._text.first(job.n_tokens)
        return orjson.dumps(
            {
                "id": f"cmpl-{job.key}",
                "object": "text_completion",
                "created": job.created,
                "model": job.model,
                "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": _finish(job)}],
                "usage": usage(job),
                "system_fingerprint": FINGERPRINT,
            }
        )

    def stream(self, job: Job) -> TokenStream:
        """Return the answer in chunks: one a token, finish, usage if asked for, and the [DONE] mark."""
        lead = b'data: {"id":"cmpl-%b","object":"text_completion","created":%d,"model":%b,"choices":[' % (
            job.key.encode(),
            job.created,
            orjson.dumps(job.model),
        )
        finish = _text_choice(b'""', b'"%b"' % _finish(job).encode()) + ENDS[job.include_usage]
        rests = self._rests[job.include_usage]
        return TokenStream(b"", lead, rests, job.n_tokens, lead + finish + last_events(lead, job))


def chat_lead(job: Job) -> bytes:
    """Return what all chunks of a chat completion begin with, up to their choices."""
    return (
        b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":%d,"model":%b,'
        b'"service_tier":"default","system_fingerprint":"%b","choices":['
        % (job.key.encode(), job.created, orjson.dumps(job.model), FINGERPRINT.encode())
    )


def usage(job: Job, n_thoughts: int = 0) -> dict[str, object]:
    """Return the token counts of an answer. n_thoughts: tokens of its reasoning, beside its own."""
    n_output = job.n_tokens + n_thoughts
    return {
        "prompt_tokens": job.n_prompt,
        "completion_tokens": n_output,
        "total_tokens": job.n_prompt + n_output,
        "prompt_tokens_details": {"cached_tokens": job.n_cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": n_thoughts,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _finish(job: Job) -> str:
    return "length" if job.is_cut else "stop"


def _delta(delta: bytes, finish: bytes = b"null") -> bytes:
    return b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}' % (delta, finish)


def _text_choice(text: bytes, finish: bytes = b"null") -> bytes:
    return b'{"text":%b,"index":0,"logprobs":null,"finish_reason":%b}' % (text, finish)


def last_events(lead: bytes, job: Job, n_thoughts: int = 0) -> bytes:
    """Return what ends a stream: usage if asked for, and the [DONE] mark."""
    if not job.include_usage:
        return _DONE
    return lead + b'],"usage":%b}\n\n' % orjson.dumps(usage(job, n_thoughts)) + _DONE
