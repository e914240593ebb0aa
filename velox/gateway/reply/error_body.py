"""An upstream's error on its way to the client, held back until it is known not to show the key that Velox sent (F-26).

Knows: how far to look, and what stands in for an error that shows the key. Does not know: connections, or framing.
Some servers echo the credential that they refuse, as it is or with its slashes escaped, as PHP's JSON has them. A
compressed body is searched as its text; where that can't be read, or is longer than errors are, it passes.
"""

from __future__ import annotations

from typing import ClassVar, Final

from velox.errors import Reason, VeloxError
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.gateway.reply.respond import error_body
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.protocol.error_meaning import plain_body
from velox.types import Dialect

__all__ = ["JSON", "OF_THE_BODY", "ErrorRedaction"]

# Errors are short. Of a longer one, what was searched goes on, and the rest is searched as it passes.
_HELD_BYTES: Final = 64 * 1024
# What describes a body that is no longer there.
OF_THE_BODY: Final = frozenset(
    {b"content-type", b"content-encoding", b"content-language", b"content-md5", b"digest", b"etag", b"last-modified"}
)
JSON: Final = (b"content-type", b"application/json")


class ErrorRedaction(ReplyFilter):
    """Of one error reply. secret: our credential, not empty. dialect: in which the client reads errors.

    The head waits for the first of the body that may pass.
    """

    __slots__ = ("_dialect", "_forms", "_head", "_held", "_longest", "_passing", "_secret")
    order: ClassVar[int] = FilterOrder.REDACTION

    def __init__(self, secret: bytes, dialect: Dialect = Dialect.OPENAI) -> None:
        super().__init__()
        self._dialect: Final = dialect
        self._secret: Final = secret
        escaped = secret.replace(b"/", b"\\/")
        self._forms: Final = (secret,) if escaped == secret else (secret, escaped)
        self._longest: Final = len(escaped)
        self._held = b""
        self._passing = False
        self._head: ReplyHead | None = None

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head back."""
        headers = [header for header in head.headers if self._secret not in header[1]]
        self._head = ReplyHead.of(head.status, headers, head.content_length)
        return None

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return what may go on, which is nothing at first."""
        text = self._held + data
        if self._shows(text):
            return self._replaced()
        if end:
            assert self._head is not None, "a body comes after its head"
            plain = plain_body(self._head.headers, text)
            if plain is not text and self._shows(plain):
                return self._replaced()
            self._held = b""
            self.released = self._head
            return text
        if not self._passing and len(text) < _HELD_BYTES:
            self._held = text
            return b""
        # The secret may have begun in what came last.
        self._passing = True
        self.released = self._head
        keep = self._longest - 1
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _shows(self, text: bytes) -> bool:
        return any(form in text for form in self._forms)

    def _replaced(self) -> bytes:
        """Return the error to send instead: the same status and headers, and a body of our own."""
        if self._passing:
            message = "the upstream's error showed the key that the gateway had sent; the rest is withheld"
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message)
        assert self._head is not None, "a body comes after its head"
        message = "the upstream's error showed the key that the gateway had sent; its text was replaced"
        body = error_body(VeloxError(Reason.UPSTREAM_STATUS, message, status=self._head.status), self._dialect)
        headers = [header for header in self._head.headers if header[0] not in OF_THE_BODY]
        self.released = ReplyHead.of(self._head.status, [JSON, *headers], len(body))
        self.is_over = True
        return body
