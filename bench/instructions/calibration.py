"""A fixed piece of work that has nothing of Velox in it: what this interpreter and these parsers cost.

Knows: objects, calls, dictionaries, bytes, one JSON parse. Does not know: Velox. Never changed: every figure kept for
other interpreters is compared through it.
"""

from __future__ import annotations

from typing import Any, Final

import httptools
import simdjson

__all__ = ["calibrate"]

_BODY: Final = b'{"model":"m","stream":false,"messages":[{"role":"user","content":"%s"}]}' % (b"word " * 100)
_HEAD: Final = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\r\n"


class _Step:
    __slots__ = ("_next", "count", "name")

    def __init__(self, name: bytes, following: _Step | None) -> None:
        self.name: Final = name
        self.count = 0
        self._next: Final = following

    def walk(self, table: dict[bytes, int], depth: int) -> int:
        self.count += depth
        found = table.get(self.name)
        table[self.name] = depth if found is None else found + 1
        following = self._next
        if following is None:
            return self.count
        try:
            return following.walk(table, depth + 1)
        finally:
            self.count += 1


class _Head:
    def __init__(self) -> None:
        self.fields: Final[list[tuple[bytes, bytes]]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))


async def _turn(steps: _Step, table: dict[bytes, int]) -> int:
    return steps.walk(table, 0)


def calibrate(n: int) -> int:
    """Do the work n times; return a number that depends on all of it."""
    parser = simdjson.Parser()
    total = 0
    for _ in range(n):
        steps: _Step | None = None
        for letter in range(60):
            steps = _Step(b"%d" % letter, steps)
        assert steps is not None
        table: dict[bytes, int] = {}
        try:
            _turn(steps, table).send(None)
        except StopIteration as done:
            total += done.value
        head = _Head()
        httptools.HttpRequestParser(head).feed_data(_HEAD)
        document: Any = parser.parse(_BODY)
        total += len(head.fields) + len(str(document["model"])) + len(b"".join(sorted(table)))
        del document
    return total
