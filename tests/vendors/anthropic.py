"""Anthropic's own API, as strict as it is: https://platform.claude.com/docs/en/api/messages."""

from __future__ import annotations

from typing import Final

from tests.vendors import claude
from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["PLACE", "VENDOR", "refuse"]

PLACE: Final = claude.Place(
    betas=claude.BETAS,
    # anthropics/claude-code#13770 and others quote it.
    unknown_beta="Unexpected value(s) `{}` for the `anthropic-beta` header. Please consult our documentation at "
    "docs.anthropic.com or try again without the header.",
    own=True,
    # "Tool search", "Programmatic tool calling", "Fine-grained tool streaming": all released there.
    tool_fields={
        "defer_loading": (),
        "allowed_callers": (),
        "input_examples": (),
        "eager_input_streaming": (),
    },
    server_tools=("web_search_", "web_fetch_", "code_execution_", "advisor_", "mcp_toolset"),
    system_role=True,
    scope=True,
)


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    if request.path not in ("/v1/messages", "/v1/messages/count_tokens"):
        return claude.error("Not Found", 404, "not_found_error")
    if "anthropic-version" not in request.headers:
        return claude.error("anthropic-version: header is required")
    if "x-api-key" not in request.headers and "authorization" not in request.headers:
        return claude.error("x-api-key header is required", 401, "authentication_error")
    body = request.json
    if "model" not in body:
        return claude.error("model: Field required")
    if request.path.endswith("count_tokens"):
        body = {"max_tokens": 1, **body}
    found = claude.problem(body, claude.betas_of(request), PLACE)
    return None if found is None else claude.error(found)


VENDOR: Final = Vendor("anthropic", refuse, claude.answer)
