"""A store with S3's API, as far as objects are written: each request must be signed as botocore signs it."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials

__all__ = ["ACCESS", "REGION", "SECRET", "S3Store", "s3_store"]

ACCESS, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG-example", "eu-central-1"


class S3Store:
    """objects: by `/BUCKET/KEY`. uploads: parts not put together. failures: statuses to answer first; 0: none."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.asked: list[str] = []
        self.failures: list[int] = []
        self.url = ""
        self._lock = threading.Lock()

    def env(self, **more: str) -> dict[str, str]:
        """Return what names it, as AWS's own tools read it."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            **more,
        }

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, str, dict[str, str]]:
        with self._lock:
            self.asked.append(f"{method} {target}")
            status = self.failures.pop(0) if self.failures else 0
            if status:
                return status, _error("SlowDown", "Please reduce your request rate."), {}
        if not _is_signed(method, target, headers, body):
            return 403, _error("SignatureDoesNotMatch", "The request signature does not match."), {}
        path, _, query = target.partition("?")
        path = urllib.parse.unquote(path)
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        if path.startswith("/forbidden"):
            return 403, _error("AccessDenied", "Access Denied"), {}
        if path.startswith("/missing"):
            return 404, _error("NoSuchBucket", "The specified bucket does not exist"), {}
        with self._lock:
            return self._done(method, path, asked, headers, body)

    def _done(
        self, method: str, path: str, asked: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, str, dict[str, str]]:
        upload = asked.get("uploadId", "")
        if method == "POST" and "uploads" in asked:
            upload = f"up/load={len(self.uploads)}"
            self.uploads[upload] = {}
            self.types[path] = headers["content-type"]
            return (
                200,
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>",
                {},
            )
        if method == "PUT" and not upload:
            self.objects[path], self.types[path] = body, headers["content-type"]
            return 200, "", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        if upload not in self.uploads:
            return 404, _error("NoSuchUpload", "The specified upload does not exist."), {}
        if method == "PUT":
            self.uploads[upload][int(asked["partNumber"])] = body
            return 200, "", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        parts = self.uploads.pop(upload)
        if method == "DELETE":
            return 204, "", {}
        wanted = "".join(
            f'<Part><PartNumber>{n}</PartNumber><ETag>"{hashlib.md5(part).hexdigest()}"</ETag></Part>'
            for n, part in sorted(parts.items())
        )
        if body.decode() != f"<CompleteMultipartUpload>{wanted}</CompleteMultipartUpload>":
            return 200, _error("InvalidPart", "One or more of the specified parts could not be found."), {}
        self.objects[path] = b"".join(part for _, part in sorted(parts.items()))
        return 200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>", {}


def _is_signed(method: str, target: str, headers: dict[str, str], body: bytes) -> bool:
    given = headers.get("authorization", "")
    signed = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(signed):
        return False
    if headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
        return False
    fields = {name: headers.get(name, "") for name in signed}
    request = botocore.awsrequest.AWSRequest(
        method=method, url=f"http://{headers['host']}{target}", data=body, headers=fields
    )
    request.context["timestamp"] = headers["x-amz-date"]
    request.context["payload_signing_enabled"] = True
    signer = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(ACCESS, SECRET), "s3", REGION)
    canonical = signer.canonical_request(request)
    return given.endswith(f"Signature={signer.signature(signer.string_to_sign(request, canonical), request)}")


def _error(code: str, message: str) -> str:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'


@contextlib.contextmanager
def s3_store() -> Iterator[S3Store]:
    """Serve one on loopback."""
    store = S3Store()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, text, more = store.answer(self.command, self.path, headers, body)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        do_PUT = do_POST = do_DELETE = _serve

        def log_message(self, *_args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        store.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
