"""Kept answers of one worker: which paths are theirs, what is written again, and what room a request takes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.dialects.responses.kept import KeptAnswer
from velox.errors import Reason, VeloxError
from velox.gateway.answers.answers import Answers, BodyBudgetRelease, is_of_answer, names_own
from velox.gateway.answers.kept_answers import KeptAnswers, ReadAnswer
from velox.gateway.answers.values import AnswersDownError, Changed, ExpandedRequest
from velox.gateway.reply.filters import FilterChain, ReplyFilter
from velox.heads import ReplyHead, RequestHead
from velox.net.client.body_budget import BodyBudget
from velox.shm.answer_ring import AnswerMemory, AnswerRing
from velox.types import AnswerKeeper, Caller

A, B = Caller("a"), Caller("b")


class Shared:
    """A store of several gateways. before: called before each change, as another gateway's may come."""

    name = "the store"

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], bytes] = {}
        self.before: list[Callable[[], None]] = []
        self.is_down = False

    async def change(self, owner: str, object_id: str, change: Callable[[bytes], Changed]) -> bool:
        while (text := self.texts.get((owner, object_id))) is not None:
            made = change(text)
            if self.before:
                await asyncio.to_thread(self.before.pop())
            if self.is_down:
                raise AnswersDownError
            if self.texts.get((owner, object_id)) == text:
                for ids, changed in made.texts:
                    self.put(owner, ids, changed)
                return True
        return False

    def begin(self, owner: str, object_id: str, work: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(_awaited(work))

    async def get(self, owner: str, object_id: str) -> bytes | None:
        return self.texts.get((owner, object_id))

    def put(self, owner: str, ids: tuple[str, ...], text: bytes) -> None:
        self.texts.update({(owner, each): text for each in ids})

    async def forget(self, owner: str, ids: tuple[str, ...]) -> None:
        for each in ids:
            self.texts.pop((owner, each), None)


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def made(shared: Shared | None = None, size: int = 8192) -> tuple[Answers, AnswerRing]:
    ring = AnswerRing(AnswerMemory(size, 64, 1, 1), 0)
    kept = KeptAnswers(ring, 60.0, 10_000, shared)
    return Answers(lambda: kept, lambda: ring.is_used or shared is not None), ring


def keep(answers: Answers, name: str, caller: Caller = A, text: str = "hello") -> None:
    item = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": text}
    response = {"id": f"resp_{name}", "output": [item]}
    answers.kept.keeper(caller, None).keep(b'{"input":"Hi"}', json.dumps(response).encode())


def expand(answers: Answers, body: dict[str, Any], caller: Caller = A) -> ExpandedRequest | None:
    return asyncio.run(answers.expand(json.dumps(body).encode(), caller))


def served(answers: Answers, path: str, method: str = "GET", caller: Caller = A) -> Any:
    found = asyncio.run(answers.serve(RequestHead.of(method.encode(), path.encode()), b"", caller))
    return None if found is None else json.loads(found[2])


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (b"/v1/responses/resp_1", True),
        (b"/responses/resp_1/input_items", True),
        (b"/openai/v1/responses/resp_1/cancel", True),
        (b"/v1/responses", False),
        (b"/v1/responses/input_tokens", False),
        (b"/v1/responses/compact", False),
        (b"/v1/files/resp_1", False),
        (b"/v1/xresponses/resp_1", False),
        (b"/v1/conversations", True),
        (b"/v1/conversations/conv_vx1/items/x", True),
        (b"/v1/conversations/conv_68", False),
    ],
)
def test_paths_of_answers(path: bytes, is_one: bool) -> None:
    assert is_of_answer(path) is is_one


def test_answer_is_found_by_its_maker_alone() -> None:
    answers, _ = made()
    assert expand(answers, {"previous_response_id": "resp_1"}) is None
    keep(answers, "1")

    found = expand(answers, {"input": "And?", "previous_response_id": "resp_1"})
    assert found is not None
    assert [item["content"] for item in json.loads(found.body)["input"]] == ["Hi", "hello", "And?"]
    assert (found.previous, json.loads(found.own)["content"]) == ("resp_1", "And?")
    assert expand(answers, {"input": "And?", "previous_response_id": "resp_1"}, B) is None
    assert (served(answers, "/v1/responses/resp_1")["id"], served(answers, "/v1/responses/resp_1", caller=B)) == (
        "resp_1",
        None,
    )


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        (b"/v1/responses/resp_vx0123/input_items", True),
        (b"/v1/conversations/conv_vx1", True),
        (b"/v1/responses/resp_0123", False),
        (b"/v1/files/resp_vx0123", False),
        (b"/v1/conversations", False),
    ],
)
def test_ids_that_only_velox_makes(path: bytes, is_own: bool) -> None:
    """No provider has one that begins so."""
    answers, _ = made()
    assert names_own(path) is is_own
    assert served(answers, path.decode()) is None


def test_answer_that_is_asked_for_stays() -> None:
    """It is written again before the ring has come round; the others give way."""
    answers, _ = made()
    keep(answers, "kept")
    keep(answers, "left")
    for n in range(60):
        keep(answers, str(n), text="x" * 300)
        assert served(answers, "/v1/responses/resp_kept") is not None
    assert served(answers, "/v1/responses/resp_left") is None


def test_gateways_have_the_same_answers_where_they_share_a_store() -> None:
    """Found there, and forgotten there."""
    shared = Shared()
    one, other = made(shared)[0], made(shared)[0]
    keep(one, "1")
    assert served(other, "/v1/responses/resp_1")["id"] == "resp_1"
    assert served(other, "/v1/responses/resp_1", caller=B) is None
    assert served(one, "/v1/responses/resp_1", "DELETE")["deleted"] is True
    assert (served(one, "/v1/responses/resp_1"), served(other, "/v1/responses/resp_1")) == (None, None)
    assert shared.texts == {}


def conversation(answers: Answers, *turns: str) -> str:
    """Make a conversation, and go on with it; return its id."""
    head = RequestHead.of(b"POST", b"/v1/conversations")
    found = asyncio.run(answers.serve(head, b"{}", A, makes=lambda: "vx1"))
    assert found is not None
    for each in turns:
        say(answers, each)
    return str(json.loads(found[2])["id"])


def say(answers: Answers, name: str) -> None:
    """Go on with the conversation."""
    expanded = expand(answers, {"input": f"asked {name}", "conversation": "conv_vx1"})
    assert expanded is not None and expanded.conversation == "conv_vx1"
    item = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": f"said {name}"}
    keeper = answers.kept.keeper(A, expanded)
    keeper.keep(expanded.body, json.dumps({"id": f"resp_{name}", "output": [item]}).encode())


def said(answers: Answers) -> list[str]:
    page = served(answers, "/v1/conversations/conv_vx1/items", caller=A)["data"]
    return [item["content"] for item in page][::-1]


@pytest.mark.parametrize("is_shared", [False, True])
def test_turns_that_began_at_one_instant_are_both_in_the_conversation(*, is_shared: bool) -> None:
    """K6: the later one stands behind the other, though it was asked without it."""
    shared = Shared() if is_shared else None
    one, ring = made(shared)
    other = Answers(lambda: KeptAnswers(ring, 60.0, 10_000, shared), lambda: True)
    if is_shared:
        other = made(shared)[0]
    conversation(one, "1")
    expanded = expand(one, {"input": "asked 2", "conversation": "conv_vx1"})
    say(other, "3")
    keeper = one.kept.keeper(A, expanded)
    keeper.keep(b"", b'{"id":"resp_2","output":[{"id":"msg_2","type":"message","content":"said 2"}]}')
    for each in (one, other):
        assert said(each) == ["asked 1", "said 1", "asked 3", "said 3", "asked 2", "said 2"]


def test_change_is_made_anew_of_what_another_gateway_has_left() -> None:
    """Of a turn, of items and of metadata: none is written over."""
    shared = Shared()
    one, other = made(shared)[0], made(shared)[0]
    conversation(one, "1")
    shared.before = [lambda: say(other, "2")]
    say(one, "3")
    assert said(one) == said(other) == ["asked 1", "said 1", "asked 2", "said 2", "asked 3", "said 3"]
    shared.before = [lambda: say(other, "4")]
    head = RequestHead.of(b"POST", b"/v1/conversations/conv_vx1")
    changed = asyncio.run(one.serve(head, b'{"metadata":{"k":"v"}}', A, makes=lambda: "vx2"))
    assert changed is not None and json.loads(changed[2])["metadata"] == {"k": "v"}
    assert said(one)[-1] == "said 4"
    assert served(other, "/v1/conversations/conv_vx1")["metadata"] == {"k": "v"}


def test_conversation_is_not_changed_while_the_store_is_away() -> None:
    """503 for who asks for a change; a turn that ends then is this gateway's alone."""
    shared = Shared()
    one = made(shared)[0]
    conversation(one, "1")
    shared.is_down = True
    head = RequestHead.of(b"DELETE", b"/v1/conversations/conv_vx1/items/msg_1")
    with pytest.raises(VeloxError) as info:
        asyncio.run(one.serve(head, b"", A))
    assert info.value.reason is Reason.ANSWERS_UNAVAILABLE and "the store" in info.value.message


def test_answer_that_is_too_long_is_not_kept() -> None:
    answers, _ = made()
    keep(answers, "1", text="x" * 5000)
    assert served(answers, "/v1/responses/resp_1") is None


def test_room_of_an_unfolded_request_is_given_back_once() -> None:
    """With the end of its exchange, whether it had a reply or not."""
    bodies = BodyBudget(100, 1.0, lambda: 0.0)
    assert bodies.take_now(60)
    release = BodyBudgetRelease(bodies, 60)
    release.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    assert not release.reads_body
    release.close()
    release.close()
    assert bodies.taken_bytes == 0


class Kept:
    """Who keeps answers, and tells which."""

    previous: str | None = None
    conversation: str | None = None
    reads_reply = True

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def own_input(self, body: bytes | bytearray) -> bytes:
        return b""

    def keep(self, body: bytes | bytearray, response: bytes) -> None:
        self.answers.append(response)


ANSWER = b'{"id":"resp_1","status":"completed","output":[]}'
LAST = b'event: response.completed\ndata: {"type":"response.completed","response":%b}\n\n' % ANSWER
CREATED = b'data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}\n\n'


@pytest.mark.parametrize(
    ("status", "is_sse", "is_plain", "reply", "kept"),
    [
        (200, False, True, ANSWER, [ANSWER]),
        (200, True, True, CREATED + LAST, [ANSWER]),
        (200, True, True, CREATED + LAST.replace(b"completed", b"incomplete"), None),
        (200, True, True, CREATED, []),
        (200, False, True, ANSWER[:-1], []),
        (200, False, True, b'{"id":"resp_1","status":"failed"}', []),
        (200, False, True, b'{"object":"x"}', []),
        (200, False, False, ANSWER, []),
        (400, False, True, ANSWER, []),
        (200, False, True, b'{"id":"resp_1","status":"completed","x":"%b"}' % (b"x" * 5000), []),
        (200, True, True, b"data: " + b"x" * 5000 + b"\n\n", []),
    ],
)
@given(cuts=st.lists(st.integers(0, 400), max_size=5))
def test_answer_is_read_as_it_passes(
    status: int, is_sse: bool, is_plain: bool, reply: bytes, kept: list[bytes] | None, cuts: list[int]
) -> None:
    """Whole ones alone, however they are cut; no byte is changed."""
    keeper = Kept()
    reading = ReadAnswer(keeper, b"{}", 1000)
    reading.begin(ReplyHead.of(status, [], None), is_sse=is_sse, is_plain=is_plain)
    places = [0, *sorted(cut for cut in cuts if cut < len(reply)), len(reply)]
    passed = b""
    for start, end in pairwise(places):
        part = reply[start:end]
        passed += reading.feed(part, end == len(reply)) if reading.reads_body else part
    assert passed == reply
    wanted = [ANSWER.replace(b"completed", b"incomplete")] if kept is None else kept
    assert keeper.answers == wanted


def test_answer_that_another_one_reads_is_not_read() -> None:
    keeper = Kept()
    keeper.reads_reply = False
    reading = ReadAnswer(keeper, b"{}", 1000)
    reading.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    assert not reading.reads_body


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        (b'{"input":"Hi"}', True),
        (b'{"input":"Hi","store":true}', True),
        (b'{"input":"Hi","store":null}', True),
        (b'{"input":"Hi","store":false}', False),
        (b'{"input":', False),
    ],
)
def test_client_may_want_its_answer_not_kept(body: bytes, is_kept: bool) -> None:
    answers, _ = made()
    readers = asyncio.run(answers.kept.readers(answers.kept.keeper(A, None), body, may_pass=True))
    assert any(isinstance(each, ReadAnswer) for each in readers) is is_kept
    assert not asyncio.run(answers.kept.readers(answers.kept.keeper(A, None), body, may_pass=False))


LARGE_INPUT = json.dumps({"input": "x" * 300_000}).encode()


class Written(ReplyFilter):
    """A translation, which gives the answer to its keeper with its last piece, and may be behind with pieces."""

    def __init__(self, keeper: AnswerKeeper, pieces: list[bytes], *, is_behind: bool) -> None:
        super().__init__()
        self._keeper, self._pieces, self._is_behind = keeper, pieces, is_behind

    def feed(self, data: bytes, end: bool) -> bytes:
        self._keeper.keep(LARGE_INPUT, b'{"id":"resp_1","output":[]}')
        if not self._is_behind:
            return b"".join(self._pieces)
        self.is_behind = True
        return self.go_on()

    def go_on(self) -> bytes:
        piece = self._pieces.pop(0)
        self.is_behind = bool(self._pieces)
        return piece


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("passes", [False, True])
def test_large_answer_is_kept_beside_the_loop_before_its_client_has_the_end(*, is_behind: bool, passes: bool) -> None:
    """And not in the call that brings its end: a copy of megabytes would hold the loop."""
    answers, ring = made(size=1 << 22)
    keeper = answers.kept.keeper(A, None)
    readers = asyncio.run(answers.kept.readers(keeper, LARGE_INPUT, may_pass=passes))
    keeper.reads_reply = passes
    answer = b'{"id":"resp_1","status":"completed","output":[]}'
    pieces = [answer[:9], answer[9:20], answer[20:]]
    first = () if passes else (Written(keeper, list(pieces), is_behind=is_behind),)
    chain = FilterChain((*first, *readers), is_sse=False, is_plain=True)
    assert chain.begin(ReplyHead.of(200, [], None)) is not None
    told = []
    for n, piece in enumerate(pieces if passes else pieces[:1], 1):
        told.append(chain.feed(piece, n == len(pieces) or not passes))
        while chain.is_behind:
            assert b"".join(told) != answer
            if chain.has_work:
                assert not ring.is_used
                chain.work()
                assert served(answers, "/v1/responses/resp_1")["id"] == "resp_1"
            told.append(chain.go_on())
    chain.close()
    assert b"".join(told) == answer and ring.is_used


def test_large_answer_of_a_reply_that_is_cut_is_not_kept() -> None:
    answers, ring = made(size=1 << 22)
    keeper = answers.kept.keeper(A, None)
    (later,) = asyncio.run(answers.kept.readers(keeper, LARGE_INPUT, may_pass=False))
    later.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    keeper.keep(LARGE_INPUT, b'{"id":"resp_1","output":[]}')
    assert later.feed(b"piece", False) == b""
    later.close()
    later.work()
    assert not ring.is_used


def test_large_conversation_is_unfolded() -> None:
    """In the thread, as it would be in the loop."""
    answers, _ = made(size=1 << 22)
    answers.kept.keeper(A, None).keep(LARGE_INPUT, b'{"id":"resp_1","output":[]}')
    kept = KeptAnswers(made(size=1 << 22)[1], 60.0, 1 << 20)
    kept.keep(KeptAnswer("resp_1", "a", None, b'{"role":"user","content":"%b"}' % (b"x" * 300_000), b'{"id":"resp_1"}'))
    expanded = asyncio.run(kept.expand(b'{"input":"And?","previous_response_id":"resp_1"}', A))
    assert expanded is not None
    assert [len(item["content"]) for item in json.loads(expanded.body)["input"]] == [300_000, 4]


def test_answer_that_is_still_made_is_told_as_failed_once_nobody_makes_it() -> None:
    """Its worker has died: it says every ten seconds that it lives."""
    ring = AnswerRing(AnswerMemory(8192, 64, 1, 1), 0)
    kept = KeptAnswers(ring, 60.0, 10_000)
    answers = Answers(lambda: kept, lambda: True)
    response = b'{"id":"resp_1","status":"in_progress","background":true,"output":[],"error":null}'
    for until_s, status in ((int(time.time()) + 60, "in_progress"), (1, "failed")):
        kept.keep(KeptAnswer("resp_1", "a", None, b"", response, until_s))
        assert served(answers, "/v1/responses/resp_1")["status"] == status
    assert served(answers, "/v1/responses/resp_1")["error"]["code"] == "server_error"

    kept.keep(KeptAnswer("resp_1", "a", None, b"", response, int(time.time()) + 60))
    with pytest.raises(VeloxError, match="still being made"):
        expand(answers, {"input": "And?", "previous_response_id": "resp_1"})
    for _ in range(2):
        assert served(answers, "/v1/responses/resp_1/cancel", "POST")["status"] == "cancelled"
    assert served(answers, "/v1/responses/resp_1")["status"] == "cancelled"
