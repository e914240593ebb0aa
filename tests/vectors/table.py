"""All vectors, read from vectors.jsonl, and what a page says of them.

docs/http1-vectors.md explains the file. Knows: its fields. Does not know: how a vector is played.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.vectors.vector import Answer, Door, Pause, Seen, Vector

__all__ = ["VECTORS", "counts", "of_http11probe", "rows"]

_FILE: Final = Path(__file__).with_name("vectors.jsonl")
_OURS: Final = ("B-", "R-")
_FIELDS: Final = frozenset({"id", "row", "what", "why", "gateway", "sends", "answers", "closes"})


def _bytes(text: Any) -> bytes:
    """Return the bytes of a text, of a repeat, or of a list of both."""
    if isinstance(text, str):
        return text.encode("latin-1")
    if isinstance(text, list):
        return b"".join(map(_bytes, text))
    if "times" in text:
        return _bytes(text["of"]) * int(text["times"])
    return b"".join(_bytes(text["of"].replace("{n}", str(n))) for n in range(text["from"], text["to"] + 1))


def _sends(parts: Sequence[Any]) -> Iterator[bytes | Pause]:
    """Yield what is sent at once, and what is waited for in between."""
    held = b""
    for part in parts:
        if isinstance(part, dict) and "wait" in part:
            yield held
            yield Pause(part["wait"])
            held = b""
        else:
            held += _bytes(part)
    yield held


def _answers(answer: Mapping[str, Any]) -> list[Answer]:
    status, up, seen = answer["status"], answer.get("upstream"), None
    if up is not None:
        fields = tuple((_bytes(name), _bytes(value)) for name, value in up.get("fields", ()))
        seen = Seen(_bytes(up["method"]), _bytes(up["target"]), fields, _bytes(up.get("body", "")))
    statuses = tuple(status) if isinstance(status, list) else (status,)
    told = tuple((name, value) for name, value in answer.get("fields", ()))
    made = Answer(statuses, answer.get("reason", ""), seen, answer.get("body", True), told)
    return [made] * int(answer.get("times", 1))


def _vector(line: str) -> Vector:
    found = json.loads(line)
    assert found.keys() <= _FIELDS, found.keys() - _FIELDS
    return Vector(
        *(found[name] for name in ("id", "row", "what", "why")),
        tuple(_sends(found["sends"])),
        tuple(each for answer in found["answers"] for each in _answers(answer)),
        found["closes"],
        Door(found.get("gateway", Door.USUAL.value)),
    )


VECTORS: Final[tuple[Vector, ...]] = tuple(map(_vector, _FILE.read_text().splitlines()))


def of_http11probe(vector: Vector) -> bool:
    """True when Http11Probe documents the same case under this id."""
    return not vector.id.startswith(_OURS)


def rows(results: Iterable[tuple[Vector, str]]) -> Iterator[str]:
    """Yield the table as Markdown. The second of a pair: what came, in bold if it was not right."""
    yield "| id | sent | wanted | got | because |"
    yield "|---|---|---|---|---|"
    for vector, got in results:
        what = vector.what.replace("`", "'").replace("|", "/")
        yield f"| {vector.id} | `{what}` | {vector.wanted} | {got} | {vector.why} |"


def counts(results: Sequence[tuple[Vector, str]]) -> Iterator[str]:
    """Yield how many there are of each kind, as Markdown."""
    kinds: Counter[tuple[str, str]] = Counter()
    for vector, got in results:
        source = "Http11Probe's" if of_http11probe(vector) else "our own"
        kind = "refused" if vector.is_refused else "passed" if len(vector.seen) == len(vector.answers) else "both"
        kinds[source, kind] += 1
        kinds[source, "not as wanted"] += got.startswith("**")
        kinds[source, "all"] += 1
    columns = ("all", "refused", "passed", "both", "not as wanted")
    yield "| | " + " | ".join(("vectors", *columns[1:])) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for source in ("Http11Probe's", "our own"):
        yield f"| {source} | " + " | ".join(str(kinds[source, column]) for column in columns) + " |"
