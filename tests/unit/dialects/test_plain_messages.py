"""The short way of a message that is one text alone: it is written as all others are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.recorded import recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall, Message, Request, Role, Text
from velox.dialects.facts.model_facts import ModelFacts
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

_CALL = ClientCall("x", 1, "m")
_KINDS = (
    ("openai", "/chat/completions", ApiKind.CHAT),
    ("mistral", "/chat/completions", ApiKind.CHAT),
    ("anthropic", "/messages", ApiKind.MESSAGES),
)
_TURNS = (
    b'{"role":"user","content":"a"}',
    b'{"role":"user","content":" \\n"}',
    b'{"role":"user","content":"b","name":"Ada"}',
    b'{"role":"assistant","content":"c "}',
    b'{"role":"assistant","content":"d"}',
    b'{"role":"system","content":"e"}',
)


def _read(api: ApiKind, body: bytes) -> Request:
    return dialect_table().clients[api](_CALL, DroppedFields()).read(body)


def _written(read: Callable[[], Request], api: ApiKind, *, is_plain: bool) -> object:
    """Return what is sent and lost, or why nothing is."""
    dropped = DroppedFields()
    try:
        request = read()
        if not is_plain:
            for message in request.messages:
                message.plain = None
        return dialect_table().models[api](ModelFacts(), dropped, "x").write(request, "m"), dropped.names
    except BadRequestError as exc:
        return exc.message, exc.param


@pytest.mark.parametrize("model", list(dialect_table().models), ids=lambda api: api.name)
@pytest.mark.parametrize(("provider", "path", "client"), _KINDS)
def test_recorded_requests_are_written_the_same(provider: str, path: str, client: ApiKind, model: ApiKind) -> None:
    n_plain = 0
    for each in recorded(provider, path, status=None):
        try:
            request = _read(client, each.body)
        except BadRequestError:
            continue
        n_plain += sum(message.plain is not None for message in request.messages)
        found = [
            _written(lambda body=each.body: _read(client, body), model, is_plain=is_plain) for is_plain in (True, False)
        ]
        assert found[0] == found[1], each.name
    assert n_plain


@pytest.mark.parametrize("model", list(dialect_table().models), ids=lambda api: api.name)
def test_texts_in_any_order_are_written_the_same(model: ApiKind) -> None:
    for first in _TURNS:
        for second in _TURNS:
            for third in _TURNS:
                body = b'{"model":"m","messages":[%b]}' % b",".join((first, second, third))
                found = [
                    _written(lambda body=body: _read(ApiKind.CHAT, body), model, is_plain=is_plain)
                    for is_plain in (True, False)
                ]
                assert found[0] == found[1], body


def test_what_is_more_than_a_text_is_not_plain() -> None:
    mark = b'"cache_control":{"type":"ephemeral"}'
    bodies = (
        b'{"role":"user","content":" "}',
        b'{"role":"user","content":"a","name":"Ada"}',
        b'{"role":"user","content":"a",%b}' % mark,
        b'{"role":"assistant","content":"a","refusal":"b"}',
        b'{"role":"assistant","content":"a","reasoning_content":"b"}',
        b'{"role":"user","content":[{"type":"text","text":"a",%b}]}' % mark,
    )
    for body in bodies:
        (message,) = _read(ApiKind.CHAT, b'{"model":"m","messages":[%b]}' % body).messages
        assert message.plain is None, body
    (message,) = _read(ApiKind.CHAT, b'{"model":"m","messages":[{"role":"user","content":"a"}]}').messages
    assert message == Message(Role.USER, [Text(b'"a"')], None, b'"a"')
