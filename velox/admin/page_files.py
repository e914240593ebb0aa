"""The files of the page that a browser shows of the admin listener: its frame, scripts and styles.

Knows: which files there are, their types, their policy. Does not know: who may see figures: there are none in these.

A file is read and compressed when it is first asked for, and has an ETag (RFC 9110 §8.8.3): a browser that has it gets
304.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from velox.admin.message import HTML, TEXT, AdminRequest, RefusalError, Reply

__all__ = ["PageFiles"]

_FOLDER: Final = Path(__file__).with_name("page")
_FRAME: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".txt": TEXT,
}
# Nothing from elsewhere, no script in the page itself (CSP Level 3). Scripts set styles of single elements.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class _File(NamedTuple):
    plain: bytes
    packed: bytes
    type: str
    tag: str


class PageFiles:
    """prefix: what the path of a file begins with. The rest is the file's name in the folder `page`."""

    def __init__(self, prefix: str) -> None:
        self._prefix: Final = prefix
        self._files: Final[dict[str, _File]] = {}

    def __repr__(self) -> str:
        return f"<PageFiles {len(self._files)} read>"

    def frame(self, request: AdminRequest) -> Reply:
        """Return the page that loads the others."""
        return self._reply(request, _FRAME, (("Content-Security-Policy", _POLICY),))

    def reply(self, request: AdminRequest) -> Reply:
        """Return a file. Raises RefusalError(404)."""
        return self._reply(request, request.path.removeprefix(self._prefix))

    def _reply(self, request: AdminRequest, name: str, more: tuple[tuple[str, str], ...] = ()) -> Reply:
        file = self._file(name)
        headers = (*more, ("ETag", file.tag), ("Cache-Control", "no-cache"), ("Vary", "Accept-Encoding"))
        if request.headers.get("if-none-match") == file.tag:
            return Reply(304, None, file.type, headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Reply(200, file.packed, file.type, (*headers, ("Content-Encoding", "gzip")))
        return Reply(200, file.plain, file.type, headers)

    def _file(self, name: str) -> _File:
        found = self._files.get(name)
        if found is None:
            # Only what is in the folder is opened, whatever a name says.
            if name not in {each.relative_to(_FOLDER).as_posix() for each in _FOLDER.rglob("*.*")}:
                raise RefusalError(404, "the page has no such file")
            plain = (_FOLDER / name).read_bytes()
            digest = hashlib.sha256(plain).hexdigest()[:32]
            packed = gzip.compress(plain, mtime=0)
            found = self._files[name] = _File(plain, packed, _TYPES[Path(name).suffix], f'"{digest}"')
        return found
