"""A line of the access log for a person at a terminal.

Knows: which of the fields a person looks for first. Does not know: where the line goes.
"""

from __future__ import annotations

import json

from velox.observe.access_log import AccessRecord

__all__ = ["text_line"]


def text_line(record: AccessRecord, longest: int) -> bytes:
    """Return a line of printable ASCII: time, status, path and model, who asked, who answered, how long it took.

    longest: characters of each text of a request.
    """
    words = [record.time[11:19], str(record.sent_status or record.status)]
    words += [] if record.reason == "ok" else [record.reason]
    words += [record.method, _plain(record.path, longest)]
    words += [_plain(text, longest) for text in (record.model, record.caller) if text]
    words += [f"at {_plain(record.upstream, longest)}"] if record.upstream else []
    words.append(_duration(record.total_ms))
    if record.ttfb_ms is not None:
        words.append(f"(first byte {_duration(record.ttfb_ms)})")
    if record.input_tokens is not None or record.output_tokens is not None:
        words.append(f"{record.input_tokens or 0}+{record.output_tokens or 0} tokens")
    if record.cost_usd is not None:
        words.append(f"${record.cost_usd:.6f}")
    return " ".join(word for word in words if word).encode("ascii") + b"\n"


def _plain(text: str, longest: int) -> str:
    """Return a text as one word of printable ASCII, its other characters and blanks escaped as in JSON."""
    return json.dumps(text[:longest])[1:-1].replace("\x7f", "\\u007f").replace(" ", "\\u0020")


def _duration(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"
