"""What uvicorn serves in these tests: each request is written to requests.log, whole, before it is answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

__all__ = ["app"]

Message = MutableMapping[str, Any]
_SAW_BYTES: Final = 200


async def app(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Answer 200 with what was asked, in the field `x-saw`."""
    if scope["type"] != "http":
        return
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return  # the client left: it is no request
        body += message["body"]
        if not message["more_body"]:
            break
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    seen = {
        "method": scope["method"],
        "target": target.decode("latin-1"),
        "fields": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
        "body": body.hex(),
    }
    with open("requests.log", "a") as log:
        log.write(json.dumps(seen) + "\n")
    saw = scope["method"].encode() + b" " + target[:_SAW_BYTES]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2"), (b"x-saw", saw)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else b"{}"})
