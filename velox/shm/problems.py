"""Why the credentials of upstreams can't be renewed, as each worker tells it.

Knows: whose problem it is, and which process told it. Does not know: what a credential is (velox.providers), or who
shows this (velox.admin). A text comes from where tokens are fetched: it has no secret in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from velox.shm.snapshot import SharedSnapshot

__all__ = ["CredentialProblem", "CredentialProblems"]

_MOST_TEXT: Final = 600  # characters; what a server said is cut before
# 256 upstreams, each with a problem of four-byte characters. Untouched pages take no memory.
_BYTES: Final = 1 << 20


class CredentialProblem(NamedTuple):
    """Of one upstream. n_workers: that have it."""

    upstream: str
    text: str
    n_workers: int


class CredentialProblems:
    """Made by the supervisor before it forks; children inherit it. blocks: as in Segment. Each has one writer."""

    def __init__(self, blocks: int) -> None:
        self._told: Final = [SharedSnapshot[dict[str, str]](_BYTES) for _ in range(blocks)]
        self._known: Final[list[dict[str, str]]] = [{} for _ in range(blocks)]

    def __repr__(self) -> str:
        return f"<CredentialProblems of {len(self._told)} blocks>"

    def tell(self, block: int, problems: Mapping[str, str]) -> None:
        """Say which upstreams have a problem now, in place of what was said before."""
        self._known[block] = {name: text[:_MOST_TEXT] for name, text in problems.items()}
        self._told[block].publish(self._known[block])

    def forget(self, block: int) -> None:
        """Take back what a dead process has said. For the supervisor, before the next process starts there."""
        if self._told[block].is_used:
            self.tell(block, {})

    def all(self) -> list[CredentialProblem]:
        """Return those of all workers, by upstream."""
        found: dict[str, list[str]] = {}
        for block, snapshot in enumerate(self._told):
            new = snapshot.read_new()
            if new is not None:
                self._known[block] = new
            for name, text in self._known[block].items():
                found.setdefault(name, []).append(text)
        return [CredentialProblem(name, texts[0], len(texts)) for name, texts in sorted(found.items())]
