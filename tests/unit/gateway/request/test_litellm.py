"""What clients of LiteLLM's are told: nothing that is not so, and nothing of another gateway's."""

from __future__ import annotations

import pytest

from velox.gateway.limits.cost_filter import CostFilter
from velox.gateway.request.litellm import LitellmFilter, attempt_counts, cost_fields, duration_fields, place_fields
from velox.heads import Headers, ReplyHead
from velox.net.client.body_budget import BodyBudget

OWN: Headers = [(b"x-litellm-call-id", b"1")]


@pytest.mark.parametrize(
    ("tried", "upstream", "counts"),
    [
        ((), "a", (0, 0)),
        (("a=503",), "a", (1, 0)),
        (("a=503",), "b", (0, 1)),
        (("a=503", "a=timeout", "b=429"), "c", (1, 2)),
        (("a=503", "b=503"), "a", (0, 2)),
    ],
)
def test_attempts_are_retries_or_fallbacks(tried: tuple[str, ...], upstream: str, counts: tuple[int, int]) -> None:
    assert attempt_counts(tried, upstream) == counts


def test_place_is_model_and_server() -> None:
    assert place_fields("gpt-4o", "azure", "https://a.example", ("b=503",)) == [
        (b"x-litellm-model-id", b"gpt-4o@azure"),
        (b"x-litellm-model-api-base", b"https://a.example"),
        (b"x-litellm-attempted-retries", b"0"),
        (b"x-litellm-attempted-fallbacks", b"1"),
    ]


@pytest.mark.parametrize("model", [None, "", "a\r\nx-evil: 1", "a b", "modèle", "\u202egpt", "m" * 201, "a\n"])
def test_word_that_is_no_value_of_a_field_is_left_out(model: str | None) -> None:
    """A client's model may be any text."""
    names = [name for name, _ in place_fields(model, "azure", "https://a.example", ())]
    assert b"x-litellm-model-id" not in names and len(names) == 3


def test_overhead_is_what_no_upstream_had() -> None:
    assert duration_fields(5_000_000, 4_876_543) == [
        (b"x-litellm-response-duration-ms", b"5.000"),
        (b"x-litellm-overhead-duration-ms", b"0.123"),
    ]
    assert dict(duration_fields(1, 2))[b"x-litellm-overhead-duration-ms"] == b"0.000"


@pytest.mark.parametrize(
    ("cost", "told"),
    [(b"0.001560000", b"0.001560000"), (b"0.5; estimated", b"0.5"), (b"unknown", None), (b"", None)],
)
def test_cost_is_a_number_or_not_told(cost: bytes, told: bytes | None) -> None:
    """Clients call float() on it."""
    assert dict(cost_fields(cost)).get(b"x-litellm-response-cost") == told


def test_fields_of_an_upstream_that_is_such_a_gateway_end_here() -> None:
    """Its spend, its addresses, its cost: they are of another key, and of another call."""
    came = [(b"x-litellm-key-spend", b"9"), (b"x-litellm-response-cost", b"9"), (b"x-a", b"1")]
    filtered = LitellmFilter(lambda: OWN, None).begin(ReplyHead.of(200, came, 2), is_sse=False, is_plain=True)
    assert (filtered.headers, filtered.content_length) == ([(b"x-a", b"1"), *OWN], 2)


def test_cost_is_told_once_the_answer_is_whole() -> None:
    cost = CostFilter(lambda: b"0.25; estimated", BodyBudget(1 << 20, 1.0, lambda: 0.0), is_told=False)
    told = LitellmFilter(lambda: OWN, cost)
    head = ReplyHead.of(200, [(b"content-type", b"application/json")], None)
    assert told.begin(head, is_sse=True, is_plain=True).headers == [*head.headers, *OWN]
    cost.begin(head, is_sse=False, is_plain=True)
    cost.feed(b"{}", True)
    found = told.begin(head, is_sse=False, is_plain=True).headers
    assert found == [*head.headers, *OWN, (b"x-litellm-response-cost", b"0.25")]
