"""The samplers of OpenTelemetry's SDKs, and what is exported for the sake of its end."""

from __future__ import annotations

import random

import pytest

from velox.observe.traces.sampling import Sampler, SamplerName, TailRules
from velox.protocol.trace_context import TraceParent

IDS = [random.Random(n).randbytes(16) for n in range(4000)]


def parent(*, is_sampled: bool) -> TraceParent:
    return TraceParent(b"t" * 16, b"s" * 8, is_sampled)


@pytest.mark.parametrize(
    ("name", "alone", "below_yes", "below_no"),
    [
        ("always_on", True, True, True),
        ("always_off", False, False, False),
        ("parentbased_always_on", True, True, False),
        ("parentbased_always_off", False, True, False),
    ],
)
def test_sampler_follows_its_name(name: SamplerName, alone: bool, below_yes: bool, below_no: bool) -> None:
    sampler = Sampler(name, 0.5)
    for id_ in IDS[:50]:
        assert sampler.wants(id_, None) is alone
        assert sampler.wants(id_, parent(is_sampled=True)) is below_yes
        assert sampler.wants(id_, parent(is_sampled=False)) is below_no


def test_ratio_takes_that_share_and_of_a_smaller_one_the_same_traces() -> None:
    """And so do others that have the same ratio, whoever asks."""
    tenth, half = Sampler("traceidratio", 0.1), Sampler("parentbased_traceidratio", 0.5)
    taken = [id_ for id_ in IDS if tenth.wants(id_, None)]
    assert 320 < len(taken) < 480
    assert all(half.wants(id_, None) for id_ in taken)
    assert 1850 < sum(half.wants(id_, None) for id_ in IDS) < 2150
    assert half.wants(IDS[0], parent(is_sampled=True)) and not half.wants(IDS[0], parent(is_sampled=False))
    assert all(tenth.wants(id_, parent(is_sampled=False)) for id_ in taken)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_ratio_of_nothing_and_of_all_is_exact(ratio: float) -> None:
    sampler = Sampler("traceidratio", ratio)
    assert {sampler.wants(id_, None) for id_ in (b"\0" * 16, b"\xff" * 16)} == {bool(ratio)}


def test_end_of_a_request_decides_too() -> None:
    assert not TailRules() and not TailRules().wants(failed=True, took_ns=1 << 60)
    errors, slow = TailRules(errors=True), TailRules(slow_ns=100)
    assert errors.wants(failed=True, took_ns=0) and not errors.wants(failed=False, took_ns=1 << 60)
    assert slow.wants(failed=False, took_ns=100) and not slow.wants(failed=True, took_ns=99)
