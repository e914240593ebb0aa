"""Tools that a provider runs itself: what of them another provider has, too, and what is no request without them.

    a search of the web    Anthropic's `web_search_DATE`, OpenAI's `web_search` in Responses, Google's `googleSearch`
    all others             code, files, computers, pictures, MCP: no two providers have the same ones

A reader tells what it finds; settle() decides once all is read. A search that must be called, or that is the only tool,
is asked of the model's provider, where that has one. One that must be called and is not there is a 400: an answer from
memory would pass for what was found. Others are left out and named: agents declare them beside their own.

Knows: which requests need such a tool. Does not know: how a dialect writes one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import Block, Choice, Image, Request, Role, Text, WebSearch
from velox.dialects.facts.model_facts import ModelFacts

__all__ = ["HostedTools", "taken_search", "without_pictures"]

_PICTURE: Final = b'"(a picture)"'  # no API takes an empty message
_NONE_SUCH: Final = "the model of this route has no such tool of its provider's own"
_NO_SEARCH: Final = (
    "the model of this route has no search of the web that its provider runs, so it can't be called; leave it out of "
    "tool_choice, or ask a model that has one"
)


class HostedTools:
    """The hosted tools of one request, as the reader finds them. lost: their name as a dropped field."""

    __slots__ = ("_dropped", "_is_search_named", "_n_others", "_named", "_search", "_search_param", "lost")

    def __init__(self, dropped: DroppedFields, lost: str) -> None:
        self._dropped: Final = dropped
        self.lost: Final = lost
        self._search: WebSearch | None = None
        self._search_param = ""
        self._n_others = 0
        self._named = ""
        self._is_search_named = False

    def __repr__(self) -> str:
        return f"<HostedTools {self._n_others} and {self._search}>"

    @property
    def is_empty(self) -> bool:
        """True where none was found."""
        return self._search is None and not self._n_others and not self._named

    def add_search(self, search: WebSearch, param: str) -> None:
        """Note a search of the web. param: where it stands. Of two the first counts."""
        if self._search is None:
            self._search, self._search_param = search, param

    def add_other(self, param: str) -> None:
        """Note another tool, which is left out. Raises BadRequestError: the route is strict."""
        self._n_others += 1
        self._dropped.drop(self.lost, param)

    def must_call(self, name: str, *, is_search: bool) -> None:
        """Note that the model must call one of them. name: as the client has it."""
        self._named, self._is_search_named = name, is_search

    def settle(self, request: Request, param: str) -> None:
        """Decide what becomes of them. param: of the choice. Raises BadRequestError.

        The request has no choice yet but of its own tools.
        """
        search, choice = self._search, request.tool_choice
        is_required = choice is not None and choice.choice is Choice.REQUIRED and not request.tools
        if self._named and not (self._is_search_named and search is not None):
            raise BadRequestError(f"{_NONE_SUCH}: {self._named!r}", param)
        if self._named or is_required:
            if search is not None:
                request.web_search = msgspec.structs.replace(search, is_forced=True)
            elif self._n_others:
                raise BadRequestError(f"{_NONE_SUCH}, and no other one could be called", param)
        elif search is not None:
            if not request.tools:
                request.web_search = search
            else:
                self._dropped.drop(self.lost, self._search_param)
        if not request.tools and (search is not None or self._n_others):
            request.tool_choice = None


def without_pictures(request: Request, dropped: DroppedFields) -> None:
    """Take the pictures out of earlier answers: the API of the model makes none, and takes none of the assistant's.

    Raises BadRequestError where the answer is to have some, or the route is strict.
    """
    if request.has_made_pictures:
        dropped.drop("media", "messages")
        for said in request.messages:
            if said.role is Role.ASSISTANT and any(isinstance(block, Image) for block in said.blocks):
                left: list[Block] = [block for block in said.blocks if not isinstance(block, Image)]
                said.blocks = left or [Text(_PICTURE)]
    if request.wants_pictures:
        message = "the model of this route makes no pictures in its answers; leave them out, or ask one of Gemini's"
        raise BadRequestError(message, "modalities")


def taken_search(request: Request, facts: ModelFacts | None, dropped: DroppedFields) -> WebSearch | None:
    """Return the search that is asked of the model's provider; None: there is none, or it has none.

    facts: None where the API has no way to ask for it. Raises BadRequestError.
    """
    search = request.web_search
    if search is None or (facts is not None and facts.web_search):
        return search
    if search.is_forced:
        raise BadRequestError(_NO_SEARCH, "tool_choice")
    dropped.drop(search.lost, "tools")
    return None
