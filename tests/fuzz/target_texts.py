"""Fuzz: texts that come from elsewhere and go into what Velox writes.

error_body: the input is an upstream's error, in which 0x01 stands for the key that Velox sent. However it is cut, the
key never passes, and an error without it passes whole.

access_log: the input is texts, with NUL between them. Whatever they are, a record of them is one line of printable
ASCII, which JSON reads back, with none over 256 characters.
"""

from __future__ import annotations

import json
import os

from tests.fuzz.wires import Pieces, cuttings
from velox.gateway.reply.error_body import ErrorRedaction
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.observe.access_log import AccessLog, AccessRecord, AccessRules

__all__ = ["run_access_log", "run_error_body"]

_KEY = b"sk-aab-aabaab"  # its beginning comes back in it: a search that goes on wrongly misses it
_PIPE_BUF = 4096


def run_error_body(data: bytes) -> None:
    """Pass an error on. Raises AssertionError, or what a bug raises."""
    body = data.replace(b"\x01", _KEY).replace(b"\x02", b"x" * 40_000)
    if not body:
        return
    _pass(body, [body])
    for pieces in cuttings(body):
        _pass(body, pieces)
    if (at := body.find(_KEY)) >= 0:
        for cut in range(at + 1, at + len(_KEY)):
            _pass(body, [body[:cut], body[cut:]])


def _pass(body: bytes, pieces: Pieces) -> None:
    error = ErrorRedaction(_KEY)
    held = error.begin(ReplyHead.of(401, [(b"x-echo", body[:200])], len(body)), is_sse=False, is_plain=True)
    assert held is None, "the head goes before its body was looked at"
    passed = b""
    try:
        for n, piece in enumerate(pieces, 1):
            passed += error.feed(piece, n == len(pieces))
            if error.is_over:
                assert _KEY in body, "replaced, though it shows no key"
                break
        else:
            assert passed == body, "not passed as it came"
    except UpstreamFailure:
        assert _KEY in body, "cut, though it shows no key"
    assert _KEY not in passed, "the key passed"
    released = error.released
    assert released is not None, "the head is passed on with the first of the body"
    assert not any(_KEY in value for _, value in released.headers), "the key passed in a header"


def run_access_log(data: bytes) -> None:
    """Log texts. Raises AssertionError, or what a bug raises."""
    # Bytes that are no UTF-8 become lone surrogates, which JSON can carry and UTF-8 can't.
    texts = [*data.decode("utf-8", "surrogateescape").split("\0"), "", "", "", ""]
    reader, writer = os.pipe2(os.O_NONBLOCK)
    try:
        log = AccessLog(writer, AccessRules("all"), _never)
        log.write(_record(*texts[:4]))
        log.flush()
        line = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
        os.close(writer)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and len(line) <= _PIPE_BUF
    assert line[:-1].decode("ascii").isprintable(), "not printable ASCII"
    fields = json.loads(line)
    assert set(fields) == set(AccessRecord.__slots__), "another list of fields"
    assert all(len(value) <= 256 for value in fields.values() if isinstance(value, str)), "a text over 256 characters"
    assert texts[0].startswith(fields["model"]) and texts[1].startswith(fields["path"]), "another text"
    if "".join(texts).isascii():
        assert len(fields["model"]) == min(256, len(texts[0])), "a text that was cut without need"


def _record(model: str, path: str, caller: str, method: str) -> AccessRecord:
    return AccessRecord(
        time="2026-01-01T00:00:00.000Z",
        id="vx-0-1",
        caller=caller,
        method=method[:8],
        path=path,
        route="chat",
        model=model,
        stream=False,
        status=200,
        reason="ok",
        phase="stream",
        ttfb_ms=1.0,
        total_ms=2.0,
        bytes_in=1,
        bytes_out=2,
        attempts=1,
        close_code=None,
    )


def _never(n: int) -> None:
    raise AssertionError(f"{n} lines were dropped")
