"""Reasoning that only its maker can read: who refuses it, and in which words.

    OpenAI, Azure   encrypted reasoning of another organisation or resource: 400 `invalid_encrypted_content`
                    (openai/codex#8145, BerriAI/litellm#27702)
    Anthropic       a signature that it has not made (zed-industries and others quote "Invalid `signature` in
                    `thinking` block"); also on Bedrock and Vertex, which take each other's

Knows: these two rules. Does not know: other fields.
"""

from __future__ import annotations

import json
from typing import Any

from tests.vendors.vendor import Reply, VendorRequest

__all__ = ["refuse_encrypted", "refuse_signature"]


def refuse_encrypted(request: VendorRequest, maker: str) -> Reply | None:
    """Refuse a request for a response with encrypted reasoning that does not begin with its maker's name."""
    items: Any = request.json.get("input")
    for item in items if isinstance(items, list) else []:
        sealed = item.get("encrypted_content") if isinstance(item, dict) else None
        if sealed and not str(sealed).startswith(maker):
            message = f"The encrypted content for item {item.get('id')} could not be verified."
            error = {"message": message, "type": "invalid_request_error", "param": None}
            return Reply(400, json.dumps({"error": {**error, "code": "invalid_encrypted_content"}}).encode())
    return None


def refuse_signature(request: VendorRequest, maker: str) -> Reply | None:
    """Refuse a message with a signature that does not begin with its maker's name."""
    for n, message in enumerate(request.json["messages"]):
        content = message["content"]
        for at, block in enumerate(content if isinstance(content, list) else []):
            if block.get("type") == "thinking" and not str(block.get("signature")).startswith(maker):
                text = f"messages.{n}.content.{at}: Invalid `signature` in `thinking` block"
                error = {"type": "invalid_request_error", "message": text}
                return Reply(400, json.dumps({"type": "error", "error": error}).encode())
    return None
