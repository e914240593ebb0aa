"""Rules for every module that is installed, as far as a program can judge. Sizes of files are judged by reading."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.arch.lines import PACKAGES, code_lines, main

ROOT = Path(__file__).parents[2]
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


def test_no_folder_has_more_files_than_a_reader_takes_in() -> None:
    """At most 20 modules in one folder: what has more has several subjects, and becomes packages that name them."""
    folders = Counter(path.parent.relative_to(ROOT) for path in FILES)

    assert len(folders) > 40 and {folder: n_files for folder, n_files in folders.items() if n_files > 20} == {}


# Interfaces of gateway/: this list may only shrink. One with a single implementation is a class to be named instead.
INTERFACES = frozenset(
    {
        "access/places.SharedObjects",
        "answers/kept_answers.SharedAnswers",
        "cluster/group.AttemptHost",
        "cluster/group.AttemptReply",
        "limits/lease_wait.LeaseWait",
        "limits/limiter.QuotaTable",
        "reply/reply.AnsweringAttempt",
        "request/exchange.ExchangeOwner",
        "translation/translated_reply.ReplyTranslator",
        "translation/translated_reply.StreamTranslator",
    }
)


def test_gateway_gets_no_interface_more() -> None:
    """A reader follows a class, not a promise of one: what only one class fulfils is that class, or a value."""
    found = [name for path in FILES if path.is_relative_to(ROOT / "velox/gateway") for name in interfaces(path)]

    assert len(found) == len(INTERFACES) and set(found) == INTERFACES


def interfaces(path: Path) -> list[str]:
    """Return the names of a module's protocols and abstract classes."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    return [
        f"{path.parent.name}/{path.stem}.{node.name}"
        for node in classes
        if any(ast.unparse(base) in ("Protocol", "abc.ABC", "ABC") for base in node.bases)
        or any("abstractmethod" in ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute))
    ]


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


def test_lines_of_code_have_no_comments_and_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    text = '"""What it is.\n\nMore."""\n\nX = (\n    1,  # one\n)\n'
    function = 'def f() -> str:\n    """Do."""\n    # now\n    return """a\nb"""\n'
    assert (code_lines(text), code_lines(function)) == (3, 3)

    assert main(ROOT) == 0
    assert "velox_sim\n" in capsys.readouterr().out
