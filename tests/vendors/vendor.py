"""What the strict fakes of vendors share: a request as it came up, a reply, and the server that plays a vendor.

One module per vendor has its rules as pure functions. Each rule names its source: a page of the vendor, or a public
issue as "owner/repo#123"; "modelled" where it is strict by analogy only.

    refused = bedrock.refuse(request)             # the vendor's own refusal, or None: it would answer
    with RecordingUpstream(script=playing(bedrock.VENDOR)) as upstream:
        ...

Knows: what all vendors have. Does not know: Velox, or any vendor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tests.e2e.recorded_call import Call
from tests.e2e.recording import Script

__all__ = ["JSON", "SSE", "Fields", "Reply", "Vendor", "VendorRequest", "as_request", "playing"]

Fields = tuple[tuple[str, str], ...]
JSON: Final[Fields] = (("content-type", "application/json"),)
SSE: Final[Fields] = (("content-type", "text/event-stream"),)


class VendorRequest(NamedTuple):
    """A request as a vendor sees it. path: without its query. headers: names in lower case; several are joined."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    query: str = ""

    @property
    def json(self) -> Any:
        """Return the body, read. Raises ValueError."""
        return json.loads(self.body)


class Reply(NamedTuple):
    """What a vendor answers."""

    status: int
    body: bytes
    fields: Fields = JSON


class Vendor(NamedTuple):
    """One vendor. row: the name of its provider in Velox. refuse: None where it answers. answer: to what it takes."""

    row: str
    refuse: Callable[[VendorRequest], Reply | None]
    answer: Callable[[VendorRequest], Reply]


def as_request(method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> VendorRequest:
    """Return a request from its parts on the wire."""
    path, _, query = target.partition("?")
    joined: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return VendorRequest(method, path, body, joined, query)


def playing(vendor: Vendor) -> Script:
    """Return the script of a server that is as strict as the vendor."""

    async def play(call: Call) -> None:
        request = as_request(call.method, call.target, call.headers, call.body)
        reply = vendor.refuse(request) or vendor.answer(request)
        await call.reply(reply.status, reply.fields, reply.body)

    return play
