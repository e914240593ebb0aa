"""Phoenix, a receiver of traces that people use, shows a stream that failed over, with its tokens and its content.

It is what `make phoenix-tools` installs. It runs as its own process with SQLite, and asks nobody outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.harness import REPOSITORY
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import named, routed
from tests.e2e.tools import free_port
from tests.e2e.watching import until

COMMAND: Final = REPOSITORY / ".phoenix/bin/phoenix"
PROJECT: Final = "gateway"
# It makes its tables first, and imports pandas: half a minute where nothing else runs.
_START_S: Final = 240
_TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
_PARENT: Final = "b7ad6b7169203331"

Found = Mapping[str, Any]  # a span, as Phoenix's API has it


class Phoenix:
    """A Phoenix that runs, asked by its REST API (https://arize.com/docs/phoenix, "Spans")."""

    def __init__(self, url: str) -> None:
        self.url: Final = url

    def spans(self) -> list[Found]:
        """Return the spans of the project; none while there is no such project."""
        try:
            found: list[Found] = self.ask(f"/v1/projects/{PROJECT}/spans?limit=100")["data"]
        except urllib.error.HTTPError as exc:
            assert exc.code == 404, exc
            return []
        return found

    def ask(self, path: str) -> Any:
        """Return what the API answers. Raises urllib's errors."""
        with urllib.request.urlopen(self.url + path, timeout=30) as reply:
            return json.load(reply)

    def is_up(self) -> bool:
        """True once it answers."""
        try:
            return "data" in self.ask("/v1/projects")
        except OSError:
            return False


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    if not (REPOSITORY / ".phoenix/installed").exists():
        pytest.skip("no Phoenix in .phoenix: `make phoenix-tools` could not install it on this machine")
    folder = tmp_path_factory.mktemp("phoenix")
    port, grpc_port = free_port(), free_port()
    own = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    log = folder / "phoenix.log"
    with log.open("wb") as output:
        process = subprocess.Popen([COMMAND, "serve"], env={**os.environ, **own}, stdout=output, stderr=output)
        found = Phoenix(f"http://127.0.0.1:{port}")
        try:
            with said_why(log):
                until(lambda: found.is_up() or process.poll() is not None, "Phoenix answers", _START_S)
                assert process.poll() is None, "Phoenix has ended"
            yield found
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def said_why(log: Path) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        print(log.read_text(errors="replace")[-5000:])
        raise


async def busy(call: Call) -> None:
    await call.reply(503, JSON, b"{}")


def test_phoenix_shows_a_stream_that_failed_over(phoenix: Phoenix) -> None:
    """Both attempts below the exchange, which is below the client's span; the first failed, the second has tokens."""
    with RecordingUpstream() as failing, failing.playing(busy), named("two") as sims:
        upstreams = [{"name": "one", "origin": failing.upstream.url}, sims["two"]]
        routes = [{"name": "all", "to": ["one"], "fallback": ["two"]}]
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": phoenix.url,
            "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={PROJECT}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "VELOX_TRACES_CONTENT": "all",
        }
        with routed({"upstreams": upstreams, "routes": routes}, **env) as velox:
            said = {"role": "user", "content": "Say hello to Phoenix."}
            asked = {"model": "m", "messages": [said], "max_tokens": 3, "stream": True}
            headers = {"traceparent": f"00-{_TRACE}-{_PARENT}-01", "x-session-id": "s1"}
            reply = velox.request("POST", "/v1/chat/completions", json.dumps(asked).encode(), headers)
            assert reply.status == 200 and reply.body.endswith(b"data: [DONE]\n\n")
            until(lambda: len(phoenix.spans()) == 3, "three spans in Phoenix", 60)
            until(lambda: velox.metric('velox_trace_spans_total{result="sent"}') == 3, "spans counted as sent")
    spans = {each["name"] + each["status_code"]: each for each in phoenix.spans()}
    exchange, failed, answered = spans["POST chatUNSET"], spans["chat mERROR"], spans["chat mUNSET"]

    assert {each["context"]["trace_id"] for each in spans.values()} == {_TRACE}
    assert exchange["parent_id"] == _PARENT
    assert failed["parent_id"] == answered["parent_id"] == exchange["context"]["span_id"]
    assert failed["end_time"] <= answered["start_time"] and answered["end_time"] <= exchange["end_time"]
    assert (failed["span_kind"], answered["span_kind"]) == ("LLM", "LLM")
    assert failed["attributes"]["velox.upstream"] == "one" and failed["attributes"]["error.type"] == "503"
    assert exchange["attributes"]["velox.tried"] == "one=503"
    assert exchange["attributes"]["velox.request.id"] == reply.header("x-velox-request-id")
    found = answered["attributes"]
    assert (found["velox.upstream"], found["velox.retry.reason"]) == ("two", "status")
    # What Phoenix itself makes of the names of OpenTelemetry's conventions: its own, by which it counts and shows.
    assert (found["llm.model_name"], found["llm.token_count.completion"]) == ("m", 3)
    assert exchange["attributes"]["session.id"] == "s1"
    assert [name for name, value in found.items() if name.startswith("llm.input_") and value == said["content"]]
    assert [name for name in found if name.startswith("llm.output_messages")]
