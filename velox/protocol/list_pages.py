"""Lists that come in pages: what asks for the page after one, and which page a caller gets of those read for it.

    following()   the query of the next page, as the client of that API would send it
    PageWalk      pages are read on until one has something of the caller's, or the list ends

How a page tells of the next one:

    Google        `nextPageToken`, asked for as `pageToken` (https://google.aip.dev/158)
    Anthropic     `next_page`, as `page`, or `page_token` where the client says that; older lists: `has_more` with
                  `last_id`, as `after_id`, and `first_id`, as `before_id`, for who reads backwards (anthropic 2.12,
                  pagination.py)
    OpenAI        `has_more`, with the id of the last item, as `after`; backwards: of the first, as `before` (openai
                  3.54, pagination.py; "List files", "List vector stores" of the API reference)
    Cohere        `next_page_token`, as `page_token` (https://docs.cohere.com/reference/listfinetunedmodels)

Knows: these fields. Does not know: whose an item is, who asks, or how a page is brought (gateway/access/own_pages.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote_plus

from velox.types import Dialect

__all__ = ["FIRST_ID", "LAST_ID", "PageWalk", "following"]

FIRST_ID: Final = "first_id"
LAST_ID: Final = "last_id"
_HAS_MORE: Final = "has_more"
_ITEMS: Final = "data"
_GOOGLES: Final = "nextPageToken"
_PAGE: Final = "page"
_PAGE_TOKEN: Final = "page_token"  # noqa: S105 - a name
# A field of a page, and the parameter that asks for the page which it leads to.
_TOKENS: Final = ((_GOOGLES, "pageToken"), ("next_page_token", _PAGE_TOKEN), ("next_page", _PAGE))
_BY_ID: Final = {Dialect.ANTHROPIC: ("after_id", "before_id")}
_BY_ID_OF_OTHERS: Final = ("after", "before")


def following(query: bytes, page: Mapping[str, object], dialect: Dialect) -> bytes | None:
    """Return the query of the page after one; None: it is the last, or does not tell.

    query: that brought the page, without the "?".
    """
    more = page.get(_HAS_MORE)
    if more is False:
        return None
    asked = {_name(part) for part in query.split(b"&")}
    after, before = _BY_ID.get(dialect, _BY_ID_OF_OTHERS)
    is_by_id = more is True and not asked.isdisjoint((_folded(after), _folded(before)))
    if not is_by_id:
        for field, parameter in _TOKENS:
            token = page.get(field)
            if isinstance(token, str) and token:
                other = parameter == _PAGE and _folded(_PAGE_TOKEN) in asked
                return _asking(query, _PAGE_TOKEN if other else parameter, token)
    if more is not True:
        return None
    is_backwards = _folded(before) in asked and _folded(after) not in asked
    edge = page.get(FIRST_ID if is_backwards else LAST_ID) or _edge_id(page.get(_ITEMS), 0 if is_backwards else -1)
    return _asking(query, before if is_backwards else after, edge) if isinstance(edge, str) and edge else None


def _edge_id(items: object, at: int) -> object:
    item = items[at] if isinstance(items, list) and items else None
    return item.get("id") if isinstance(item, dict) else None


def _asking(query: bytes, parameter: str, value: str) -> bytes:
    """Return the query with one parameter in place of what it says of that, however it is spelled there."""
    kept = [part for part in query.split(b"&") if part and _name(part) != _folded(parameter)]
    return b"&".join((*kept, f"{parameter}={quote(value, safe='')}".encode()))


def _name(part: bytes) -> str:
    return _folded(unquote_plus(part.partition(b"=")[0].decode("latin-1")))


def _folded(name: str) -> str:
    """Return a name as Google's servers compare names: `page_token` is `pageToken`."""
    return name.replace("_", "").lower()


class PageWalk:
    """Reads on from the page that a client has asked for, until it has something for it.

    An empty page in the middle of a list is valid in each of these APIs, but SDKs take it for the end, or fail there.
    Google's fail also at an empty page that is the last one (IndexError in Python, TypeError in Node). So a page of
    Google's leads on only if something of the caller's follows: the walk goes on behind it to see that, and the token
    that the client gets is that of the next page which has something.

    query: that the client has sent. page: what the client gets of what has come so far; empty before the first.
    has_found: it has something of the caller's.
    """

    __slots__ = ("_dialect", "_query", "_seen", "has_found", "page")

    def __init__(self, query: bytes, dialect: Dialect) -> None:
        self._query = query
        self._dialect: Final = dialect
        self._seen: Final = {query}  # a server that ignores what leads on would be asked for ever
        self.page: dict[str, object] = {}
        self.has_found = False

    @property
    def query(self) -> bytes:
        """What asks for the page that take() takes next."""
        return self._query

    @property
    def leads_on(self) -> bool:
        """True where the client can go on from the page: by a token, or by an id of its own."""
        return self.has_found or any(self.page.get(field) for field, _ in _TOKENS)

    def following(self, page: Mapping[str, object]) -> bytes | None:
        """Return the query of the page after the one of `query`, as that came; None: it is the last."""
        return following(self._query, page, self._dialect)

    def take(self, page: dict[str, object], then: bytes | None, *, has_own: bool) -> bool:
        """Take the page of `query`; return True if one more is wanted, else `self.page` is what the client gets.

        page: without what is others'. then: what following() said of it. has_own: something is left.
        """
        if not self.has_found:
            self.page = page
            self.has_found = has_own
            if has_own and not page.get(_GOOGLES):
                return False
        elif has_own:
            return False  # what leads there stands in the page already
        else:
            self.page.pop(_GOOGLES, None)
            if then is not None and page.get(_GOOGLES):
                self.page[_GOOGLES] = page[_GOOGLES]
        if then is None or then in self._seen:
            return False
        self._seen.add(then)
        self._query = then
        return True
