"""The recorded exchanges with real providers (tests/recordings/)."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Exchange", "recorded"]

_FOLDER: Final = Path(__file__).with_name("recordings")


@dataclass(frozen=True)
class Exchange:
    """One exchange. path: of the URL, without the query. body, reply: as they stood on the wire, re-encoded JSON."""

    name: str
    provider: str
    method: str
    url: str
    body: bytes
    status: int
    headers: dict[str, str]
    reply: bytes
    is_stream: bool

    @property
    def path(self) -> str:
        """Return the path, without host and query."""
        return "/" + self.url.split("://", 1)[-1].partition("/")[2].partition("?")[0]

    @property
    def json(self) -> Any:
        """Return the request's JSON."""
        return json.loads(self.body)

    def __str__(self) -> str:
        return self.name


def recorded(provider: str, ending: str, *, stream: bool | None = None, status: int | None = 200) -> list[Exchange]:
    """Return the exchanges of a provider whose paths have this in them; status None: of any."""
    return [
        each
        for each in _all(provider)
        if ending in each.path
        and (stream is None or each.is_stream == stream)
        and (status is None or each.status == status)
    ]


@functools.cache
def _all(provider: str) -> list[Exchange]:
    with gzip.open(_FOLDER / f"{provider}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [_exchange(json.loads(line)) for line in file]


def _exchange(row: dict[str, Any]) -> Exchange:
    if "reply_text" in row:
        reply = row["reply_text"].encode("utf-8", "surrogatepass")
    elif "reply_base64" in row:
        reply = base64.b64decode(row["reply_base64"])
    else:
        reply = _json_bytes(row.get("reply_json"))
    if "request_base64" in row:
        body = base64.b64decode(row["request_base64"])
    else:
        asked = row.get("request")
        body = asked.encode("utf-8", "surrogatepass") if isinstance(asked, str) else _json_bytes(asked)
    headers = {name.lower(): _one(value) for name, value in dict(row["headers"]).items()}
    is_stream = "event" in headers.get("content-type", "") or "reply_base64" in row or reply.startswith(b"data:")
    return Exchange(
        row["name"], row["provider"], row["method"], row["url"], body, row["status"], headers, reply, is_stream
    )


def _one(value: Any) -> str:
    return value[0] if isinstance(value, list) else str(value)


def _json_bytes(value: Any) -> bytes:
    return b"" if value is None else json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
