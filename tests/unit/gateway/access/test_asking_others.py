"""What a gateway asks others of the same store about the objects that a request names, and what follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from velox.errors import Reason, VeloxError
from velox.gateway.access.access import Access
from velox.gateway.auth import Authenticator
from velox.heads import RequestHead
from velox.protocol.slices import finished
from velox.shm.object_table import UNKNOWN, ObjectMemory, ObjectTable
from velox.types import BodyFields, Caller, KeyEntry

A, B = Caller("a", id=b"12345678"), Caller("b", id=b"23456789")
KEY = b"alike at all of them"[:16]
JSON, FORM = ((b"content-type", b"application/json"),), ((b"content-type", b"multipart/form-data; boundary=x"),)
CHATS = b"/v1/chat/completions"
FILE, STORE, CALL = "file-aaaaaaaa", "vs_aaaaaaaa", "rtc_aaaaaaaa"


class Store:
    """What the gateways know together: the objects that A has made through another one."""

    def __init__(self) -> None:
        table = ObjectTable(ObjectMemory(64, 1, 1, key=KEY), 0)
        self.rows = {table.number(each): (table.number("a"), UNKNOWN) for each in (FILE, STORE, CALL, "files/report")}
        self.asked: list[int] = []  # how many at once

    async def get(self, tags: Sequence[int]) -> dict[int, tuple[int, int]]:
        """See SharedObjects."""
        self.asked.append(len(tags))
        return {tag: self.rows[tag] for tag in tags if tag in self.rows}


class Gateway:
    """One that has just started."""

    def __init__(self, store: Store | None) -> None:
        self.table = ObjectTable(ObjectMemory(4096, 1, 1, key=KEY), 0)
        auth = Authenticator([KeyEntry(b"1" * 32, name="a"), KeyEntry(b"2" * 32, name="b")])
        self.store = store
        self.access = Access(self.table, auth, share=None if store is None else lambda: store)

    def concerns(self, body: bytes) -> bool:
        """Say whether the body of a chat is looked at."""
        guard = self.access.guard(RequestHead.of(b"POST", CHATS, JSON, len(body)), B)
        return guard is not None and guard.concerns(body, BodyFields())

    def ask(
        self, caller: Caller, method: bytes, target: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        """Take a request as an exchange does. Raises VeloxError."""
        head = RequestHead.of(method, target, headers, len(body) or None)
        guard = self.access.guard(head, caller)
        assert guard is not None and guard.owned is not None
        assert guard.concerns(body, BodyFields())
        named = finished(guard.owned.named_in(head, body))
        if unknown := finished(guard.owned.unknown(head, named)):
            assert self.access.places is not None and self.store is not None
            asyncio.run(self.access.places.learn(unknown, self.store))
        finished(guard.steps(head, body, named=named))


def chat(*files: str) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"content": [{"file": {"file_id": each}} for each in files]}]}
    ).encode()


def test_body_is_looked_at_where_others_may_know_what_it_names() -> None:
    """As soon as a gateway starts; one that is alone looks when somebody has made what a body could name."""
    assert Gateway(Store()).concerns(chat(FILE))
    assert not Gateway(Store()).concerns(b'{"model":"m","messages":[]}'), "it names nothing"
    assert not Gateway(None).concerns(chat(FILE))


PLACES = [
    (b"POST", CHATS, chat(FILE), JSON),
    (b"POST", CHATS, chat(*(f"file-{n}" for n in range(1000)), FILE), JSON),
    (b"POST", b"/v1/messages", b'{"model":"m","container":"%b"}' % STORE.encode(), JSON),
    (b"POST", b"/v1beta/models/g:generateContent", b'{"contents":[{"fileUri":"files/report"}]}', JSON),
    (
        b"POST",
        b"/v1/videos",
        b'--x\r\ncontent-disposition: form-data; name="v"\r\n\r\n%b\r\n--x--' % FILE.encode(),
        FORM,
    ),
    (b"GET", b"/v1/files/file-aaaaaaaa", b"", ()),
    (b"GET", b"/v1/vector_stores/vs_own/files/file-aaaaaaaa", b"", ()),
    (b"POST", b"/v1/vector_stores/vs_own/files/file-aaaaaaaa:search", b"{}", JSON),
    (b"GET", b"/v1/files?container_id=vs_aaaaaaaa", b"", ()),
    (b"GET", b"/v1beta/files/report", b"", ()),
    (b"GET", b"/v1beta/fileSearchStores/own/files/report", b"", ()),
    (b"POST", b"/v1/realtime/calls/rtc_own/refer?call_id=rtc_aaaaaaaa", b"{}", JSON),
]


@pytest.mark.parametrize(("method", "target", "body", "headers"), PLACES)
def test_object_of_another_gateway_is_its_callers(
    method: bytes, target: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Wherever a request names it; asked for 200 at once, and no more when its owner is known."""
    store = Store()
    gateway = Gateway(store)

    gateway.ask(A, method, target, body, headers)
    assert store.asked
    assert max(store.asked) <= 200
    n_asked = sum(store.asked)
    with pytest.raises(VeloxError) as caught:
        gateway.ask(B, method, target, body, headers)
    assert caught.value.reason is Reason.UNKNOWN_OBJECT
    assert sum(store.asked) < 2 * n_asked, "what was learnt is asked again"


def test_words_of_a_path_are_not_asked_for() -> None:
    """Where all that it names is known, nobody waits for a store."""
    gateway = Gateway(Store())
    for each in ("vs_own", "vsfb_own"):
        gateway.table.remember(each, gateway.table.number("b"))
    gateway.ask(B, b"POST", b"/v1/vector_stores/vs_own/file_batches/vsfb_own/cancel", b"", ())
    assert gateway.store is not None and gateway.store.asked == []
