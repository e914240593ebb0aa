"""Google's Files API, and generateContent that names its files, as strict as it is with uploads, ids and states.

A file is at work when it is uploaded, and active from the second time on that it is asked for. What names a file that
is not there is 403: Google does not tell whether there is one (googleapis/python-genai#1218). A model reads no file
that is at work (expectedparrot/edsl#1907).

Sources: Google's reference ("Files", "Upload files": resumable uploads) and its SDKs (google-genai 3.4 for Python,
@google/genai 3.3 for Node).

Knows: an account's files. Does not know: Velox.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from tests.vendors import gemini
from tests.vendors.vendor import Fields, Reply, VendorRequest

__all__ = ["GeminiFiles"]

# Whichever address it is asked at, it tells this one, and knows its files by no other.
_ORIGIN: Final = "https://generativelanguage.googleapis.com"
_MADE_AT: Final = "2026-11-01T00:00:00Z"
_VERSION: Final = re.compile(r"^(/upload)?/v1(?:beta)?/")
_NAMED: Final = re.compile(rb'"file_?[uU]ri":\s*"([^"]*)"')
_AT_WORK: Final = "PROCESSING"


class _Upload(NamedTuple):
    """One that has begun. about: what the client may set of the file."""

    n_bytes: int
    kind: str
    about: dict[str, str]
    content: bytearray


class GeminiFiles:
    """One account. name: in its ids."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._files: Final[dict[str, dict[str, Any]]] = {}  # by name: "files/one0"
        self._uploads: Final[dict[str, _Upload]] = {}
        self._n_begun = 0
        self.contents: Final[dict[str, bytes]] = {}  # by the names of files

    def answer(self, request: VendorRequest) -> Reply:
        """Return the reply to a request."""
        upload_id = parse_qs(request.query).get("upload_id", [""])[0]
        if upload_id:  # its address is all that it needs
            return self._piece(request, upload_id)
        if "x-goog-api-key" not in request.headers:
            return gemini.error("Method doesn't allow unregistered callers.", 403, "PERMISSION_DENIED")
        path = _VERSION.sub(r"\1/", request.path)
        match request.method, path.strip("/").split("/"):
            case "POST", ["upload", "files"]:
                return self._begin(request)
            case "GET", ["files"]:
                return self._list(request)
            case method, ["files", file_id]:
                return self._file(method, f"files/{file_id}")
            case "POST", ["models", _]:
                return self._generate(request)
        return gemini.error(f"Not found: {request.path}", 404, "NOT_FOUND")

    # -- uploads --------------------------------------------------------------------------------------

    def _begin(self, request: VendorRequest) -> Reply:
        fields = request.headers
        if (fields.get("x-goog-upload-protocol"), fields.get("x-goog-upload-command")) != ("resumable", "start"):
            return gemini.error("an upload begins with the command start")
        given = json.loads(request.body or b"{}").get("file", {})
        title = given.get("displayName", given.get("display_name"))  # its parser takes either spelling
        kind = fields.get("x-goog-upload-header-content-type")
        if not kind:
            return gemini.error("mimeType must be provided")
        self._n_begun += 1
        upload_id = f"up-{self._name}{self._n_begun}"
        n_bytes = int(fields["x-goog-upload-header-content-length"])
        self._uploads[upload_id] = _Upload(n_bytes, kind, {"displayName": title} if title else {}, bytearray())
        url = f"{_ORIGIN}/upload/v1beta/files?upload_id={upload_id}&upload_protocol=resumable"
        return Reply(200, b"", (("x-goog-upload-url", url), ("x-goog-upload-status", "active")))

    def _piece(self, request: VendorRequest, upload_id: str) -> Reply:
        upload = self._uploads.get(upload_id)
        if upload is None:
            return gemini.error("Upload not found", 404, "NOT_FOUND")
        if int(request.headers.get("x-goog-upload-offset", "-1")) != len(upload.content):
            return gemini.error("the offset is not where the upload is")
        upload.content.extend(request.body)
        if "finalize" not in request.headers.get("x-goog-upload-command", ""):
            return Reply(200, b"", (("x-goog-upload-status", "active"),))
        if len(upload.content) != upload.n_bytes:
            return gemini.error(f"{len(upload.content)} bytes have come, {upload.n_bytes} were told")
        del self._uploads[upload_id]
        name = f"files/{self._name}{len(self.contents)}"
        self.contents[name] = bytes(upload.content)
        self._files[name] = {
            **upload.about,
            "name": name,
            "mimeType": upload.kind,
            "sizeBytes": str(upload.n_bytes),
            "createTime": _MADE_AT,
            "uri": f"{_ORIGIN}/v1beta/{name}",
            "state": _AT_WORK,
        }
        return _json({"file": self._files[name]}, (("x-goog-upload-status", "final"),))

    # -- files ----------------------------------------------------------------------------------------

    def _list(self, request: VendorRequest) -> Reply:
        asked = parse_qs(request.query)
        size, begin = int(asked.get("pageSize", ["10"])[0]), int(asked.get("pageToken", ["0"])[0])
        files = list(self._files.values())
        more = {"nextPageToken": str(begin + size)} if begin + size < len(files) else {}
        return _json({"files": files[begin : begin + size], **more} if files else {})

    def _file(self, method: str, name: str) -> Reply:
        """Return a file as it is, and have it active at the next time; or delete it."""
        file = self._files.get(name)
        if file is None:
            return _missing(name)
        if method == "DELETE":
            del self._files[name]
            return _json({})
        now = _json(file)
        file["state"] = "ACTIVE"
        return now

    def _generate(self, request: VendorRequest) -> Reply:
        for uri in _NAMED.findall(request.body):
            name = "/".join(uri.decode().rsplit("/", 2)[-2:])
            file = self._files.get(name)
            if file is None or uri.decode() != file["uri"]:
                return _missing(name)
            if file["state"] == _AT_WORK:
                message = f"The File {name.removeprefix('files/')} is not in an ACTIVE state and usage is not allowed."
                return gemini.error(message, 400, "FAILED_PRECONDITION")
        return gemini.refuse(request) or gemini.VENDOR.answer(request)


def _missing(name: str) -> Reply:
    file_id = name.removeprefix("files/")
    message = f"You do not have permission to access the File {file_id} or it may not exist."
    return gemini.error(message, 403, "PERMISSION_DENIED")


def _json(body: Any, more: Fields = ()) -> Reply:
    return Reply(200, json.dumps(body).encode(), (("content-type", "application/json"), *more))
