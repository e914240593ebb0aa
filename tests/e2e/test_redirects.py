"""A provider that sends requests elsewhere gets nobody there: no key goes with them, and clients don't hear where.

Each way in which a key goes up, and each kind of request: a client's, a WebSocket's, a probe, a question for models.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.harness import RawReply, until
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.websocket_upstreams import HANDSHAKE

KEY = "sk-of-the-provider-0123456789"
VENDORS: dict[str, tuple[dict[str, Any], str, str]] = {
    "openai": ({"provider": "openai"}, "authorization", "/v1/chat/completions"),
    "anthropic": ({"provider": "anthropic"}, "x-api-key", "/v1/messages"),
    "azure": ({"provider": "azure", "resource": "r"}, "api-key", "/v1/chat/completions"),
    "gemini": ({"provider": "gemini"}, "x-goog-api-key", "/v1beta/models/m:generateContent"),
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_key_does_not_follow_a_redirect(vendor: str) -> None:
    """Nor does a client get the address, which may have the key in it."""
    entry, header, path = VENDORS[vendor]
    with RecordingUpstream() as elsewhere:

        async def moved(call: Call) -> None:
            assert KEY in (call.header(header) or ""), (call.target, call.headers)
            status = (301, 302, 303, 307, 308)[len(upstream.calls) % 5]
            where = f"{elsewhere.upstream.url}{call.target}?key={KEY}"
            await call.reply(status, [("location", where), ("refresh", f"0; url={where}")], f"see {where}".encode())

        with RecordingUpstream(script=moved) as upstream:
            origin = upstream.upstream.url
            more = {"probe": {"path": "/probe", "every": "100ms"}}
            config = {
                "upstreams": [{"name": "v", "origin": origin, "key": "env:VENDOR_KEY", **entry, **more}],
                "api_keys": [{"name": "a", "key": "vk-a"}],
            }
            with routed(config, VENDOR_KEY=KEY) as velox:
                body = b'{"model":"m","max_tokens":1,"messages":[],"contents":[]}'
                streamed = body.replace(b'"model"', b'"stream":true,"model"')
                asked = [("POST", path, body), ("POST", path, streamed), ("GET", "/v1/files/f-1", b"")]
                asked.append(("GET", "/v1/files/f-1/content", b""))
                own = {"authorization": "Bearer vk-a", "anthropic-version": "2023-06-01"}
                for each in asked:
                    reply = velox.request(*each, own)
                    assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_redirect"), each
                    _tells_nothing(reply, elsewhere)
                reply = velox.request("GET", "/v1/realtime?model=m", b"", {**HANDSHAKE, **own})
                assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_redirect")
                _tells_nothing(reply, elsewhere)
                _tells_nothing(velox.request("GET", "/v1/models", b"", own), elsewhere)
                until(lambda: any(call.target.endswith("/probe") for call in upstream.calls), "a probe")
                assert len(upstream.calls) >= len(asked) + 2
            assert upstream.failures == []
        assert elsewhere.calls == []


def _tells_nothing(reply: RawReply, elsewhere: RecordingUpstream) -> None:
    told = reply.head + reply.body
    assert KEY.encode() not in told
    assert elsewhere.upstream.url.encode() not in told
