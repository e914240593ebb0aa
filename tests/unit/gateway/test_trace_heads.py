"""What goes up of a request that is not recorded, and in which trace one that is belongs."""

from __future__ import annotations

import random
import re
from typing import Final

import pytest

from velox.gateway.trace_heads import TraceHeads
from velox.heads import ExtraFields, Header, HeadShape, RequestHead
from velox.observe.traces.sampling import Sampler
from velox.protocol.trace_context import parent_of

TRACE: Final = b"0af7651916cd43dd8448eb211c80319c"
SPAN: Final = b"b7ad6b7169203331"
TYPE: Final = (b"content-type", b"application/json")
STATE: Final = (b"tracestate", b"a=1")


def parent(flags: bytes = b"01") -> Header:
    return (b"traceparent", b"00-%b-%b-%b" % (TRACE, SPAN, flags))


def heads(sampler: Sampler | None = None) -> TraceHeads:
    return TraceHeads(sampler or Sampler("always_off", 0.0), random.Random(3).getrandbits)


def shared(*fields: Header) -> RequestHead:
    """Return a head whose shape others have, and whose traceparent differs from theirs."""
    shape_fields = tuple((name, None if name == b"traceparent" else value) for name, value in fields)
    values = tuple(value for name, value in fields if name == b"traceparent")
    made = RequestHead.of(b"POST", b"/v1/chat/completions")
    shape = HeadShape(b"POST", made.target, made.path, b"", False, True, False, False, None, shape_fields, True)
    return RequestHead(shape, values, 2)


def alone(*fields: Header) -> RequestHead:
    return RequestHead.of(b"POST", b"/v1/chat/completions", fields)


def beside(*fields: Header) -> RequestHead:
    """Return a head that has all but its type beside its shape."""
    lines = b"".join(b"%b: %b\r\n" % field for field in fields[1:])
    extras = ExtraFields(frozenset(name for name, _ in fields[1:]), lines)
    return RequestHead(shared(TYPE).shape, (), 2, extras)


@pytest.mark.parametrize("make", [shared, alone, beside])
def test_request_that_begins_its_trace_tells_that_it_is_not_recorded(make: type) -> None:
    for fields in ([TYPE], [TYPE, STATE], [TYPE, (b"traceparent", b"nonsense")]):
        up = heads().unsampled(make(*fields))
        assert isinstance(up, RequestHead)
        found = dict(up.headers)
        assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-00", found[b"traceparent"]) and parent_of(up.headers)
        assert b"tracestate" not in found and found[b"content-type"] == TYPE[1]  # without a parent it is nobody's


@pytest.mark.parametrize("make", [shared, alone, beside])
@pytest.mark.parametrize("more", [[], [STATE]])
def test_parent_that_is_not_recorded_goes_up_as_it_came(make: type, more: list[Header]) -> None:
    head = make(TYPE, parent(b"00"), *more)
    assert heads().unsampled(head) is head


@pytest.mark.parametrize("make", [shared, alone, beside])
@pytest.mark.parametrize("more", [[], [STATE]])
def test_trace_that_its_parent_records_is_told_to_end_here(make: type, more: list[Header]) -> None:
    """Its sampler does not ask for the parent's word; who is further up hears whose span was the last recorded one."""
    up = heads().unsampled(make(TYPE, parent(b"01"), *more))
    assert isinstance(up, RequestHead) and sorted(up.headers) == sorted([TYPE, parent(b"00"), *more])


@pytest.mark.parametrize("make", [shared, alone, beside])
def test_parent_decides_where_the_sampler_follows_it(make: type) -> None:
    following = Sampler("parentbased_always_off", 0.0)
    assert heads(following).unsampled(make(TYPE, parent(b"01"))) == 0
    assert isinstance(heads(following).unsampled(make(TYPE, parent(b"00"))), RequestHead)
    assert isinstance(heads(following).unsampled(make(TYPE)), RequestHead)


@pytest.mark.parametrize("make", [shared, alone, beside])
def test_share_of_traces_is_recorded_in_the_trace_that_was_looked_at(make: type) -> None:
    """Each gateway of this ratio records it; a number that was drawn again might not be within the ratio."""
    sampler = Sampler("traceidratio", 0.25)
    asked = heads(sampler)
    found = [asked.unsampled(make(TYPE)) for _ in range(2000)]
    numbers = [each for each in found if isinstance(each, int)]
    assert 400 < len(numbers) < 600 and len(set(numbers)) == len(numbers)
    assert all(sampler.wants(number.to_bytes(16, "big"), None) for number in numbers)


def test_share_of_traces_goes_by_the_parents_trace() -> None:
    for ratio, is_recorded in ((1.0, True), (0.0, False)):
        found = heads(Sampler("traceidratio", ratio)).unsampled(shared(TYPE, parent(b"00")))
        assert (found == 0) is is_recorded


def test_two_parents_are_none() -> None:
    up = heads().unsampled(alone(TYPE, parent(b"01"), parent(b"01")))
    assert isinstance(up, RequestHead) and [value[3:35] != TRACE for name, value in up.headers if name != TYPE[0]] == [
        True
    ]
