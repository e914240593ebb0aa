"""What is said over a WebSocket: the Responses API's events, and the realtime API's in their basic form.

Knows: which events of a client are answered, and by which. Does not know: frames, sockets, pace.

Both make a response as `POST /v1/responses` does. The realtime API tells it by events of the same kinds, with other
fields; it is text only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import orjson

from velox_sim.shapes import Reply, Streamed

__all__ = ["Conversation", "Event", "RealtimeConversation", "ResponsesConversation", "events_of"]

Event: TypeAlias = dict[str, object]
# Returns the reply to a streamed response's body; None: the connection is to be reset.
Ask: TypeAlias = Callable[[bytes], Reply | None]

_PATH_FIELDS: Final = frozenset({"type", "event_id", "stream"})
_SKIPPED: Final = "response.in_progress"
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Conversation(Protocol):
    """One WebSocket's. A reply that is given out is told by tell(), event by event."""

    def begin(self) -> Sequence[Event]:
        """Return what is said first."""

    def hear(self, event: Event) -> Sequence[Event] | Reply | None:
        """Return what an event is answered by; None: the connection is to be reset."""

    def tell(self, event: Event) -> Event | None:
        """Return an event of a response as it is said here; None: it is not."""


class ResponsesConversation:
    """The Responses API over a WebSocket: each response.create is a request."""

    def __init__(self, ask: Ask) -> None:
        self._ask: Final = ask

    def begin(self) -> Sequence[Event]:
        """Return nothing: the client begins."""
        return ()

    def hear(self, event: Event) -> Sequence[Event] | Reply | None:
        """See Conversation."""
        if event.get("type") != "response.create":
            return [_error("this event is not simulated; send response.create")]
        fields = {name: value for name, value in event.items() if name not in _PATH_FIELDS}
        return _answer(self._ask, fields)

    def tell(self, event: Event) -> Event | None:
        """Return an event as it is."""
        return event


class RealtimeConversation:
    """The realtime API in its basic form: text in and out, and functions."""

    def __init__(self, ask: Ask, model: str, key: str) -> None:
        """key: unique to this session; the ids are made of it."""
        self._ask: Final = ask
        self._session: Event = {
            "type": "realtime",
            "object": "realtime.session",
            "id": f"sess_{key}",
            "model": model,
            "output_modalities": ["text"],
            "tools": [],
            "tool_choice": "auto",
        }
        self._key: Final = key
        self._items: Final[list[Event]] = []
        self._n_events = 0
        self._response_id: object = None  # of the response that is told

    def begin(self) -> Sequence[Event]:
        """Return the session."""
        return [self._event("session.created", session=self._session)]

    def hear(self, event: Event) -> Sequence[Event] | Reply | None:
        """See Conversation."""
        match event.get("type"):
            case "session.update":
                given = event.get("session")
                self._session = {**self._session, **(given if isinstance(given, dict) else {})}
                return [self._event("session.updated", session=self._session)]
            case "conversation.item.create":
                return self._add(event.get("item"))
            case "response.create":
                wanted = event.get("response")
                return _answer(self._ask, self._request(wanted if isinstance(wanted, dict) else {}))
            case "input_audio_buffer.append" | "response.cancel":
                return ()
            case _:
                return [{**_error("this event is not simulated"), "event_id": self._next_id()}]

    def tell(self, event: Event) -> Event | None:
        """Return an event of a response, with its own id and that of its response."""
        kind = event.get("type")
        if kind == _SKIPPED:
            return None
        told = {name: value for name, value in event.items() if name not in ("sequence_number", "logprobs")}
        told |= {"event_id": self._next_id(), "type": "response.done" if kind in _ENDS else kind}
        response = event.get("response")
        if isinstance(response, dict):
            self._response_id = response.get("id")
            told["response"] = {
                "object": "realtime.response",
                "conversation_id": f"conv_{self._key}",
                "status_details": None,
                **_some(response, "id", "status", "output", "usage", "metadata"),
            }
            if kind in _ENDS and isinstance(output := response.get("output"), list):
                self._items.extend(each for each in output if isinstance(each, dict))
        else:
            told["response_id"] = self._response_id
        return told

    def _add(self, item: object) -> Sequence[Event]:
        if not isinstance(item, dict):
            return [{**_error("conversation.item.create needs an item"), "event_id": self._next_id()}]
        item = {"id": f"item_{self._key}{len(self._items)}", "object": "realtime.item", "status": "completed", **item}
        before = self._items[-1].get("id") if self._items else None
        self._items.append(item)
        kinds = ("conversation.item.added", "conversation.item.done")
        return [self._event(kind, previous_item_id=before, item=item) for kind in kinds]

    def _request(self, wanted: Event) -> Event:
        settings = {**self._session, **wanted}
        fields = _some(settings, "model", "instructions", "tools", "tool_choice")
        return {**fields, "input": self._items or "."}

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": kind, "event_id": self._next_id(), **fields}

    def _next_id(self) -> str:
        self._n_events += 1
        return f"event_{self._key}{self._n_events}"


def events_of(stream: bytes) -> Iterator[Event]:
    """Yield the events of a piece of an event stream."""
    for block in stream.split(b"\n\n"):
        _, has_data, data = block.partition(b"data: ")
        if has_data:
            yield orjson.loads(data)


def _some(fields: Event, *names: str) -> Event:
    return {name: fields[name] for name in names if name in fields}


def _answer(ask: Ask, fields: Event) -> Sequence[Event] | Reply | None:
    reply = ask(orjson.dumps({**fields, "stream": True}))
    if reply is None or isinstance(reply, Streamed):
        return reply
    refused = orjson.loads(reply.body)
    return [{"type": "error", "status": reply.status, **refused}]


def _error(message: str) -> Event:
    error = {"type": "invalid_request_error", "code": "invalid_value", "message": message, "param": None}
    return {"type": "error", "error": error}
