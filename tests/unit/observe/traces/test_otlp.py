"""What is written by hand is what the official package reads; what a collector says is read back."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from velox.observe.traces.otlp import CLIENT, ERROR, AttributeValue, Span, rejected_spans, request_of

VALUES: dict[str, AttributeValue] = {
    "text": "ü\ud800",
    "empty": "",
    "yes": True,
    "no": False,
    "zero": 0,
    "large": 1 << 62,
    "negative": -5,
    "share": 0.25,
    "list": ["a", "b"],
}


def test_span_is_read_by_the_official_package() -> None:
    span = Span(b"t" * 16, b"s" * 8, b"p" * 8, "a=1", True, True, "chat m", CLIENT, 5, 1 << 60, VALUES, ERROR, "cut")

    found = ExportTraceServiceRequest.FromString(request_of([span, span], {"service.name": "x" * 200}, ("velox", "1")))

    (resource,) = found.resource_spans
    (scope,) = resource.scope_spans
    assert (scope.scope.name, scope.scope.version, len(scope.spans)) == ("velox", "1", 2)
    assert resource.resource.attributes[0].value.string_value == "x" * 200
    read = scope.spans[0]
    assert (read.trace_id, read.span_id, read.parent_span_id) == (b"t" * 16, b"s" * 8, b"p" * 8)
    assert (read.trace_state, read.name, read.kind) == ("a=1", "chat m", CLIENT)
    assert (read.start_time_unix_nano, read.end_time_unix_nano, read.flags) == (5, 1 << 60, 0x301)
    assert (read.status.code, read.status.message) == (ERROR, "cut")
    values = {each.key: each.value for each in read.attributes}
    assert (values["text"].string_value, values["empty"].WhichOneof("value")) == ("ü?", "string_value")
    assert (values["yes"].bool_value, values["no"].WhichOneof("value")) == (True, "bool_value")
    assert (values["zero"].WhichOneof("value"), values["large"].int_value) == ("int_value", 1 << 62)
    assert (values["negative"].int_value, values["share"].double_value) == (-5, 0.25)
    assert [each.string_value for each in values["list"].array_value.values] == ["a", "b"]


def test_answer_of_a_collector_is_read() -> None:
    """What is no answer rejects nothing."""
    answer = ExportTraceServiceResponse()
    assert rejected_spans(answer.SerializeToString()) == 0
    answer.partial_success.rejected_spans = 300
    answer.partial_success.error_message = "too old"
    whole = answer.SerializeToString()
    assert rejected_spans(whole) == 300
    assert [rejected_spans(each) for each in (b"<html>", b"\xff" * 50, b"\x0a\xff", whole[:-1])] == [0] * 4
