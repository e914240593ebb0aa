"""What a store of accounts is asked for, whichever database it is.

Knows: the terms. Does not know: SQL (sqlite.py), or what is in a document (model.py).

Each account is kept as a document, by its kind and id. It is changed by `apply` alone, which holds against what others
do at the same time: it is refused if the document is not of the version that the change was made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from velox.accounts.model import Change, Digest, Kind

__all__ = ["AccountStore", "Conflict", "ConflictError", "Touched", "Write"]


class ConflictError(Exception):
    """A change can't be made. what: why, one of Conflict's."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Conflict:
    """Why a change can't be made. STALE: somebody else changed it. EXISTS: there is one of this id.

    DIGEST: another key has this digest. OWNER: its team or its user is not there. IN_USE: there are keys of it.
    """

    STALE = "stale"
    EXISTS = "exists"
    DIGEST = "digest"
    OWNER = "owner"
    IN_USE = "in use"


@dataclass(frozen=True, slots=True)
class Write:
    """A change of one account.

    change: as it is kept for the audit. name, team, user: what it can be found by. document: what it is now; b"": it is
    deleted. version: that it had before; 0: there must be none. digests: all that hold for a key from now on; None:
    those that it has stay.
    """

    change: Change
    name: str = ""
    team: str = ""
    user: str = ""
    document: bytes = b""
    version: int = 0
    digests: Sequence[Digest] | None = None


class Touched(NamedTuple):
    """That an account has changed, whatever it is now. number: of the change."""

    number: int
    kind: Kind
    id: str


class AccountStore(Protocol):
    """Where accounts are kept. All raise ledger.store.StoreError when the database fails."""

    def apply(self, write: Write) -> None:
        """Make a change and keep its record, both or none. Raises ConflictError."""

    def number(self) -> int:
        """Return the number of the last change; 0: there was none."""

    def get(self, kind: Kind, id: str) -> bytes | None:  # noqa: A002 - the field's name
        """Return a document."""

    def page(self, kind: Kind, after: str, limit: int, where: Mapping[str, str]) -> list[bytes]:
        """Return documents whose id is above `after`, in the order of their ids. where: name, team, user."""

    def owner(self, digest: bytes) -> str | None:
        """Return the id of the key that has a digest."""

    def has_seen(self, digest: bytes) -> bool:
        """Tell whether a key has, or had, a digest."""

    def digests(self, key: str) -> list[Digest]:
        """Return those of a key."""

    def changes(self, before: int, limit: int, where: Mapping[str, str]) -> list[Change]:
        """Return changes with numbers below `before` (0: all), the last first. where: kind, object_id, actor."""

    def touched(self, after: int, most: int) -> list[Touched]:
        """Return what changes with numbers above `after` were of, in their order; at most so many."""

    def keys_of(self, kind: Kind, id: str, after: str, most: int) -> tuple[list[bytes], list[Digest]]:  # noqa: A002
        """Return documents of keys, with their digests: of the key of this id, or of those of a team or user.

        Of an owner's: those whose id is above `after`, in the order of their ids, at most so many.
        """

    def everything(self) -> tuple[int, dict[Kind, list[bytes]], list[Digest]]:
        """Return the number of the last change, all documents, and all digests, as they are at one moment."""

    def close(self) -> None:
        """Let go of all files and connections."""
