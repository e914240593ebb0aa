"""Tags that requests bring: what they are read from, and that no client can make many, long or odd ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.heads import Header, RequestHead
from velox.policy.request_tags import RequestTags, TagSource


def head_of(fields: list[Header]) -> RequestHead:
    return RequestHead.of(b"POST", b"/v1/chat/completions", fields, None)


ALL: tuple[TagSource, ...] = ("tags", "user", "session")


def told(
    body: object = None, keys: tuple[str, ...] = (), sources: tuple[TagSource, ...] = ALL, **headers: str
) -> list[str]:
    fields = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    text = RequestTags(sources).of(head_of(fields), data, keys, 0.0)
    return text.split(",") if text else []


def test_tags_of_a_request_stand_behind_those_of_its_key() -> None:
    found = told({"user": "ada"}, ("eu", "batch"), x_velox_tags="nightly, eu", x_velox_session="s1")
    assert found == ["eu", "batch", "nightly", "user:ada", "session:s1"]
    assert told({"user": "ada"}, ("eu",), ("session",), x_velox_tags="nightly") == ["eu"]
    assert told() == []


@pytest.mark.parametrize(
    ("body", "user"),
    [
        ({"user": "ada"}, "user:ada"),
        ({"safety_identifier": "h4sh"}, "user:h4sh"),
        ({"metadata": {"user_id": "ada"}}, "user:ada"),
        ({"metadata": {"user_id": "user_0ab_account_1c_session_01234567-89ab"}}, "user:user_0ab_account_1c"),
        ({"metadata": {"user_id": json.dumps({"account_uuid": "a-1", "session_id": "s"})}}, "user:a-1"),
        ({"metadata": {"user_id": 7}, "user": None}, ""),
        ({"metadata": {"user_id": '{"account_uuid": 7}'}}, ""),
        (b'{"user": ', ""),
    ],
)
def test_end_user_is_who_the_body_names(body: object, user: str) -> None:
    assert told(body, sources=("user",)) == ([user] if user else [])


def test_tags_of_litellm_are_read_where_its_headers_are() -> None:
    head = head_of([(b"x-litellm-tags", b"a,b"), (b"x-velox-tags", b"c")])
    assert RequestTags(("tags",)).of(head, None, (), 0.0) == "c"
    assert RequestTags(("tags",), is_litellms=True).of(head, None, (), 0.0) == "c,a,b"


def test_client_that_makes_up_tags_gets_few_and_others_are_counted_together() -> None:
    tags = RequestTags(ALL, most=3)
    found = [tags.of(head_of([(b"x-velox-tags", b"t%d" % n)]), None, (), 0.0) for n in range(5)]
    assert found == ["t0", "t1", "t2", "other", "other"]
    body = b'{"user": "ada"}'
    assert tags.of(head_of([]), body, (), 1.0) == "user:other"
    assert tags.of(head_of([(b"x-velox-tags", b"t1")]), None, (), 3599.0) == "t1"
    assert tags.of(head_of([]), body, (), 3600.0) == "user:ada"
    assert told(x_velox_tags=",".join("abcdefgh")) == ["a", "b", "c", "d"]


@given(st.text(max_size=200), st.binary(max_size=200))
def test_tag_is_short_visible_text(user: str, header: bytes) -> None:
    """And all of them together are a text that a record has whole, beside the longest ones of a key."""
    keys = tuple(f"{n}" * 64 for n in range(8))
    head = head_of([(b"x-velox-tags", header)])
    text = RequestTags(ALL).of(head, json.dumps({"user": user}).encode(), keys, 0.0)
    assert text.isascii() and text.isprintable() and " " not in text and len(text) <= 580
    assert all(0 < len(tag) <= 64 for tag in text.split(","))
