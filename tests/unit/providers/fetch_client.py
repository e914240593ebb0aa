"""A client for fetches: answers and files that the test sets; it remembers what was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from velox.providers.renewal import FetchError, HttpRequest, Reply

T = TypeVar("T")


class FakeFetchClient:
    """answers: by method and URL up to "?": status and body (bytes, text or JSON), or why there is none."""

    def __init__(
        self, answers: Mapping[str, tuple[int, Any] | str] | None = None, files: Mapping[str, bytes | str] | None = None
    ) -> None:
        self.answers = dict(answers or {})
        self.files = dict(files or {})
        self.asked: list[HttpRequest] = []

    async def ask(self, question: HttpRequest) -> Reply:
        self.asked.append(question)
        found = self.answers.get(f"{question.method.decode()} {question.url.partition('?')[0]}", "connection refused")
        if isinstance(found, str):
            raise FetchError(found)
        status, body = found
        if isinstance(body, str):
            body = body.encode()
        return Reply(status, body if isinstance(body, bytes) else json.dumps(body).encode())

    async def read(self, path: str) -> bytes | None:
        content = self.files.get(path)
        return content.encode() if isinstance(content, str) else content

    def headers(self, at: int) -> dict[str, str]:
        """Return the headers of a question."""
        return {name.decode(): value.decode() for name, value in self.asked[at].headers}


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)
