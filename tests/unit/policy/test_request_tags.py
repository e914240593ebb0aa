"""Tags that requests bring: what they are read from, and that no client can make many, long or odd ones."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.heads import Header, RequestHead
from velox.policy.request_tags import RequestTags, TagSource, keys_tags
from velox.policy.spellings import TAG
from velox.types import Caller, KeyTerms


def head_of(fields: list[Header]) -> RequestHead:
    return RequestHead.of(b"POST", b"/v1/chat/completions", fields, None)


def caller(*tags: str, id_: bytes = b"") -> Caller:
    return Caller("ci", KeyTerms(tags=tags), id_)


ALL: tuple[TagSource, ...] = ("tags", "user", "session")
NOBODY = caller()


def of_request(tags: RequestTags, *names: str, who: Caller = NOBODY, now_s: float = 0.0) -> str:
    return tags.of(head_of([(b"x-velox-tags", ",".join(names).encode())]), None, who, now_s)


def of_user(tags: RequestTags, user: str, who: Caller = NOBODY, now_s: float = 0.0) -> str:
    return tags.of(head_of([]), json.dumps({"user": user}).encode(), who, now_s)


def told(
    body: object = None, keys: tuple[str, ...] = (), sources: tuple[TagSource, ...] = ALL, **headers: str
) -> list[str]:
    fields = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    text = RequestTags(sources).of(head_of(fields), data, caller(*keys), 0.0)
    return text.split(",") if text else []


def test_tags_of_a_request_stand_behind_those_of_its_key() -> None:
    found = told({"user": "ada"}, ("eu", "batch"), x_velox_tags="nightly, eu", x_velox_session="s1")
    assert found == ["eu", "batch", "request: eu", "request: nightly", "session: s1", "user: ada"]
    assert told({"user": "ada"}, ("eu",), ("session",), x_velox_tags="nightly") == ["eu"]
    assert told() == []


def test_no_tag_of_a_request_can_be_one_of_a_key() -> None:
    """Whatever its client writes: budgets go by those of keys, also where they are read from records."""
    found = told({"user": "ada"}, ("eu", "user:x"), x_velox_tags="prod,user: eu,a1", x_velox_session="s1")
    assert found == ["eu", "user:x", *found[2:]] and len(found) == 7
    assert not any(re.fullmatch(TAG.pattern, tag) for tag in found[2:])
    assert keys_tags(found) == ("eu", "user:x")


@pytest.mark.parametrize(
    ("body", "user"),
    [
        ({"user": "ada"}, "user: ada"),
        ({"safety_identifier": "h4sh"}, "user: h4sh"),
        ({"metadata": {"user_id": "ada"}}, "user: ada"),
        ({"metadata": {"user_id": "user_0ab_account_1c_session_01234567-89ab"}}, "user: user_0ab_account_1c"),
        ({"metadata": {"user_id": json.dumps({"account_uuid": "a-1", "session_id": "s"})}}, "user: a-1"),
        ({"metadata": {"user_id": 7}, "user": None}, ""),
        ({"metadata": {"user_id": '{"account_uuid": 7}'}}, ""),
        (b'{"user": ', ""),
    ],
)
def test_end_user_is_who_the_body_names(body: object, user: str) -> None:
    assert told(body, sources=("user",)) == ([user] if user else [])


def test_tags_of_litellm_are_read_where_its_headers_are() -> None:
    head = head_of([(b"x-litellm-tags", b"a,b"), (b"x-velox-tags", b"c")])
    assert RequestTags(("tags",)).of(head, None, NOBODY, 0.0) == "request: c"
    assert RequestTags(("tags",), is_litellms=True).of(head, None, NOBODY, 0.0) == "request: a,request: b,request: c"


def test_all_lines_of_both_headers_are_read() -> None:
    """As those by which a route is chosen."""
    head = head_of([(b"x-velox-tags", b"a"), (b"x-velox-tag", b"b, a"), (b"x-velox-tags", b"c")])
    assert RequestTags(("tags",)).of(head, None, NOBODY, 0.0) == "request: a,request: b,request: c"


def test_client_that_makes_up_tags_gets_few_and_others_are_counted_together() -> None:
    tags = RequestTags(ALL, most=3)
    found = [of_request(tags, f"t{n}") for n in range(5)]
    assert found == ["request: t0", "request: t1", "request: t2", "request: other", "request: other"]
    assert of_request(tags, "t1", now_s=3599.0) == "request: t1"
    assert of_request(tags, "t4", now_s=3600.0) == "request: t4"
    assert told(x_velox_tags=",".join("abcdefgh")) == [f"request: {tag}" for tag in "abcd"]


def test_many_of_one_kind_leave_the_others_their_names() -> None:
    tags = RequestTags(ALL, most=3)
    assert [of_user(tags, f"u{n}") for n in range(4)][-2:] == ["user: u2", "user: other"]
    assert of_request(tags, "nightly") == "request: nightly"


def test_one_key_takes_a_quarter_of_the_names() -> None:
    """A new session for each request is what some clients have; the other keys still have theirs."""
    tags = RequestTags(ALL, most=8)
    loud, other = caller(id_=b"1" * 8), caller(id_=b"2" * 8)
    assert [of_user(tags, f"u{n}", loud) for n in range(4)] == ["user: u0", "user: u1", "user: other", "user: other"]
    assert of_user(tags, "u3", other) == "user: u3"
    assert of_user(tags, "u3", loud) == "user: u3", "it has its name by now"
    assert of_user(tags, "u2", loud, 3600.0) == "user: u2"


def test_texts_of_tags_are_few_however_they_are_put_together() -> None:
    """The order says nothing. A record has one number for all tags of a call, and remembers so many of these."""
    tags, who = RequestTags(ALL), caller("eu")
    names = [f"t{n}" for n in range(16)]
    orders = {of_request(tags, *found, who=who) for found in itertools.permutations(names[:4])}
    assert orders == {"eu,request: t0,request: t1,request: t2,request: t3"}
    assert of_request(tags, "t1", "t1") == "request: t1"
    texts = {of_request(tags, *found, who=who) for found in itertools.combinations(names, 4)}
    texts |= {of_request(tags, *found, who=who) for found in itertools.combinations(names, 3)}
    assert len(texts) == 2000 and "eu,request: other" in texts
    loud, other = caller("eu", id_=b"1" * 8), caller("us", id_=b"2" * 8)
    tags = RequestTags(ALL)
    texts = {of_request(tags, *found, who=loud) for found in itertools.combinations(names, 4)}
    assert len(texts) == 501
    assert of_request(tags, "nightly", who=other) == "us,request: nightly"


def test_of_a_long_name_only_the_start_is_looked_at() -> None:
    """A body may have a name of megabytes: what would be the next character of the tag is too far away."""
    long = "a" + 600 * " " + "b"
    assert told({"user": long}) == ["user: a_"]
    assert told({"metadata": {"user_id": long}}, sources=("user",)) == ["user: a_"]
    assert told(x_velox_tags=long) == ["request: a_"]
    assert told(x_velox_tags=2100 * "," + "b") == []


@given(st.text(max_size=200), st.binary(max_size=200))
def test_tag_is_short_visible_text(user: str, header: bytes) -> None:
    """And all of them together are a text that a record has whole, beside the longest ones of a key."""
    keys = caller(*(f"{n}" * 64 for n in range(8)))
    head = head_of([(b"x-velox-tags", header)])
    text = RequestTags(ALL).of(head, json.dumps({"user": user}).encode(), keys, 0.0)
    assert text.isascii() and text.isprintable() and len(text) <= 580
    assert all(0 < len(tag) <= 64 for tag in text.split(","))
    assert all(tag.count(" ") == 1 for tag in text.split(",")[8:])
