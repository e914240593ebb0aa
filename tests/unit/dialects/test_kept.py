"""Requests that refer to kept answers: what is asked for, and what they become."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.responses.kept import KeptAnswer, Unfolding, input_page, refers, response_ids


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def kept(name: str, *asked: dict[str, Any], previous: str | None = None, **fields: Any) -> KeptAnswer:
    output = [{"id": f"msg_{name}", "type": "message", "role": "assistant", "content": name}]
    response = {"id": f"resp_{name}", "output": fields.get("output", output)}
    given = json.dumps(list(asked))[1:-1].encode()
    return KeptAnswer(f"resp_{name}", "a", previous, given, json.dumps(response).encode())


def unfolded(body: dict[str, Any], *answers: KeptAnswer, most_bytes: int = 10_000) -> Any:
    """Return the request as it becomes, with these answers kept; None: as it came."""
    found = {each: answer for answer in answers for each in response_ids(answer.response)}
    unfolding = Unfolding(json.dumps(body).encode(), most_bytes)
    while missing := unfolding.missing():
        for each in missing:
            unfolding.know(each, found.get(each))
    made = unfolding.body()
    return None if made is None else json.loads(made)


def texts(body: Any) -> list[str]:
    return [item["content"] for item in body["input"]]


def test_chain_of_answers_is_put_before_the_input() -> None:
    """Each with its own input; instructions and other fields are the request's own."""
    one, two = kept("1", said("a")), kept("2", said("b"), previous="resp_1")
    made = unfolded({"model": "m", "input": "c", "previous_response_id": "resp_2", "instructions": "x"}, one, two)

    assert texts(made) == ["a", "1", "b", "2", "c"]
    assert made["instructions"] == "x"
    assert "previous_response_id" not in made
    assert texts(unfolded({"previous_response_id": "resp_1"}, one)) == ["a", "1"]


def test_references_inside_the_chain_are_resolved() -> None:
    """A kept input is as the client sent it."""
    one = kept("1", said("a"))
    two = kept("2", said("a"), {"type": "item_reference", "id": "msg_1"}, said("b"))
    assert texts(unfolded({"input": [said("c")], "previous_response_id": "resp_2"}, one, two)) == [*"a1b2c"]


def test_what_is_not_kept_stays_as_it_came() -> None:
    """The provider may know it: OpenAI keeps its own answers."""
    assert unfolded({"input": "c", "previous_response_id": "resp_x"}) is None
    assert unfolded({"input": [said("a"), {"type": "item_reference", "id": "msg_x"}]}) is None
    assert unfolded({"input": "c", "previous_response_id": None}) is None
    made = unfolded(
        {"input": [{"id": "msg_1"}, {"type": "item_reference", "id": "msg_x"}], "previous_response_id": "resp_x"},
        kept("1"),
    )
    assert [item["id"] for item in made["input"]] == ["msg_1", "msg_x"]
    assert made["previous_response_id"] == "resp_x"


def test_chain_whose_beginning_is_lost_is_refused() -> None:
    """A part of a conversation would be another one."""
    with pytest.raises(BadRequestError, match="no longer kept") as info:
        unfolded({"input": "c", "previous_response_id": "resp_2"}, kept("2", previous="resp_1"))
    assert info.value.param == "previous_response_id"


def test_item_that_stands_in_the_request_is_not_put_there_twice() -> None:
    """Its reader leaves the reference out."""
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": "own"}
    assert unfolded({"input": [item, {"type": "item_reference", "id": "msg_1"}]}, kept("1")) is None


def test_unfolded_input_has_a_bound() -> None:
    """So has a chain that leads back to itself, which nobody makes by right."""
    with pytest.raises(BadRequestError, match="too long"):
        unfolded({"input": "c", "previous_response_id": "resp_1"}, kept("1", said("a" * 500)), most_bytes=500)
    loop = kept("1", said("a"), previous="resp_1")
    assert texts(unfolded({"input": "c", "previous_response_id": "resp_1"}, loop)) == ["a", "1", "c"]


@pytest.mark.parametrize(
    ("body", "may"),
    [
        (b'{"input":"Hi"}', False),
        (b'{"input":[{"type":"message","id":"msg_1"}]}', False),
        (b'{"previous_response_id":"x"}', True),
        (b'{"input":[{"type":"item_reference","id":"x"}]}', True),
        (b'{"input":[{ "id" : "x" }]}', True),
    ],
)
def test_most_requests_refer_to_nothing(body: bytes, may: bool) -> None:
    assert refers(body) is may


@pytest.mark.parametrize("body", [b"", b"[]", b'{"input":[{"id":5,"type":"item_reference"}]}', b'{"input":[}'])
def test_what_can_t_be_read_is_said_by_its_reader(body: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeError)):
        unfolding = Unfolding(body, 100)
        unfolding.missing()


def test_pages_of_an_input() -> None:
    """The latest first, as OpenAI has it; items without an id get one that stays."""
    answer = kept("1", *(said(text) for text in "abcde"), {"id": "fc_1", "type": "function_call", "content": "f"})

    def page(**query: str) -> tuple[list[str], bool, str | None]:
        found = json.loads(input_page(answer, query))
        assert (found["first_id"], found["last_id"]) == (
            (found["data"][0]["id"], found["data"][-1]["id"]) if found["data"] else (None, None)
        )
        return [item["content"] for item in found["data"]], found["has_more"], found["last_id"]

    contents, more, last = page(limit="2")
    assert (contents, more, last) == (["f", "e"], True, "item_1_4")
    assert page(limit="2", after="item_1_4")[:2] == (["d", "c"], True)
    assert page(order="asc")[:2] == ([*"abcdef"], False)
    assert page(order="asc", after="fc_1") == ([], False, None)


IDS = st.sampled_from([f"{n}" for n in range(6)])


@given(previous=st.dictionaries(IDS, IDS | st.none(), max_size=6), asked=IDS)
def test_chain_is_whole_or_refused_or_left(previous: dict[str, str | None], asked: str) -> None:
    """Whatever is kept: never a part of it, and always an end."""
    answers = [
        kept(name, said(f"q{name}"), previous=None if before is None else f"resp_{before}")
        for name, before in previous.items()
    ]
    chain: list[str] = []
    name: str | None = asked
    while name is not None and name in previous and name not in chain:
        chain.append(name)
        name = previous[name]
    try:
        made = unfolded({"input": "now", "previous_response_id": f"resp_{asked}"}, *answers)
    except BadRequestError:
        assert chain
        assert name is not None
        assert name not in previous
        return
    wanted = [text for each in reversed(chain) for text in (f"q{each}", each)]
    assert (made is None) is not bool(chain)
    assert made is None or texts(made) == [*wanted, "now"]
