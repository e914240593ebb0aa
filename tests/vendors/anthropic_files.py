"""Anthropic's files and batches of messages, with the states that its SDK waits for, as strict as they are with ids.

A batch is at work when it is first asked for, and has ended from the second time on. A message or a batch that names a
file which is not there is 404, as is what is asked of one.

Sources: Anthropic's API reference ("Files", "Message Batches") and its SDK's types (anthropic 2.12).

Knows: an account's objects. Does not know: Velox.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import parse_qs

from tests.vendors import claude
from tests.vendors.vendor import Reply, VendorRequest

__all__ = ["AnthropicFiles"]

_CONTENT: Final = re.compile(rb'name="file"; filename="([^"]*)"[^\r]*(?:\r\n[^\r]+)*\r\n\r\n(.*?)\r\n--', re.DOTALL)
_NAMED: Final = re.compile(rb'"file_id":\s*"([^"]+)"')
_MADE_AT: Final = "2026-11-01T00:00:00Z"


class AnthropicFiles:
    """One account. name: in its ids. origin: where its results are, as it tells."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self.origin = ""
        self._files: Final[dict[str, dict[str, Any]]] = {}
        self._contents: Final[dict[str, bytes]] = {}
        self._batches: Final[dict[str, dict[str, Any]]] = {}
        self._requests: Final[dict[str, list[Any]]] = {}

    def answer(self, request: VendorRequest) -> Reply:
        """Return the reply to a request."""
        for named in _NAMED.findall(request.body):
            if named.decode() not in self._files:
                return claude.error(f"File not found: {named.decode()}", 404, "not_found_error")
        words = request.path.removeprefix("/v1/").split("/")
        is_made = request.method == "POST"
        match words:
            case ["files"] if is_made:
                return self._upload(request)
            case ["files"]:
                return self._list_by_token(request)
            case ["files", file_id, *rest] if file_id in self._files:
                if rest == ["content"]:
                    content = self._contents[file_id]
                    return Reply(200, content, (("content-type", "application/octet-stream"),))
                if request.method == "DELETE":
                    del self._files[file_id]
                    return _json({"id": file_id, "type": "file_deleted"})
                return _json(self._files[file_id])
            case ["messages"] if is_made:
                return claude.answer(request)
            case ["messages", "batches"] if is_made:
                return self._begin(request.json["requests"])
            case ["messages", "batches"]:
                return self._list_by_id(request)
            case ["messages", "batches", batch_id, *rest] if batch_id in self._batches:
                return self._results(batch_id) if rest == ["results"] else self._batch(batch_id)
        return claude.error(f"Not found: {request.path}", 404, "not_found_error")

    def _list_by_token(self, request: VendorRequest) -> Reply:
        """Return a page of the files: the next one is asked for by a token (`SyncPageCursor` of the SDK)."""
        asked = parse_qs(request.query)
        files, begin = list(self._files.values()), int(asked.get("page", ["page_0"])[-1].removeprefix("page_"))
        end = begin + int(asked.get("limit", ["20"])[-1])
        return _json({"data": files[begin:end], "next_page": f"page_{end}" if end < len(files) else None})

    def _list_by_id(self, request: VendorRequest) -> Reply:
        """Return a page of the batches: it stands behind one of them, or before one (`SyncPage` of the SDK)."""
        asked = {name: values[-1] for name, values in parse_qs(request.query).items()}
        limit, ids = int(asked.get("limit", "20")), list(self._batches)
        for name in ("after_id", "before_id"):
            if name in asked and asked[name] not in ids:
                return claude.error(f"{name}: not found")
        if "before_id" in asked:
            before = ids[: ids.index(asked["before_id"])]
            page, has_more = before[-limit:], len(before) > limit
        else:
            behind = ids[ids.index(asked["after_id"]) + 1 :] if "after_id" in asked else ids
            page, has_more = behind[:limit], len(behind) > limit
        edges = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None}
        return _json({"data": [self._batches[each] for each in page], "has_more": has_more, **edges})

    def _upload(self, request: VendorRequest) -> Reply:
        found = _CONTENT.search(request.body)
        if found is None:
            return claude.error("file: Field required")
        made = {
            "id": f"file_{self._name}{len(self._contents)}",
            "type": "file",
            "filename": found[1].decode(),
            "mime_type": "text/plain",
            "size_bytes": len(found[2]),
            "created_at": _MADE_AT,
            "downloadable": True,
        }
        self._files[made["id"]] = made
        self._contents[made["id"]] = found[2]
        return _json(made)

    def _begin(self, requests: list[Any]) -> Reply:
        batch_id = f"msgbatch_{self._name}{len(self._batches)}"
        counts = {"processing": len(requests), "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        self._requests[batch_id] = requests
        self._batches[batch_id] = {
            "id": batch_id,
            "type": "message_batch",
            "processing_status": "in_progress",
            "request_counts": counts,
            "created_at": _MADE_AT,
            "expires_at": "2026-11-02T00:00:00Z",
            "results_url": None,
        }
        return _json(self._batches[batch_id])

    def _batch(self, batch_id: str) -> Reply:
        """Return a batch as it is, and have it ended at the next time."""
        batch = self._batches[batch_id]
        now = _json(batch)
        counts = {**batch["request_counts"], "processing": 0, "succeeded": len(self._requests[batch_id])}
        url = f"{self.origin}/v1/messages/batches/{batch_id}/results"
        batch.update(processing_status="ended", request_counts=counts, results_url=url, ended_at=_MADE_AT)
        return now

    def _results(self, batch_id: str) -> Reply:
        lines = []
        for each in self._requests[batch_id]:
            body = json.dumps({**each["params"], "stream": False}).encode()
            message = json.loads(claude.answer(VendorRequest("POST", "/v1/messages", body)).body)
            result = {"type": "succeeded", "message": message}
            lines.append(json.dumps({"custom_id": each["custom_id"], "result": result}) + "\n")
        return Reply(200, "".join(lines).encode(), (("content-type", "application/x-jsonl"),))


def _json(body: Any) -> Reply:
    return Reply(200, json.dumps(body).encode())
