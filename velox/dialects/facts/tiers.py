"""The tiers in which a request may be served, as OpenAI calls them and as others do.

Knows: names that say the same. Does not know: which of them a target takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["TIERS"]

# Groq's names -> OpenAI's; those of both are not here. Source: Groq's page "Service Tiers".
TIERS: Final[Mapping[str, str]] = MappingProxyType({"on_demand": "default", "performance": "priority"})
