"""An API that is put together when it is first asked: in a gateway that records nothing it has little to say.

Knows: which paths are never the API's. Does not know: which are (api/service.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.admin.app import PAGES, Api
from velox.admin.message import AdminRequest, Reply
from velox.admin.roles import OPEN_FILES, Role

__all__ = ["LateApi"]


class LateApi:
    """make: puts it together; called once, for the first path that is no page of the listener."""

    def __init__(self, make: Callable[[], Api]) -> None:
        self._make: Final = make
        self._made: Api | None = None

    def __repr__(self) -> str:
        return f"<LateApi {self._made!r}>"

    def takes(self, path: str) -> bool:
        """Tell whether a path is the API's."""
        return path not in PAGES and not path.startswith(OPEN_FILES) and self._api().takes(path)

    def admit(self, request: AdminRequest, role: Role | None) -> None:
        """Refuse what is refused whatever its body is. Raises RefusalError."""
        self._api().admit(request, role)

    async def reply(self, request: AdminRequest, role: Role | None) -> Reply:
        """Answer a request. Raises RefusalError."""
        return await self._api().reply(request, role)

    def _api(self) -> Api:
        if self._made is None:
            self._made = self._make()
        return self._made
