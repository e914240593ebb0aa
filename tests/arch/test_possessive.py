"""No pattern has a possessive group that CPython before 3.11.5 matches wrongly (gh-106052).

Debian 12 has 3.11.2. There a possessive group whose body fails after a repeat, an assertion or a group in it keeps what
it began to match: `(?:"[^"]*+")*+` takes four letters of `"a""b`, not three, and what stands behind it never matches.
An atomic group is right: `(?>(?:"[^"]*+")*)`. So are possessive repeats of one character.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import re._constants as names  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import velox
import velox_migrate
import velox_sim

PACKAGES = (velox, velox_migrate, velox_sim)
SOURCES = [path for package in PACKAGES for path in Path(package.__path__[0]).rglob("*.py")]
ONE_CHARACTER = {names.LITERAL, names.NOT_LITERAL, names.IN, names.ANY, names.CATEGORY, names.AT}
REPEATS = {names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT}
POSSESSIVE = re.compile(r"[*+?}]\+")
# What stands for a part in a pattern that is put together.
PART = re.compile(rb"%b|%s|%d|\{[a-z_]+\}")


def groups(items: Iterable[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield the bodies of all possessive repeats, at any depth."""
    for op, value in items:
        if op in REPEATS:
            if op is names.POSSESSIVE_REPEAT:
                yield list(value[2])
            yield from groups(value[2])
        elif op is names.BRANCH:
            for each in value[1]:
                yield from groups(each)
        elif op is names.SUBPATTERN:
            yield from groups(value[3])
        elif op in (names.ASSERT, names.ASSERT_NOT):
            yield from groups(value[1])
        elif op is names.ATOMIC_GROUP:
            yield from groups(value)


def is_bitten(body: Iterable[tuple[Any, Any]]) -> bool:
    """Tell whether a body can fail after, or within, a step that is more than one character."""
    has_moved = False
    for at, (op, value) in enumerate(body):
        is_step = op not in ONE_CHARACTER
        can_fail = op not in REPEATS or value[0] > 0
        inside = value[1] if op is names.BRANCH else [value[3]] if op is names.SUBPATTERN else []
        if any(is_bitten(each) for each in inside) or op in (names.ASSERT, names.ASSERT_NOT):
            return True
        if can_fail and (has_moved or (at > 0 and is_step)):
            return True
        has_moved = has_moved or is_step
    return False


def has_bitten_group(pattern: str | bytes, flags: int = 0) -> bool:
    """Tell whether a pattern has such a group."""
    if isinstance(pattern, bytes):
        pattern, flags = pattern.decode("latin-1"), flags & ~re.UNICODE
    return any(map(is_bitten, groups(parser.parse(pattern, flags))))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # Seen to match wrongly on 3.11.2.
        *(
            (pattern, True)
            for pattern in (r"(?:ab?c)*+", r"(?:a\d++b)*+", r'(?:"[^"]*+")*+', r"(?:(?!x)a)*+", r"(?:ab??c)?+")
        ),
        *(
            (pattern, True)
            for pattern in (r'(?:[0-9]++|"[^"]*+")*+', r"x|:(?:(?=y)y)*+", r"(?:(?:ab)*+c)?+", r"(?:[^,]++,)*+")
        ),
        # And rightly.
        *(
            (pattern, False)
            for pattern in (r"[^a]*+b", r"(?:ab)*+", r'(?:[^"\\]++|\\.)*+', r'(?:\\.[^"\\]*+)*+', r"(?:ab|ac)*+")
        ),
        *((pattern, False) for pattern in (r"(?>(?:ab?c)*)", r'(?>(?:"[^"]*+")*)', r"(?:, *+)?+")),
    ],
)
def test_rule_tells_what_that_interpreter_matches_wrongly(pattern: str, expected: bool) -> None:
    assert has_bitten_group(pattern) is expected


def patterns(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """Yield the compiled patterns in a value."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 3 and isinstance(value, dict | list | tuple | set | frozenset):
        for each in value.values() if isinstance(value, dict) else value:
            yield from patterns(each, depth + 1)


def test_no_compiled_pattern_has_such_a_group() -> None:
    """M7: there the model that answered was lost in indented JSON."""
    n_patterns = 0
    found = [each for package in PACKAGES for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for module in found:
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            for pattern in patterns(value):
                n_patterns += 1
                assert not has_bitten_group(pattern.pattern, pattern.flags), f"{module.name}.{name}"
    assert n_patterns > 200


def test_no_text_of_a_pattern_has_such_a_group() -> None:
    """Also of those that are compiled in functions, or put together."""
    n_texts = 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str | bytes):
                continue
            text = node.value.encode("latin-1", "replace") if isinstance(node.value, str) else node.value
            if not POSSESSIVE.search(text.decode("latin-1")):
                continue
            try:
                is_wrong = has_bitten_group(PART.sub(b"(?:a*)", text))
            except re.error:
                continue  # no pattern, or a piece of one
            n_texts += 1
            assert not is_wrong, f"{path}:{node.lineno}"
    assert n_texts > 20
