"""Rules for every module that is installed, as far as a program can judge. Size is judged by reading."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("velox", "velox_migrate", "velox_sim")
FILES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_what_it_is_and_bounds_what_it_keeps(path: Path) -> None:
    """It has a docstring and no `global`; no asyncio.Queue without a bound, no cache without a size."""
    tree = ast.parse(path.read_text())
    problems = []
    if tree.body and not ast.get_docstring(tree):
        problems.append("no docstring")
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            problems.append(f"line {node.lineno}: global")
        elif isinstance(node, ast.Call) and is_unbounded(node):
            problems.append(f"line {node.lineno}: {ast.unparse(node)} without a bound")

    assert problems == []


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
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    excused = [name for contract in contracts for name in contract.get("skip_descendants", ())]

    assert excused == []
