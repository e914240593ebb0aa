"""Which answers may be given again, how one lies in memory, and how much a partition may keep."""

from __future__ import annotations

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.cache.endings import is_good_answer, is_good_stream
from velox.policy.cache.entry import Entry, entry_bytes, read_entry
from velox.policy.cache.shares import PartitionShares
from velox.types import ApiKind

KEY: Final = bytes(range(32))


def chat(finish: str | None, **message: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "message": {"content": "x", **message}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("api", "answer", "expected"),
    [
        (ApiKind.CHAT, chat("stop"), True),
        (ApiKind.CHAT, chat("length"), True),
        (ApiKind.CHAT, chat("tool_calls"), True),
        (ApiKind.CHAT, chat("content_filter"), False),
        (ApiKind.CHAT, chat(None), False),
        (ApiKind.CHAT, chat("stop", refusal="I can't."), False),
        (ApiKind.CHAT, {"choices": []}, False),
        (ApiKind.CHAT, {"error": {"message": "x"}}, False),
        (ApiKind.CHAT, {**chat("stop"), "error": {"code": 1}}, False),
        (None, {"choices": [{"text": "x", "finish_reason": "stop"}]}, True),
        (ApiKind.MESSAGES, {"stop_reason": "end_turn"}, True),
        (ApiKind.MESSAGES, {"stop_reason": "refusal"}, False),
        (ApiKind.MESSAGES, {"stop_reason": "pause_turn"}, False),
        (ApiKind.GENERATE, {"candidates": [{"finishReason": "STOP"}]}, True),
        (ApiKind.GENERATE, {"candidates": [{"finishReason": "SAFETY"}]}, False),
        (ApiKind.GENERATE, {"promptFeedback": {"blockReason": "SAFETY"}}, False),
        (ApiKind.RESPONSES, {"status": "completed", "output": []}, True),
        (ApiKind.RESPONSES, {"status": "incomplete"}, False),
        (ApiKind.RESPONSES, {"status": "completed", "output": [{"content": [{"type": "refusal"}]}]}, False),
        (ApiKind.EMBEDDINGS, {"data": [{"embedding": [0.1]}]}, True),
        (ApiKind.EMBEDDINGS, {"data": []}, False),
        (ApiKind.EMBED_CONTENT, {"embedding": {"values": [1]}}, True),
    ],
)
def test_answers_that_have_ended_well(api: ApiKind | None, answer: dict[str, object], expected: bool) -> None:
    assert is_good_answer(api, json.dumps(answer).encode()) is expected


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b"<html>"])
def test_what_is_no_answer(body: bytes) -> None:
    assert not is_good_answer(ApiKind.CHAT, body)
    assert not is_good_stream(ApiKind.CHAT, body)


def stream(*events: object, done: bool = False) -> bytes:
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in events)
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def chunk(finish: str | None, index: int = 0, **delta: object) -> dict[str, object]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def delta(reason: str) -> dict[str, object]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}}


STOP: Final = {"type": "message_stop"}
USAGE: Final[dict[str, object]] = {"choices": [], "usage": {"prompt_tokens": 1}}


@pytest.mark.parametrize(
    ("api", "body", "expected"),
    [
        (ApiKind.CHAT, stream(chunk(None, content="x"), chunk("stop"), USAGE, done=True), True),
        (ApiKind.CHAT, stream(chunk(None, content="x"), chunk("stop")), False),
        (ApiKind.CHAT, stream(chunk(None, content="x"), done=True), False),
        (ApiKind.CHAT, stream(chunk("content_filter"), done=True), False),
        (ApiKind.CHAT, stream(chunk("stop"), chunk(None, 1, content="x"), done=True), False),
        (ApiKind.CHAT, stream(chunk(None, refusal="No"), chunk("stop"), done=True), False),
        (ApiKind.CHAT, stream(chunk("stop"), {"error": {"message": "x"}}, done=True), False),
        (ApiKind.CHAT, stream(chunk("stop"), done=True)[:-1], False),
        (ApiKind.CHAT, b"data: {\n\ndata: [DONE]\n\n", False),
        (ApiKind.CHAT, b": ping\n\n" + stream(chunk("stop"), done=True), True),
        (ApiKind.MESSAGES, stream(delta("end_turn"), STOP), True),
        (ApiKind.MESSAGES, stream(delta("refusal"), STOP), False),
        (ApiKind.MESSAGES, stream(delta("end_turn")), False),
        (ApiKind.MESSAGES, stream({"type": "error", "error": {}}, STOP), False),
        (ApiKind.GENERATE, stream({"candidates": [{}]}, {"candidates": [{"finishReason": "STOP"}]}), True),
        (ApiKind.GENERATE, stream({"candidates": [{}]}), False),
        (ApiKind.RESPONSES, stream({"type": "response.completed", "response": {}}), True),
        (ApiKind.RESPONSES, stream({"type": "response.incomplete", "response": {}}), False),
        (ApiKind.EMBEDDINGS, stream({"data": [1]}), False),
    ],
)
def test_streams_that_have_ended_well(api: ApiKind, body: bytes, expected: bool) -> None:
    assert is_good_stream(api, body) is expected


@given(kind=st.binary(max_size=50), body=st.binary(max_size=300), at=st.integers(0, 400), bit=st.integers(0, 7))
def test_entry_is_read_whole_or_not_at_all(kind: bytes, body: bytes, at: int, bit: int) -> None:
    """For its key alone; not with any bit of it changed, cut off or added."""
    data = entry_bytes(KEY, Entry(kind, body))
    assert read_entry(KEY, data) == Entry(kind, body)
    assert read_entry(bytes(32), data) is None
    at %= len(data)
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    assert read_entry(KEY, changed) is None
    assert read_entry(KEY, data[:at]) is None
    assert read_entry(KEY, data + b"x") is None


def test_partition_keeps_its_share_in_each_window() -> None:
    shares = PartitionShares(100)
    assert shares.take("a", 60, ttl_s=10.0, now_s=0.0)
    assert not shares.take("a", 50, ttl_s=10.0, now_s=9.0)
    assert shares.take("a", 40, ttl_s=10.0, now_s=9.0)
    assert shares.take("b", 100, ttl_s=10.0, now_s=9.0), "another one's is its own"
    assert not shares.take("a", 101, ttl_s=10.0, now_s=10.0)
    assert shares.take("a", 100, ttl_s=10.0, now_s=10.0)


def test_partitions_have_a_bound() -> None:
    """What is not known any more is forgotten; while all are known, no other one keeps anything."""
    shares = PartitionShares(100)
    assert all(shares.take(f"key:{n}", 1, ttl_s=10.0, now_s=0.0) for n in range(4096))
    assert not shares.take("other", 1, ttl_s=10.0, now_s=9.0)
    assert shares.take("key:0", 1, ttl_s=10.0, now_s=9.0)
    assert shares.take("other", 1, ttl_s=10.0, now_s=10.0)
