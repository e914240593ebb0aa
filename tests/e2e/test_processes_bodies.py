"""Large bodies and small requests in the same workers: all come through unchanged. How fast is a matter for bench/."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.harness import RawReply, VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import CHAT, Client, settled

N_LARGE, LARGE_BYTES = 6, 10 * 2**20


def large_body(n: int) -> bytes:
    """Return a chat request of 10 MB, each another one."""
    text = f"{n} grün 漢字 ".encode() * (LARGE_BYTES // 15)
    return b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text


@pytest.mark.more
def test_large_bodies_pass_while_small_requests_run() -> None:
    """10 MB bodies arrive byte for byte, over HTTP/1.1 and HTTP/2, and every small request meanwhile is answered."""
    bodies = [large_body(n) for n in range(N_LARGE)]
    assert all(len(body) > 0.9 * LARGE_BYTES and json.loads(body) for body in bodies)
    for http2 in (False, True):
        with RecordingUpstream(http2=http2) as upstream:
            settings = {**upstream.env(), "VELOX_WORKERS": "2", "VELOX_RATE_LIMIT_RPM": "0"}
            with VeloxProcess(settings) as velox, settled(velox, http1_spares=0 if http2 else N_LARGE + 2):
                push(velox, bodies)
            wanted = {hashlib.sha256(body).digest() for body in bodies}
            found = {hashlib.sha256(call.body).digest() for call in upstream.calls if len(call.body) > len(CHAT)}
            assert found == wanted


def push(velox: VeloxProcess, bodies: list[bytes]) -> None:
    """Send the large bodies side by side, and small requests until the last of them is answered."""

    def send(body: bytes) -> RawReply:
        return velox.request("POST", "/v1/chat/completions", body)

    with ThreadPoolExecutor(len(bodies)) as pool, Client(velox) as small:
        running = [pool.submit(send, body) for body in bodies]
        n_small = 0
        while n_small < 50 or not all(each.done() for each in running):
            assert small.ask("POST", "/v1/chat/completions", CHAT).status == 200
            n_small += 1
        assert [each.result().status for each in running] == [200] * len(bodies)
