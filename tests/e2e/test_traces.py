"""Spans of requests reach a collector, and no collector costs a request anything."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import websockets.sync.server

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.otlp_collector import Collector, attributes_of
from tests.e2e.raw_http import RawReply
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import named, routed
from tests.e2e.upstreams import make_certificates
from tests.e2e.watching import until
from tests.e2e.websocket_upstreams import WebSocketUpstream, connect

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def tracing(collector: Collector, **more: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100", **more}


def post(velox: VeloxProcess, headers: dict[str, str] | None = None, *, target: str = "", **more: object) -> RawReply:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **more}
    return velox.request("POST", f"/v1/chat/completions{target}", json.dumps(body).encode(), headers or {})


async def busy(call: Call) -> None:
    await call.reply(503, JSON, b"{}")


def test_stream_that_failed_over_has_a_span_for_each_attempt(collector: Collector) -> None:
    """Both below that of the exchange, which is below the client's; each upstream hears of its own."""
    with RecordingUpstream() as failing, failing.playing(busy), named("two") as sims:
        upstreams = [{"name": "one", "origin": failing.upstream.url}, sims["two"]]
        routes = [{"name": "all", "to": ["one"], "fallback": ["two"]}]
        with routed(
            {"upstreams": upstreams, "routes": routes}, **tracing(collector, OTEL_SERVICE_NAME="gateway")
        ) as velox:
            reply = post(velox, PARENT, stream=True, stream_options={"include_usage": True})
            assert reply.status == 200 and reply.body.endswith(b"data: [DONE]\n\n")
            exchange, one, two = collector.wait(lambda spans: len(spans) == 3)
        went_up = failing.calls[0].header("traceparent")

    assert {span.trace_id.hex() for span in (exchange, one, two)} == {PARENT["traceparent"][3:35]}
    assert exchange.parent_span_id.hex() == PARENT["traceparent"][36:52] and exchange.trace_state == "a=1"
    assert {one.parent_span_id, two.parent_span_id} == {exchange.span_id}
    assert (exchange.kind, one.kind, two.kind) == (2, 3, 3)
    assert exchange.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
    assert one.end_time_unix_nano <= two.start_time_unix_nano < two.end_time_unix_nano <= exchange.end_time_unix_nano
    assert went_up == f"00-{one.trace_id.hex()}-{one.span_id.hex()}-01"
    failed, answered, whole = attributes_of(one), attributes_of(two), attributes_of(exchange)
    assert (failed["error.type"], failed["velox.upstream"], one.status.code) == ("503", "one", 2)
    assert answered["gen_ai.operation.name"] == "chat" and answered["gen_ai.request.model"] == "m"
    assert answered["gen_ai.usage.output_tokens"] == 3 and answered["http.request.resend_count"] == 1
    assert (whole["velox.tried"], whole["http.response.status_code"], exchange.status.code) == ("one=503", 200, 0)
    assert whole["velox.request.id"] == reply.header("x-velox-request-id")
    (resource,) = {attributes_of(each.resource)["service.name"] for each in collector.requests[0][1].resource_spans}
    assert resource == "gateway"


def test_bad_parent_begins_a_new_trace(collector: Collector) -> None:
    with named("one") as sims, routed({"upstreams": [sims["one"]]}, **tracing(collector)) as velox:
        post(velox, {"traceparent": PARENT["traceparent"].upper(), "tracestate": "a=1"})
        exchange = collector.wait(lambda spans: len(spans) == 2)[0]
    assert exchange.trace_id.hex() != PARENT["traceparent"][3:35]
    assert (exchange.parent_span_id, exchange.trace_state) == (b"", "")


def test_without_a_propagator_no_parent_is_read_and_none_sent(collector: Collector) -> None:
    """What the client sent goes up as any header does."""
    with RecordingUpstream() as upstream, upstream.playing(speaking):
        file = {"upstreams": [{"name": "one", "origin": upstream.upstream.url}]}
        with routed(file, **tracing(collector, OTEL_PROPAGATORS="none")) as velox:
            assert post(velox, PARENT, stream=False).status == 200
            assert post(velox, stream=False).status == 200
            spans = collector.wait(lambda spans: len(spans) == 4)
        went_up = [call.header("traceparent") for call in upstream.calls]
    assert went_up == [PARENT["traceparent"], None]
    assert PARENT["traceparent"][3:35] not in {span.trace_id.hex() for span in spans}
    assert len({span.trace_id for span in spans}) == 2


def test_collector_with_authorities_of_its_own_asks_for_a_certificate(tmp_path: Path) -> None:
    """A certificate of another authority is not accepted, and the log says so; a new file is used without a restart."""
    files, other = (make_certificates(made(tmp_path / name)) for name in ("own", "other"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert_file, files.key_file)
    context.load_verify_locations(files.ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    shown = tmp_path / "ca.pem"
    shown.write_bytes(Path(other.ca_file).read_bytes())
    more = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(shown),
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": files.cert_file,
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": files.key_file,
    }
    with (
        Collector(context) as collector,
        named("one") as sims,
        routed({"upstreams": [sims["one"]]}, **tracing(collector, **more)) as velox,
    ):
        assert post(velox).status == 200
        velox.wait_log(lambda line: "traces can't be exported" in line and "certificate" in line)
        os.replace(files.ca_file, shown)
        assert len(collector.wait(lambda spans: len(spans) == 2)) == 2


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_content_is_in_no_span(collector: Collector) -> None:
    """Neither a prompt nor an answer nor a query, of what ended well and of what failed; tokens are."""
    with RecordingUpstream() as upstream:
        file = {"upstreams": [{"name": "one", "origin": upstream.upstream.url}]}
        with routed(file, **tracing(collector)) as velox:
            said = {"messages": [{"role": "user", "content": "SECRET"}], "tools": [], "user": "SECRET"}
            for script, status in ((speaking, 200), (failing, 422)):
                with upstream.playing(script):
                    for stream in (True, False):
                        reply = post(velox, {"x-own": "SECRET"}, target="?q=SECRET", stream=stream, **said)
                        assert reply.status == status and b"SECRET" in reply.body
                    asked = json.loads(upstream.calls[0].body)
                    assert asked["stream_options"] == {"include_usage": True}
                    assert upstream.calls[0].header("accept-encoding") in (None, "identity")
            spans = collector.wait(lambda spans: len(spans) == 8)
    assert b"SECRET" not in b"".join(request.SerializeToString() for _, request in collector.requests)
    used = [attributes_of(span).get("gen_ai.usage.output_tokens") for span in spans if span.kind == 3]
    assert used == [7, 7, None, None]


def test_what_clients_write_into_names_is_short_text(collector: Collector) -> None:
    """A session of 8 KB, texts that are no Unicode, a script, a mark that turns the direction: the span arrives."""
    with named("one") as sims, routed({"upstreams": [sims["one"]]}, **tracing(collector), traces_content="*") as velox:
        said = b'[{"role":"user","content":"a\\ud800 \\u202e<script>"}]'
        body = b'{"model":"<b>\\ud83d\\ude00","messages":%b,"max_tokens":3,"user":"\\udfff"}' % said
        reply = velox.request("POST", "/v1/chat/completions", body, {"x-velox-session": "<s>" * 2700})
        assert reply.status == 200
        refused = velox.request("POST", "/v1/chat/completions", b'{"model":"%b","messages":[]}' % (b"x" * 100_000))
        assert refused.status == 400
        spans = collector.wait(lambda spans: len(spans) == 3)
    (whole,) = [each for each in map(attributes_of, spans) if "session.id" in each]
    assert whole["session.id"] == ("<s>" * 100)[:256] and whole["velox.request.model"] == "<b>\U0001f600"
    assert "x" * 300 not in str(spans)


@pytest.mark.parametrize("stream", [False, True])
def test_content_of_a_route_is_exported_without_secrets(collector: Collector, stream: bool) -> None:
    """Of that route alone, on the span of the attempt that answered; the client gets its reply as ever."""
    with RecordingUpstream() as upstream, upstream.playing(speaking):
        routes = [
            {"name": "shown", "match": {"paths": ["/v1/chat/completions"]}, "to": ["one"]},
            {"name": "other", "to": ["one"]},
        ]
        file = {"upstreams": [{"name": "one", "origin": upstream.upstream.url}], "routes": routes}
        more = {"traces_content": "shown", "traces_redact": "SEC[A-Z]+"}
        with routed(file, **tracing(collector), **more) as velox:
            asked = [{"role": "user", "content": "write to jane@mail.example of SECRET"}]
            reply = post(velox, stream=stream, messages=asked)
            other = json.dumps({"model": "m", "prompt": "HIDDEN", "stream": stream}).encode()
            assert velox.request("POST", "/v1/completions", other).status == 200
            spans = collector.wait(lambda spans: len(spans) == 4)
    assert b"SECRET" in reply.body and (not stream or reply.body.endswith(b"data: [DONE]\n\n"))
    assert b"SECRET" not in b"".join(request.SerializeToString() for _, request in collector.requests)
    assert b"HIDDEN" not in b"".join(request.SerializeToString() for _, request in collector.requests)
    shown = {span.name: attributes_of(span) for span in spans}
    text = {"type": "text", "content": "write to [redacted] of [redacted]"}
    assert json.loads(str(shown["chat m"]["gen_ai.input.messages"])) == [{"role": "user", "parts": [text]}]
    (answer,) = json.loads(str(shown["chat m"]["gen_ai.output.messages"]))
    assert answer["parts"] == [{"type": "text", "content": "[redacted]"}]
    assert [name for name, has in shown.items() if "gen_ai.input.messages" in has] == ["chat m"]


async def speaking(call: Call) -> None:
    said, usage = {"content": "SECRET"}, {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    if json.loads(call.body)["stream"]:
        events = ({"choices": [{"index": 0, "delta": said}]}, {"choices": [], "usage": usage})
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        await call.reply(200, SSE, body.encode())
    else:
        await call.reply(200, JSON, json.dumps({"choices": [{"message": said}], "usage": usage}).encode())


async def failing(call: Call) -> None:
    await call.reply(422, JSON, b'{"error": {"message": "SECRET"}}')


def test_websocket_has_spans_of_its_exchange_and_of_its_attempt(collector: Collector) -> None:
    """That of the attempt is the way to the upstream's 101, and below it are the upstream's own."""
    with WebSocketUpstream() as upstream, VeloxProcess({**upstream.env(), **tracing(collector)}) as velox:
        with connect(velox, target="/v1/realtime?model=gpt-realtime", headers=PARENT) as ws:
            ws.send("SECRET")
            assert ws.recv() == "SECRET"
        went_up = upstream.wait_session().request.headers
        span, attempt = collector.wait(lambda spans: len(spans) > 0)  # those of one request come together
    assert went_up["traceparent"] == f"00-{span.trace_id.hex()}-{attempt.span_id.hex()}-01"
    assert went_up["tracestate"] == PARENT["tracestate"]
    found, tried = attributes_of(span), attributes_of(attempt)
    assert span.parent_span_id.hex() == PARENT["traceparent"][36:52] and span.kind == 2
    assert found["velox.websocket"] is True and "SECRET" not in str(span)
    assert attempt.parent_span_id == span.span_id and (attempt.kind, attempt.name) == (3, "realtime gpt-realtime")
    assert tried["http.response.status_code"] == 101 and tried["velox.upstream"] == "default"
    assert span.start_time_unix_nano <= attempt.start_time_unix_nano < attempt.end_time_unix_nano
    assert attempt.end_time_unix_nano < span.end_time_unix_nano


def test_attempt_at_a_websocket_that_is_refused_has_its_error(collector: Collector) -> None:
    """The other server is asked, and has a span of its own."""
    with RecordingUpstream() as refusing, refusing.playing(busy), WebSocketUpstream() as upstream:
        upstreams = [{"name": "one", "origin": refusing.upstream.url}, {"name": "two", "origin": upstream.url}]
        routes = [{"name": "all", "to": ["one"], "fallback": ["two"]}]
        with routed({"upstreams": upstreams, "routes": routes}, **tracing(collector)) as velox:
            with connect(velox) as ws:
                ws.send("hi")
                assert ws.recv() == "hi"
            span, one, two = collector.wait(lambda spans: len(spans) > 0)
    failed, answered = attributes_of(one), attributes_of(two)
    assert (failed["velox.upstream"], failed["error.type"], one.status.code) == ("one", "503", 2)
    assert (answered["velox.upstream"], answered["http.request.resend_count"], two.status.code) == ("two", 1, 0)
    assert attributes_of(span)["velox.tried"] == "one=503"


@pytest.mark.parametrize("headers", [{}, {"traceparent": PARENT["traceparent"][:-1] + "0"}], ids=["root", "child"])
def test_upstream_of_a_request_that_is_not_sampled_hears_that_it_is_not(
    collector: Collector, headers: dict[str, str]
) -> None:
    """A parent's context goes up as it came: nothing lies between."""
    with RecordingUpstream() as upstream, upstream.playing(speaking):
        file = {"upstreams": [{"name": "one", "origin": upstream.upstream.url}]}
        with routed(file, **tracing(collector, OTEL_TRACES_SAMPLER="parentbased_always_off")) as velox:
            assert post(velox, headers, stream=False).status == 200
        (call,) = upstream.calls
        went_up = call.header("traceparent")
    assert went_up is not None and went_up.startswith("00-") and went_up.endswith("-00")
    assert not headers or went_up == headers["traceparent"]
    assert collector.spans == []


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def say_yes(ws: websockets.sync.server.ServerConnection) -> None:
    """Answer each message as a realtime model does."""
    part = {"type": "output_audio", "transcript": "Yes, SECRET."}
    item = {"type": "message", "role": "assistant", "content": [part]}
    for _ in ws:
        ws.send(json.dumps({"type": "response.output_audio.delta", "delta": "SOUND"}))
        ws.send(json.dumps({"type": "response.done", "response": {"status": "completed", "output": [item]}}))


@pytest.mark.parametrize("limited", [False, True], ids=["any key", "key with models"])
def test_content_of_a_websocket_is_exported_of_its_route_alone(collector: Collector, limited: bool) -> None:
    """Its texts, without what is to be taken out, and no sound; what is bad is left out. All passes as ever."""
    with WebSocketUpstream(say_yes, compression="deflate") as upstream:
        routes = [
            {"name": "shown", "match": {"models": ["m"]}, "to": ["one"]},
            {"name": "other", "to": ["one"]},
        ]
        file: dict[str, object] = {"upstreams": [{"name": "one", "origin": upstream.url}], "routes": routes}
        if limited:
            file["api_keys"] = [{"name": "a", "key": f"sha256:{digest(KEY)}", "models": ["m", "n"]}]
        more = {"traces_content": "shown", "traces_redact": "SEC[A-Z]+"}
        with routed(file, **tracing(collector), **more) as velox:
            said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi, SECRET"}]}
            for model in ("m", "n"):
                with connect(velox, f"/v1/realtime?model={model}", compression="deflate") as ws:
                    for event in (
                        json.dumps({"type": "conversation.item.create", "item": said}),
                        '{"type":"response.create","instructions":1e999}',
                    ):
                        ws.send(event)
                        kinds = [json.loads(ws.recv())["type"] for _ in range(2)]
                        assert kinds == ["response.output_audio.delta", "response.done"]
            spans = collector.wait(lambda spans: len(spans) == 4)
    assert "SECRET" not in str(spans) and "SOUND" not in str(spans)
    found = [attributes_of(span) for span in spans if span.kind == 2]
    shown, other = sorted(found, key=lambda each: str(each["velox.request.model"]))
    assert not [name for span in spans if span.kind == 3 for name in attributes_of(span) if "messages" in name]
    text = {"type": "text", "content": "Hi, [redacted]"}
    assert json.loads(str(shown["gen_ai.input.messages"])) == [{"role": "user", "parts": [text]}]
    (answer,) = json.loads(str(shown["gen_ai.output.messages"]))
    assert answer["parts"] == [{"type": "text", "content": "Yes, [redacted]."}] * 2
    assert shown["velox.content_cut"] is True  # an event can't be read
    assert (shown["gen_ai.operation.name"], shown["gen_ai.request.model"]) == ("realtime", "m")
    assert not [name for name in other if name.startswith("gen_ai.")]


def test_sampler_and_tail_decide_what_is_exported(collector: Collector) -> None:
    """Nothing of what ended well; what failed, though the sampler does not want it."""
    more = {"OTEL_TRACES_SAMPLER": "always_off", "VELOX_TRACES_ERRORS": "on"}
    with named("one") as sims, routed({"upstreams": [sims["one"]]}, **tracing(collector, **more)) as velox:
        assert post(velox).status == 200
        assert post(velox, {"x-velox-timing": "never"}).status == 400
        (span,) = collector.wait(lambda spans: len(spans) > 0)
    assert attributes_of(span)["error.type"] == "bad_request"


@pytest.mark.parametrize("status", [None, 500, 503, 400])
def test_collector_that_takes_nothing_costs_no_request_anything(collector: Collector, status: int | None) -> None:
    collector.status = status
    with named("one") as sims, routed({"upstreams": [sims["one"]]}, **tracing(collector)) as velox:
        assert [post(velox).status for _ in range(20)] == [200] * 20
        until(lambda: collector.n_asked > 0, "a question for the collector")
        assert post(velox).status == 200


def test_exporter_that_is_killed_is_replaced(collector: Collector) -> None:
    """What waits while the collector can't be asked is exported by the next one."""
    collector.status = 503
    with named("one") as sims, routed({"upstreams": [sims["one"]]}, **tracing(collector)) as velox:
        post(velox)
        until(lambda: collector.n_asked > 0, "a question for the collector")
        for _ in range(5):
            post(velox)
        os.kill(exporter_of(velox), signal.SIGKILL)
        collector.status = 200
        assert len(collector.wait(lambda spans: len(spans) >= 10)) == 10


@pytest.mark.parametrize("lie", [b"\x0a\xff\xff", b"<html>" * 400_000, b"HTTP/9.9 what\r\n\r\n", b""])
def test_collector_that_lies_costs_no_request_anything(lie: bytes) -> None:
    """It takes spans, and answers with garbage, with too much, with what is no HTTP, or by hanging up."""
    is_http = lie and not lie.startswith(b"HTTP")
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(lie) if is_http else b""
    n_asked = 0

    def answer(connection: socket.socket) -> None:
        nonlocal n_asked
        n_asked += 1
        connection.recv(65536)
        with contextlib.suppress(OSError):
            connection.sendall(head + lie)

    with lying(answer) as url, named("one") as sims:
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with routed({"upstreams": [sims["one"]]}, **more) as velox:
            assert [post(velox).status for _ in range(10)] == [200] * 10
            until(lambda: n_asked > 1 or (is_http and n_asked > 0), "what the exporter does about it")
            assert post(velox).status == 200


@contextlib.contextmanager
def lying(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections one behind the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def exporter_of(velox: VeloxProcess) -> int:
    """Return the process id of the exporter."""
    children = Path(f"/proc/{velox.pid}/task/{velox.pid}/children").read_text().split()
    (pid,) = [int(pid) for pid in children if b"exporter" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid
