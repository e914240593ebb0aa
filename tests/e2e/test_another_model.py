"""Where a route names another model: what is changed on the way up, what is not, and what can't be."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway that asks for one model, whatever its clients call it."""
    config = {
        "upstreams": [{"name": "up", "origin": upstream.upstream.url}],
        "routes": [{"name": "all", "to": "up", "model": "theirs"}],
    }
    with routed(config) as running:
        upstream.forget()
        yield running


@pytest.mark.parametrize("n_bytes", [0, 64 * 1024, 2 * 1024 * 1024])
@pytest.mark.parametrize("is_first", [True, False])
def test_model_is_all_that_changes_whatever_the_size(
    velox: VeloxProcess, upstream: RecordingUpstream, n_bytes: int, is_first: bool
) -> None:
    """Read at once, or in slices by a task of its own."""
    model, messages = '"model" : %s', f'"messages":[{{"role":"user","content":"\\"model\\":{"x" * n_bytes}"}}]'
    members = [model, messages] if is_first else [messages, model, '"tools":[{"model":{"type":"string"}}]']
    body = "{ " + ",\r\n".join(members) + " }"

    reply = velox.request("POST", CHAT, (body % '"ours"').encode())

    assert reply.status == 200
    assert upstream.calls[-1].body == (body % '"theirs"').encode()


def test_model_that_a_long_body_hides_is_refused(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Nothing goes up, and the client learns what to do about it."""
    n_calls = len(upstream.calls)
    short = b'{"messages":[],"mod\\u0065l":"ours"}'

    assert velox.request("POST", CHAT, short).status == 200
    assert upstream.calls[-1].body == short.replace(b"ours", b"theirs")
    reply = velox.request("POST", CHAT, short.replace(b"[]", b'["%b"]' % (b"x" * 600 * 1024)))

    assert reply.status == 400
    assert json.loads(reply.body)["error"] == {
        "message": "model is not found in this body of over 512 KiB; write it first, and without escapes",
        "type": "invalid_request_error",
        "param": "model",
        "code": "bad_request",
    }
    assert len(upstream.calls) == n_calls + 1


def test_model_of_a_form_is_replaced(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """C4: and nothing else of it."""
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--b--\r\n'
    media = {"content-type": "multipart/form-data; boundary=b"}

    assert velox.request("POST", "/v1/audio/transcriptions", form, media).status == 200
    assert upstream.calls[-1].body == form.replace(b"whisper-1", b"theirs")


def test_body_that_names_none_gets_that_of_the_route(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """C38: it is asked for what the route says, whatever the client's body has elsewhere."""
    body = b'{"input":"x","metadata":{"model":"ours"}}'

    assert velox.request("POST", "/v1/responses", body).status == 200
    assert upstream.calls[-1].body == b'{"model":"theirs",' + body[1:]
