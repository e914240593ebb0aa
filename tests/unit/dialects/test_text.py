"""JSON strings that are looked at as they stand."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.dialects.json_text.text import is_blank

WRITTEN = [" ", r"\n", r"\r", r"\t", r"\f", r"\u0020", r"\u000a", r"\u00A0", r"\\n", r"\\", "n", "u00", r"\u0000", "a"]


@given(st.lists(st.sampled_from(WRITTEN), max_size=6))
def test_blank_is_what_reads_as_white_space(parts: list[str]) -> None:
    """However it is written."""
    text = '"' + "".join(parts) + '"'

    assert is_blank(text.encode()) is (json.loads(text).strip(" \n\r\t\f\u00a0") == "")


@pytest.mark.parametrize("blank", [b" ", rb"\n", rb"\t", rb"\u0020", rb"\ud83d"])
def test_a_long_text_is_not_looked_through(blank: bytes) -> None:
    """A pattern kept 128 bytes for each space: 5 MB took 600 MiB, and 60 MB a worker's life."""
    text = b'"' + blank * (5_000_000 // len(blank)) + b'"'
    tracemalloc.start()
    try:
        found = is_blank(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert not found
    assert peak < 100_000
