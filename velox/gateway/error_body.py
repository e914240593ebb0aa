"""An upstream's error on its way to the client, held back until it is known not to show the key that Velox sent (F-26).

Knows: how far to look, and what stands in for an error that shows the key. Does not know: connections, or framing.
Some servers echo the credential that they refuse. A body is not inflated for this: a compressed one passes unread.
"""

from __future__ import annotations

from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.respond import error_body
from velox.types import ReplyHead

__all__ = ["ErrorBody"]

# Errors are short. Of a longer one, what was searched goes on, and the rest is searched as it passes.
_HELD_BYTES: Final = 64 * 1024
# What describes a body that is no longer there.
_OF_THE_BODY: Final = frozenset(
    {b"content-type", b"content-encoding", b"content-language", b"content-md5", b"digest", b"etag", b"last-modified"}
)
_JSON: Final = (b"content-type", b"application/json")


class ErrorBody:
    """The body of one error reply. secret: our credential, not empty."""

    __slots__ = ("_held", "_passing", "_secret", "head")

    def __init__(self, head: ReplyHead, secret: bytes) -> None:
        self._secret: Final = secret
        self._held = b""
        self._passing = False
        headers = [header for header in head.headers if secret not in header[1]]
        self.head: Final = ReplyHead(head.status, headers, head.content_length)

    def feed(self, data: bytes, end: bool) -> bytes | None:
        """Take what came; return what may go on now, which is nothing at first. None: the body shows the secret."""
        text = self._held + data
        if self._secret in text:
            return None
        if end:
            self._held = b""
            return text
        if not self._passing and len(text) < _HELD_BYTES:
            self._held = text
            return b""
        # The secret may have begun in what came last.
        self._passing = True
        keep = len(self._secret) - 1
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def replacement(self) -> tuple[ReplyHead, bytes]:
        """Return the error to send instead: the same status and headers, and a body of our own."""
        message = "the upstream's error showed the key that the gateway had sent; its text was replaced"
        body = error_body(VeloxError(Reason.UPSTREAM_STATUS, message, status=self.head.status))
        headers = [header for header in self.head.headers if header[0] not in _OF_THE_BODY]
        return ReplyHead(self.head.status, [_JSON, *headers], len(body)), body
