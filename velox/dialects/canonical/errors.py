"""The errors of dialects' code: a request that can't be read or said, and a reply that can't be.

Knows: what each carries. Does not know: HTTP, or what a client gets (gateway).
"""

from __future__ import annotations

from typing import Final

from velox.dialects.canonical.model import ApiError
from velox.protocol.reply_body import BrokenReplyError

__all__ = ["BadRequestError", "BrokenReplyError", "ReplyError", "UnknownPreviousError"]


class BadRequestError(Exception):
    """A client's request that can't be read, or can't be said in the model's dialect: a 400.

    param: the path of the field, as its client would write it: "messages[2].content[0].text"; "" for the whole body.
    message: for the client: what is wrong with it and what to do, without its value. details: JSON, for clients of
    Messages: what their SDK knows how to go on from; b"" for none.
    """

    def __init__(self, message: str, param: str = "", details: bytes = b"") -> None:
        super().__init__(message)
        self.message: Final = message
        self.param: Final = param
        self.details: Final = details


class UnknownPreviousError(BadRequestError):
    """A `previous_response_id` whose answer is not known: clients then send the whole conversation.

    OpenAI's code for it is `previous_response_not_found` (maximhq/bifrost#2441).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "previous_response_id")


class ReplyError(Exception):
    """An upstream's error in place of an answer, with a status of 2xx."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error: Final = error
