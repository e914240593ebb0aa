"""An attempt that is the only one: no error of it is refused."""

from __future__ import annotations

from velox.gateway.filters import ErrorJudge
from velox.heads import ReplyHead

__all__ = ["Unasked"]


class Unasked(ErrorJudge):
    """Passes on every error."""

    def refuses(self, head: ReplyHead) -> bool:
        return False

    def reads_error(self, head: ReplyHead) -> bool:
        return False

    def refuses_error(self, head: ReplyHead, body: bytes) -> bool:
        raise AssertionError("it reads none")
