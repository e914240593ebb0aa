"""Claude by Bedrock's invoke: Messages in AWS's envelope, with the betas that AWS lists, in the body.

Sources: AWS's user guide, "Anthropic Claude Messages API" (request and response, tool use), and the issues named below.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Final

from tests.e2e.bedrock_frames import FRAMES, frames
from tests.vendors import claude
from tests.vendors.vendor import JSON, Reply, Vendor, VendorRequest

__all__ = ["PLACE", "VENDOR", "refuse", "validation"]

_PATH: Final = re.compile(r"/model/([^/]+)/(invoke|invoke-with-response-stream|count-tokens)")
_WITHOUT_EFFORT: Final = re.compile(r"claude-(?:3|sonnet-4-5|haiku-4-5)")  # anthropics/claude-code-action#1005
PLACE: Final = claude.Place(
    # The user guide's list; BerriAI/litellm#19877 checked it, #41203 the one of August 2026.
    betas=frozenset(
        {
            *("compact-2026-01-12", "computer-use-2024-10-22", "computer-use-2025-01-24", "computer-use-2025-11-24"),
            *("context-1m-2025-08-07", "context-management-2025-06-27", "dev-full-thinking-2025-05-14"),
            *("effort-2025-11-24", "fine-grained-tool-streaming-2025-05-14", "interleaved-thinking-2025-05-14"),
            *("output-128k-2025-02-19", "token-efficient-tools-2025-02-19", "tool-examples-2025-10-29"),
            *("tool-search-tool-2025-10-19", "thinking-binding-controls-2026-08-01"),
        }
    ),
    unknown_beta="invalid beta flag",  # anthropics/claude-code#49648, #56595
    tool_fields={
        # anthropics/claude-code#82549: "tools.11.custom.defer_loading: Extra inputs are not permitted" without it.
        "defer_loading": ("tool-search-tool-2025-10-19",),
        "input_examples": ("tool-examples-2025-10-29",),
        # `allowed_callers` needs code execution, which it has not. vercel/ai#17179: nor is `eager_input_streaming`
        # taken, with the beta or without it; the beta alone is.
    },
    strict=False,  # of Opus 4.8 (BerriAI/litellm#33193): some other versions take it
    urls=False,  # "Vision": only base64 on Amazon Bedrock
)


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    path = _PATH.fullmatch(request.path)
    if path is None:
        return validation("unknown operation", 404)
    body = request.json
    if path[2] == "count-tokens":
        given = body.get("input", {}).get("invokeModel", {}).get("body")
        if given is None:
            return validation("input: one of invokeModel, converse is required")
        body = {"max_tokens": 1, **json.loads(base64.b64decode(given))}
    if body.pop("anthropic_version", None) != "bedrock-2023-05-31":
        return validation("anthropic_version: Field required")
    for name in ("model", "stream"):
        if name in body:
            return validation(f"{name}: Extra inputs are not permitted")
    if _WITHOUT_EFFORT.search(path[1]) and "effort" in (body.get("output_config") or {}):
        return validation("output_config.effort: Extra inputs are not permitted")
    found = claude.problem(body, tuple(body.pop("anthropic_beta", ())), PLACE)
    return None if found is None else validation(found)


def validation(message: str, status: int = 400) -> Reply:
    """Return an error as AWS writes it."""
    return Reply(
        status, json.dumps({"message": message}).encode(), (*JSON, ("x-amzn-errortype", "ValidationException"))
    )


def _answer(request: VendorRequest) -> Reply:
    if request.path.endswith("/count-tokens"):
        return Reply(200, b'{"inputTokens":9}')
    if request.path.endswith("-stream"):
        return Reply(200, frames(claude.events()), FRAMES)
    return claude.answer(request)


VENDOR: Final = Vendor("bedrock", refuse, _answer)
