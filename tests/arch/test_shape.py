"""The shape of the house: alarms that go off before a room is too large to read."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.arch.code_lines import code_lines

ROOT = Path(__file__).parents[2] / "velox"
FILES = sorted(ROOT.rglob("*.py"))
# Lines of code: comments, docstrings and blank lines are not counted.
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 7


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_fits_a_reader(path: Path) -> None:
    """It says what it is; no file over 600 lines of code, no function over 60 or over 7 positional parameters.

    No `global`; R-MEM-3: no asyncio.Queue without a bound, no cache without a size.
    """
    text = path.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    problems = []
    if tree.body and not ast.get_docstring(tree):
        problems.append("no docstring")
    # Lines of any kind first: what has few of them has few lines of code.
    if text.count("\n") > MAX_FILE_LINES or any(len(lines_of(each)) > MAX_FUNCTION_LINES for each in functions):
        code = code_lines(text, tree)
        if len(code) > MAX_FILE_LINES:
            problems.append(f"{len(code)} lines of code")
        sizes = [(each.name, len(code.intersection(lines_of(each)))) for each in functions]
        problems += [f"{name}: {n_lines} lines of code" for name, n_lines in sizes if n_lines > MAX_FUNCTION_LINES]
    for each in functions:
        n_positional = len(each.args.posonlyargs) + len(each.args.args)
        if n_positional > MAX_POSITIONAL:
            problems.append(f"{each.name}: {n_positional} positional parameters")
    for node in nodes:
        if isinstance(node, ast.Global):
            problems.append(f"line {node.lineno}: global")
        elif isinstance(node, ast.Call) and is_unbounded(node):
            problems.append(f"line {node.lineno}: {ast.unparse(node)} without a bound")

    assert problems == []


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    """Return the numbers of a function's lines."""
    return range(node.lineno, (node.end_lineno or 0) + 1)


def is_unbounded(call: ast.Call) -> bool:
    """Whether a queue or a cache is made that nothing bounds."""
    called = ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""
    if called in ("asyncio.Queue", "queue.Queue"):
        return not (call.args or call.keywords)
    return called.endswith("lru_cache") and any(
        each.arg == "maxsize" and ast.unparse(each.value) == "None" for each in call.keywords
    )


@pytest.mark.parametrize("text", ["asyncio.Queue()", "queue.Queue()", "functools.lru_cache(maxsize=None)"])
def test_what_nothing_bounds_is_found(text: str) -> None:
    tree = ast.parse(text, mode="eval")

    assert isinstance(tree.body, ast.Call) and is_unbounded(tree.body)


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
