"""Names of any length cost as much as short ones: only their beginning is put into a provider's letters."""

from __future__ import annotations

import re

import pytest

from tests.cpu_bound import assert_cpu_below
from velox.dialects.canonical.names import FittedNames
from velox.dialects.converse.media import DocumentNames

LETTERS = re.compile(r"[a-zA-Z0-9_-]+")


@pytest.mark.parametrize("letter", ["%", " ", "é", "a."])
def test_long_name_of_a_tool(letter: str) -> None:
    """It took 200 ms for a megabyte."""
    name = letter * 500_000
    assert_cpu_below(0.02, lambda: FittedNames(LETTERS, 64, {}).fit(name))

    names = FittedNames(LETTERS, 64, {})
    fitted = names.fit(name)
    assert len(fitted) <= 64
    assert names.originals == {fitted: name}
    assert names.fit(name + "a") != fitted


@pytest.mark.parametrize("letter", ["%a", " ", "a", "é"])
def test_long_name_of_a_document(letter: str) -> None:
    name = letter * 500_000
    assert_cpu_below(0.02, lambda: DocumentNames().fit(name))
