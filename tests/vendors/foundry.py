"""Claude at Microsoft Foundry: Anthropic's API, run by Anthropic, without what is on its own platform alone.

Sources: Anthropic's page "Claude in Microsoft Foundry", and the availability on the pages "Fast mode", "Advisor tool",
"Server-side fallback", "Cache diagnostics"; the table of features in maximhq/bifrost. Threads are modelled.
"""

from __future__ import annotations

from typing import Final

from tests.vendors import anthropic, claude
from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["PLACE", "VENDOR", "refuse"]

_NOT_THERE: Final = (
    *("fast-mode-", "advisor-tool-", "server-side-fallback-", "fallback-credit-", "cache-diagnosis-"),
    *("message-threads-", "user-profiles-billing-", "compact-2026-09-04", "mid-conversation-system-"),
)
PLACE: Final = anthropic.PLACE._replace(
    betas=frozenset(name for name in claude.BETAS if not name.startswith(_NOT_THERE)),
    own=False,
    fields=frozenset({"container", "inference_geo", "service_tier", "user_profile_id"}),
    # DotHarness/dotcraft#282: eager_input_streaming is for Anthropic's own surfaces.
    tool_fields={"defer_loading": (), "allowed_callers": (), "input_examples": ()},
    server_tools=("web_search_", "web_fetch_", "code_execution_", "mcp_toolset"),
    system_role=False,
    scope=False,
)


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    if request.path not in ("/anthropic/v1/messages", "/anthropic/v1/messages/count_tokens"):
        return claude.error("Not Found", 404, "not_found_error")
    if "anthropic-version" not in request.headers:
        return claude.error("anthropic-version: header is required")
    body = request.json
    if "model" not in body:
        return claude.error("model: Field required")
    found = claude.problem({"max_tokens": 1, **body}, claude.betas_of(request), PLACE)
    return None if found is None else claude.error(found)


VENDOR: Final = Vendor("foundry", refuse, claude.answer)
