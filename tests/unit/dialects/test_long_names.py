"""Names of any length cost as much as short ones: only their beginning is put into a provider's letters."""

from __future__ import annotations

import re
import time

import pytest

from velox.dialects.canonical.names import FittedNames
from velox.dialects.converse.media import DocumentNames

LETTERS = re.compile(r"[a-zA-Z0-9_-]+")


@pytest.mark.parametrize("letter", ["%", " ", "é", "a."])
def test_long_name_of_a_tool(letter: str) -> None:
    """It took 200 ms for a megabyte."""
    names, name = FittedNames(LETTERS, 64, {}), letter * 500_000
    began = time.thread_time()
    fitted = names.fit(name)

    assert time.thread_time() - began < 0.02
    assert len(fitted) <= 64
    assert names.originals == {fitted: name}
    assert names.fit(name + "a") != fitted


@pytest.mark.parametrize("letter", ["%a", " ", "a", "é"])
def test_long_name_of_a_document(letter: str) -> None:
    names, name = DocumentNames(), letter * 500_000
    began = time.thread_time()
    names.fit(name)

    assert time.thread_time() - began < 0.02
