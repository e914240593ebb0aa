"""OpenAI's files, uploads, vector stores, batches and runs of assistants, with the states that SDKs wait for.

What is asked for first is still at work; from the second time on it is done. What is not there is 404, and what does
not fit (a part that is missing, a batch of a file with another purpose) is 400.

Sources: OpenAI's API reference ("Files", "Uploads", "Vector stores", "Batch", "Assistants"), and the helpers of its
SDK (openai 3.54): files.wait_for_processing, uploads.upload_file_chunked, *_and_poll.

    account = OpenAIFiles("one")
    reply = account.answer(request)

Knows: an account's objects. Does not know: Velox, or chat.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from tests.vendors.vendor import JSON, Reply, VendorRequest

__all__ = ["OpenAIFiles"]

_FIELD: Final = re.compile(
    rb'name="([^"]+)"(?:; filename="([^"]*)")?[^\r]*(?:\r\n[^\r]+)*\r\n\r\n(.*?)\r\n--', re.DOTALL
)
_DONE: Final = {"file": "processed", "thread.run": "completed"}  # of others: "completed"
_AT_WORK: Final = {"file": "uploaded", "batch": "validating"}  # of others: "in_progress"


class _Refused(Exception):
    """A refusal. status: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Form(NamedTuple):
    values: dict[str, bytes]
    names: dict[str, str]


class OpenAIFiles:
    """One account. name: in its ids, which so differ from those of another one."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._objects: Final[dict[str, dict[str, Any]]] = {}
        self._contents: Final[dict[str, bytes]] = {}
        self._parts: Final[dict[str, bytes]] = {}

    def answer(self, request: VendorRequest) -> Reply:
        """Return the reply to a request."""
        words = request.path.removeprefix("/v1/").split("/")
        try:
            found = self._answer(request, words)
        except _Refused as refused:
            error = {"message": str(refused), "type": "invalid_request_error", "param": None, "code": None}
            return Reply(refused.status, json.dumps({"error": error}).encode())
        if isinstance(found, bytes):
            return Reply(200, found, (("content-type", "application/octet-stream"),))
        # Those that poll need not wait long.
        return Reply(200, json.dumps(found).encode(), (*JSON, ("openai-poll-after-ms", "1")))

    def _answer(self, request: VendorRequest, words: list[str]) -> Any:
        is_made = request.method == "POST"
        match words:
            case ["files"] if is_made:
                form = _form(request)
                if not {"file", "purpose"} <= set(form.values):
                    raise _Refused(400, "file and purpose are required")
                return self._file(form.names["file"], form.values["purpose"].decode(), form.values["file"])
            case ["files" | "batches" as plural] if not is_made:
                return self._list({"files": "file", "batches": "batch"}[plural], request)
            case ["files", file_id, "content"]:
                self._get(file_id)
                return self._contents[file_id]
            case ["uploads"] if is_made:
                return self._make("upload", "upload_", status="pending", **request.json)
            case ["uploads", upload_id, "parts"] if is_made:
                self._get(upload_id)
                part = self._make("upload.part", "part_", upload_id=upload_id)
                self._parts[part["id"]] = _form(request).values["data"]
                return part
            case ["uploads", upload_id, "complete"] if is_made:
                return self._complete(self._get(upload_id), request.json["part_ids"])
            case ["vector_stores"] if is_made:
                for file_id in request.json.get("file_ids") or ():
                    self._get(file_id)
                return self._make("vector_store", "vs_", **request.json)
            case ["vector_stores", store_id, "files"] if is_made:
                self._get(store_id)
                file_id = self._get(request.json["file_id"])["id"]
                return self._make("vector_store.file", "", file_id, vector_store_id=store_id)
            case ["vector_stores", store_id, "files", file_id]:
                return self._polled(self._get(f"{store_id}/{file_id}"))
            case ["vector_stores", store_id, "file_batches"] if is_made:
                self._get(store_id)
                files = [self._get(file_id)["id"] for file_id in request.json["file_ids"]]
                counts = {"completed": 0, "total": len(files), "in_progress": len(files), "failed": 0, "cancelled": 0}
                about = {"vector_store_id": store_id, "file_counts": counts}
                return self._make("vector_store.files_batch", "vsfb_", **about)
            case ["vector_stores", _, "file_batches", batch_id]:
                now = self._polled(found := self._get(batch_id))
                total = found["file_counts"]["total"]
                found["file_counts"] = {**found["file_counts"], "completed": total, "in_progress": 0}
                return now
            case ["batches"] if is_made:
                if self._get(request.json["input_file_id"])["purpose"] != "batch":
                    raise _Refused(400, "the purpose of the input file is not batch")
                return self._make("batch", "batch_", **request.json)
            case ["batches", batch_id]:
                return self._batch(self._get(batch_id))
            case ["assistants"] if is_made:
                return self._make("assistant", "asst_", **request.json)
            case ["threads", "runs"] if is_made:
                thread = self._make("thread", "thread_")
                return self._run(thread["id"], request.json)
            case ["threads", thread_id, "runs"] if is_made:
                return self._run(self._get(thread_id)["id"], request.json)
            case ["threads", thread_id, "runs", run_id, "submit_tool_outputs"] if is_made:
                self._get(thread_id)
                run = self._get(run_id)
                if [each["tool_call_id"] for each in request.json["tool_outputs"]] != ["call_1"]:
                    raise _Refused(400, "Expected tool outputs for call_ids ['call_1']")
                run.update(required_action=None, is_called=True, status="queued")
                return run
            case ["threads", thread_id, "runs", run_id]:
                self._get(thread_id)
                return self._ran(self._get(run_id))
            case [_, object_id] if not is_made:
                return self._polled(self._get(object_id))
        raise _Refused(404, f"no {request.path}")

    def _list(self, kind: str, request: VendorRequest) -> dict[str, Any]:
        """Return a page of a list, the oldest first: it begins after an object, which must be there."""
        asked = {name: values[-1] for name, values in parse_qs(request.query).items()}
        found = [each for each in self._objects.values() if each["object"] == kind]
        if after := asked.get("after"):
            self._get(after)
            found = found[[each["id"] for each in found].index(after) + 1 :]
        limit = int(asked.get("limit", "20"))
        page = found[:limit]
        ids = [each["id"] for each in page] or [None]
        edges = {"first_id": ids[0], "last_id": ids[-1]}
        return {"object": "list", "data": page, "has_more": len(found) > limit, **edges}

    def _get(self, object_id: str) -> dict[str, Any]:
        found = self._objects.get(object_id)
        if found is None:
            raise _Refused(404, f"No such object: {object_id}")
        return found

    def _make(self, kind: str, prefix: str, file_id: str = "", **fields: Any) -> dict[str, Any]:
        """Make an object, or that of a file in a vector store, which has the file's id."""
        object_id = file_id or f"{prefix}{self._name}{len(self._objects)}"
        status = _AT_WORK.get(kind, "in_progress")
        made = {"id": object_id, "object": kind, "created_at": 1_790_000_000, "status": status, **fields}
        self._objects[f"{fields['vector_store_id']}/{file_id}" if file_id else object_id] = made
        return made

    def _polled(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return an object as it is, and have it done at the next time."""
        now = dict(found)
        if found["status"] == _AT_WORK.get(found["object"], "in_progress"):
            found["status"] = _DONE.get(found["object"], "completed")
        return now

    def _file(self, name: str, purpose: str, content: bytes) -> dict[str, Any]:
        made = self._make("file", "file-", bytes=len(content), filename=name, purpose=purpose)
        self._contents[made["id"]] = content
        return made

    def _complete(self, upload: dict[str, Any], parts: list[str]) -> dict[str, Any]:
        if not set(parts) <= set(self._parts):
            raise _Refused(400, "parts are missing")
        content = b"".join(self._parts[part] for part in parts)
        if len(content) != upload["bytes"]:
            raise _Refused(400, f"{len(content)} bytes have come, {upload['bytes']} were told")
        upload["file"] = self._file(upload["filename"], upload["purpose"], content)
        upload["status"] = "completed"
        return upload

    def _batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        if batch["status"] == "completed" and "output_file_id" not in batch:
            lines = self._contents[batch["input_file_id"]].splitlines()
            said = [{"custom_id": json.loads(line)["custom_id"], "response": {"status_code": 200}} for line in lines]
            content = b"".join(json.dumps(each).encode() + b"\n" for each in said)
            batch["output_file_id"] = self._file("out.jsonl", "batch_output", content)["id"]
        return self._polled(batch)

    def _run(self, thread_id: str, body: dict[str, Any]) -> dict[str, Any]:
        self._get(body["assistant_id"])
        return self._make("thread.run", "run_", thread_id=thread_id, is_called=False, **body)

    def _ran(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return a run: it calls a tool first, and is completed with its output."""
        now = dict(run)
        if run["is_called"]:
            run["status"] = "completed"
        elif run["status"] == "in_progress":
            call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            run["status"] = "requires_action"
            run["required_action"] = {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": [call]}}
        return now


def _form(request: VendorRequest) -> _Form:
    found = _FIELD.findall(request.body)
    return _Form(
        {name.decode(): value for name, _, value in found}, {name.decode(): file.decode() for name, file, _ in found}
    )
