"""What an upstream's error says, where its status does not tell: it does not have the model, or refuses the request.

Knows: the bodies that providers and servers send. Does not know: which upstream it was, or what follows.

A request is refused because it is too long for the model, or by the provider's filter: another model could answer it. A
filter that stops an answer under way is a finish reason inside a 200, and no error.

    OpenAI, Groq    {"error": {"code": "model_not_found", "message": "The model `x` does not exist ..."}}
    Azure           {"error": {"code": "DeploymentNotFound", "message": "The API deployment ... does not exist ..."}}
    Anthropic       {"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}
    vLLM            {"object": "error", "type": "NotFoundError", "message": "The model `x` does not exist."}
    Ollama          {"error": {"message": "model 'x' not found, try pulling it first"}}, or {"error": "model ..."}
    Gemini          [{"error": {"code": 404, "message": "models/x is not found for API version ..."}}]
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from velox.heads import Headers
from velox.outcomes import Refusal
from velox.protocol.reply_body import CodingError, plain_reply

__all__ = [
    "ERROR_BYTES",
    "READ_STATUSES",
    "REFUSING",
    "is_too_long",
    "lacks_field",
    "names_no_model",
    "plain_body",
    "refusal_of",
    "refuses_reasoning",
]

# Errors are short: a longer body is none of these.
ERROR_BYTES: Final = 64 * 1024
_CODES: Final = frozenset({"model_not_found", "unknown_model", "model_not_available", "deploymentnotfound"})
_MODEL: Final = re.compile(r"\bmodels?\b|\bdeployments?\b", re.IGNORECASE)
_MISSING: Final = re.compile(
    r"\bnot (?:be )?(?:found|exist|available|deployed|served)\b|n't exist\b|\bno such\b|\bunknown\b", re.IGNORECASE
)
_ANTHROPIC: Final = re.compile(r"model: \S+")
# The statuses with which a request is refused.
REFUSING: Final = frozenset({400, 413, 422})
# Those whose error tells by what it says whether another upstream is asked.
READ_STATUSES: Final = REFUSING | {404}
# Of the error's `code` or `type`, or of Azure's inner error.
_REFUSALS: Final = {
    "context_length_exceeded": Refusal.CONTEXT_LENGTH,
    "exceed_context_size_error": Refusal.CONTEXT_LENGTH,  # llama.cpp
    "content_filter": Refusal.CONTENT_FILTER,  # Azure
    "content_policy_violation": Refusal.CONTENT_FILTER,
    "moderation_blocked": Refusal.CONTENT_FILTER,
    "ResponsibleAIPolicyViolation": Refusal.CONTENT_FILTER,
}
# Many have no code for it: vLLM, SGLang, TGI, Mistral, Anthropic, Bedrock, Gemini, xAI, Cohere, Z.ai, LM Studio.
_TOO_LONG: Final = re.compile(
    r"maximum context length|context length of only|longer than the model's context|model's context length"
    r"|prompt is too long|input is too long|max_new_tokens` must be <="
    r"|maximum model length|maximum prompt length|too many tokens: |prompt exceeds max"
    r"|exceeds? the (?:model's )?(?:maximum|available) (?:number of tokens|context)",
    re.IGNORECASE,
)
# Reasoning of an earlier answer that was made elsewhere, or for another organisation. OpenAI and Azure
# (openai/codex#8145), Anthropic and Claude on clouds, Gemini (google-gemini/gemini-cli#13467, decolua/9router#301).
_FOREIGN: Final = re.compile(
    r"invalid `?(?:signature|data)`? in `?(?:redacted_)?thinking|(?:corrupted|invalid) thought signature"
    r"|thought signature is not valid",
    re.IGNORECASE,
)
_SEALED: Final = ("encrypted content", "could not be verified")
_FOREIGN_CODE: Final = "invalid_encrypted_content"
# A field, a tool or a type that the server does not know: of Python's and Rust's parsers, OpenAI, Google.
_LACKING: Final = re.compile(
    r"extra inputs are not permitted|extra fields not permitted|\bunknown (?:variant|field|parameter|tool type|name)\b"
    r"|unrecognized request argument|unsupported (?:parameter|tool|tool type|field|value)\b"
    r"|does not match any of the expected tags|(?:tool|item|content|input) types? .{0,80}\bnot supported\b",
    re.IGNORECASE,
)


def plain_body(headers: Headers, body: bytes) -> bytes:
    """Return the body of an error as it was before it was compressed; empty if that can't be known."""
    try:
        _, text = plain_reply(headers, body)
    except CodingError:
        return b""
    return body if text is body else text[:ERROR_BYTES]


def names_no_model(body: bytes) -> bool:
    """Return True if the body of a 404 says that the server does not have the model it was asked for."""
    error = _error_of(body)
    return _text(error, "code").lower() in _CODES or _says_so(_text(error, "message"))


def refusal_of(body: bytes) -> Refusal | None:
    """Return why an error with one of REFUSING refuses the request; None if it is for none of these reasons."""
    error = _error_of(body)
    inner = error.get("innererror")
    for holder in (error, inner if isinstance(inner, dict) else {}):
        for name in ("code", "type"):
            found = _REFUSALS.get(_text(holder, name))
            if found is not None:
                return found
    said = _text(error, "message") or _text(error, "detail")  # FastAPI's servers
    return Refusal.CONTEXT_LENGTH if is_too_long(said) else None


def refuses_reasoning(body: bytes) -> bool:
    """Return True if an error is about reasoning in the request that the server has not made, or can't read."""
    error = _error_of(body)
    said = _text(error, "message")
    if _text(error, "code") == _FOREIGN_CODE or _FOREIGN.search(said) is not None:
        return True
    return all(each in said.lower() for each in _SEALED)


def lacks_field(body: bytes) -> bool:
    """Return True if an error is about a field, a tool or a type that the server does not know."""
    error = _error_of(body)
    detail = error.get("detail")  # of FastAPI's servers a text, or a list of objects
    said = _text(error, "message") or (detail if isinstance(detail, str) else str(detail or ""))
    return _LACKING.search(said) is not None


def is_too_long(message: str) -> bool:
    """Say whether an error's message tells that the request has more tokens than the model takes."""
    return _TOO_LONG.search(message) is not None


def _error_of(body: bytes) -> dict[str, Any]:
    """Return the fields of an error; none if it can't be read."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if isinstance(document, list) and document:
        document = document[0]
    error = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def _text(holder: dict[str, Any], name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def _says_so(message: str) -> bool:
    if _ANTHROPIC.fullmatch(message):
        return True
    return _MODEL.search(message) is not None and _MISSING.search(message) is not None
