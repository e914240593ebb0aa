"""Which session a request belongs to, in the words of each agent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.heads import Header, RequestHead
from velox.policy.routes.sessions import lifetime_s, session_of

UUID = "0f3a9b1c-1111-4222-8333-944455556666"


def asked(body: object = None, *headers: Header) -> str:
    data = None if body is None else json.dumps(body).encode()
    return session_of(RequestHead.of(b"POST", b"/v1/messages", list(headers), None), data)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ((b"x-velox-session", UUID.encode()), {"prompt_cache_key": "another"}),
        ((b"x-claude-code-session-id", UUID.encode()), {}),
        ((b"session-id", UUID.encode()), {"prompt_cache_key": "another"}),
        ((b"session_id", UUID.encode()), None),
        ((b"x-session-id", UUID.encode()), None),
        ((b"x-session-affinity", UUID.encode()), None),
        ((b"x-opencode-session", UUID.encode()), None),
        (None, {"prompt_cache_key": UUID, "messages": []}),
        (None, {"metadata": {"user_id": f"user_ab12_account__session_{UUID}"}}),
        (None, {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": UUID})}}),
        (None, {"session_id": UUID}),
        (None, {"metadata": {"user_id": UUID}}),
    ],
)
def test_agents_name_their_sessions(header: Header | None, body: object) -> None:
    """K6: Claude Code old and new, Codex, opencode, Cursor, OpenRouter's clients; a header goes first."""
    assert asked(body, *([] if header is None else [header])) == UUID


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"messages": [{"content": '"prompt_cache_key": "x"'}]},
        {"prompt_cache_key": 7, "metadata": [], "session_id": None},
        {"metadata": {"user_id": "{"}},
        {"tools": [{"prompt_cache_key": "x"}]},
    ],
)
def test_what_names_no_session_is_of_none(body: object) -> None:
    """Nor is an id of one request."""
    assert asked(body, (b"x-client-request-id", b"1")) == ""


@given(st.binary(max_size=200), st.sampled_from([b'"prompt_cache_key"', b'"user_id"', b'{"metadata":{"user_id":"{']))
def test_any_body_may_come(data: bytes, mark: bytes) -> None:
    session_of(RequestHead.of(b"POST", b"/", [], None), mark + data)


def test_prompts_are_kept_as_long_as_their_providers_say() -> None:
    """K6: Anthropic five minutes or an hour, OpenAI an hour or a day."""
    hour = b'{"cache_control":{"type":"ephemeral","ttl":"1h"}}'
    assert [lifetime_s("anthropic", body) for body in (None, b"{}", hour)] == [300.0, 300.0, 3600.0]
    assert [lifetime_s("openai", body) for body in (None, b'{"prompt_cache_retention":"24h"}')] == [3600.0, 86_400.0]
