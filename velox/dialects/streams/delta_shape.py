"""What the events of a stream have in common: most are the one before, with another text.

    data: {"id":"c1","choices":[{"index":0,"delta":{"content":    " Hello"    },"finish_reason":null}]}
    head: kept, with the number of the block                      the text    tail: kept

An event with the same bytes before and after its text says the same of another text, which is copied as it stands:
JSON's escapes are those of every dialect. Whatever else comes is read in full, and what was kept then counts no more.

Some servers pad their events, so that nobody can tell the text by its length: OpenAI's by a field `obfuscation`, which
no reader asks for, Anthropic's by spaces between the last braces. There any padding is as good as the one before.

Knows: JSON strings (RFC 8259 §7). Does not know: any dialect; who may keep a shape is said by its reader.
"""

from __future__ import annotations

import re
import string
from typing import Final

from velox.dialects.canonical.model import Delta, Event
from velox.dialects.json_text.decoding import reply_text

__all__ = ["DeltaShape"]

# A text that is not empty. Escapes by number are left to the decoder, which knows halves of characters.
_TEXT: Final = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])++"')
_LETTERS: Final = string.ascii_letters.encode() + string.digits.encode()
_LONGEST: Final = 4096  # bytes of an event: a stream keeps no more, and of longer ones decoding is the lesser part
_PADDING: Final = re.compile(rb'"obfuscation":"()[a-zA-Z0-9]*"|\}() *\}\s*\Z')


class DeltaShape:
    """Of the last event of one stream."""

    __slots__ = ("_begin", "_end", "_head", "_is_word", "_n", "_tail")

    def __init__(self) -> None:
        self._head = b""  # b"": nothing is kept
        self._begin = 0  # of the text
        self._tail = b""  # up to the padding, if there is one
        self._end: bytes | None = None  # after it
        self._is_word = False  # the padding is letters and digits, else spaces
        self._n = 0

    def __repr__(self) -> str:
        return f"<DeltaShape {self._head!r} {self._tail!r}>"

    def same(self, data: bytes) -> Delta | None:
        """Return what an event says that looks as the last one; None: it does not, or has to be read in full."""
        if not self._head or not data.startswith(self._head) or len(data) > _LONGEST:
            return None
        found = _TEXT.match(data, self._begin)
        if found is None:
            return None
        text = found[0]
        tail = data[self._begin + len(text) :]
        if not (tail == self._tail if self._end is None else self._is_padded(tail, self._end)):
            return None
        return Delta(self._n, text) if text.isascii() or reply_text(text) is text else None

    def _is_padded(self, tail: bytes, end: bytes) -> bool:
        """Tell whether only the padding is another one."""
        padding = tail[len(self._tail) : len(tail) - len(end)]
        if self._tail + padding + end != tail:
            return False
        return not padding or (padding.isalnum() if self._is_word else not padding.strip(b" "))

    def keep(self, data: bytes, events: list[Event]) -> None:
        """Keep the shape of one whole event, if it says some text and nothing else."""
        self._head = b""
        if len(events) != 1 or len(data) > _LONGEST:
            return
        delta = events[0]
        if type(delta) is not Delta:
            return
        head, text, tail = data.partition(delta.text)
        # A text that is there twice, or was put together, does not say where it stood.
        if not text or delta.text in tail:
            return
        padding = _PADDING.search(tail)
        self._tail, self._end = tail, None
        if padding is not None:
            self._is_word = padding[1] is not None
            begin = padding.start(1 if self._is_word else 2)
            self._tail, self._end = tail[:begin], tail[begin:].lstrip(_LETTERS if self._is_word else b" ")
        self._head, self._begin, self._n = head, len(head), delta.n

    def forget(self) -> None:
        """Keep nothing: the last event was not whole, or not alone."""
        self._head = b""
