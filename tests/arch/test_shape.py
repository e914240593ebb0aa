"""The shape of the house: alarms that go off before a room is too large to read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "velox"
FILES = sorted(ROOT.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 7


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_fits_a_reader(path: Path) -> None:
    """No file over 400 lines, no function over 60 lines or 7 positional parameters, no `global`."""
    text = path.read_text()
    tree = ast.parse(text)
    problems = []
    if text.count("\n") > MAX_FILE_LINES:
        problems.append(f"{text.count(chr(10))} lines")
    for node in functions(tree):
        n_lines = (node.end_lineno or 0) - node.lineno + 1
        n_positional = len(node.args.posonlyargs) + len(node.args.args)
        if n_lines > MAX_FUNCTION_LINES:
            problems.append(f"{node.name}: {n_lines} lines")
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
