"""Writes the file of requests that bench/wrk.lua sends in turn: some hundred of bench/traffic.py, with marks in them.

What is new in each request that is sent (ids, invented fields) wrk puts in where the marks are. So no head is ever sent
twice, and wrk has little to do for one.

Knows: marks and their widths. Does not know: when wrk is started.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from bench.payloads import API_KEY, chat_body
from bench.traffic import KEYS, MODELS, Request, requests

__all__ = ["EACH_KEY", "EACH_MODEL", "write_requests"]

# A key, or a model, whose number wrk.lua counts up.
EACH_KEY: Final = f"{API_KEY}-#key"
EACH_MODEL: Final = "model-#model"  # as long as a model's name with six digits: content-length counts it

_N: Final = 512
_MOST_BYTES: Final = 16_000_000
_ID: Final = "#id#id#id#id"  # 12 digits
_INVENTED: Final = re.compile(r"x-[0-9a-f]{12}")
_MARKS: Final = ((_ID.encode(), b"\1I"), (b"#model", b"\1M"), (b"#key", b"\1K"))


def write_requests(
    path: Path,
    *,
    heads: Literal["real", "hostile", "equal"] = "real",
    mean_bytes: int = 750,
    body: bytes = b"",
    stream: bool = False,
    keys: Sequence[str] = KEYS,
    models: Sequence[str] = MODELS,
) -> Path:
    """Write the file; return its path.

    heads: real and hostile as bench/traffic.py has them; equal: one request, always the same. mean_bytes: of bodies.
    body: of all requests. keys, models: of bench/traffic.py, or one that wrk numbers (EACH_KEY, EACH_MODEL).
    """
    if heads == "equal":
        _write(path, [_equal(body or chat_body(stream=stream, size=mean_bytes))])
        return path
    made = requests(
        stream=stream, mean_bytes=mean_bytes, body=body, keys=keys, models=models, hostile=heads == "hostile"
    )
    n = max(4, min(_N, _MOST_BYTES // (len(body) or mean_bytes)))
    _write(path, [_marked(each).http1() for each in islice(made, n)])
    return path


def _write(path: Path, whole: Sequence[bytes]) -> None:
    with path.open("wb") as file:
        for text in whole:
            for mark, short in _MARKS:
                text = text.replace(mark, short)
            file.write(b"%d\n%s" % (len(text), text))


def _equal(body: bytes) -> bytes:
    """Return a request as a load generator sends it."""
    fields = (
        ("Content-Type", "application/json"),
        ("Authorization", f"Bearer {API_KEY}"),
        ("Accept", "application/json"),
        ("User-Agent", "OpenAI/Python 3.52.0"),
        ("Content-Length", str(len(body))),
    )
    return Request(fields, body).http1()


def _marked(request: Request) -> Request:
    return Request(tuple(_marked_field(*field) for field in request.fields), request.body)


def _marked_field(name: str, value: str) -> tuple[str, str]:
    """Return a field with marks in the place of what is new in each request; its length stays as it is."""
    if name == "traceparent":
        return name, f"{value[:23]}{_ID}-{value[36:40]}{_ID}{value[52:]}"
    if name == "x-request-id":
        return name, value[: -len(_ID)] + _ID
    if _INVENTED.fullmatch(name):
        return f"x-{_ID}", value[: -len(_ID)] + _ID
    return name, value
