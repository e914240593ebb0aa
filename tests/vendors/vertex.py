"""Claude at Google's Vertex AI: Messages whose path names the model.

Sources: Anthropic's page "Claude on Vertex AI", Google's "Use Claude models", and the issues named below.
"""

from __future__ import annotations

import re
from typing import Final

from tests.vendors import claude
from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["PLACE", "VENDOR", "refuse"]

_PATH: Final = re.compile(r"/v1/projects/[^/]+/locations/[^/]+/publishers/anthropic/models/([^/:]+):(\w+)")
PLACE: Final = claude.Place(
    # BerriAI/litellm keeps a list that its users report against (litellm#21680, #27532, #41203).
    betas=frozenset(
        {
            *("compact-2026-01-12", "compact-2026-09-04", "computer-use-2025-01-24", "computer-use-2025-11-24"),
            *("context-1m-2025-08-07", "context-management-2025-06-27", "interleaved-thinking-2025-05-14"),
            *("per-turn-control-2026-07-01", "thinking-binding-controls-2026-08-01"),
            *("thinking-display-updates-2026-08-18", "tool-search-tool-2025-10-19", "web-search-2025-03-05"),
        }
    ),
    unknown_beta="Unexpected value(s) `{}` for the `anthropic-beta` header. Please consult our documentation at "
    "docs.anthropic.com or try again without the header.",
    tool_fields={"defer_loading": ("tool-search-tool-2025-10-19",)},
    server_tools=("web_search_20250305",),  # "Web search tool": the basic one, without dynamic filtering
    strict=False,  # mindroom-ai/mindroom#782
    urls=False,  # "Vision": only base64 on Google Cloud
    # `cache_control` at the top: "Extra inputs are not permitted" (vercel/ai#13986, langchain-google#1612).
)


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    path = _PATH.fullmatch(request.path)
    if path is None or path[2] not in ("rawPredict", "streamRawPredict"):
        return claude.error("Not Found", 404, "not_found_error")
    body = request.json
    is_count = path[1] == "count-tokens"
    if body.pop("anthropic_version", None) != "vertex-2023-10-16":
        return claude.error("anthropic_version: Field required")
    if is_count != ("model" in body):
        return claude.error("model: Field required" if is_count else "model: Extra inputs are not permitted")
    betas = claude.betas_of(request)
    if is_count:
        body = {"max_tokens": 1, **body}
    found = claude.problem(body, betas, PLACE)
    return None if found is None else claude.error(found)


VENDOR: Final = Vendor("vertex", refuse, claude.answer)
