"""Names another model in a request, and changes nothing else of it.

Knows: where a JSON body and a query name one. Does not know: which model it shall be, or why. A form's
(multipart/form-data) is not read, so it is not changed either.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_plus

import orjson

from velox.protocol.json_field import STRING, Field

__all__ = ["with_model", "with_query_model"]

_MODEL: Final = Field("model")
_VALUE: Final = re.compile(STRING, re.DOTALL)
# From here on a body is copied once instead of twice.
_LARGE_BYTES: Final = 64 * 1024


def with_model(body: bytes | bytearray, model: str) -> bytes | bytearray:
    """Return `body` with another model; itself if it names that one already, or none.

    body: one that BodyReader has read. It is not changed: another attempt may still be sending it. What is returned can
    be given to this function again. Raises VeloxError(BAD_REQUEST) for one of over 512 KiB that hides its
    model (json_field.py).
    """
    begin = _MODEL.find(body)
    value = None if begin < 0 else _VALUE.match(body, begin)
    if value is None:
        return body
    text, end = orjson.dumps(model), value.end()
    if value[0] == text:
        return body
    if len(body) < _LARGE_BYTES:
        return body[:begin] + text + body[end:]
    with memoryview(body) as view:
        return b"".join((view[:begin], text, view[end:]))


def with_query_model(query: bytes, model: str) -> bytes:
    """Return `query` with another model; itself if it names none.

    query: one that gateway/tunnel.py has read: without the "?", of ASCII, and with one model at most.
    """
    fields = query.split(b"&")
    for n, field in enumerate(fields):
        name, _, value = field.partition(b"=")
        if unquote_plus(name.decode("ascii")) == "model":
            if unquote_plus(value.decode("ascii")) == model:
                break
            fields[n] = b"%b=%b" % (name, quote(model, safe="").encode("ascii"))
            return b"&".join(fields)
    return query
