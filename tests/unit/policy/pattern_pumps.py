"""The regular expressions of the gateway, and texts that would show one which takes too long or too much memory.

Knows: where a module keeps compiled patterns; the parse tree of a pattern (`re._parser`). Does not know: what a pattern
is for.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

import velox

__all__ = ["Pattern", "fault_of", "patterns_of_package"]

_ALL_CHARS: Final = "a0 _-/:.\\\"'{[<%=;,\n\r\té@"
_SCREEN_CHARS: Final = 4_000
_GROWTH: Final = 4
# Four times the text takes four times as long, sixteen times if the time grows with the square.
_MOST_GROWTH: Final = 8.0
_SUSPECT_S: Final = 0.0003
_MOST_BYTES_A_LETTER: Final = 8
_SEARCHES: Final = frozenset({"search", "sub", "subn", "split", "findall", "finditer"})
_SEARCHED: Final = re.compile(rf"(\w+)\.(?:{'|'.join(sorted(_SEARCHES))})\(")
_REPEATS: Final = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_MOST_PUMPS: Final = 24


class Pattern(NamedTuple):
    """name: where it stands. searches: it is looked for anywhere in a text, not from its beginning on."""

    name: str
    compiled: re.Pattern[Any]
    searches: bool


def patterns_of_package(packages: tuple[str, ...] = ("",)) -> list[Pattern]:
    """Return all patterns that modules of some packages keep: alone, in containers, in objects, as bound methods."""
    found: dict[int, Pattern] = {}
    for info in pkgutil.walk_packages(velox.__path__, "velox."):
        if info.name.endswith("__main__") or not info.name.startswith(tuple(f"velox.{each}" for each in packages)):
            continue
        module = importlib.import_module(info.name)
        searched = _searched_names(info.name)
        for name, value in vars(module).items():
            for path, compiled, method in _held(value, name, 0, set()):
                searches = method in _SEARCHES or (method == "" and name in searched)
                known = found.get(id(compiled))
                first = f"{info.name}.{path}" if known is None else known.name
                found[id(compiled)] = Pattern(first, compiled, searches or (known is not None and known.searches))
    return sorted(found.values())


def _held(value: object, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, re.Pattern[Any], str]]:
    owner = getattr(value, "__self__", None)
    if isinstance(value, re.Pattern):
        yield path, value, ""
    elif isinstance(owner, re.Pattern):
        yield path, owner, getattr(value, "__name__", "")
    elif depth < 5 and id(value) not in seen:
        seen.add(id(value))
        for name, each in _parts(value):
            yield from _held(each, f"{path}{name}", depth + 1, seen)


def _parts(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{n}]", each) for n, each in enumerate(value)]
    module = getattr(type(value), "__module__", "")  # of a compiled class it may be a descriptor
    is_ours = not isinstance(module, str) or module.startswith("velox")
    if not is_ours and not isinstance(value, type):
        return []
    names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())]
    if isinstance(value, type) and not value.__module__.startswith("velox"):
        return []
    return [(f".{name}", getattr(value, name, None)) for name in names if isinstance(name, str)]


def _searched_names(module: str) -> frozenset[str]:
    """Return the names of which a module calls `search`, `sub`, `split` or the like."""
    path = Path(velox.__file__).parents[1] / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return frozenset(_SEARCHED.findall(path.read_text(encoding="utf-8")))


def fault_of(pattern: Pattern, *, most_texts: int) -> str | None:
    """Return what is wrong with a pattern, and the text that shows it; None: nothing was found.

    most_texts: of those that are tried, evenly chosen. Memory has to be traced (tracemalloc).
    """
    texts = list(_texts(pattern.compiled))
    for run in _runs(pattern):
        for prefix, pump, suffix in texts[:: max(1, -(-len(texts) // most_texts))]:
            fault = _fault(pattern.compiled, run, prefix, pump, suffix)
            if fault is not None:
                return f"{pattern.name} {pattern.compiled.pattern!r}: {fault} of {prefix!r} + {pump!r} * n + {suffix!r}"
    return None


def _runs(pattern: Pattern) -> list[Callable[[Any], object]]:
    compiled = pattern.compiled
    if pattern.searches:
        return [lambda text: sum(1 for _ in compiled.finditer(text))]
    return [compiled.match, compiled.fullmatch]


def _fault(compiled: re.Pattern[Any], run: Callable[[Any], object], prefix: str, pump: str, suffix: str) -> str | None:
    def text(n_chars: int) -> str | bytes:
        return _as(compiled, prefix + pump * (n_chars // len(pump)) + suffix)

    few = text(22 * len(pump))
    if _seconds(run, few) > 0.005 and _seconds(run, few, 3) > 0.005:
        return "time that doubles with each letter"
    screened = text(_SCREEN_CHARS)
    if _peak_bytes(run, screened) > _MOST_BYTES_A_LETTER * len(screened):
        return "memory of many bytes for each letter"
    if _seconds(run, screened) < _SUSPECT_S or _seconds(run, screened, 3) < _SUSPECT_S:
        return None
    larger = text(_SCREEN_CHARS * _GROWTH)
    if all(_seconds(run, larger) > _MOST_GROWTH * _seconds(run, screened, 3) for _ in range(3)):
        return "time that grows with the square of the length"
    return None


def _as(compiled: re.Pattern[Any], text: str) -> str | bytes:
    return text.encode("latin-1", "replace") if isinstance(compiled.pattern, bytes) else text


def _seconds(run: Callable[[Any], object], text: str | bytes, times: int = 1) -> float:
    """Return the shortest time of several, of this thread's own work: others on the machine don't count."""
    shortest = float("inf")
    for _ in range(times):
        began = time.thread_time()
        run(text)
        shortest = min(shortest, time.thread_time() - began)
    return shortest


def _peak_bytes(run: Callable[[Any], object], text: str | bytes) -> int:
    """Return what the engine holds at its height: its stack is Python's memory."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    run(text)
    return tracemalloc.get_traced_memory()[1] - before


def _texts(compiled: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield beginnings, what is repeated behind them, and ends, of texts that a pattern may have a hard time with."""
    source = compiled.pattern
    tree = parser.parse(source if isinstance(source, str) else source.decode("latin-1"), compiled.flags & ~re.UNICODE)
    letters = "".join(dict.fromkeys(_literals(tree))) + _ALL_CHARS
    places = list(_repeats(list(tree), "", letters))
    words = [word for word in _words(list(tree)) if word]
    whole = _sample(list(tree), letters)
    pumps = [pump for _, samples in places for pump in samples]
    pumps += [*words, whole, whole[:-1]]
    beginnings = dict.fromkeys(["", *(prefix for prefix, _ in places), *words])
    chosen = [pump for pump in dict.fromkeys(pumps) if pump][:_MOST_PUMPS]
    for pump, suffix, prefix in itertools.product(chosen, ("", "\x00", '"'), list(beginnings)[:6]):
        yield prefix, pump, suffix


def _literals(tree: Any) -> Iterator[str]:
    for op, arg in _all_nodes(tree):
        if op in (codes.LITERAL, codes.NOT_LITERAL):
            yield chr(arg)
        elif op is codes.IN:
            yield from (chr(value) for kind, value in arg if kind is codes.LITERAL)


def _all_nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    for op, arg in tree:
        yield op, arg
        for each in _below(op, arg):
            yield from _all_nodes(each)


def _below(op: Any, arg: Any) -> list[Any]:
    if op in _REPEATS:
        return [arg[2]]
    if op is codes.SUBPATTERN:
        return [arg[3]]
    if op is codes.BRANCH:
        return list(arg[1])
    if op in (codes.ASSERT, codes.ASSERT_NOT):
        return [arg[1]]
    if op is codes.ATOMIC_GROUP:
        return [arg]
    return []


def _repeats(nodes: list[Any], before: str, letters: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each repeated part: a text that stands before it, and some that it takes."""
    for op, arg in nodes:
        if op in _REPEATS:
            if arg[1] is codes.MAXREPEAT or arg[1] > 8:
                yield before, _samples(list(arg[2]), letters)
            yield from _repeats(list(arg[2]), before, letters)
        else:
            for each in _below(op, arg):
                yield from _repeats(list(each), before, letters)
        before += _sample([(op, arg)], letters)


def _samples(nodes: list[Any], letters: str) -> list[str]:
    """Return texts that a part takes: one of each branch, and of each letter that stands in the pattern."""
    if len(nodes) == 1:
        op, arg = nodes[0]
        if op is codes.BRANCH:
            return [text for each in arg[1] for text in _samples(list(each), letters)]
        if op is codes.SUBPATTERN:
            return _samples(list(arg[3]), letters)
        if op in (codes.IN, codes.NOT_LITERAL, codes.ANY):
            return [letter for letter in letters if _takes((op, arg), letter)][:6]
    return [_sample(nodes, letters), *(text for node in nodes for text in _samples_below(node, letters))]


def _samples_below(node: Any, letters: str) -> list[str]:
    op, arg = node
    return _samples(list(arg[2]), letters) if op in _REPEATS else []


def _sample(nodes: list[Any], letters: str) -> str:
    """Return one text that a part takes; where it looks around, that is left out."""
    text = ""
    for op, arg in nodes:
        if op is codes.LITERAL:
            text += chr(arg)
        elif op in (codes.IN, codes.NOT_LITERAL, codes.ANY):
            text += next((letter for letter in reversed(letters) if _takes((op, arg), letter)), "")
        elif op in _REPEATS:
            text += _sample(list(arg[2]), letters) * max(1, min(int(arg[0]), 64))
        elif op is codes.BRANCH:
            text += _sample(list(arg[1][0]), letters)
        elif op in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            text += _sample(list(arg[3] if op is codes.SUBPATTERN else arg), letters)
    return text


def _takes(node: Any, letter: str) -> bool:
    op, arg = node
    if op is codes.ANY:
        return letter != "\n"
    if op is codes.NOT_LITERAL:
        return ord(letter) != arg
    negated, found = False, False
    for kind, value in arg:
        if kind is codes.NEGATE:
            negated = True
        elif kind is codes.LITERAL:
            found |= ord(letter) == value
        elif kind is codes.RANGE:
            found |= value[0] <= ord(letter) <= value[1]
        elif kind is codes.CATEGORY:
            found |= _CATEGORIES[str(value)](letter)
    return found != negated


_CATEGORIES: Final[dict[str, Callable[[str], bool]]] = {
    "CATEGORY_DIGIT": str.isdigit,
    "CATEGORY_NOT_DIGIT": lambda letter: not letter.isdigit(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda letter: not letter.isspace(),
    "CATEGORY_WORD": lambda letter: letter.isalnum() or letter == "_",
    "CATEGORY_NOT_WORD": lambda letter: not (letter.isalnum() or letter == "_"),
}


def _words(nodes: list[Any]) -> Iterator[str]:
    """Yield the runs of letters that a pattern names."""
    word = ""
    for op, arg in nodes:
        if op is codes.LITERAL:
            word += chr(arg)
            continue
        yield word
        word = ""
        for each in _below(op, arg):
            yield from _words(list(each))
    yield word
