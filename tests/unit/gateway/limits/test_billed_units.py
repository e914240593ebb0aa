"""What requests tell of units that are paid in place of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.gateway.limits.billed_units import asked_units
from velox.protocol.usage.token_usage import TokenUsage, Units
from velox.types import BodyFields, Endpoint, FormFields

IMAGES, VIDEOS, OTHER = "/v1/images/generations", "/v1/videos", "/v1/ocr"
ENDPOINTS = {IMAGES: Endpoint.IMAGES, VIDEOS: Endpoint.VIDEOS, OTHER: Endpoint.OTHER, "/v2/rerank": Endpoint.RERANK}
ENDPOINTS |= {"/v1/audio/speech": Endpoint.AUDIO, "/v1/audio/transcriptions": Endpoint.AUDIO}


def asked(path: str, body: object, fields: BodyFields | None = None) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asked_units(ENDPOINTS[path], path, fields or BodyFields("m"), data)


@pytest.mark.parametrize(
    ("body", "tier"),
    [
        ({}, ""),
        ({"quality": None, "size": ""}, ""),
        ({"quality": "hd"}, "hd default"),
        ({"size": "1024x1792"}, "default 1024x1792"),
        ({"quality": "hd", "size": "1024x1792"}, "hd 1024x1792"),
        ({"size": "auto"}, "default other"),
        ({"size": 1024, "quality": "h" * 17}, "other other"),
        ({"size": "1x1 \n", "quality": "HD"}, "other other"),
    ],
)
def test_picture_is_priced_by_the_quality_and_size_that_is_asked_for(body: dict[str, object], tier: str) -> None:
    """What the vendor chooses is its default; what has no such form has no price where others have."""
    found = asked(IMAGES, body)
    assert (found.tier, found.units.pictures) == (tier, 1)
    form = FormFields("m", **{name: str(value) for name, value in body.items() if value is not None})
    assert asked(IMAGES, b"", form).tier == (tier if body.get("size") != 1024 else "other other")


@given(st.integers(-5, 1000))
def test_pictures_are_as_many_as_are_asked_for_and_at_least_one(n: int) -> None:
    found = asked(IMAGES, {}, BodyFields("m", n=n))
    assert found.units.pictures == found.most.pictures == max(1, min(n, 128))


def test_tokens_of_a_reply_count_before_what_was_asked_for() -> None:
    """Models that are paid by tokens tell them; a service tier of the reply stays then."""
    found, told = asked(IMAGES, {"quality": "high"}), TokenUsage(10, 20, tier="flex")
    assert found.merged(told, has_tokens=True) == told
    assert found.merged(TokenUsage(), has_tokens=False) == TokenUsage(units=Units(pictures=1), tier="high default")


@pytest.mark.parametrize(
    ("seconds", "held_ms"),
    [(None, 4_000), ("", 4_000), ("8", 8_000), (12, 12_000), ("x", 3_600_000), (10**9, 3_600_000), ([], 3_600_000)],
)
def test_video_is_held_by_the_seconds_that_are_asked_for(seconds: object, held_ms: int) -> None:
    """A length that can't be read is held as the longest."""
    assert asked(VIDEOS, {"seconds": seconds, "size": "720x1280"}).most.video_ms == held_ms


def test_video_has_the_size_of_its_reply_before_that_of_its_request() -> None:
    found, length = asked(VIDEOS, {"size": "720x1280"}), Units(video_ms=4_000)
    assert found.merged(TokenUsage(units=length), has_tokens=False).tier == "video 720x1280"
    told = TokenUsage(units=length, tier="video 1792x1024")
    assert found.merged(told, has_tokens=False) == told
    assert not found.is_sure
    assert asked_units(Endpoint.VIDEOS, "/v1/videos/edits", BodyFields("m"), b"{}") is None


LARGE = b'{"document":"' + b"A" * 1_100_000 + b'"%b}'


@pytest.mark.parametrize(
    ("body", "is_annotated"),
    [
        ({}, False),
        ({"bbox_annotation_format": None}, False),
        ({"bbox_annotation_format": {}}, True),
        ({"document_annotation_format": {"type": "json_schema"}}, True),
        (LARGE % b"", False),
        (LARGE % b',"document_annotation_format":null', None),
        (LARGE % b',"document_\\u0061nnotation_format":{}', None),
    ],
)
def test_pages_are_annotated_where_the_request_asks_for_it(body: object, is_annotated: bool | None) -> None:
    """Of a document of megabytes it is known only where no field of that name can be in it."""
    found, told = asked(OTHER, body), TokenUsage(units=Units(pages=3))
    assert found.is_annotated is is_annotated
    pages = None if is_annotated is None else Units(pages=3, annotated_pages=3 if is_annotated else None)
    assert found.merged(told, has_tokens=False).units == pages
    assert found.most == Units(pages=1000, annotated_pages=None if is_annotated is False else 1000)


@given(st.lists(st.text(max_size=5), max_size=300))
def test_as_many_search_units_are_held_as_documents_may_take(documents: list[str]) -> None:
    """A search unit is a query with up to 100 documents."""
    found = asked("/v2/rerank", {"model": "m", "query": "q", "documents": documents})
    assert found.most.search_units >= -(-len(documents) // 100)


@pytest.mark.parametrize(
    "body",
    [
        b'{"quality":"standard","quality":"hd"}',
        b'{"size":"1024x1024","s\\u0069ze":"1792x1024"}',
        b'{"Size":"1792x1024"}',
        b'{"size":"1024x1024","SIZE":"1792x1024"}',
        b'{"N":10}',
    ],
)
def test_field_that_vendors_may_read_in_two_ways_tells_nothing(body: bytes) -> None:
    """Twice, or in another spelling: what a vendor makes of it is not known, so the cost is not."""
    assert asked(IMAGES, body) is None
    assert asked(IMAGES, b'{"prompt":"x","extra":{"size":1,"size":2,"Size":3}}').tier == ""


def test_request_that_can_not_be_read_tells_nothing() -> None:
    for path in (IMAGES, VIDEOS):
        for body in (b"", b"[]", b"{", b"[" * 100_000, b"\xff", b"{" + b" " * 1_100_000 + b"}"):
            assert asked(path, body) is None
    assert asked("/v1/audio/speech", b"{").units == Units()
    assert asked("/v1/audio/speech", b'{"input":"xxxx","input":"x"}').units == Units()
    assert asked("/v1/audio/transcriptions", b"{}") is None
