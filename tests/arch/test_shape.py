"""The shape of the house: alarms that go off before a room is too large to read."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.code_lines import code_lines

ROOT = Path(__file__).parents[2] / "velox"
FILES = sorted(ROOT.rglob("*.py"))
# Lines of code: comments, docstrings and blank lines are not counted.
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 7


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_fits_a_reader(path: Path) -> None:
    """No file over 600 lines of code, no function over 60 or over 7 positional parameters, no `global`."""
    text = path.read_text()
    tree = ast.parse(text)
    code = code_lines(text, tree)
    problems = []
    if len(code) > MAX_FILE_LINES:
        problems.append(f"{len(code)} lines of code")
    for node in functions(tree):
        n_lines = len(code.intersection(range(node.lineno, (node.end_lineno or 0) + 1)))
        n_positional = len(node.args.posonlyargs) + len(node.args.args)
        if n_lines > MAX_FUNCTION_LINES:
            problems.append(f"{node.name}: {n_lines} lines of code")
        if n_positional > MAX_POSITIONAL:
            problems.append(f"{node.name}: {n_positional} positional parameters")
    problems += [f"global on line {node.lineno}" for node in ast.walk(tree) if isinstance(node, ast.Global)]

    assert problems == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_what_it_is(path: Path) -> None:
    """Every module that holds code begins with a docstring that says what it is."""
    tree = ast.parse(path.read_text())
    if tree.body:
        assert ast.get_docstring(tree), f"{path} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unbounded(path: Path) -> None:
    """R-MEM-3: no asyncio.Queue without a bound, no cache without a size."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("asyncio.Queue", "queue.Queue"):
            assert node.args or node.keywords, f"{path}:{node.lineno}: a queue without maxsize"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("lru_cache"):
            sizes = [ast.unparse(k.value) for k in node.keywords if k.arg == "maxsize"]
            assert sizes != ["None"], f"{path}:{node.lineno}: a cache without a bound"


def test_tree_names_no_machine() -> None:
    """No path of a developer's machine and no other project's tools in anything that is shipped."""
    for path in FILES:
        text = path.read_text()
        assert "/tmp/" not in text or "proc" in text, path
        assert "/root/" not in text, path


def test_no_package_is_excused_from_the_contract() -> None:
    """The modules of no package may import each other around a circle."""
    contracts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    excused = [name for contract in contracts for name in contract.get("skip_descendants", ())]

    assert excused == []


def test_only_code_is_counted() -> None:
    """A statement over several lines counts with all of them, a text that is a value too; nothing else does."""
    text = '''"""A module."""

# A comment.
import os  # and another


def f(
    a: int,
) -> str:
    """Do it.

    At length.
    """

    text = """one

    three"""
    return text
'''
    assert code_lines(text, ast.parse(text)) == {4, 7, 8, 9, 15, 16, 17, 18}
