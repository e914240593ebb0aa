"""Where objects are kept: at which upstream, and with which of its keys. Requests that name one go back there.

A file, a response, a batch, a vector store is kept by the organisation of the key that made it: another key gets 404,
and so does another upstream of the same API. The table of objects (shm/object_table.py) has the place beside the owner.

    Places.number()   what stands for an upstream and a key
    Places.find()     the upstream and the key that a number stands for, of those that there are now
    Places.home()     where a caller keeps what follows no model, so that a file and the store it is put in meet
    Places.session()  where an agent's session was lately, and so has its prompt in the cache
    Placement         what one request has of these

Keys count by what they are and not by their order, so a place is the same after a reload that adds one.

Knows: places as numbers. Does not know: which requests name objects (ownership.py), or how one is sent to a place
(routing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from velox.gateway.upstreams.member import Member
from velox.policy.health.member import State
from velox.shm.object_table import ObjectTable

__all__ = ["NOWHERE", "Place", "Placement", "Places", "SharedObjects"]

NOWHERE: Final = 0
# Sessions stand among the objects, as one owner's: when there are too many, they give way to each other.
_SESSION: Final = "session\0"
_ASKED_AT_ONCE: Final = 200  # of other gateways, half a millisecond of work
_RENEWED_NS: Final = 30_000_000_000


class Place(NamedTuple):
    """An upstream by its name, and the number of its key."""

    upstream: str
    key: int


class SharedObjects(Protocol):
    """What several gateways know of objects together (runtime/shared/objects_redis.py)."""

    async def get(self, tags: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return owner and place of those that are known. tags: the numbers of ids."""


class Places:
    """Of one worker."""

    __slots__ = ("_table",)

    def __init__(self, table: ObjectTable) -> None:
        self._table: Final = table

    def __repr__(self) -> str:
        return "<Places>"

    def number(self, member: Member, key: int) -> int:
        """Return what stands for an upstream and one of its keys: never 0."""
        secret = member.forwarders[key].secret or b""
        return self._table.number(f"{member.name}\0{secret.decode('latin-1')}")

    async def learn(self, texts: Sequence[str], shared: SharedObjects) -> None:
        """Ask what other gateways know of objects, and note it here."""
        for at in range(0, len(texts), _ASKED_AT_ONCE):
            by_tag = {self._table.number(text): text for text in texts[at : at + _ASKED_AT_ONCE]}
            for tag, (owner, place) in (await shared.get(tuple(by_tag))).items():
                self._table.learn(by_tag[tag], owner, place)

    def find(self, members: Iterable[Member], number: int) -> Place | None:
        """Return what a number stands for; None: the upstream, or the key, is not there any more."""
        return next((Place(each.name, key) for each, key in _each(members) if self.number(each, key) == number), None)

    def home(self, members: Iterable[Member], caller: bytes, now_s: float) -> Place | None:
        """Return where a caller keeps what follows no model: the same place each time, as long as it is well.

        members: of one level. None: none of them is well.
        """
        usable = [(each, key) for each, key in _each(members) if _is_usable(each, key, now_s)]
        if not usable:
            return None
        name = caller.hex()
        found, key = max(usable, key=lambda each: self._table.number(f"{name}\0{self.number(*each)}"))
        return Place(found.name, key)

    def session(
        self, name: str, now_ns: int, lifetime_s: Callable[[str], float], members: Sequence[Member]
    ) -> Place | None:
        """Return where a session was, as long as its prompt is kept there; None: it may go anywhere.

        now_ns: Unix time. lifetime_s: returns how long a provider keeps it.
        """
        found = self._table.latest(_SESSION + name)
        if found is None:
            return None
        place = self.find(members, found[0])
        if place is None:
            return None
        provider = next(each.entry.provider for each in members if each.name == place.upstream)
        return place if now_ns - found[1] < lifetime_s(provider) * 1e9 else None

    def keep_session(self, name: str, number: int, now_ns: int) -> None:
        """Note where a session goes now: once in a while, if that is where it was."""
        found = self._table.latest(_SESSION + name)
        if found is None or found[0] != number or now_ns - found[1] > _RENEWED_NS:
            self._table.keep(_SESSION + name, self._table.number(_SESSION), number)


class Placement:
    """Where the objects and the session of one request are kept. Most requests have none.

    tracks_objects: objects may be kept at more than one place. number: of the place that the reply comes from, if it
    keeps the objects that the reply names; NOWHERE: not known, or the gateway keeps them. places: of the objects that
    the request names. unknown: ids of objects that other gateways may know. session: its session, on a route with
    `balance: session`.
    """

    __slots__ = ("number", "places", "session", "tracks_objects", "unknown")

    def __init__(self, *, tracks_objects: bool) -> None:
        self.tracks_objects: Final = tracks_objects
        self.number = NOWHERE
        self.places: Collection[int] = ()
        self.unknown: Sequence[str] = ()
        self.session = ""

    def __repr__(self) -> str:
        return f"<Placement {self.number} {self.places} {self.session}>"

    def place(self) -> int:
        """Return where the reply comes from."""
        return self.number if self.tracks_objects else NOWHERE


def _each(members: Iterable[Member]) -> Iterator[tuple[Member, int]]:
    """Yield each upstream once, with each of its keys."""
    seen: set[str] = set()
    for member in members:
        if member.name not in seen:
            seen.add(member.name)
            for key in range(len(member.forwarders)):
                yield member, key


def _is_usable(member: Member, key: int, now_s: float) -> bool:
    keys = member.health.keys
    return (keys is None or keys.is_usable_at(key, now_s)) and member.health.state(now_s) is State.IN
