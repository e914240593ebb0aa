"""What was said over a WebSocket of the realtime or the Responses API, as a request and a reply: for content.py.

Knows: in which events the items of a conversation stand. Does not know: how they become attributes, or redaction. Each
event is read by itself: one that can't be read is left out, and the span says that something is.

    session.update, response.create    instructions; items, or a text
    conversation.item.create           an item
    ...transcription.completed         what a client has said, in words
    response.done, response.completed  items that were answered, and why the answer ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from velox.observe.traces.content import content_attributes
from velox.observe.traces.otlp import AttributeValue

__all__ = ["socket_attributes"]

# JSON of a stranger: each value is asked for its type before it is used.
Json: TypeAlias = Any
Event: TypeAlias = Mapping[str, Json]

_MOST_ITEMS: Final = 200
_MOST_LEVELS: Final = 100
_TEXTS: Final = msgspec.msgpack.Decoder(list[bytes])
_OF_A_REQUEST: Final = ("session.update", "response.create")


def socket_attributes(
    asked: bytes, answered: bytes, *, is_cut: bool, most: int, redact: Callable[[str], str]
) -> dict[str, AttributeValue]:
    """Return the attributes. asked, answered: lists of events, see SocketCapture. is_cut: there were more of them.

    most: see content_attributes(). Raises msgspec.DecodeError if they are no such lists.
    """
    texts = _TEXTS.decode(asked), _TEXTS.decode(answered)
    events, answers = ([each for each in map(_event, side) if each is not None] for side in texts)
    found: dict[str, AttributeValue] = {
        **content_attributes(
            msgspec.json.encode(_request(events)),
            msgspec.json.encode(_reply(answers, most)),
            is_stream=False,
            is_cut=False,
            most=most,
            redact=redact,
        )
    }
    if is_cut or len(events) + len(answers) < len(texts[0]) + len(texts[1]):
        found["velox.content_cut"] = True
    return found


def _event(text: bytes) -> Event | None:
    """Return an event; None: it can't be read."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and not _is_deep(found) else None


def _is_deep(value: Json) -> bool:
    """Say whether values stand in each other deeper than any API has them, and a call for each may go."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _request(events: Iterable[Event]) -> Event:
    items: list[Json] = []
    instructions: Json = None
    for event in events:
        if event.get("type") in _OF_A_REQUEST:
            inner = event.get("session") or event.get("response") or event
            if isinstance(inner, dict):
                instructions = inner.get("instructions") or instructions
                items += _items(inner.get("input"))
        elif isinstance(event.get("transcript"), str):
            items.append(_user(event["transcript"]))
        else:
            items += _items(event.get("item"))
    return {"instructions": instructions, "input": items[-_MOST_ITEMS:]}


def _reply(events: Iterable[Event], most: int) -> Event:
    """Return the last answers, as far as there is room."""
    items: list[Json] = []
    status: Json = None
    room = most
    for event in reversed(list(events)):
        response = event.get("response")
        if not isinstance(response, dict):
            continue
        status = status or response.get("status")
        found = _items(response.get("output"))
        room -= len(msgspec.json.encode(found))
        if items and room < 0:
            break
        items = found + items
    return {"output": items[-_MOST_ITEMS:], "status": status}


def _items(value: Json) -> list[Json]:
    if isinstance(value, str):
        return [_user(value)]
    if isinstance(value, dict):
        return [_item(value)]
    return [_item(each) for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _item(item: Event) -> Json:
    """Return an item whose sound is in words, where somebody has put it into words."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    return {**item, "content": [_part(each) for each in content]}


def _part(part: Json) -> Json:
    if isinstance(part, dict) and isinstance(part.get("transcript"), str) and part["transcript"]:
        return {"type": "text", "text": part["transcript"]}
    return part
