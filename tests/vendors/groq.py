"""Groq's transcriptions, as strict as they are with a form.

Sources: https://console.groq.com/docs/speech-to-text (models, formats) and https://console.groq.com/docs/errors (the
shape of a refusal).
"""

from __future__ import annotations

import json
from email.parser import BytesParser
from email.policy import HTTP
from typing import Final

from tests.vendors.vendor import JSON, Reply, Vendor, VendorRequest

__all__ = ["VENDOR", "fields_of", "refuse"]

_PATHS: Final = ("/v1/audio/transcriptions", "/v1/audio/translations")
_MODELS: Final = ("whisper-large-v3", "whisper-large-v3-turbo")
_FORMATS: Final = (b"json", b"text", b"verbose_json")
_SECONDS: Final = 3.1


def fields_of(request: VendorRequest) -> dict[str, bytes]:
    """Return the fields of a form, as the standard library's reader of mail finds them. Raises ValueError for two."""
    head = b"Content-Type: " + request.headers.get("content-type", "").encode("latin-1") + b"\r\n\r\n"
    found: dict[str, bytes] = {}
    for part in BytesParser(policy=HTTP).parsebytes(head + request.body).iter_parts():
        name = str(part.get_param("name", header="content-disposition"))
        if name in found:
            raise ValueError(name)
        payload = part.get_payload(decode=True)
        found[name] = payload if isinstance(payload, bytes) else b""
    return found


def refuse(request: VendorRequest) -> Reply | None:
    """Return Groq's refusal of a transcription, or None: it would answer."""
    if request.path not in _PATHS:
        return _refusal(404, f"Unknown request URL: {request.method} {request.path}", "unknown_url")
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return _refusal(400, "request Content-Type isn't multipart/form-data", "invalid_request")
    fields = fields_of(request)
    if "file" not in fields:
        return _refusal(400, "one of file or url must be provided", "invalid_request")
    model = fields.get("model", b"").decode()
    if not model:
        return _refusal(400, "model is required", "invalid_request")
    if model not in _MODELS:
        text = f"The model `{model}` does not exist or you do not have access to it."
        return _refusal(404, text, "model_not_found")
    if fields.get("response_format", b"json") not in _FORMATS:
        return _refusal(400, "response_format must be one of `[json text verbose_json]`", "invalid_request")
    return None


def _refusal(status: int, message: str, code: str) -> Reply:
    told = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return Reply(status, json.dumps(told).encode())


def _answer(request: VendorRequest) -> Reply:
    told: dict[str, object] = {"text": "Hello", "x_groq": {"id": "req_1"}}
    if fields_of(request).get("response_format") == b"verbose_json":
        told |= {"task": "transcribe", "language": "english", "duration": _SECONDS, "segments": []}
    return Reply(200, json.dumps(told).encode(), JSON)


VENDOR: Final = Vendor("groq", refuse, _answer)
