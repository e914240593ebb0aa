"""Responses: garbage and mutated input never raises anything but the errors of dialects."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recorded import recorded
from tests.unit.dialects.assembling import events_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient

_ALL = [each for each in recorded("openai", "/v1/responses") if each.body]
_BODIES = [each.body for each in _ALL if len(each.body) < 20_000]
_REPLIES = [each.reply for each in _ALL if not each.is_stream and len(each.reply) < 20_000]
_STREAMS = [each.reply[-6000:] for each in _ALL if each.is_stream]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_CALL = ClientCall("abc", 7)


@st.composite
def _mutated(draw: st.DrawFn, whole: list[bytes]) -> bytes:
    """A recorded text with a piece cut out, doubled, or changed."""
    data = draw(st.sampled_from(whole))
    at = draw(st.integers(0, len(data)))
    end = min(len(data), at + draw(st.integers(0, 30)))
    other = draw(st.binary(max_size=6) | st.sampled_from([b"null", b"{}", b"[]", b'"', b"1e999", b"\\ud800", b"\n\n"]))
    return data[:at] + draw(st.sampled_from([b"", other, data[at:end] * 2])) + data[end:]


@st.composite
def _replaced(draw: st.DrawFn, whole: list[bytes]) -> bytes:
    """A recorded JSON with one value replaced by any other."""
    value = json.loads(draw(st.sampled_from(whole)))
    node = value
    for _ in range(draw(st.integers(0, 6))):
        children = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        if not children:
            break
        key = draw(st.sampled_from(children))
        if draw(st.booleans()) or not isinstance(node[key], dict | list):
            node[key] = draw(_JSON)
            break
        node = node[key]
    return json.dumps(value).encode()


@given(
    st.binary(max_size=200)
    | _JSON.map(lambda value: json.dumps(value).encode())
    | _mutated(_BODIES)
    | _replaced(_BODIES)
)
@settings(max_examples=400, deadline=None)
def test_requests(body: bytes) -> None:
    """What is read is written, too."""
    for facts in (UNKNOWN_MODEL, ModelFacts(json_schema=False, call_ids="mistral", text_parts=False)):
        try:
            request = ResponsesClient(_CALL, DroppedFields()).read(body)
            written = ResponsesModel(facts, DroppedFields()).write(request, "m")
        except BadRequestError as exc:
            assert exc.message
        else:
            assert json.loads(written.body)["model"] == "m"


@given(
    st.binary(max_size=200)
    | _JSON.map(lambda value: json.dumps(value).encode())
    | _mutated(_REPLIES)
    | _replaced(_REPLIES)
)
@settings(max_examples=400, deadline=None)
def test_answers_and_errors(body: bytes) -> None:
    """An error's body is always read; what is an answer is written, too."""
    model = ResponsesModel(UNKNOWN_MODEL, DroppedFields())
    client = ResponsesClient(_CALL, DroppedFields())
    json.loads(client.error(model.error(500, body)))
    try:
        answer = model.answer(body)
    except (BrokenReplyError, ReplyError):
        return
    json.loads(client.answer(answer))


@given(st.binary(max_size=300) | _mutated(_STREAMS), st.lists(st.integers(1, 50), max_size=10))
@settings(max_examples=400, deadline=None)
def test_streams(data: bytes, sizes: list[int]) -> None:
    """What comes out is always whole events of JSON; no cut changes whether a stream can be read."""
    model = ResponsesModel(UNKNOWN_MODEL, DroppedFields())
    try:
        events = events_of(model.stream(), data)
    except BrokenReplyError:
        events = []
    writer = ResponsesClient(_CALL, DroppedFields()).stream()
    for line in b"".join(writer.write(event) for event in events).split(b"\n\n"):
        if line:
            json.loads(line.partition(b"\ndata: ")[2])
    try:
        again = events_of(model.stream(), data, sizes)
    except BrokenReplyError:
        again = []
    assert again == events
