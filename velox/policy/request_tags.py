"""Under which tags a call counts besides those of its key: those of its request, its end user, its session.

    x-velox-tags, x-velox-tag   `request: TAG`, commas between them (routes/match.py: the names by which routes are
                                chosen); x-litellm-tags, where LiteLLM's headers are read
    user, safety_identifier     `user: NAME`, of the body (OpenAI); metadata.user_id (Anthropic), without the session
                                that Claude Code writes behind it
    a session's name            `session: ID` (policy/routes/sessions.py)

Clients make these up. So none can be a tag of a key, in which no space may be: budgets go by those, and keys_tags()
says which they are, wherever a record tells of both. A tag is short, text that a name can be, and one of so many in an
hour, of which one key has a share; so is the text of all of a call's tags, for which a record has one number. What is
beyond that counts as `request: other`, `user: other` or `session: other`.

Knows: these names and bounds. Does not know: who counts, or bodies that are no JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from velox.heads import RequestHead
from velox.policy.routes.match import tag_headers
from velox.policy.routes.sessions import session_of
from velox.types import Caller

__all__ = ["RequestTags", "TagSource", "keys_tags"]

TagSource: TypeAlias = Literal["tags", "user", "session"]

# What stands before a tag says where it is from. The space is what no tag of a key has (spellings.TAG).
_REQUEST: Final = "request: "
_USER: Final = "user: "
_SESSION: Final = "session: "
_STARTS: Final = (_REQUEST, _USER, _SESSION)
_MOST_TAGS: Final = 4  # of a request's headers
_MOST_CHARS: Final = 48  # of each, with what stands before it: the tags of a key and these are one text of 580 bytes
_MOST_TEXT: Final = 572
_MOST_READ: Final = 512  # characters of a name that are looked at, however long it is
_MOST_HEADER: Final = 2048  # and bytes of the headers
_MOST: Final = 1000  # different ones of a kind in an hour
_SHARE: Final = 4  # a key has one part of so many of that
_TEXTS: Final = 2  # so many different texts of all tags of a call for each tag of a kind
_OTHER: Final = "other"
_HOUR_S: Final = 3600.0
_MARKS: Final = (b'"safety_identifier"', b'"user_id"', b'"user"')
# Printable ASCII without commas, as tags of keys are.
_NOT_A_TAG: Final = re.compile(r"[^!-+\--~]+")
_OF_SESSION: Final = re.compile(r"_session_[0-9A-Za-z-]{8,64}\Z")


class _Metadata(msgspec.Struct):
    user_id: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    user: msgspec.Raw = msgspec.Raw()
    safety_identifier: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()


class _Account(msgspec.Struct):
    account_uuid: str = ""
    device_id: str = ""


_BODY: Final = msgspec.json.Decoder(_Body)
_METADATA: Final = msgspec.json.Decoder(_Metadata)
_ACCOUNT: Final = msgspec.json.Decoder(_Account)
_TEXT: Final = msgspec.json.Decoder(str)


class _Bounded:
    """Different texts that come in an hour: so many, and one part of them of one key."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._seen: Final[set[str]] = set()
        self._n_of_key: Final[Counter[bytes]] = Counter()

    def __len__(self) -> int:
        return len(self._seen)

    def has_room_for(self, text: str, key: bytes) -> bool:
        """Say whether a text may be used, and keep it. key: whose request has it; b"" where none is asked for."""
        if text in self._seen:
            return True
        most_of_key = max(1, self._most // _SHARE) if key else self._most
        if len(self._seen) >= self._most or self._n_of_key[key] >= most_of_key:
            return False
        self._seen.add(text)
        self._n_of_key[key] += 1
        return True

    def clear(self) -> None:
        """Begin a new hour."""
        self._seen.clear()
        self._n_of_key.clear()


class RequestTags:
    """Those of one worker. sources: what is read. most: different ones of each kind in an hour."""

    def __init__(self, sources: Collection[TagSource], *, is_litellms: bool = False, most: int = _MOST) -> None:
        self._headers: Final = tag_headers(is_litellms=is_litellms) if "tags" in sources else frozenset()
        self._reads_user: Final = "user" in sources
        self._reads_session: Final = "session" in sources
        self._kinds: Final = {start: _Bounded(most) for start in _STARTS}
        self._texts: Final = _Bounded(_TEXTS * most)
        self._until_s = 0.0

    def __repr__(self) -> str:
        return f"<RequestTags {len(self._texts)} texts>"

    def of(self, head: RequestHead, body: bytes | bytearray | None, caller: Caller, now_s: float) -> str:
        """Return all tags of a call as one text, commas between them: those of its key come first.

        body: None: it is not read. now_s: on any clock that goes on.
        """
        if now_s >= self._until_s:
            for each in (*self._kinds.values(), self._texts):
                each.clear()
            self._until_s = now_s + _HOUR_S
        own = caller.terms.tags
        told = self._told(head, body, caller.id)
        if not told:
            return ",".join(own)
        text = _joined(own, told)
        if self._texts.has_room_for(text, caller.id):
            return text
        return _joined(own, [f"{_REQUEST}{_OTHER}"])

    def _told(self, head: RequestHead, body: bytes | bytearray | None, key: bytes) -> list[str]:
        """Return the tags of a request, each once, in one order whatever theirs was."""
        found: set[str] = set()
        if self._headers:
            found.update(self._known(_REQUEST, text, key) for text in _header_tags(head, self._headers))
        if self._reads_user and body and (user := _user_of(body)):
            found.add(self._known(_USER, user, key))
        if self._reads_session and (session := session_of(head, body)):
            found.add(self._known(_SESSION, session, key))
        return sorted(found)

    def _known(self, start: str, text: str, key: bytes) -> str:
        tag = f"{start}{_NOT_A_TAG.sub('_', text[:_MOST_READ])}"[:_MOST_CHARS]
        return tag if self._kinds[start].has_room_for(tag, key) else f"{start}{_OTHER}"


def keys_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return those of a call's tags that are of its key: budgets count by no others."""
    return tuple(tag for tag in tags if not tag.startswith(_STARTS))


def _header_tags(head: RequestHead, names: Collection[bytes]) -> list[str]:
    """Return the first tags of these headers, each once."""
    text = b",".join([value for name, value in head.headers if name in names])[:_MOST_HEADER].decode("latin-1")
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))[:_MOST_TAGS]


def _joined(own: Collection[str], told: Iterable[str]) -> str:
    """Return tags as one text, without those of a request for which it has no room."""
    found = [*own]
    n_bytes = sum(len(each) + 1 for each in found)
    for tag in told:
        if n_bytes + len(tag) < _MOST_TEXT:
            found.append(tag)
            n_bytes += len(tag) + 1
    return ",".join(found)


def _user_of(body: bytes | bytearray) -> str:
    """Return what names the end user of a request; "" if nothing does."""
    if not any(mark in body for mark in _MARKS):
        return ""
    try:
        fields = _BODY.decode(body)
        user = _text(fields.user) or _text(fields.safety_identifier)
        if user or not bytes(fields.metadata).startswith(b"{"):
            return user
        user = _text(_METADATA.decode(fields.metadata).user_id)
        if user.startswith("{"):  # of newer versions of Claude Code
            account = _ACCOUNT.decode(user)
            return account.account_uuid or account.device_id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return _OF_SESSION.sub("", user)


def _text(raw: msgspec.Raw) -> str:
    """Return the start of a string of JSON, "" for anything else."""
    if not bytes(raw).startswith(b'"'):
        return ""
    try:
        return _TEXT.decode(raw)[:_MOST_READ]
    except (msgspec.DecodeError, UnicodeError):
        return ""
