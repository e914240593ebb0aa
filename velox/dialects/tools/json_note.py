"""Words for the system prompt that ask for an answer in JSON, for models whose API has no field for it.

Knows: the words. Does not know: which API or model needs them.
"""

from __future__ import annotations

from typing import Final

from velox.dialects.canonical.model import JsonText, JsonValue
from velox.dialects.json_text.text import quoted

__all__ = ["json_note"]

_JSON_ONLY: Final = "Answer with one JSON object and nothing else, no other text, no code fence."


def json_note(schema: JsonValue | None) -> JsonText:
    """Return the words. schema: of the answer; None: any JSON object."""
    if schema is None:
        return quoted(_JSON_ONLY)
    return quoted(f"{_JSON_ONLY} Its JSON schema is: {schema.decode('utf-8', 'replace')}")
