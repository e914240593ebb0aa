"""What an upstream's error says, where its status does not tell: that it does not have the model.

Knows: the bodies that providers and servers send with a 404. Does not know: which upstream it was, or what follows.

    OpenAI, Groq    {"error": {"code": "model_not_found", "message": "The model `x` does not exist ..."}}
    Azure           {"error": {"code": "DeploymentNotFound", "message": "The API deployment ... does not exist ..."}}
    Anthropic       {"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}
    vLLM            {"object": "error", "type": "NotFoundError", "message": "The model `x` does not exist."}
    Ollama          {"error": {"message": "model 'x' not found, try pulling it first"}}, or {"error": "model ..."}
    Gemini          [{"error": {"code": 404, "message": "models/x is not found for API version ..."}}]
"""

from __future__ import annotations

import re
import zlib
from typing import Final

import orjson

from velox.types import Headers

__all__ = ["ERROR_BYTES", "names_no_model", "plain_body"]

# Errors are short: a longer body is none of these.
ERROR_BYTES: Final = 64 * 1024
_CODES: Final = frozenset({"model_not_found", "unknown_model", "model_not_available", "deploymentnotfound"})
_MODEL: Final = re.compile(r"\bmodels?\b|\bdeployments?\b", re.IGNORECASE)
_MISSING: Final = re.compile(
    r"\bnot (?:be )?(?:found|exist|available|deployed|served)\b|n't exist\b|\bno such\b|\bunknown\b", re.IGNORECASE
)
_ANTHROPIC: Final = re.compile(r"model: \S+")
# gzip and zlib alike.
_INFLATED: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
_ANY_WRAPPER: Final = 32 + zlib.MAX_WBITS


def plain_body(headers: Headers, body: bytes) -> bytes:
    """Return the body of an error as it was before it was compressed; empty if that can't be known."""
    codings = {value.strip().lower() for name, value in headers if name == b"content-encoding"} - {b"identity", b""}
    if not codings:
        return body
    if not codings <= _INFLATED:
        return b""
    try:
        return zlib.decompressobj(_ANY_WRAPPER).decompress(body, ERROR_BYTES)
    except zlib.error:
        return b""


def names_no_model(body: bytes) -> bool:
    """Return True if the body of a 404 says that the server does not have the model it was asked for."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return False
    error = document.get("error", document)
    if isinstance(error, str):
        return _says_so(error)
    if not isinstance(error, dict):
        return False
    code, message = error.get("code"), error.get("message")
    if isinstance(code, str) and code.lower() in _CODES:
        return True
    return isinstance(message, str) and _says_so(message)


def _says_so(message: str) -> bool:
    if _ANTHROPIC.fullmatch(message):
        return True
    return _MODEL.search(message) is not None and _MISSING.search(message) is not None
