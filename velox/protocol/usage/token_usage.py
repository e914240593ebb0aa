"""What one call used, by kind, in one meaning for all vendors.

Knows: the kinds, and which of them are parts of others. Does not know: how a vendor tells of them (tokens.py).

Structs of msgspec, as some are made for each request: a named tuple takes ten times as long to make.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import asdict, replace

__all__ = ["Bill", "TokenUsage", "Units"]


class Bill(NamedTuple):
    """What a call is billed, in pico-dollars, and by whom, as the price table calls it."""

    pico: int
    biller: str


class Units(NamedTuple):
    """What some models are paid by in place of tokens; None: not told, or not of this call.

    sound_ms: length of a sound that was read, in milliseconds. letters: characters of a text that was spoken. pictures:
    that were made. video_ms: length of a video that was made. pages: that were read; annotated_pages: of these, with
    annotations. search_units: of a ranking, as its vendor counts them.
    """

    sound_ms: int | None = None
    letters: int | None = None
    pictures: int | None = None
    video_ms: int | None = None
    pages: int | None = None
    annotated_pages: int | None = None
    search_units: int | None = None


class TokenUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one call by kind. None: not told; a price takes it as none of that kind.

    cached, written, audio_input, image_input: of `input`. written_1h: of `written`, for an hour. audio_cached,
    image_cached: of `cached`. reasoning, audio_output, image_output: of `output`. web_searches: calls of a tool that
    the vendor runs. tier: that the reply says it was served in, in lower case; "": not told; of pictures and videos
    their quality and size (billed_units.py). has_others: another model worked for the answer, too, which has
    another price, and its tokens are not among these. model: that answered, as the reply calls it; "": not told. bill:
    what the vendor says that it takes for the call, with the tools that it ran. is_regional: it was kept within a
    region, which may cost more. units: what it may be paid by in place of tokens; None: no such unit is told.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    written: int | None = None
    written_1h: int | None = None
    reasoning: int | None = None
    audio_input: int | None = None
    audio_cached: int | None = None
    audio_output: int | None = None
    image_input: int | None = None
    image_output: int | None = None
    web_searches: int | None = None
    image_cached: int | None = None
    tier: str = ""
    has_others: bool = False
    model: str = ""
    bill: Bill | None = None
    is_regional: bool = False
    units: Units | None = None

    def over(self, before: TokenUsage) -> TokenUsage:
        """Return these, and those of `before` where these say nothing.

        A prompt of no tokens says nothing: some write 0 at the end of a stream whose beginning knew better.
        """
        new = self
        if before.input and not self.input:
            new = replace(self, input=None, cached=None, written=None, written_1h=None)
        told = {name: count for name, count in asdict(new).items() if count is not None}
        texts = {"tier": self.tier or before.tier, "model": self.model or before.model}
        has_others, is_regional = self.has_others or before.has_others, self.is_regional or before.is_regional
        return replace(before, **{**told, **texts, "has_others": has_others, "is_regional": is_regional})
