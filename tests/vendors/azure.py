"""Azure OpenAI and Foundry: OpenAI's models, and which version of the API a path may ask for.

Sources: Microsoft's page on the lifecycle of the API's versions (v1 takes no dated `api-version`, paths of deployments
need one), and zendev-sh/goai#54 for the words of both refusals.
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import parse_qs

from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["AZURE", "FOUNDRY"]

_V1: Final = re.compile(r"/openai/v1/(chat/completions|responses|embeddings)")
_DATED: Final = re.compile(r"/openai/(deployments/[^/]+/(chat/completions|embeddings)|responses)")
_DATE: Final = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}(-preview)?")
_CHAT: Final = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
_TEXT: Final = {"type": "output_text", "text": "Hello.", "annotations": []}
_RESPONSE: Final = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-4o",
    "status": "completed",
    "output": [{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [_TEXT]}],
    "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
}
_VECTORS: Final = {
    "object": "list",
    "model": "e",
    "data": [{"object": "embedding", "index": 0, "embedding": [1.0]}],
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}


def _error(message: str, status: int = 400, code: str = "BadRequest") -> Reply:
    return Reply(status, json.dumps({"error": {"code": code, "message": message}}).encode())


def _refuse_azure(request: VendorRequest) -> Reply | None:
    versions = parse_qs(request.query).get("api-version", [])
    if _V1.fullmatch(request.path):
        fits = all(version in ("v1", "preview", "latest") for version in versions)
        return None if fits else _error("API version not supported")
    if _DATED.fullmatch(request.path):
        fits = len(versions) == 1 and bool(_DATE.fullmatch(versions[0]))
        return None if fits else _error("Missing required query parameter: api-version", 404, "404")
    return _error("Resource not found", 404, "404")


def _refuse_foundry(request: VendorRequest) -> Reply | None:
    if not _V1.fullmatch(request.path):
        return _error("Resource not found", 404, "404")
    if "api-version" in parse_qs(request.query, keep_blank_values=True):
        return _error("api-version query parameter is not allowed when using /v1 path")
    return None


def _answer(request: VendorRequest) -> Reply:
    ends = {"chat/completions": _CHAT, "responses": _RESPONSE, "embeddings": _VECTORS}
    return Reply(200, json.dumps(next(answer for end, answer in ends.items() if request.path.endswith(end))).encode())


AZURE: Final = Vendor("azure", _refuse_azure, _answer)
FOUNDRY: Final = Vendor("foundry", _refuse_foundry, _answer)
