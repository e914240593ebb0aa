"""Batches whose lines name a model that a route maps to another: they are refused, as no line is changed on its way.

A batch runs later, at the upstream that its file went to, and its lines name the models. A route that has `gpt-4o` run
as another model would not be heard there: what runs would be what nobody here has allowed, or what that upstream does
not have.

Knows: where a batch names models. Does not know: which models a key may use (access.py).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, TypeAlias

import orjson

from velox.errors import Reason, VeloxError
from velox.gateway.cluster.routing import Routing
from velox.heads import RequestHead
from velox.policy.routes.entries import asked_model
from velox.protocol.forms import form_texts
from velox.protocol.json.body import LARGE_BYTES
from velox.protocol.json.outline import MOST_MEMBERS, Outline
from velox.protocol.json.skim import skim
from velox.protocol.json.value_end import ValueEnd
from velox.types import Caller

__all__ = ["check_lines"]

_STEP_BYTES: Final = 64 * 1024  # of lines between two turns of the loop
_LONG_LINE: Final = 256 * 1024
_OUTLINED_BYTES: Final = 16 * 1024  # of a slice: it may have hundreds of requests
_BRACKET: Final = ord("[")
_Line: TypeAlias = tuple[int, int, str, str]
_EACH_LINE: Final = 512  # what a line costs as well, in bytes
_PURPOSE: Final = "purpose"
_FILE: Final = "file"
_MESSAGES: Final = "/v1/messages"  # what each request of `messages/batches` asks


def check_lines(
    head: RequestHead, body: bytes | bytearray, routing: Routing, caller: Caller
) -> Generator[None, None, None]:
    """Look at each line of a file for a batch, or each request of one; yields between slices of the work.

    Raises VeloxError(BAD_REQUEST) for the first whose model is called otherwise at the upstream that the batch goes to.
    What can't be read is the upstream's to refuse.
    """
    places = {name for name, _ in routing.resolve(head, None, caller).destinations(None)}
    known: dict[tuple[str, str], str] = {}
    n_bytes = 0
    for found in (yield from _named(head, body)):
        if found is None:
            yield
            continue
        n, size, url, model = found
        asked = known.get((url, model)) if model else ""
        if asked is None:
            asked = known[url, model] = _asked(routing, head, caller, url, model, places)
        if asked != model:
            message = (
                f"line {n} names {model}, which is {asked} at the upstream that this batch goes to, and lines go up as"
                f" they are; name {asked} in it"
            )
            raise VeloxError(Reason.BAD_REQUEST, message, param="model")
        n_bytes += size + _EACH_LINE
        if n_bytes >= _STEP_BYTES:
            n_bytes = 0
            yield


def _asked(routing: Routing, head: RequestHead, caller: Caller, url: str, model: str, places: set[str]) -> str:
    """Return what a model is called at one of these upstreams by the route of such a request."""
    entry = routing.table.match(model, url.encode("utf-8", "replace"), head.headers, caller.name)
    for target in () if entry is None else entry.to:
        if target.upstream in places:
            return asked_model(target.naming, model) or model
    return model


def _named(head: RequestHead, body: bytes | bytearray) -> Generator[None, None, Iterator[_Line | None]]:
    """Return for each line its number and length, the path that it asks, and its model; "" where there are none.

    None stands for a slice of the work.
    """
    media = head.header(b"content-type") or b""
    if b"json" in media.lower():
        data = body if len(body) < LARGE_BYTES else (yield from skim(body, _passes)).data
        return _of_requests(data) if len(data) < LARGE_BYTES else _of_many_requests(data)
    texts, files = yield from form_texts(media, body, _PURPOSE, _FILE)
    return _of_file(body, files[0]) if texts == ["batch"] and len(files) == 1 else iter(())


def _of_file(body: bytes | bytearray, place: tuple[int, int]) -> Iterator[_Line | None]:
    at, end = place
    n = 0
    while at < end:
        begin = at
        while (stop := body.find(b"\n", at, min(end, at + _LONG_LINE))) < 0 and at < end:
            at += _LONG_LINE
            yield None
        stop = end if stop < 0 else stop
        n += 1
        line: bytes | bytearray = body[begin:stop]
        if stop - begin > _LONG_LINE:
            line = yield from _short(line)
        yield n, stop - begin, *_model_of(line)
        at = stop + 1


def _short(line: bytes | bytearray) -> Generator[None, None, bytes | bytearray]:
    """Return a long line without the contents of its long strings; nothing, if it is long without them."""
    line = (yield from skim(line, _passes)).data
    return line if len(line) <= _LONG_LINE else b""


def _passes(_data: bytes, _offset: int) -> None:
    """Check nothing: the upstream does."""


def _model_of(line: bytes | bytearray) -> tuple[str, str]:
    try:
        told = orjson.loads(line) if line.strip() else None
    except orjson.JSONDecodeError:
        return "", ""
    inner = told.get("body") if isinstance(told, dict) else None
    url, model = (
        (told.get("url"), inner.get("model")) if isinstance(told, dict) and isinstance(inner, dict) else ("", "")
    )
    return (url, model) if isinstance(url, str) and isinstance(model, str) else ("", "")


def _of_requests(body: bytes | bytearray) -> Iterator[_Line | None]:
    """Yield the requests of Anthropic's batches, which stand in the body itself."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    requests = told.get("requests") if isinstance(told, dict) else None
    for n, each in enumerate(requests if isinstance(requests, list) else (), 1):
        if model := _asked_by(each):
            yield n, 0, _MESSAGES, model


def _of_many_requests(body: bytes | bytearray) -> Generator[_Line | None, None, None]:
    """Do the same with a body of megabytes, in slices. Raises VeloxError(BAD_REQUEST) for one that can't be read so."""
    start = yield from _requests_at(body)
    if start < 0 or body[start] != _BRACKET:
        return  # it has none
    outline, end, n = Outline("params.model", in_array=True), ValueEnd(), 0
    end.begin(_BRACKET)
    for at in range(start + 1, len(body), _OUTLINED_BYTES):
        data = bytes(body[at : at + _OUTLINED_BYTES])
        end.take(data)
        stop = end.find(0)
        outline.feed(data if stop < 0 else data[:stop])
        for told in outline.take():
            n += 1
            if model := _asked_by(orjson.loads(told)):
                yield n, 0, _MESSAGES, model
        if outline.is_broken or end.is_broken:
            raise _unread(f"request {n + 1} of it is no JSON object, or has over {MOST_MEMBERS} fields")
        if stop >= 0:
            return
        yield None


def _requests_at(body: bytes | bytearray) -> Generator[None, None, int]:
    """Return where the requests begin in a body of megabytes, in slices; -1: it has none. Of two of them the last."""
    outline, found_at = Outline("requests"), -1
    for at in range(0, len(body), _OUTLINED_BYTES):
        if outline.feed(bytes(body[at : at + _OUTLINED_BYTES])):
            found_at = outline.value_at
        if outline.is_broken:
            raise _unread(f"it is no JSON object, or has over {MOST_MEMBERS} fields")
        yield
    return found_at


def _unread(why: str) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, f"the batch can't be read: {why}", param="requests")


def _asked_by(request: object) -> str:
    """Return the model of a request of such a batch; "": it names none."""
    params = request.get("params") if isinstance(request, dict) else None
    model = params.get("model") if isinstance(params, dict) else None
    return model if isinstance(model, str) else ""
