"""A real nginx in front, with `proxy_pass` and no more: streams pass it one event at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import openai

from tests.e2e.harness import until
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import MESSAGES, routed
from tests.e2e.test_forwarding_sse import WORDS, word_by_word
from tests.e2e.upstreams import find_tool

_CONFIG: Final = """
{user}
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {behind}; }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(behind: str) -> Iterator[str]:
    """Run one in front of a server; return where it is."""
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as probe:
        folder, port = Path(name), probe.getsockname()[1]
        probe.close()
        config = folder / "nginx.conf"
        # Its temporary folders lie below ours, which a worker with another user could not enter.
        user = "user root root;" if os.geteuid() == 0 else ""
        config.write_text(_CONFIG.format(folder=folder, port=port, behind=behind, user=user))
        process = subprocess.Popen([find_tool("nginx"), "-c", str(config), "-p", name])
        try:
            until(lambda: _listens(port), "nginx listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_stream_is_not_held_back() -> None:
    """C48: in its own API and put into another one, the client has an event in hand before the next one is sent."""
    with RecordingUpstream(script=word_by_word) as upstream:
        entry = {"name": "it", "provider": "vllm", "origin": upstream.upstream.url}
        with (
            routed({"upstreams": [entry]}) as velox,
            nginx(velox.base_url) as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none-needed", max_retries=0) as sdk,
        ):
            upstream.step()  # the head of a reply waits for its first event
            with sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
                for word in WORDS:
                    assert next(stream).choices[0].delta.content == word
                    upstream.step()
                assert next(stream, None) is None
            upstream.step()
            with sdk.responses.create(model="m", input="Hi", stream=True) as events:
                for word in WORDS:
                    assert next(each for each in events if each.type == "response.output_text.delta").delta == word
                    upstream.step()
                assert [each.type for each in events][-1] == "response.completed"
