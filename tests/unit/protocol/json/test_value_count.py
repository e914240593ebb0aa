"""How many values a document of JSON has: no fewer than are counted, however its bytes are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_bound import assert_cpu_below
from velox.protocol.json.value_count import has_over

SLICE = 64 * 1024
TEXTS = st.text(alphabet='a,{"\\é', max_size=6)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(-5, 5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def marks(value: object) -> int:
    """Count the commas and objects of a document outside of its texts."""
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(map(marks, value.values()))
    if isinstance(value, list):
        return max(0, len(value) - 1) + sum(map(marks, value))
    return 0


@given(value=VALUES, before=st.integers(SLICE - 40, SLICE + 3), fill=st.sampled_from("x,\\"))
def test_commas_and_objects_are_counted_outside_of_texts(value: object, before: int, fill: str) -> None:
    """Wherever in a document a slice ends: in a text, between a backslash and what it is for, among brackets."""
    document = [fill * before, value]
    n = marks(document)
    for body in (json.dumps(document).encode(), bytearray(json.dumps(document, ensure_ascii=False).encode())):
        assert (has_over(body, n - 1), has_over(body, n)) == (True, False)


@pytest.mark.parametrize(
    ("body", "is_over"),
    [
        (b'{"a":"' + b"{,}" * 4_000_000 + b'"}', False),
        (b'{"a":"' + b"\\\\" * 4_000_000 + b",{" * 500_000 + b'"}', False),
        (b'{"a":[' + b'"{,}",' * 2_000_000 + b"0]}", True),
        (b'{"a":[' + b"{}," * 4_000_000 + b"0]}", True),
    ],
    ids=["one text", "backslashes", "texts", "objects"],
)
def test_large_body_is_counted_fast(body: bytes, is_over: bool) -> None:
    assert has_over(body, 200_000) is is_over

    assert_cpu_below(0.3, lambda: has_over(body, 200_000))
