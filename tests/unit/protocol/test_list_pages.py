"""Pages of lists: what asks for the next one, and which one a caller gets of those that are read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from velox.protocol.list_pages import PageWalk, following
from velox.types import Dialect

OPENAI, ANTHROPIC, GOOGLE = Dialect.OPENAI, Dialect.ANTHROPIC, Dialect.GOOGLE
ITEMS = [{"id": "a"}, {"id": "b"}]
OF_OPENAI = {"object": "list", "data": ITEMS, "has_more": True}


@pytest.mark.parametrize(
    ("dialect", "query", "page", "wanted"),
    [
        # OpenAI: by the id of the last item, whether or not the page repeats it.
        (OPENAI, b"", OF_OPENAI, b"after=b"),
        (OPENAI, b"limit=2&after=x&order=desc", OF_OPENAI, b"limit=2&order=desc&after=b"),
        (OPENAI, b"", {**OF_OPENAI, "first_id": "f", "last_id": "l"}, b"after=l"),
        (OPENAI, b"before=x&limit=2", {**OF_OPENAI, "first_id": "f", "last_id": "l"}, b"limit=2&before=f"),
        (OPENAI, b"before=x", OF_OPENAI, b"before=a"),
        (OPENAI, b"after=x&before=y", OF_OPENAI, b"before=y&after=b"),
        (OPENAI, b"", {**OF_OPENAI, "has_more": False}, None),
        (OPENAI, b"", {"object": "list", "data": ITEMS}, None),
        (OPENAI, b"", {"data": [], "has_more": True}, None),
        (OPENAI, b"", {"data": "x", "has_more": True}, None),
        (OPENAI, b"", {"data": ["b"], "has_more": True}, None),
        (OPENAI, b"", {"data": [{"id": 3}], "has_more": True}, None),
        (OPENAI, b"", {"data": ITEMS, "has_more": "yes"}, None),
        # Anthropic: by an id, or by a token where lists have one.
        (ANTHROPIC, b"limit=1", {"data": ITEMS, "has_more": True, "last_id": "l"}, b"limit=1&after_id=l"),
        (ANTHROPIC, b"before_id=x", {"data": ITEMS, "has_more": True, "first_id": "f"}, b"before_id=f"),
        (ANTHROPIC, b"", {"data": ITEMS, "next_page": "p/1=="}, b"page=p%2F1%3D%3D"),
        (ANTHROPIC, b"page=p0&limit=1", {"data": [], "next_page": "p1"}, b"limit=1&page=p1"),
        (ANTHROPIC, b"page_token=p0", {"data": [], "next_page": "p1", "has_more": True}, b"page_token=p1"),
        (ANTHROPIC, b"", {"data": ITEMS, "next_page": "p1", "has_more": False}, None),
        (ANTHROPIC, b"", {"data": ITEMS, "next_page": None}, None),
        # One that has both goes on as its client does.
        (ANTHROPIC, b"", {"data": ITEMS, "next_page": "p1", "has_more": True, "last_id": "l"}, b"page=p1"),
        (ANTHROPIC, b"after_id=k", {"data": ITEMS, "next_page": "p1", "has_more": True, "last_id": "l"}, b"after_id=l"),
        # Google: in either spelling of the parameter.
        (GOOGLE, b"pageSize=5", {"files": ITEMS, "nextPageToken": "t"}, b"pageSize=5&pageToken=t"),
        (GOOGLE, b"page_token=s&pageSize=5", {"files": ITEMS, "nextPageToken": "t"}, b"pageSize=5&pageToken=t"),
        (GOOGLE, b"%70ageToken=s", {"nextPageToken": "t&pageSize=9"}, b"pageToken=t%26pageSize%3D9"),
        (GOOGLE, b"", {"files": ITEMS, "nextPageToken": ""}, None),
        (GOOGLE, b"", {"files": ITEMS}, None),
        # Cohere.
        (OPENAI, b"", {"finetuned_models": [], "next_page_token": "t"}, b"page_token=t"),
    ],
)
def test_query_of_the_next_page(dialect: Dialect, query: bytes, page: dict[str, object], wanted: bytes | None) -> None:
    """As the client of that API would ask for it."""
    assert following(query, page, dialect) == wanted


def has_own(page: Mapping[str, object]) -> bool:
    items = page.get("data") or page.get("files") or []
    return isinstance(items, list) and any(each["id"].startswith("own") for each in items)


def walked(pages: Sequence[dict[str, object]], dialect: Dialect, query: bytes = b"limit=1") -> tuple[PageWalk, int]:
    """Return a walk that has taken what it wanted, and how many pages that were."""
    walk = PageWalk(query, dialect)
    for n, page in enumerate(pages, 1):
        if not walk.take(dict(page), walk.following(page), has_own=has_own(page)):
            return walk, n
    return walk, len(pages)


def of_openai(item: str, *, more: bool = True) -> dict[str, object]:
    return {"data": [{"id": item}], "has_more": more, "last_id": item}


def of_google(item: str, token: str = "") -> dict[str, object]:
    return {"files": [{"id": item}], **({"nextPageToken": token} if token else {})}


def test_page_that_has_something_is_the_clients() -> None:
    """The first of them, with all that it says; nothing is read behind it."""
    walk, n = walked([of_openai(each) for each in ("x", "y", "own1", "z")], OPENAI)

    assert (walk.page, n, walk.has_found) == (of_openai("own1"), 3, True)
    assert walk.query == b"limit=1&after=y"


def test_list_without_anything_of_the_callers_is_read_to_its_end() -> None:
    """The client gets its last page, which is empty and says that it is the last."""
    walk, n = walked([of_openai("x"), of_openai("y"), of_openai("z", more=False)], OPENAI)

    assert (walk.page, n, walk.has_found) == (of_openai("z", more=False), 3, False)


def test_page_of_googles_leads_to_the_next_one_that_has_something() -> None:
    """Its SDKs fail at an empty page, wherever that is."""
    walk, n = walked([of_google("x", "1"), of_google("own1", "2"), of_google("own2", "3")], GOOGLE)
    assert (walk.page, n) == (of_google("own1", "2"), 3)

    walk, n = walked([of_google("own1", "1"), of_google("x", "2"), of_google("y", "3"), of_google("own2")], GOOGLE)
    assert (walk.page, n) == (of_google("own1", "3"), 4)


def test_page_of_googles_is_the_last_if_nothing_of_the_callers_follows() -> None:
    """Else its SDKs would ask for an empty one."""
    walk, n = walked([of_google("own1", "1"), of_google("x", "2"), of_google("y")], GOOGLE)
    assert (walk.page, n) == (of_google("own1"), 3)

    walk, n = walked([of_google("own1")], GOOGLE)
    assert (walk.page, n) == (of_google("own1"), 1)


def test_server_that_goes_round_in_a_circle_is_left() -> None:
    """One that ignores what leads on, or leads back."""
    _, n = walked([of_openai("x")] * 9, OPENAI)
    assert n == 2
    _, n = walked([of_google("x", "1"), of_google("y", "2")] * 9, GOOGLE)
    assert n == 3


@pytest.mark.parametrize(
    ("dialect", "page", "wanted"),
    [
        (OPENAI, of_openai("x"), False),
        (GOOGLE, of_google("x", "1"), True),
        (GOOGLE, of_google("own", "1"), True),
        (ANTHROPIC, {"data": [{"id": "x"}], "next_page": "p"}, True),
        (ANTHROPIC, {"data": [{"id": "x"}], "has_more": True, "last_id": "x"}, False),
    ],
)
def test_what_leads_on_where_no_more_is_read(dialect: Dialect, page: dict[str, object], wanted: bool) -> None:
    """A token is the client's; an id of somebody else's is not."""
    walk = PageWalk(b"", dialect)

    assert walk.take(page, walk.following(page), has_own=has_own(page)) and walk.leads_on is wanted
