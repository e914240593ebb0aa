"""An account at a vendor that keeps objects: a strict fake with a state, made from the paths of the vendor's own SDK.

What its SDK can ask, it knows; anything else is the vendor's own 404. An object that was not made, or was deleted, is
404, too. It wants its own key with each request, and fails a test that sends it a key of the gateway's clients.

Knows: how OpenAI, Anthropic and Google answer about objects: ids, lists, errors, resumable uploads, addresses. Does not
know: Velox.

    account = VendorAccount("google")
    with RecordingUpstream(script=account.script) as upstream:
        account.origin = upstream.upstream.url
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from tests.e2e.recorded_call import Call
from tests.sdk_paths import anthropic_paths, google_paths, openai_paths

__all__ = ["CLIENT_KEYS", "PROVIDER_KEY", "VENDORS", "VendorAccount"]

PROVIDER_KEY: Final = "provider-secret-key"
CLIENT_KEYS: Final = "vk-"  # how the keys of the gateway's clients begin in these tests
VENDORS: Final = {"openai": "openai", "anthropic": "anthropic", "google": "gemini"}  # and the names of their rows
_JSON: Final = ("content-type", "application/json")
_PLACE: Final = re.compile(r"\{[^}]*\}|abc-123")
# How ids begin, where that is not the last word of the collection.
_PREFIXES: Final = {
    "/v1/files": "file-",
    "/v1/responses": "resp_",
    "/v1/batches": "batch_",
    "/v1/messages/batches": "msgbatch_",
    "/v1/fine_tuning/jobs": "ftjob-",
    "/v1/vector_stores": "vs_",
    "/v1/assistants": "asst_",
    "/v1/threads": "thread_",
    "/v1/conversations": "conv_",
    "/v1/containers": "cntr_",
    "/v1/evals": "eval_",
    "/v1/videos": "video_",
    "/v1/uploads": "upload_",
    "/v1/chat/completions": "chatcmpl-",
    "/v1/skills": "skill_",
    "/v1/realtime/calls": "rtc_",
    "/v1/sessions": "sesn_",
    "/v1/memory_stores": "memstore_",
}
# What is asked of a model of Google's and makes an object elsewhere.
_MAKING: Final = {
    "batchGenerateContent": "/v1beta/batches",
    "asyncBatchEmbedContent": "/v1beta/batches",
    "predictLongRunning": "/v1beta/models/veo-x/operations",
}
# Of these Google tells ids under `id`, of others under `name`.
_WITH_IDS: Final = ("interactions", "agents", "environments", "triggers", "voices", "webhooks", "credentials")


class VendorAccount:
    """One account. objects: by the path of their collection, then by id. origin: of the server that plays it."""

    def __init__(self, vendor: str) -> None:
        self.vendor: Final = vendor
        self.origin = ""
        self.objects: Final[dict[str, dict[str, dict[str, object]]]] = {}
        self.uploads: Final[dict[str, bytearray]] = {}
        self.keyless: list[str] = []  # paths that were asked without the provider's key
        self._n = 0
        paths = {"openai": openai_paths, "anthropic": anthropic_paths, "google": google_paths}[vendor]()
        self.paths: Final = sorted(path if path.startswith(("/v1", "/upload/")) else f"/v1{path}" for path in paths)
        # Of each path with an id in it, what stands before the first one. Each can be listed, and its objects read.
        self.collections: Final = sorted({root_of(path) for path in self.paths if _PLACE.search(path)})
        known = [*self.paths, *self.collections, *(f"{each}/{{id}}" for each in self.collections)]
        self._patterns: Final = [re.compile(_pattern(path)) for path in known]

    async def script(self, call: Call) -> None:
        """Answer as the vendor does."""
        status, headers, body = self._answer(call)
        await call.reply(status, headers, body)

    def made(self, collection: str) -> dict[str, dict[str, object]]:
        """Return the objects of a collection by their ids."""
        return self.objects.setdefault(collection, {})

    # -- inside ---------------------------------------------------------------------------------------

    def _answer(self, call: Call) -> tuple[int, list[tuple[str, str]], bytes]:
        assert not any(CLIENT_KEYS in value for _, value in call.headers), "a client's key came to the vendor"
        path, _, query_text = call.target.partition("?")
        if self.vendor == "google":  # it has both versions; its SDK asks for files by the first
            path = re.sub(r"^(/upload)?/v1/", r"\1/v1beta/", path)
        query = dict(parse_qsl(query_text))
        if "upload_id" in query:
            return self._chunk(call, query["upload_id"])
        if not any(PROVIDER_KEY in value for _, value in call.headers):
            self.keyless.append(call.target)
            return self._json(self._error(401), 401)
        if call.header("x-goog-upload-command") == "start":
            return self._begin_upload(path)
        verb = path.rpartition(":")[2]
        if call.method == "POST" and verb in _MAKING and "/models/" in path:
            return self._json(self._make(_MAKING[verb]))
        if not any(pattern.fullmatch(path) for pattern in self._patterns):
            return self._json(self._error(404), 404)
        path = path.removeprefix("/upload")
        roots = (each for each in self.collections if path == each or path.startswith(each + "/"))
        root = max(roots, key=len, default="")
        if not root:
            return self._json({"id": "x", "model": "m", "object": "x", "usage": {}})
        if path == root:
            if call.method == "POST":
                made = self._make(root)
                if root == "/v1/realtime/calls":
                    return 201, [("content-type", "application/sdp"), ("location", f"{root}/{made['id']}")], b"v=0\r\n"
                return self._json(made)
            return self._json(self._list(root, query))
        object_id, _, rest = path[len(root) + 1 :].partition("/")
        object_id = object_id.partition(":")[0]
        if object_id not in self.made(root):
            is_word = any(each == path for each in self.paths)  # as /responses/compact
            return self._json({"id": f"made-{self._n}"}) if is_word else self._json(self._error(404), 404)
        if path.endswith("/results"):
            line = {"custom_id": "a", "result": {"type": "succeeded", "message": {"content": []}}}
            return 200, [("content-type", "application/x-jsonl")], json.dumps(line).encode() + b"\n"
        if path.endswith(("/content", ":download")):
            return 200, [("content-type", "application/octet-stream")], b"the content"
        found = self.made(root)[object_id]
        if call.method == "DELETE" and not rest:
            del self.made(root)[object_id]
        return self._json(found)

    def _make(self, root: str) -> dict[str, object]:
        self._n += 1
        word = root.rpartition("/")[2]
        if self.vendor == "google":
            object_id = f"g{self._n:05d}x"
            full = f"{root.removeprefix('/upload').removeprefix('/v1beta/')}/{object_id}"
            made: dict[str, object] = {"id": object_id} if word in _WITH_IDS else {"name": full}
            made["uri"] = f"{self.origin}/v1beta/{full}"
        else:
            object_id = f"{_PREFIXES.get(root, f'{word}_')}{self._n:05d}"
            made = {"id": object_id, "object": word, "type": word, "created_at": "2026-01-01T00:00:00Z"}
        if root == "/v1/messages/batches":
            made["processing_status"] = "ended"
            made["results_url"] = f"{self.origin}{root}/{object_id}/results"
        self.made(root)[object_id] = made
        return made

    def _list(self, root: str, query: Mapping[str, str]) -> dict[str, object]:
        items = list(self.made(root).values())
        if self.vendor == "google":
            begin, size = int(query.get("pageToken") or 0), int(query.get("pageSize") or 1000)
            field = "operations" if root == "/v1beta/batches" else root.rpartition("/")[2]
            more = {"nextPageToken": str(begin + size)} if begin + size < len(items) else {}
            return {field: items[begin : begin + size], **more} if items else {}
        if self.vendor == "anthropic":
            return {"data": items, "has_more": False, "first_id": None, "last_id": None, "next_page": None}
        return {"object": "list", "data": items, "has_more": False}

    def _begin_upload(self, path: str) -> tuple[int, list[tuple[str, str]], bytes]:
        upload_id = f"AB-{len(self.uploads)}"
        self.uploads[upload_id] = bytearray()
        url = f"{self.origin}{path}?upload_id={upload_id}&upload_protocol=resumable"
        return 200, [_JSON, ("x-goog-upload-url", url), ("x-goog-upload-control-url", url), _active("active")], b"{}"

    def _chunk(self, call: Call, upload_id: str) -> tuple[int, list[tuple[str, str]], bytes]:
        content = self.uploads.get(upload_id)
        if content is None:
            return self._json(self._error(404), 404)
        assert int(call.header("x-goog-upload-offset") or 0) == len(content), "pieces come in their order"
        content += call.body
        if "finalize" not in (call.header("x-goog-upload-command") or ""):
            return 200, [_JSON, _active("active")], b""
        path = call.target.partition("?")[0]
        if path.endswith(":uploadToFileSearchStore"):
            store = path.removeprefix("/upload/v1beta/").partition(":")[0]
            return 200, [_JSON, _active("final")], json.dumps({"name": f"{store}/upload/operations/u1"}).encode()
        made = self._make("/v1beta/files")
        made |= {"sizeBytes": str(len(content)), "mimeType": "text/plain", "state": "ACTIVE"}
        return 200, [_JSON, _active("final")], json.dumps({"file": made}).encode()

    def _json(self, body: object, status: int = 200) -> tuple[int, list[tuple[str, str]], bytes]:
        return status, [_JSON], json.dumps(body).encode()

    def _error(self, status: int) -> dict[str, object]:
        message = "not found" if status == 404 else "no valid key"
        if self.vendor == "google":
            return {"error": {"code": status, "message": message, "status": "NOT_FOUND"}}
        if self.vendor == "anthropic":
            return {"type": "error", "error": {"type": "not_found_error", "message": message}}
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def root_of(path: str) -> str:
    """Return the path of the collection in which the first object of a path stands."""
    return _PLACE.split(path)[0].rstrip("/")


def _pattern(path: str) -> str:
    return "[^/:]+".join(re.escape(piece) for piece in _PLACE.split(path)) + "(?::[a-zA-Z]+)?"


def _active(status: str) -> tuple[str, str]:
    return "x-goog-upload-status", status
