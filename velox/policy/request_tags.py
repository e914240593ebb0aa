"""Under which tags a call counts besides those of its key: those of its request, its end user, its session.

    x-velox-tags              as they are, commas between them; x-litellm-tags, where LiteLLM's headers are read
    user, safety_identifier   `user:NAME`, of the body (OpenAI); metadata.user_id (Anthropic), without the session that
                              Claude Code writes behind it
    a session's name          `session:ID` (policy/routes/sessions.py)

Clients make these up. So a tag is short, text that a name can be, and not one of more than so many in an hour: what is
beyond them counts as `other`, `user:other` or `session:other`.

Knows: these names and bounds. Does not know: who counts, or bodies that are no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from velox.heads import RequestHead
from velox.policy.routes.sessions import session_of

__all__ = ["TAGS_HEADER", "RequestTags", "TagSource"]

TagSource: TypeAlias = Literal["tags", "user", "session"]

TAGS_HEADER: Final = b"x-velox-tags"
_LITELLMS: Final = b"x-litellm-tags"
_MOST_TAGS: Final = 4  # of a header
_MOST_CHARS: Final = 48  # of each, with what stands before it: the tags of a key and these are one text of 580 bytes
_MOST_TEXT: Final = 572
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


class RequestTags:
    """Those of one worker. sources: what is read. most: different ones in an hour."""

    def __init__(self, sources: Collection[TagSource], *, is_litellms: bool = False, most: int = 1000) -> None:
        self._headers: Final = (
            () if "tags" not in sources else (TAGS_HEADER, _LITELLMS) if is_litellms else (TAGS_HEADER,)
        )
        self._reads_user: Final = "user" in sources
        self._reads_session: Final = "session" in sources
        self._most: Final = most
        self._seen: Final[set[str]] = set()
        self._until_s = 0.0

    def __repr__(self) -> str:
        return f"<RequestTags {len(self._seen)} seen>"

    def of(self, head: RequestHead, body: bytes | bytearray | None, keys: Collection[str], now_s: float) -> str:
        """Return all tags of a call as one text, commas between them. keys: those of its key, which come first.

        body: None: it is not read. now_s: on any clock that goes on.
        """
        if now_s >= self._until_s:
            self._seen.clear()
            self._until_s = now_s + _HOUR_S
        found = dict.fromkeys(keys)
        n_bytes = sum(len(each) + 1 for each in found)
        for tag in self._told(head, body):
            if tag not in found and n_bytes + len(tag) < _MOST_TEXT:
                found[tag] = None
                n_bytes += len(tag) + 1
        return ",".join(found)

    def _told(self, head: RequestHead, body: bytes | bytearray | None) -> Iterator[str]:
        n = 0
        for name in self._headers:
            for text in (head.header(name) or b"").decode("latin-1").split(","):
                if text.strip() and n < _MOST_TAGS:
                    n += 1
                    yield self._known("", text.strip())
        if self._reads_user and body and (user := _user_of(body)):
            yield self._known("user:", user)
        if self._reads_session and (session := session_of(head, body)):
            yield self._known("session:", session)

    def _known(self, kind: str, text: str) -> str:
        tag = f"{kind}{_NOT_A_TAG.sub('_', text)}"[:_MOST_CHARS]
        if tag in self._seen:
            return tag
        if len(self._seen) >= self._most:
            return f"{kind}{_OTHER}"
        self._seen.add(tag)
        return tag


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
    """Return a string of JSON, "" for anything else."""
    if not bytes(raw).startswith(b'"'):
        return ""
    try:
        return _TEXT.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        return ""
