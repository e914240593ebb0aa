"""Server-sent events, as far as a gateway that passes them on unchanged needs them.

Knows: where an event ends (a blank line; lines end with LF, CR or CRLF, nothing else), which bytes are only comments,
how providers tell of an error inside a stream, and the event that tells of ours. Does not know: what other events mean.
Source: WHATWG HTML, "Interpreting an event stream".
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from velox.errors import Reason, anthropic_type, error_type, google_status
from velox.types import Dialect

__all__ = ["COMMENT", "EventWatch", "error_event"]

# Every parser skips it; it keeps proxies from dropping a connection that is idle.
COMMENT: Final = b": ping\n\n"

_BLANK: Final = b"\n\n"
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_LINE_ENDS: Final = b"\r\n"
_COLON: Final = ord(":")
_D: Final = ord("d")
_LF: Final = ord("\n")
# The longest end of an event whose last byte decides is 3: LF (of a line before), CR, LF.
_TAIL_BYTES: Final = 3

# A line that is neither blank nor a comment begins here.
_DATA: Final = re.compile(rb"[\r\n][^:\r\n]")
# The lines in which providers tell of an error: {"error": {...}} (OpenAI, vLLM, TGI), {"type": "error", ...}
# (Anthropic, OpenAI's Responses), {"object": "error", ...} (older vLLM), and the failure that ends a Response.
_ERROR: Final = re.compile(rb'data: ?\{ ?"(?:error" ?: ?[{"]|(?:type|object)" ?: ?"(?:error|response\.failed)")')
# One of these stands in each of them.
_ERROR_MARK: Final = b'"error'
_FAILED_MARK: Final = b'"response.failed'
_ERROR_AFTER_CR: Final = re.compile(rb"\r" + _ERROR.pattern)
_DATA_LINE: Final = b"\ndata:"
_DATA_LINE_AFTER_CR: Final = b"\rdata:"
_HEAD_BYTES: Final = 40  # more than the longest match
# What stands for the head of an open line of which no more need be known than that it is no comment.
_KNOWN: Final = b"x"
# How the usual lines begin; no error begins so. They spare nearly all chunks the long way.
_USUAL: Final = (b'data: {"id"', b'data: {"type":"content', b'data: {"type":"response.o', b'data: {"type":"response.r')


def error_event(reason: Reason, message: str, dialect: Dialect = Dialect.OPENAI) -> bytes:
    """Return the event that ends a broken stream; never followed by `[DONE]`.

    openai-python and openai-node raise an APIError on `data.error`, google-genai does so, too; Anthropic's SDKs raise
    on an event that is named `error` and take its data for the body of the error. message: as for VeloxError.
    """
    status = reason.fact.status
    if dialect is Dialect.ANTHROPIC:
        error = {"type": anthropic_type(status), "message": message, "param": None, "code": reason.code}
        return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "error": error})
    if dialect is Dialect.GOOGLE:
        return b"data: %b\n\n" % orjson.dumps(
            {"error": {"code": status, "message": message, "status": google_status(status)}}
        )
    error = {"message": message, "type": error_type(status), "param": None, "code": reason.code}
    return b"data: %b\n\n" % orjson.dumps({"error": error})


class EventWatch:
    """Follows a stream: does it stand between two events, does it bring more than comments, does it tell of errors?

    However the stream is cut into pieces, the answers are the same. It keeps at most 43 bytes.
    """

    __slots__ = ("_line", "_tail", "n_errors")

    def __init__(self) -> None:
        self._tail = _BLANK  # the last bytes; _BLANK itself between two events, as at the beginning
        self._line = b""  # the head of the line that is open; one byte where that says all
        self.n_errors = 0  # events that told of an error (F-16)

    def feed(self, data: bytes) -> bool:
        """Note bytes that were passed on, at least one. True when some are of a line that is no comment (F-19)."""
        if self._tail is _BLANK:
            # The usual chunk is one whole event, of which the last line begins as usual. As passes() has it, and not a
            # call of it, which would take 2 % of a chunk over HTTP/2.
            start = 0 if data[0] == _D else data.find(b"\n") + 1
            if data.startswith(_USUAL, start) and data.find(b"\n", start) == len(data) - 2 and data[-1] == _LF:
                return True
            if data[0] > _COLON and data.endswith(_EVENT_ENDS):
                # Several events, or one of a kind that is not listed.
                if data.find(_ERROR_MARK) >= 0 or data.find(_FAILED_MARK) >= 0:  # `in` takes twice as long
                    self._count_errors(data)
                return True
        return self._look_at(data)

    def passes(self, data: bytes, at: int, end: int) -> bool:
        """Return True if data[at:end], at least one byte, is a usual event, of which feed() would note nothing.

        False says nothing: feed() decides.
        """
        start = at if data[at] == _D else data.find(b"\n", at) + 1
        return (
            self._tail is _BLANK
            and data.startswith(_USUAL, start)
            and data.find(b"\n", start) == end - 2
            and data[end - 1] == _LF
        )

    @property
    def between(self) -> bool:
        """True when an event may be written here without touching another one."""
        return self._tail is _BLANK

    def _look_at(self, data: bytes) -> bool:
        text = self._line + data
        has_data = (data[0] not in _LINE_ENDS and text[0] != _COLON) or _DATA.search(data) is not None
        if has_data:
            self._count_errors(text)
        self._line = _head_of_open_line(text)
        tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        is_blank = tail.replace(b"\r\n", b"\n").replace(b"\r", b"\n").endswith(_BLANK)
        self._tail = _BLANK if is_blank else tail
        return has_data

    def _count_errors(self, text: bytes) -> None:
        """Count the lines that tell of an error. text: begins with a line."""
        if b"\r" in text and _DATA_LINE_AFTER_CR in text:
            self.n_errors += len(_ERROR_AFTER_CR.findall(text))
        at = 0
        while True:
            if not text.startswith(_USUAL, at) and _ERROR.match(text, at):
                self.n_errors += 1
            at = text.find(_DATA_LINE, at) + 1
            if not at:
                return


def _head_of_open_line(text: bytes) -> bytes:
    """Return what must be kept of the line that `text` leaves open; empty when it leaves none."""
    if text[-1] in _LINE_ENDS:
        return b""
    line = text[max(text.rfind(b"\n"), text.rfind(b"\r")) + 1 :][:_HEAD_BYTES]
    if line[0] == _COLON:
        return b":"
    return _KNOWN if len(line) == _HEAD_BYTES or _ERROR.match(line) else line
