"""What a request tells of units that its model may be paid by in place of tokens.

    speech      characters of the text (`audio/speech`)
    pictures    how many, in which quality and size (`images/...`): models that tell no tokens are paid by these
    videos      seconds and size, which the reply tells, too (`videos`)
    pages       whether they are annotated, which costs more (Mistral's `ocr`); the reply counts them
    rankings    search units (Cohere's `rerank`), which the reply counts

Knows: these requests, and what is held for them at most. Does not know: what a unit costs, or replies
(protocol/usage/tokens.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from velox.policy.limits.estimate import n_answers
from velox.protocol.usage.token_usage import TokenUsage, Units
from velox.protocol.usage.tokens import milliseconds
from velox.types import BodyFields, Endpoint, FormFields

__all__ = ["BY_UNITS", "AskedUnits", "asked_units"]

# Endpoints of which some requests are read for units.
BY_UNITS: Final = frozenset({Endpoint.AUDIO, Endpoint.IMAGES, Endpoint.VIDEOS, Endpoint.RERANK, Endpoint.OTHER})
# Of a body that is read once more for it, which takes 3 ms at most. OpenAI takes 4,096 characters to be spoken, and as
# many to be drawn by a model that is paid by pictures.
_MOST_BODY: Final = 64 * 1024
_SIZE: Final = re.compile(r"[0-9]{2,5}x[0-9]{2,5}")
_QUALITY: Final = re.compile(r"[a-z]{1,16}")
# What stands in a tier for a quality or size that the request leaves to the vendor, and for one that has no such form.
_DEFAULT: Final = "default"
_OTHER: Final = "other"
# The length of a video whose request does not say it, and no request may ask for a longer one.
# https://platform.openai.com/docs/api-reference/videos/create
_USUAL_VIDEO_MS: Final = 4_000
_LONGEST_VIDEO_MS: Final = 3_600_000
# Pages of a document, at most. https://docs.mistral.ai/capabilities/document_ai/basic_ocr
_MOST_PAGES: Final = 1000
_ANNOTATED: Final = ("document_annotation_format", "bbox_annotation_format")
_ANNOTATED_BYTES: Final = b"_annotation_format"
_ESCAPE: Final = b"\\u"
# A search unit is a query with up to 100 documents; one of over 500 tokens counts as several.
# https://cohere.com/pricing, https://docs.cohere.com/docs/rerank-overview
_UNIT_DOCUMENTS: Final = 100
_DOCUMENT_BYTES: Final = 1000


class _Pairs:
    """An object as it stands: each field, the second one of a name, too."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs: Final = pairs


class AskedUnits(NamedTuple):
    """What a request tells. tier: the quality and size that is asked for, as prices are found by it.

    most: of what its reply counts, for budgets to hold. is_told_by_reply: without the reply's count nothing is known.
    is_annotated: pages are; None: it can't be told. is_sure: False: the vendor may take less in the end.
    """

    units: Units = Units()
    tier: str = ""
    most: Units = Units()
    is_told_by_reply: bool = False
    is_annotated: bool | None = False
    is_sure: bool = True

    def bound(self, usage: TokenUsage) -> TokenUsage:
        """Return the most that a call may be counted as, where `usage` is that of its tokens."""
        return replace(usage, units=self.most, tier=self.tier)

    def merged(self, kinds: TokenUsage, *, has_tokens: bool) -> TokenUsage:
        """Return what a reply tells with what its request did. has_tokens: the reply counts tokens: these are paid."""
        told = kinds.units
        if not self.is_told_by_reply:
            if told is not None:  # a sound's length
                return kinds
            if has_tokens and self.units.letters is None:
                return kinds
            return replace(kinds, units=self.units, tier=self.tier or kinds.tier)
        if told is None or told.pages is None:
            return kinds if told is None or kinds.tier else replace(kinds, tier=self.tier)
        if self.is_annotated is None:
            return replace(kinds, units=None)
        return replace(kinds, units=told._replace(annotated_pages=told.pages if self.is_annotated else None))


def asked_units(
    endpoint: Endpoint, family: str, fields: BodyFields, body: bytes | bytearray | None
) -> AskedUnits | None:
    """Return what a request tells of its units; None: nothing, and its reply tells none either.

    family: of its path (gateway/access/endpoints.py). body: as it is sent, of JSON or a form.
    """
    word = family.rpartition("/")[2]
    read = _READERS.get((endpoint, word)) or _READERS.get((endpoint, ""))
    return None if read is None or body is None else read(fields, body)


def _json(body: bytes | bytearray, *names: str) -> Mapping[str, Any] | None:
    """Return the fields of a body; None: they can't be read, or one of these is there twice, or in another spelling.

    What a vendor makes of those nobody knows.
    """
    if len(body) > _MOST_BODY:
        return None
    try:
        told = json.loads(body, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, _Pairs):
        return None
    found = dict(told.pairs)
    n_spelled = sum(name.casefold() in names for name, _ in told.pairs)
    return found if n_spelled == sum(name in found for name in names) else None


def _speech(_fields: BodyFields, body: bytes | bytearray) -> AskedUnits | None:
    told = _json(body, "input")
    text = None if told is None else told.get("input")
    most = Units(letters=len(body))
    return AskedUnits(Units(letters=len(text)) if isinstance(text, str) else Units(), most=most)


def _pictures(fields: BodyFields, body: bytes | bytearray) -> AskedUnits | None:
    if isinstance(fields, FormFields):
        told: Mapping[str, Any] | None = {"quality": fields.quality, "size": fields.size}
    else:
        told = _json(body, "quality", "size", "n")
    if told is None:
        return None
    made = (_known(told.get("quality"), _QUALITY), _known(told.get("size"), _SIZE))
    tier = "" if made == (_DEFAULT, _DEFAULT) else " ".join(made)
    units = Units(pictures=n_answers(fields))
    return AskedUnits(units, tier, most=units)


def _known(value: object, form: re.Pattern[str]) -> str:
    if value is None or value == "":
        return _DEFAULT
    return value if isinstance(value, str) and form.fullmatch(value) else _OTHER


def _video(fields: BodyFields, body: bytes | bytearray) -> AskedUnits | None:
    if isinstance(fields, FormFields):
        told: Mapping[str, Any] | None = {"size": fields.size, "seconds": fields.seconds}
    else:
        told = _json(body, "size", "seconds")
    if told is None:
        return None
    size, seconds = _known(told.get("size"), _SIZE), told.get("seconds")
    length_ms = _USUAL_VIDEO_MS if seconds in (None, "") else milliseconds(seconds)
    most = Units(video_ms=_LONGEST_VIDEO_MS if length_ms is None else min(length_ms, _LONGEST_VIDEO_MS))
    return AskedUnits(tier=f"video {size}", most=most, is_told_by_reply=True, is_sure=False)


def _pages(_fields: BodyFields, body: bytes | bytearray) -> AskedUnits | None:
    told = _json(body, *_ANNOTATED)
    is_annotated: bool | None = False
    if told is not None:
        is_annotated = any(told.get(name) is not None for name in _ANNOTATED)
    elif _ANNOTATED_BYTES in body or _ESCAPE in body:
        is_annotated = None
    most = Units(pages=_MOST_PAGES, annotated_pages=_MOST_PAGES if is_annotated is not False else None)
    return AskedUnits(most=most, is_told_by_reply=True, is_annotated=is_annotated)


def _ranking(_fields: BodyFields, body: bytes | bytearray) -> AskedUnits | None:
    # As many documents as commas are the most that a list has, and one more.
    documents = body.count(b",") + 1 + len(body) // _DOCUMENT_BYTES
    return AskedUnits(most=Units(search_units=-(-documents // _UNIT_DOCUMENTS)), is_told_by_reply=True)


_READERS: Final[Mapping[tuple[Endpoint, str], Callable[[BodyFields, bytes | bytearray], AskedUnits | None]]] = {
    (Endpoint.AUDIO, "speech"): _speech,
    (Endpoint.IMAGES, ""): _pictures,
    (Endpoint.VIDEOS, "videos"): _video,
    (Endpoint.VIDEOS, "remix"): _video,
    (Endpoint.OTHER, "ocr"): _pages,
    (Endpoint.RERANK, "rerank"): _ranking,
}
