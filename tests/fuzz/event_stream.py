"""An event stream as the standard reads it: what the fuzzed readers are compared with.

Knows: lines and events. Does not know: what Velox makes of them.
Source: WHATWG HTML, "Server-sent events", §9.2.6.
"""

from __future__ import annotations

__all__ = ["events_of", "lines_of"]


def lines_of(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole lines, and what is open. Lines end with LF, CR or CRLF."""
    *lines, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return lines, rest


def events_of(data: bytes) -> list[bytes]:
    """Return the data of each event that a client is given, as the standard says. An open one is never given."""
    events: list[bytes] = []
    fields: list[bytes] = []
    for line in lines_of(data)[0]:
        if not line:
            if fields:
                events.append(b"\n".join(fields))
            fields = []
        elif line.startswith(b"data:"):
            fields.append(line[5:].removeprefix(b" "))
        elif line == b"data":
            fields.append(b"")
    return events
