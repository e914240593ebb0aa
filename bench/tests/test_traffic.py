"""Real traffic: no two requests or replies are equal, and each has what an SDK or a provider sends."""

from itertools import islice

import orjson
import pytest

from bench.payloads import CHAT_PATH
from bench.traffic import KEYS, MODELS, N_CALLERS, N_MODELS, REPLY_END, replies, requests

_N = 2000


def test_requests_are_all_different_and_the_same_in_each_run() -> None:
    """Ids are new in each, whole heads never repeat, and a seed gives the same list again."""
    some = list(islice(requests(), _N))
    assert some == list(islice(requests(), _N))
    assert len({each.fields for each in some}) == _N
    for name in ("traceparent", "x-request-id"):
        assert len({dict(each.fields)[name] for each in some}) == _N
    assert len({each.body for each in some}) == _N


def test_requests_come_from_all_callers_for_all_models() -> None:
    """A hundred keys and ten models, one request in twenty is an SDK's retry, bodies are 750 bytes on average."""
    some = list(islice(requests(), _N))
    fields = [{name.lower(): value for name, value in each.fields} for each in some]
    assert {each["authorization"] for each in fields} == {f"Bearer {key}" for key in KEYS}
    assert {orjson.loads(each.body)["model"] for each in some} == set(MODELS)
    assert (len(set(KEYS)), len(set(MODELS))) == (N_CALLERS, N_MODELS)
    assert 0.02 < sum(each["x-stainless-retry-count"] == "1" for each in fields) / _N < 0.1
    assert {len(each.fields) for each in some} == {18}
    assert 700 < sum(len(each.body) for each in some) / _N < 800
    assert all(each["content-length"] == str(len(request.body)) for each, request in zip(fields, some, strict=True))


@pytest.mark.parametrize("stream", [False, True])
def test_request_http1_is_whole(stream: bool) -> None:
    """The head ends where the body begins, and the body asks for a stream, or does not."""
    request = next(requests(stream=stream))
    head, _, body = request.http1("a.example").partition(b"\r\n\r\n")
    assert head.startswith(b"POST %s HTTP/1.1\r\nHost: a.example\r\n" % CHAT_PATH.encode())
    assert orjson.loads(body)["stream"] is stream


def test_hostile_requests_have_names_that_no_other_has() -> None:
    """Invented fields are new in each request, name and value."""
    some = list(islice(requests(hostile=True), 200))
    names = [name for each in some for name, _ in each.fields]
    assert len([name for name in set(names) if names.count(name) == 1]) == 200 * 8


def test_replies_are_all_different() -> None:
    """Ids, dates, processing times and limits are new; what is constant is a part of its own."""
    some = list(islice(replies(), _N))
    assert len({each.changing for each in some}) == len({each.body for each in some}) == _N
    assert len({each.constant for each in some}) == 1
    assert all(each.body.endswith(REPLY_END) and orjson.loads(each.body)["id"] for each in some)
    assert 550 < sum(len(each.body) for each in some) / _N < 650


def test_reply_head_frames_its_body() -> None:
    """A JSON reply has its length, a stream is chunked."""
    reply, stream = next(replies()), next(replies(stream=True))
    assert b"\r\ncontent-length: %d\r\n" % len(reply.body) in reply.http1_head()
    assert b"\r\ntransfer-encoding: chunked\r\n" in stream.http1_head()
