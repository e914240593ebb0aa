"""What a client says of its patience."""

from __future__ import annotations

import math

import pytest

from velox.errors import Reason, VeloxError
from velox.heads import Headers
from velox.policy.retries.deadline import MAX_TIMEOUT_MS, client_terms
from velox.types import Timing


@pytest.mark.parametrize(
    ("headers", "timeout_s"),
    [
        ([], math.inf),
        ([(b"x-request-timeout-ms", b"1500")], 1.5),
        ([(b"x-request-timeout-ms", b"%d" % MAX_TIMEOUT_MS)], 86_400.0),
        ([(b"x-stainless-read-timeout", b"600")], 600.0),
        ([(b"x-stainless-read-timeout", b"0.5")], 0.5),
        ([(b"x-stainless-timeout", b"30")], 30.0),
        ([(b"x-stainless-timeout", b"30"), (b"x-stainless-read-timeout", b"20.0")], 20.0),
        ([(b"x-request-timeout-ms", b"90000"), (b"x-stainless-read-timeout", b"5")], 90.0),
        *(
            ([(b"x-stainless-read-timeout", value)], math.inf)
            for value in (b"", b"0", b"0.0", b"-1", b"None", b"NOT_GIVEN", b"inf", b"nan", b"1e9", b"\xff", b"9" * 40)
        ),
    ],
)
def test_client_timeout_is_read(headers: Headers, timeout_s: float) -> None:
    """Its own header first, then the SDKs'; what an SDK sends and can't be read is passed over."""
    assert client_terms(headers).timeout_s == timeout_s


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"1.5", b"1s", b"soon", b"%d" % (MAX_TIMEOUT_MS + 1), b"9" * 40])
def test_client_timeout_that_is_none_is_refused(value: bytes) -> None:
    """The client counts on it: 400 with the header's name, and without the value."""
    with pytest.raises(VeloxError) as caught:
        client_terms([(b"x-request-timeout-ms", value)])
    assert (caught.value.reason, caught.value.param) == (Reason.BAD_REQUEST, "x-request-timeout-ms")


@pytest.mark.parametrize(
    ("headers", "timeout_s", "retries"),
    [
        ([], math.inf, None),
        ([(b"x-litellm-timeout", b"1.5")], 1.5, None),
        ([(b"x-litellm-timeout", b"86400"), (b"x-stainless-read-timeout", b"5")], 86_400.0, None),
        ([(b"x-litellm-timeout", b"9"), (b"x-request-timeout-ms", b"90000")], 90.0, None),
        ([(b"x-litellm-num-retries", b"0")], math.inf, 0),
        ([(b"x-litellm-num-retries", b"3"), (b"x-litellm-timeout", b"2")], 2.0, 3),
    ],
)
def test_terms_of_litellm_are_read_where_the_gateway_reads_them(
    headers: Headers, timeout_s: float, retries: int | None
) -> None:
    """The gateway's own time-out first, then LiteLLM's, then that of the SDK."""
    terms = client_terms(headers, is_litellms=True)
    assert (terms.timeout_s, terms.retries) == (timeout_s, retries)
    unread = client_terms(headers)
    assert unread == client_terms([field for field in headers if not field[0].startswith(b"x-litellm-")])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((b"x-litellm-timeout", value) for value in (b"", b"0", b"-1", b"1e3", b"inf", b"soon", b"86401", b"\xff")),
        *((b"x-litellm-num-retries", value) for value in (b"", b"-1", b"1.0", b"many", b"10000")),
    ],
)
def test_terms_of_litellm_that_mean_nothing_are_refused(name: bytes, value: bytes) -> None:
    with pytest.raises(VeloxError) as caught:
        client_terms([(name, value)], is_litellms=True)
    assert (caught.value.reason, caught.value.param) == (Reason.BAD_REQUEST, name.decode())


@pytest.mark.parametrize(
    ("value", "itself"), [(b"0", False), (b"00", False), (b"1", True), (b"12", True), (b"", False), (b"x", False)]
)
def test_sdk_says_that_it_retries_itself(value: bytes, itself: bool) -> None:
    """`x-stainless-retry-count`: 0 is its first try."""
    assert client_terms([(b"x-stainless-retry-count", value)]).retries_itself is itself


@pytest.mark.parametrize(
    ("value", "timing"),
    [(b"0", Timing.NOTHING), (b"1", Timing.HEAD), (b"stream", Timing.STREAM), (b"Stream", Timing.STREAM)],
)
def test_client_asks_what_took_how_long(value: bytes, timing: Timing) -> None:
    assert client_terms([(b"x-velox-timing", value)]).timing is timing


@pytest.mark.parametrize("value", [b"", b"2", b"true", b"\xff", b"1, 1"])
def test_timing_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(VeloxError) as caught:
        client_terms([(b"x-velox-timing", value)])
    assert (caught.value.reason, caught.value.param) == (Reason.BAD_REQUEST, "x-velox-timing")
