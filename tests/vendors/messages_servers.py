"""Other vendors' and servers' Messages API, as strict as one can be that has the released fields alone: modelled.

DeepSeek says of many fields that it ignores them (its page "Anthropic API"), Z.ai and vLLM say little. A server that
refuses what it does not know takes what all of them take.
"""

from __future__ import annotations

from typing import Final

from tests.vendors import claude
from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["PLACE", "VENDORS", "refuse"]

PLACE: Final = claude.Place(betas=frozenset(), unknown_beta="", client_tools=False)
_WITH_FILES: Final = PLACE._replace(files=True)


def refuse(request: VendorRequest, place: claude.Place = PLACE) -> Reply | None:
    """Return its refusal; None: it answers. Betas are a header that it does not read."""
    if not request.path.endswith("/v1/messages"):
        return claude.error("Not Found", 404, "not_found_error")
    body = request.json
    if "model" not in body:
        return claude.error("model: Field required")
    found = claude.problem(body, (), place)
    return None if found is None else claude.error(found)


VENDORS: Final = (
    Vendor("deepseek", lambda request: refuse(request, _WITH_FILES), claude.answer),  # it has files of its own
    Vendor("zai", refuse, claude.answer),
)
