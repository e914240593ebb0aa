"""K7: one table says where a model stands: what routes by it and what checks keys by it read the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.gateway.access.endpoints import Routes, reads_body, reads_form
from velox.heads import RequestHead
from velox.policy.api.rows import ROWS, ApiRow, ModelPlace, is_management
from velox.policy.api.table import call_of

BASES = ["", "/v1", "/v2", "/openai/v1", "/openai", "/api/v1", "/openai/deployments/own", "/deployments/own"]
PATHS = Routes(("*",))
JSON = [(b"content-type", b"application/json")]
FORM = [(b"content-type", b"multipart/form-data; boundary=b")]


def path_of(row: ApiRow, base: str) -> bytes:
    return "/".join((base, *("abc-123" if word == "*" else word for word in row.words))).encode()


@given(st.sampled_from(ROWS), st.sampled_from(BASES))
def test_routes_and_keys_read_a_model_at_the_same_places(row: ApiRow, base: str) -> None:
    """C5: an endpoint whose model is checked for a key is one whose model is routed, limited, paid for and recorded."""
    path = path_of(row, base)
    call, facts = call_of(b"POST", path), PATHS.facts(path)
    head = RequestHead.of(b"POST", path, JSON, 2)
    form = RequestHead.of(b"POST", path, FORM, 2)

    assert call is not None and call.place is row.place
    if row.words[-1] == "*":
        return
    assert (facts.row is row) is row.reads_body
    assert facts.endpoint is row.endpoint or not row.reads_body
    assert reads_body(facts, head) is (row.place in (ModelPlace.BODY, ModelPlace.BODY_OR_FORM, ModelPlace.UNKNOWN))
    assert reads_form(facts, form) is (row.place is ModelPlace.BODY_OR_FORM)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "/".join(row.words))
def test_each_endpoint_has_a_group(row: ApiRow) -> None:
    """Else no key that is limited may use it."""
    call = call_of(b"POST", path_of(row, "" if row.words[0] == "api" else "/v1"))

    assert call is not None and call.group is not None


def test_no_endpoint_stands_there_twice() -> None:
    assert len({row.words for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (b"/key/info", True),
        (b"/v1/model/info", True),
        (b"/health/readiness", True),
        (b"/health", False),
        (b"/v1/models", False),
        (b"/v1/key", False),
        (b"/", False),
    ],
)
def test_management_of_litellm_is_known(path: bytes, is_one: bool) -> None:
    assert is_management(path) is is_one
