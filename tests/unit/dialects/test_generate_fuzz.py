"""Garbage, and recordings with bytes changed, never raise anything but the errors of dialects' own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recorded import recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient

_ALL = recorded("gemini", "enerateContent") + recorded("vertex", "enerateContent")
_SMALL = [each for each in _ALL if len(each.body) < 4000 and len(each.reply) < 8000]
_CALL = ClientCall("abc", 1)
_FACTS = (ModelFacts(), ModelFacts(schema_keywords=False, thinking="thinking_budget", images_in_results=False))


def _request(body: bytes) -> None:
    for facts in _FACTS:
        try:
            request = GenerateClient(_CALL, DroppedFields()).read(body)
            GenerateModel(facts, DroppedFields()).write(request, "m")
        except BadRequestError:
            pass


def _reply(body: bytes) -> None:
    model, client = GenerateModel(_FACTS[0], DroppedFields()), GenerateClient(_CALL, DroppedFields())
    model.error(500, body)
    try:
        client.answer(model.answer(body))
    except (BrokenReplyError, ReplyError):
        pass
    reader, writer = model.stream(), client.stream()
    try:
        for at in range(0, len(body), 100):
            for event in reader.feed(body[at : at + 100]):
                writer.write(event)
        for event in reader.end():
            writer.write(event)
    except BrokenReplyError:
        pass


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_garbage(body: bytes) -> None:
    """Any bytes."""
    _request(body)
    _reply(body)
    _reply(b"data: " + body + b"\r\n\r\n")
    _reply(b"[" + body)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_recordings(data: st.DataObject) -> None:
    """Some bytes of a real exchange replaced, or cut out."""
    exchange = data.draw(st.sampled_from(_SMALL))
    for body, check in ((exchange.body, _request), (exchange.reply, _reply)):
        at = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(at, min(at + 30, len(body))))
        change = data.draw(
            st.sampled_from([b"", b"null", b"1", b'"', b"{}", b"[]", b"}", b"]", b"\xff", b'"x"', b"true"])
        )
        check(body[:at] + change + body[end:])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_values(data: st.DataObject) -> None:
    """A value of a real exchange replaced by another one, so that the JSON stays whole."""
    exchange = data.draw(st.sampled_from(_SMALL))
    change = data.draw(
        st.sampled_from([b"null", b"1", b"-1.5", b'"x"', b"{}", b"[]", b"[null]", b"[{}]", b'{"":1}', b"true"])
    )
    for body, check in ((exchange.body, _request), (exchange.reply, _reply)):
        places = [at for at in range(len(body) - 3) if body[at : at + 3] in (b'": ', b'":"', b'":{', b'":[')]
        if not places:
            continue
        at = data.draw(st.sampled_from(places)) + 2
        depth, end, in_string = 0, at, False
        while end < len(body):
            byte = body[end : end + 1]
            if byte == b"\\":
                end += 1
            elif byte == b'"':
                in_string = not in_string
            elif not in_string:
                if byte in b"{[":
                    depth += 1
                elif byte in b"}]" and depth:
                    depth -= 1
                elif depth == 0 and byte in b",}]":
                    break
            end += 1
        check(body[:at] + change + body[end:])
