"""All vectors, and the table of what came of them.

Knows: which vectors there are, and how a page shows them. Does not know: how they are played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tests.vectors import bodies, chunks, fields, framing, lines, upgrades
from tests.vectors.vector import Vector

__all__ = ["VECTORS", "counts", "of_http11probe", "rows"]

VECTORS: Final[tuple[Vector, ...]] = (
    *framing.VECTORS,
    *chunks.VECTORS,
    *lines.VECTORS,
    *fields.VECTORS,
    *upgrades.VECTORS,
    *bodies.VECTORS,
)
_OURS: Final = ("B-", "R-")


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
