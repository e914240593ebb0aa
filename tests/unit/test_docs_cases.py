"""Each case of docs/cases.md has a test that says its number, and no test says one that the page does not have."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.markdown import ROOT

_PAGE: Final = ROOT / "docs/cases.md"
_NUMBER: Final = re.compile(r"(?:C|N|W|RC|RS|M|X|U)[1-9]\d?a?")
_KINDS: Final = ("C", "N", "W", "RC", "RS", "M", "X", "U")
_COLUMNS: Final = 5
_FEWEST_WORDS: Final = 3
_MOST_WORDS: Final = 15
# What could be argued either way, and limits that were documented: each has its reason.
_DECIDED: Final = (
    *("C3", "C9", "C11", "C14", "C15", "C16", "C17", "C23", "C27", "C30", "C31", "C33", "C34", "C37", "C39", "C42"),
    *("C43", "C44", "C45", "C47", "C48", "C50", "C51", "C53", "C54", "C55", "C56", "C57", "C58", "C64", "C73"),
    *("N7", "N8", "N9"),
)
_DECISION: Final = re.compile(r"\*\*([CN]\d+(?:, [CN]\d+)*):\*\* \S")
# What is not changed yet. The list may only become shorter.
_OPEN: Final[tuple[str, ...]] = ()


def _rows() -> list[list[str]]:
    """Return the cells of the page's rows."""
    rows = [line.strip("| ").split(" | ") for line in _PAGE.read_text().splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "case"]


_ROWS: Final = _rows()
_CASES: Final = {row[0]: row for row in _ROWS if len(row) == _COLUMNS}


def _order(number: str) -> tuple[int, int, str]:
    kind = number.rstrip("0123456789a")
    return _KINDS.index(kind), int(number[len(kind) :].rstrip("a")), number


@cache
def _said(path: Path) -> dict[str, str]:
    """Return the docstrings of the tests of a file, by name."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("number", _CASES)
def test_case_has_a_test_that_says_its_number(number: str) -> None:
    """So who reads the page finds what holds a case, and who reads a test what it is about."""
    path, _, name = _CASES[number][-1].strip("`").partition("::")
    assert number in re.findall(rf"\b{_NUMBER.pattern}\b", _said(ROOT / path)[name])


def test_numbers_are_in_order_and_open_ones_become_fewer() -> None:
    """Each once, within its table."""
    numbers = [row[0] for row in _ROWS]
    assert len(numbers) == len(set(numbers)) and all(map(_NUMBER.fullmatch, numbers))
    assert list(_CASES) == sorted(_CASES, key=_order)
    assert tuple(row[0] for row in _ROWS if len(row) != _COLUMNS) == _OPEN


@pytest.mark.parametrize("number", _CASES)
def test_case_says_what_came_out_before(number: str) -> None:
    """In few words, and what comes out now is something else."""
    _, _, before, now, _ = _CASES[number]
    assert _FEWEST_WORDS <= len(before.split()) <= _MOST_WORDS
    assert before != now


def test_decisions_have_their_reasons() -> None:
    """Each once."""
    _, _, decisions = _PAGE.read_text().partition("## Decisions")
    numbers = [number for found in _DECISION.findall(decisions) for number in found.split(", ")]
    assert sorted(numbers, key=_order) == list(_DECIDED)
    assert set(numbers) <= _CASES.keys()


def test_no_test_says_a_number_that_the_page_does_not_have() -> None:
    """`C6 to C8` and several with commas are several; a number stands at the begin of what a docstring says."""
    begin = rf"(?:{_NUMBER.pattern}(?:, | to )?)+:"
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(begin, path.read_text())]
    said = {
        number
        for path in paths
        for text in _said(path).values()
        for start in re.findall(rf"(?m)^{begin}", text)
        for number in re.findall(_NUMBER.pattern, start)
    }
    assert len(said) > 100
    assert said - _CASES.keys() == set()
