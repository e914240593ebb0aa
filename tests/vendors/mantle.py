"""Claude at Bedrock's Mantle: Anthropic's API, run by AWS.

Sources: AWS's user guide, "Inference using Anthropic Messages API"; Anthropic's page "Claude in Amazon Bedrock"; the
list of betas by provider in BerriAI/litellm. Its words for a refusal are modelled on Anthropic's.
"""

from __future__ import annotations

from typing import Final

from tests.vendors import bedrock, claude
from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["PLACE", "VENDOR", "refuse"]

PLACE: Final = claude.Place(
    betas=bedrock.PLACE.betas
    | {
        *("claude-code-20250219", "dangerous-tool-use-2026-09-03", "per-turn-control-2026-07-01"),
        *("structured-outputs-2025-11-13", "thinking-display-updates-2026-08-18", "web-search-2025-03-05"),
    },
    unknown_beta="Unexpected value(s) `{}` for the `anthropic-beta` header.",
    tool_fields=bedrock.PLACE.tool_fields,
    server_tools=("web_search_20250305",),
    fields=frozenset({"inference_geo", "service_tier"}),
    urls=False,  # "Vision": only base64 on Amazon Bedrock
)


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    return claude.refuse_below("/anthropic", request, PLACE)


VENDOR: Final = Vendor("bedrock-mantle", refuse, claude.answer)
