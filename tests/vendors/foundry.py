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
    return claude.refuse_below("/anthropic", request, PLACE)


VENDOR: Final = Vendor("foundry", refuse, claude.answer)
