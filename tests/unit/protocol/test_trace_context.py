"""traceparent and tracestate are read strictly: what is wrong begins a new trace."""

from __future__ import annotations

import pytest

from velox.protocol.trace_context import parent_of, traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_parent_is_read_and_written(flags: str, is_sampled: bool) -> None:
    found = parent_of([(b"traceparent", f"00-{TRACE}-{SPAN}-{flags}".encode())])
    assert found is not None
    assert (found.trace_id.hex(), found.span_id.hex(), found.is_sampled, found.state) == (TRACE, SPAN, is_sampled, "")
    written = traceparent(found.trace_id, found.span_id, is_sampled=is_sampled)
    assert written == f"00-{TRACE}-{SPAN}-0{int(is_sampled)}".encode()


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-x",
        f"00-{TRACE}-{SPAN}-1",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01-{TRACE}-{SPAN}-01x",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_parent_that_is_none_is_refused(value: str) -> None:
    assert parent_of([(b"traceparent", value.encode()), (b"tracestate", b"a=1")]) is None


def test_parent_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    for value in (f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what.the.future"):
        found = parent_of([(b"traceparent", value.encode())])
        assert found is not None and found.span_id.hex() == SPAN


def test_two_parents_are_none() -> None:
    field = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())
    assert parent_of([field, field]) is None


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([b"a=1"], "a=1"),
        ([b"a=1, b=2", b"fw529a3039@dt=x y"], "a=1,b=2,fw529a3039@dt=x y"),
        ([b"a=1,,"], "a=1"),
        ([b"a=1,a=2"], ""),
        ([b"A=1"], ""),
        ([b"a=\x01"], ""),
        ([b",".join(b"k%d=1" % n for n in range(33))], ""),
    ],
)
def test_state_is_passed_on_or_left_out_as_a_whole(values: list[bytes], state: str) -> None:
    fields = [(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode()), *((b"tracestate", value) for value in values)]
    found = parent_of(fields)
    assert found is not None and found.state == state
