"""The list of what is fuzzed.

Knows: where each target's check is, its largest input, and words that its inputs are made of. Does not know: engines.
A target is a function of bytes that returns if all is well. Modules are named and not imported here: an engine
that instruments what it measures must be there before them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CORPUS", "TARGETS", "Target"]

CORPUS: Final = Path(__file__).parent / "corpus"

_HTTP1 = (
    "HTTP/1.1", "HTTP/1.0", "\r\n", "\r\n\r\n", "\n", "GET ", "POST ", "Host: a", "Content-Length: ", "chunked",
    "Transfer-Encoding: ", "Connection: ", "close", "keep-alive", "Expect: 100-continue", "Upgrade: ",
    "Authorization: Bearer ", "x-api-key: ", "X-Forwarded-For: ", "X-Velox-", "x-request-id: ",
    "x-request-timeout-ms: ", "content-encoding: ", "application/json", "%2e", "%00", "/../", "//", ";", "?", "\t",
    "0\r\n\r\n", "Trailer: ", "TE: ",
)  # fmt: skip
_CHUNKS = ("\r\n", "\n", "0\r\n\r\n", "5\r\nhello\r\n", ";a=b", ';a="b"', "a: b", "\t", " ", "\\", "f", "0x", "+")
# kind, flags, stream, length; and how a request is written.
_FRAMES = (
    "\x01\x05\x01", "\x01\x04\x03", "\x00\x01\x01", "\x00\x00\x03", "\x00\x08\x01", "\x03\x00\x01\x04",
    "\x04\x00\x00\x06", "\x06\x00\x00\x08", "\x08\x00\x00\x04", "\x09\x04\x01", "\x82\x86\x41\x01a\x84",
    "\x83\x86\x41\x01a\x44\x03/v1", "\x0f\x0d\x011", "\x40\x01x\x01y",
)  # fmt: skip
_EVENTS = (
    "data: ", "data:", "\n\n", "\r\n\r\n", "\r\r", ":", "event: error", '{"error": {', '{"type":"error"',
    '{"object":"error"', '"response.failed"', '{"id"', "[DONE]", ": ping\n\n",
)  # fmt: skip
_USAGE = (
    "data: ", "data:", "\n\n", "\r\n\r\n", "\r", ": ping\n\n", '"usage"', '"usage":null', '"usage": {', '"choices":[]',
    '"choices":[{', '"prompt_tokens":', '"completion_tokens":', '"total_tokens":', '"input_tokens":',
    '"output_tokens":', "{", "}", "[", "]", '"', ",", ":", "\\", "null", "12", "[DONE]",
)  # fmt: skip
_JSON = (
    '"model":', '"stream":', '"user":', '"max_tokens":', '"max_completion_tokens":', '"max_output_tokens":', "true",
    "null", "\\u006d", "\\ud800", "1e400", "NaN", "-0", "{", "}", "[", "]", '"', ",", "\x01", "\x02", "\x03", "\x04",
    "\xef\xbb\xbf", '"mod\\u0065l":', '\\"model":', '"n":', '"best_of":', '"stream_options":', '"include_usage":true',
)  # fmt: skip
_SETTINGS = (
    "LISTEN=", "API_KEYS=", "WORKERS=", "UPSTREAM_ORIGIN=", "PATHS=", "RETRIES=", "RETRY_STATUSES=", "unix:/",
    "127.0.0.1:", "[::1]:", "https://", "500ms", "64MiB", "off", "\n---\n", "api_keys: ", "- name: ", "  key: ",
    "sha256:", "\x01", "upstreams: ", "routes: ", "env:FUZZ_KEY", "  to: ", "  match: {models: ", "*", "&a ", "*a",
)  # fmt: skip
_TEXTS = (
    "\x00", "\n", "\x1b[31m", "\x7f", "\xe2\x80\xa8", "\xe2\x80\xae", "\xed\xa0\x80", '"', "\\", "\xf0\x9f\x8c\x8d",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One thing that is fuzzed. check: "module:function" in this package. words: what inputs are made of."""

    name: str
    check: str
    max_bytes: int
    words: tuple[str, ...] = ()
    corpora: Path = CORPUS

    @property
    def corpus(self) -> Path:
        """The folder of inputs that are kept with the code."""
        return self.corpora / self.name

    def load(self) -> Callable[[bytes], None]:
        """Import the check."""
        module, _, function = self.check.partition(":")
        check: Callable[[bytes], None] = getattr(importlib.import_module(f"tests.fuzz.{module}"), function)
        return check


_ALL = (
    Target("head", "target_head:run", 3000, _HTTP1),
    Target("planned-head", "target_planned_head:run", 1000, (*_HTTP1, "HTTP/1.1 200 OK", "set-cookie: ", "date: ")),
    Target("chunked", "target_bodies:run_chunked", 1500, _CHUNKS),
    Target(
        "response", "target_bodies:run_response", 2000, (*_HTTP1, "HTTP/1.1 200 OK\r\n", " 103 \r\n", " 204 ", "304")
    ),
    Target("http2", "target_http2:run", 800, _FRAMES),
    Target("sse", "target_sse:run", 1500, _EVENTS),
    Target("usage", "target_usage:run", 1500, _USAGE),
    Target(
        "websocket",
        "target_websocket:run",
        1500,
        ("\x81\x05hello", "\x88\x02\x03\xe8", "\x88\x82", "\x82\x7e\x01\x00", "\x7f"),
    ),
    Target("json", "target_json:run", 3000, _JSON),
    Target("settings", "target_settings:run", 1500, _SETTINGS),
    Target("error-body", "target_texts:run_error_body", 600, ("\x01", "\x02", "sk-aab-", "aabaab", "-aab")),
    Target("access-log", "target_texts:run_access_log", 2500, _TEXTS),
)
TARGETS: Final = {target.name: target for target in _ALL}
