"""Whose an object is that a request names: in its path, anywhere in its body, and in the reply that made it."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import recorded
from velox.errors import Reason, VeloxError
from velox.gateway.access.access import Access
from velox.gateway.access.ownership import IdWatch
from velox.gateway.auth import Authenticator
from velox.gateway.reply.filters import ReplyFilter
from velox.heads import Header, ReplyHead, RequestHead, WebSocketOffer
from velox.net.upstream.interface import UpstreamFailure
from velox.protocol.json.body import LARGE_BYTES, BodyReader
from velox.protocol.named_models import DoubtError
from velox.protocol.named_objects import looking_for_mentions, mentions_objects, named_ids
from velox.protocol.slices import finished
from velox.shm.object_table import UNKNOWN, ObjectMemory, ObjectTable
from velox.types import BodyFields, Caller, KeyEntry, KeyTerms

ENDPOINTS = ("all", "/v1/something-new", "/v1/other")
A, B = (
    Caller("a", terms=KeyTerms(endpoints=ENDPOINTS), id=b"12345678"),
    Caller("b", terms=KeyTerms(endpoints=ENDPOINTS), id=b"23456789"),
)
LIMITED = Caller("c", KeyTerms(models=("m",), endpoints=("all",)), b"34567890")
JSON = ((b"content-type", b"application/json"),)
FILE, RESPONSE, STORE, CHAT = "file-aaaaaaaa", "resp_aaaaaaaa", "vs_aaaaaaaa", "chatcmpl-aaaaaaaa"
CHATS = b"/v1/chat/completions"


class Account:
    """Two callers' keys, and the objects that A has made."""

    def __init__(self, *, refuses_unknown: bool = False) -> None:
        self.table = ObjectTable(ObjectMemory(1024, 1, 1), 0)
        auth = Authenticator([KeyEntry(b"1" * 32, name="a"), KeyEntry(b"2" * 32, name="b")])
        self.access = Access(self.table, auth, refuses_unknown=refuses_unknown)
        for each in (FILE, RESPONSE, STORE, CHAT):
            self.table.remember(each, self.table.number("a"))

    def ask(
        self, caller: Caller, method: bytes, target: bytes, body: object = None, headers: Sequence[Header] = JSON
    ) -> tuple[ReplyFilter, ...]:
        """Show a whole request to its guard; return the filters of its reply. Raises VeloxError."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = RequestHead.of(method, target, headers, len(data) if data else None)
        guard = self.access.guard(head, caller)
        fields = BodyReader().read(data) if target == CHATS and data else BodyFields()
        if guard is None or not guard.concerns(data if len(data) < LARGE_BYTES else None, fields):
            return ()
        return tuple(finished(guard.steps(head, data, fields)))

    def refused(
        self, method: bytes, target: bytes, body: object = None, headers: Sequence[Header] = JSON
    ) -> VeloxError:
        """Return why B is refused, who must be, and see that A is not."""
        self.ask(A, method, target, body, headers)
        with pytest.raises(VeloxError) as caught:
            self.ask(B, method, target, body, headers)
        assert (caught.value.reason, caught.value.status) == (Reason.UNKNOWN_OBJECT, 404)
        return caught.value


def chat(*parts: object, **more: object) -> dict[str, object]:
    """Return a chat completion's body."""
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


def turn(*parts: object, **more: object) -> dict[str, object]:
    """Return a response's body."""
    return {"model": "m", "input": [{"role": "user", "content": list(parts)}], **more}


FILE_PART = {"type": "file", "file": {"file_id": FILE}}
BODIES = [
    (CHATS, chat(FILE_PART), "file_id"),
    (CHATS, chat({"type": "text", "text": "x" * LARGE_BYTES}, FILE_PART), "file_id"),
    (b"/openai/deployments/m/chat/completions", chat(FILE_PART), "file_id"),
    (b"/v1/Chat/Completions", chat(FILE_PART), "file_id"),
    (b"/v1/responses", turn({"type": "input_file", "file_id": FILE}), "file_id"),
    (b"/v1/responses", turn({"type": "input_image", "file_id": FILE}), "file_id"),
    (b"/v1/responses", turn(tools=[{"type": "file_search", "vector_store_ids": [STORE]}]), "vector_store_ids"),
    (b"/v1/responses", turn(tools=[{"type": "code_interpreter", "container": {"file_ids": [FILE]}}]), "file_ids"),
    (b"/v1/responses", turn(tools=[{"type": "code_interpreter", "container": STORE}]), "container"),
    (b"/v1/responses", turn(conversation=STORE), "conversation"),
    (b"/v1/responses", turn(conversation={"id": STORE}), "conversation"),
    (b"/v1/responses", turn(previous_response_id=RESPONSE), "previous_response_id"),
    (b"/v1/responses/compact", {"model": "m", "previous_response_id": RESPONSE}, "previous_response_id"),
    (b"/v1/messages", {"model": "m", "messages": [{"content": [{"source": {"file_id": FILE}}]}]}, "file_id"),
    (b"/v1/messages", {"model": "m", "container": STORE, "messages": []}, "container"),
    (b"/v1/messages/batches", {"requests": [{"params": {"messages": [{"source": {"file_id": FILE}}]}}]}, "file_id"),
    (b"/v1/images/edits", {"model": "m", "images": [{"file_id": FILE}]}, "file_id"),
    (b"/v1/batches", {"input_file_id": FILE}, "input_file_id"),
    (b"/v1/fine_tuning/jobs", {"model": "m", "training_file": FILE}, "training_file"),
    (b"/v1/fine_tuning/jobs", {"model": "m", "training_file": "file-own", "validation_file": FILE}, "validation_file"),
    (b"/v1/assistants", {"tool_resources": {"file_search": {"vector_store_ids": [STORE]}}}, "vector_store_ids"),
    (b"/v1/threads", {"messages": [{"attachments": [{"file_id": FILE}]}]}, "file_id"),
    (b"/v1/threads/runs", {"assistant_id": STORE}, "assistant_id"),
    (b"/v1/vector_stores", {"file_ids": ["file-own", FILE]}, "file_ids"),
    (b"/v1/vector_stores/vs_own/files", {"file_id": FILE}, "file_id"),
    (b"/v1/vector_stores/vs_own/file_batches", {"files": [{"file_id": FILE}]}, "file_id"),
    (b"/v1/containers/cntr_own/files", {"file_id": FILE}, "file_id"),
    (b"/v1/evals/eval_own/runs", {"data_source": {"source": {"type": "file_id", "id": FILE}}}, None),
    (b"/v1/something-new", {"reads": {"from": [FILE]}}, None),
]


@pytest.mark.parametrize(("path", "body", "param"), BODIES)
def test_body_that_names_another_callers_object_gets_404(path: bytes, body: object, param: str | None) -> None:
    """At any depth, under the API's fields or one that is new; an id of nobody passes."""
    account = Account()

    assert account.refused(b"POST", path, body).param == param

    text = json.dumps(body)
    for each in (FILE, RESPONSE, STORE):
        text = text.replace(each, each.replace("aaaaaaaa", "yesterday"))
    account.ask(B, b"POST", path, text.encode())


SPELLINGS = [
    b'{"model":"m","messages":[{"content":[{"file":{"file_id":"file\\u002daaaaaaaa"}}]}]}',
    b'{"model":"m","messages":[{"content":[{"file":{"\\u0066ile_id":"\\u0066ile-aaaaaaaa"}}]}]}',
    b'{"model":"m","messages":[{"content":[{"file":{"File_ID" : "file-aaaaaaaa"}}]}]}',
    b'{"model":"m","messages":[{"content":[{"file":{"file_id":"file-own","file_id":"file-aaaaaaaa"}}]}]}',
    # Twice inside of what is there twice, or stands in an object of many fields.
    b'{"model":"m","messages":[],"x":1,"x":{"file":{"file_id":"file-aaaaaaaa","file_id":"file-own"}}}',
    b'{"model":"m","messages":[],%b"x":[{"file_id":"file-aaaaaaaa","file_id":"file-own"}]}'
    % b"".join(b'"k%d":1,' % n for n in range(1100)),
    b'{"model":"m","n":1e999,"messages":[{"content":[{"file":{"file_id":"file-aaaaaaaa"}}]}]}',
    b'\xef\xbb\xbf{"model":"m","messages":[{"content":[{"file":{"file_id":"file-aaaaaaaa"}}]}]}',
]


@pytest.mark.parametrize("body", SPELLINGS)
@pytest.mark.parametrize("path", [CHATS, b"/v1/responses"])
def test_other_spelling_of_an_id_is_the_same_id(path: bytes, body: bytes) -> None:
    """As servers read it: escapes, letter case of names, a field that is there twice, JSON that is not strict."""
    Account().refused(b"POST", path, body)


PATHS = [
    (b"GET", b"/v1/files/file-aaaaaaaa"),
    (b"GET", b"/v1/files/file-aaaaaaaa/content"),
    (b"DELETE", b"/v1/responses/resp_aaaaaaaa"),
    (b"GET", b"/v1/vector_stores/vs_own/files/file-aaaaaaaa"),
    (b"POST", b"/v1/threads/thread_own/runs/resp_aaaaaaaa"),
    (b"GET", b"/v1/chat/completions/chatcmpl-aaaaaaaa"),
    (b"POST", b"/v1/chat/completions/chatcmpl-aaaaaaaa"),
    (b"DELETE", b"/v1/chat/completions/chatcmpl-aaaaaaaa"),
    (b"GET", b"/v1/chat/completions/chatcmpl-aaaaaaaa/messages"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_path_that_names_another_callers_object_gets_404(method: bytes, path: bytes) -> None:
    """Whichever segment it is."""
    Account().refused(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (b"GET", b"/v1/chat/%63ompletions/chatcmpl-aaaaaaaa"),
        (b"GET", b"/v1/Chat/completions"),
        (b"DELETE", b"/v1/chat//completions/chatcmpl-aaaaaaaa"),
        (b"POST", b"/v1/chat/completions/%63hatcmpl-aaaaaaaa"),
        (b"POST", b"/v1/chat/completions%2Fchatcmpl-aaaaaaaa"),
        (b"POST", b"/v1/chat/completions;a=b/chatcmpl-aaaaaaaa"),
        (b"GET", b"/v1/%66iles/file-aaaaaaaa"),
    ],
)
def test_path_of_an_object_is_written_plainly(method: bytes, path: bytes) -> None:
    """No server may read another object in it than Velox."""
    with pytest.raises(VeloxError) as caught:
        Account().ask(A, method, path)
    assert caught.value.reason is Reason.FORBIDDEN


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/Chat/Completions", b"/v1/chat/completions/"])
def test_chat_completion_itself_may_be_written_in_any_way(path: bytes) -> None:
    """It names no object."""
    assert Account().ask(B, b"POST", path, chat({"type": "text", "text": "hi"})) == ()


@pytest.mark.parametrize(
    "body",
    [
        chat({"type": "text", "text": f"what is in {FILE}?"}),
        chat({"type": "text", "text": '{"file_id":"' + FILE + '"}'}),
        turn({"type": "input_text", "text": "a " * 200_000}),
        turn(tools=[{"type": "file_search", "vector_store_ids": ["vs_own"]}]),
        {"model": "m", "messages": [{"role": "user", "content": "déjà \u00e9"}]},
    ],
)
def test_text_that_speaks_of_an_id_is_not_one(body: object) -> None:
    """Only a whole text is."""
    account = Account()
    for path in (CHATS, b"/v1/responses", b"/v1/files"):
        account.ask(B, b"POST", path, body)


def test_limited_key_is_held_to_its_objects_too() -> None:
    """A key with `models`, whose bodies are read anyway."""
    account = Account()
    for path, body in ((CHATS, chat(FILE_PART)), (b"/v1/responses", turn(previous_response_id=RESPONSE))):
        with pytest.raises(VeloxError) as caught:
            account.ask(LIMITED, b"POST", path, body)
        assert caught.value.reason is Reason.UNKNOWN_OBJECT


def test_body_that_can_not_be_read_is_refused_where_it_may_name_objects() -> None:
    """JSON that servers read differently; what is no JSON at all passes where the API takes none."""
    account = Account()
    with pytest.raises(VeloxError) as caught:
        account.ask(B, b"POST", b"/v1/vector_stores", b'{"file_ids":["file-aaaaaaaa"')
    assert caught.value.reason is Reason.BAD_REQUEST
    account.ask(B, b"POST", b"/v1/other", b'a text with "file-x" in it', ((b"content-type", b"text/plain"),))
    account.ask(B, b"POST", b"/v1/files", b'--x\r\n"file-aaaaaaaa', ((b"content-type", b"multipart/form-data; x"),))


FORM = ((b"content-type", b"multipart/form-data; boundary=b"),)


def form(*parts: tuple[str, str], line: str = "\r\n") -> bytes:
    """Return a form: of each part the field of its head, and its content."""
    text = "".join(f"--b{line}Content-Disposition: form-data; {name}{line}{line}{data}{line}" for name, data in parts)
    return f"{text}--b--{line}".encode()


@pytest.mark.parametrize("line", ["\r\n", "\n"])
@pytest.mark.parametrize("n_before", [0, 65_536 - 150, 65_536 - 80, 65_536, 200_000])
@pytest.mark.parametrize("name", ['name="file_id"', "name=file_id", 'name="video[id]"', 'name="x"; a=b'])
def test_form_that_names_another_callers_object_gets_404(name: str, n_before: int, line: str) -> None:
    """As `videos.edit()` of the SDK sends it: in a field of its own, wherever that stands."""
    body = form(('name="prompt"', "p" * n_before), (name, FILE), ('name="last"', "x"), line=line)
    for path in (b"/v1/videos/edits", b"/v1/containers/cntr_own/files"):
        Account().refused(b"POST", path, body, FORM)


FIELDS = ((b"content-type", b"application/x-www-form-urlencoded"),)


@pytest.mark.parametrize("n_before", [0, 65_536 - 70, 65_536 - 40, 65_536 - 12, 65_536, 1_200_000])
@pytest.mark.parametrize("field", [f"video[id]={FILE}", f"video[id]={FILE}&b=c", "video%5Bid%5D=%66ile%2Daaaaaaaa"])
def test_form_that_is_written_as_a_query_hides_no_object(field: str, n_before: int) -> None:
    """Servers that read forms read both kinds, whatever the API says."""
    body = f"prompt={'p' * n_before}&{field}".encode()
    for path in (b"/v1/videos/edits", b"/v1/containers/cntr_own/files"):
        Account().refused(b"POST", path, body, FIELDS)


def test_form_that_is_written_as_a_query_may_speak_of_an_id() -> None:
    """Only a field that is an id names one. What curl sends has this type if nobody says another one."""
    Account().ask(B, b"POST", b"/v1/videos/edits", f"prompt=the+{FILE}&{FILE}=x&c".encode(), FIELDS)
    Account().ask(B, b"POST", b"/v1/responses", turn("x" * 2_000_000), FIELDS)


@pytest.mark.parametrize("text", [f"what is in {FILE}?", f"{FILE}\r\n{FILE}", "file-own", "file-", ""])
def test_text_of_a_form_that_speaks_of_an_id_is_not_one(text: str) -> None:
    """A file may speak of anything."""
    Account().ask(
        B, b"POST", b"/v1/files", form(('name="purpose"', "batch"), ('name="file"; filename="a"', text)), FORM
    )


@pytest.mark.parametrize("begin", ["", "\ufeff", " \r\n", " " * 100_000])
@pytest.mark.parametrize("headers", [FORM, FIELDS])
def test_json_that_is_called_a_form_hides_no_object(headers: Sequence[Header], begin: str) -> None:
    """Servers that ask for a request's JSON, as Starlette's do, read it whatever its Content-Type is."""
    Account().refused(b"POST", b"/v1/vector_stores", (begin + json.dumps({"file_ids": [FILE]})).encode(), headers)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("path", [b"/v1/vector_stores", b"/v1/something-new"])
def test_body_in_another_encoding_hides_no_object(path: bytes, encoding: str) -> None:
    """Servers that tell UTF-16 and UTF-32 by the first bytes, as Python's parser does, would read an id in it."""
    body = json.dumps({"file_ids": [FILE]}).encode(encoding)
    assert json.loads(body) == {"file_ids": [FILE]}
    with pytest.raises(VeloxError) as caught:
        Account().ask(B, b"POST", path, body)
    assert caught.value.reason is Reason.BAD_REQUEST


def test_unknown_objects_may_be_refused_in_bodies_too() -> None:
    """Under the names that are for ids; another text that looks like one is nobody's business."""
    account = Account(refuses_unknown=True)
    with pytest.raises(VeloxError):
        account.ask(A, b"POST", CHATS, chat({"type": "file", "file": {"file_id": "file-yesterday"}}))
    account.ask(A, b"POST", CHATS, chat(FILE_PART, {"type": "text", "text": "file-yesterday"}))
    account.ask(A, b"POST", b"/v1/responses", turn(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]))


def test_body_is_not_searched_while_nobody_has_made_what_it_could_name() -> None:
    """Chats of callers that share an account cost no more for it; kept replies are named at their own endpoints."""
    table = ObjectTable(ObjectMemory(1024, 1, 1), 0)
    auth = Authenticator([KeyEntry(b"1" * 32, name="a"), KeyEntry(b"2" * 32, name="b")])
    body = json.dumps(chat(FILE_PART)).encode()
    guards = {}
    for refuses_unknown in (False, True):
        access = Access(table, auth, refuses_unknown=refuses_unknown)
        guards[refuses_unknown] = access.guard(RequestHead.of(b"POST", CHATS, JSON, len(body)), B)

    def concerned() -> list[bool]:
        return [guard is not None and guard.concerns(body, BodyFields()) for guard in guards.values()]

    assert concerned() == [False, True], "what is unknown may have to be refused"
    table.remember(RESPONSE, table.number("a"))
    table.remember(CHAT, table.number("a"))
    assert concerned() == [False, True]
    table.remember(FILE, table.number("a"))
    assert concerned() == [True, True]


# -- stored chat completions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "is_stored"),
    [
        (b'{"model":"m","messages":[]}', False),
        (b'{"model":"m","messages":[],"store":false}', False),
        (b'{"model":"m","messages":[],"store":null}', False),
        (b'{"model":"m","messages":[],"store":true}', True),
        (b'{"model":"m","messages":[],"\\u0073tore":true}', True),
        (b'{"model":"m","messages":[],"store":false,"store":true}', True),
        (b'{"model":"m","messages":[{"content":"\\u00e9"}],"store":true}', True),
    ],
)
@pytest.mark.parametrize("is_sse", [False, True])
def test_stored_chat_completion_belongs_to_its_caller(body: bytes, is_stored: bool, is_sse: bool) -> None:
    """From the moment at which its id can be known; one that is not stored is not remembered."""
    account = Account()
    filters = account.ask(B, b"POST", CHATS, body)
    assert bool(filters) is is_stored
    for each in filters:
        each.begin(ReplyHead.of(200, [], None), is_sse=is_sse, is_plain=True)
        reply = b'{"id":"chatcmpl-new","object":"chat.completion"}'
        each.feed(b"data: %b\n\n" % reply if is_sse else reply, end=not is_sse)
    assert (account.table.owner_of("chatcmpl-new") == account.table.number("b")) is is_stored


@pytest.mark.parametrize(
    ("path", "reply", "made"),
    [
        (b"/v1/videos", {"id": "video_new"}, ["video_new"]),
        (b"/v1/videos/edits", {"id": "video_new"}, ["video_new"]),
        (b"/v1/videos/extensions", {"id": "video_new"}, ["video_new"]),
        (b"/v1/videos/characters", {"id": "char_new"}, ["char_new"]),
        (b"/v1/videos/video_own/remix", {"id": "video_new", "remixed_from_video_id": "video_own"}, ["video_new"]),
        (b"/v1/uploads/upload_own/complete", {"id": "upload_own", "file": {"id": "file-new"}}, ["file-new"]),
    ],
)
def test_what_is_made_of_another_object_belongs_to_its_caller(
    path: bytes, reply: dict[str, object], made: list[str]
) -> None:
    """A video of a video, the file of an upload: else nobody would own it, and all could use it."""
    account = Account(refuses_unknown=True)
    for own in ("video_own", "upload_own"):
        account.table.remember(own, account.table.number("b"))
    (recording,) = account.ask(B, b"POST", path, {"prompt": "p"})
    told(recording, json.dumps(reply).encode(), is_sse=False, n_bytes=7)
    assert [account.table.owner_of(each) for each in made] == [account.table.number("b")] * len(made)


def test_character_of_a_video_is_an_object_of_its_own() -> None:
    """The word before its id is none."""
    account = Account(refuses_unknown=True)
    account.table.remember("char_1", account.table.number("a"))
    account.refused(b"GET", b"/v1/videos/characters/char_1")


def test_list_of_stored_chat_completions_has_the_callers_own() -> None:
    """As any list."""
    account = Account()
    account.table.remember("chatcmpl-bbbbbbbb", account.table.number("b"))
    (reply,) = account.ask(B, b"GET", CHATS)
    assert reply.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True) is None
    page = {"object": "list", "data": [{"id": CHAT}, {"id": "chatcmpl-bbbbbbbb"}, {"id": "chatcmpl-old"}]}
    found = json.loads(reply.feed(json.dumps(page).encode(), end=True))
    assert [each["id"] for each in found["data"]] == ["chatcmpl-bbbbbbbb"]


GZIPPED = ReplyHead.of(200, [(b"content-encoding", b"gzip"), (b"content-type", b"application/json")], None)


@pytest.mark.parametrize("size", [7, 10_000])
def test_object_in_a_compressed_reply_belongs_to_its_caller(size: int) -> None:
    """Servers compress though they were asked not to: nobody would own what is in it, and all could use it."""
    account = Account(refuses_unknown=True)
    (recording,) = account.ask(B, b"POST", b"/v1/videos", {"prompt": "p"})
    body = gzip.compress(b'{"object":"video","id":"video_new"}')
    recording.begin(GZIPPED, is_sse=False, is_plain=False)
    passed = b"".join(recording.feed(body[at : at + size], False) for at in range(0, len(body), size))
    assert passed == body
    assert account.table.owner_of("video_new") == account.table.number("b")


def test_compressed_list_has_the_callers_own() -> None:
    """It goes on as plain text."""
    account = Account()
    account.table.remember("chatcmpl-bbbbbbbb", account.table.number("b"))
    (reply,) = account.ask(B, b"GET", CHATS)
    assert reply.begin(GZIPPED, is_sse=False, is_plain=False) is None
    page = {"object": "list", "data": [{"id": CHAT}, {"id": "chatcmpl-bbbbbbbb"}]}
    found = reply.feed(gzip.compress(json.dumps(page).encode()), end=True)
    assert [each["id"] for each in json.loads(found)["data"]] == ["chatcmpl-bbbbbbbb"]
    assert reply.released is not None and reply.released.content_length == len(found)
    assert [name for name, _ in reply.released.headers] == [b"content-type"]


# -- what a reply tells of what it made ---------------------------------------------------------------------------

ECHO = {"response": {"id": "resp_old"}, "id": "resp_old", "thread_id": "thread_old", "x": ["{", {"id": "resp_old"}]}
SPEAKS = 'he said "id":"resp_old" and {"response":{"id":"resp_old"}} \\'
RESPONSES, STORES = b"/v1/responses", b"/v1/vector_stores"


def told(reply: ReplyFilter, data: bytes, *, is_sse: bool, n_bytes: int) -> None:
    """Give a filter a reply in pieces of so many bytes."""
    reply.begin(ReplyHead.of(200, [], None), is_sse=is_sse, is_plain=True)
    for at in range(0, len(data), n_bytes):
        if reply.reads_body:
            assert reply.feed(data[at : at + n_bytes], at + n_bytes >= len(data)) == data[at : at + n_bytes]


@pytest.mark.parametrize("n_bytes", [1, 3, 1000])
@pytest.mark.parametrize("is_first", [True, False])
def test_reply_makes_nobody_the_owner_of_what_it_repeats(is_first: bool, n_bytes: int) -> None:
    """Metadata and tools stand deeper than the object's own id, whichever comes first; a text is only a text."""
    for path, made in ((STORES, "vs_new"), (RESPONSES, "resp_new"), (b"/v1/batches", "batch_new")):
        account = Account()
        echo = {"metadata": ECHO, "instructions": SPEAKS, "tools": [ECHO], "response": ECHO, "object_id": "resp_old"}
        (reply,) = account.ask(B, b"POST", path, {"model": "m"})
        body = {**echo, "id": made} if is_first else {"id": made, **echo}
        told(reply, json.dumps(body).encode(), is_sse=False, n_bytes=n_bytes)
        assert account.table.owner_of(made) == account.table.number("b")
        assert account.table.owner_of("resp_old") == account.table.owner_of("thread_old") == UNKNOWN


def test_reply_without_an_id_makes_nobody_an_owner() -> None:
    """A list is none, and an empty text is none."""
    for body in ([ECHO], {"data": [ECHO]}, {"id": None}, {"id": ""}, {"id": ["resp_old"]}, ["id", "resp_old"]):
        account = Account()
        (reply,) = account.ask(B, b"POST", STORES, {})
        told(reply, json.dumps(body).encode(), is_sse=False, n_bytes=1000)
        assert [account.table.owner_of(each) for each in ("resp_old", "")] == [UNKNOWN, UNKNOWN]


def test_id_behind_a_long_reply_is_found() -> None:
    """A picture may come before it."""
    account = Account()
    (reply,) = account.ask(B, b"POST", RESPONSES, {"model": "m"})
    body = {"output": [{"type": "image_generation_call", "result": "A" * 400_000}], "id": "resp_new"}
    told(reply, json.dumps(body).encode(), is_sse=False, n_bytes=65_536)
    assert account.table.owner_of("resp_new") == account.table.number("b")


CREATED = {
    "type first": {"type": "response.created", "response": {"id": "resp_new", "tools": [ECHO], "metadata": ECHO}},
    "response first": {"response": {"error": None, "id": "resp_new", "tools": [ECHO]}, "type": "response.created"},
    "object first": {"type": "response.created", "response": {"object": "response", "id": "resp_new"}},
    "echo first": {"sequence_number": 0, "response": {"instructions": SPEAKS, "tools": [ECHO], "id": "resp_new"}},
}


@pytest.mark.parametrize("name", CREATED)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("n_bytes", [1, 7, 1000])
def test_streamed_response_tells_its_id_in_its_first_event(name: str, line_end: str, n_bytes: int) -> None:
    """In whichever order a server writes the fields."""
    account = Account()
    (reply,) = account.ask(B, b"POST", RESPONSES, {"model": "m", "stream": True})
    lines = (": ping", "", "event: response.created", f"data: {json.dumps(CREATED[name])}", "", "")
    told(reply, line_end.join(lines).encode(), is_sse=True, n_bytes=n_bytes)
    assert account.table.owner_of("resp_new") == account.table.number("b")
    assert account.table.owner_of("resp_old") == UNKNOWN
    assert not reply.reads_body, "nothing more is told"


@pytest.mark.parametrize("provider", ["bedrock-mantle", "openrouter", "deepseek"])
def test_streams_of_real_servers_tell_their_ids(provider: str) -> None:
    """Each has its own order of fields, and its own ids."""
    streams = recorded(provider, "/responses", stream=True)
    assert streams
    for each in streams:
        account = Account()
        (reply,) = account.ask(B, b"POST", RESPONSES, {"model": "m", "stream": True})
        told(reply, each.reply, is_sse=True, n_bytes=100)
        lines = [line for line in each.reply.splitlines() if line.startswith(b"data: {")]
        assert account.table.owner_of(json.loads(lines[0][6:])["response"]["id"]) == account.table.number("b")


def test_streamed_chat_tells_its_id_in_the_first_event_that_has_one() -> None:
    """Some servers begin with an event of content filters, whose id is empty."""
    account = Account()
    body = b'{"model":"m","messages":[],"store":true,"stream":true}'
    (reply,) = account.ask(B, b"POST", CHATS, body)
    first = {"choices": [], "id": "", "prompt_filter_results": [ECHO]}
    events = [first, {"choices": [{"delta": {"content": SPEAKS}}], "metadata": ECHO, "id": "chatcmpl-new"}]
    told(reply, b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events), is_sse=True, n_bytes=5)
    assert account.table.owner_of("chatcmpl-new") == account.table.number("b")
    assert account.table.owner_of("resp_old") == account.table.owner_of("") == UNKNOWN


def frames(message: object, *, n_parts: int = 1, opcode: int = 1, mask: bytes = b"") -> bytes:
    """Return a message of a server in so many fragments, a ping between them."""
    data = message.encode() if isinstance(message, str) else json.dumps(message).encode()
    size = -(-len(data) // n_parts)
    found = b""
    for at in range(0, len(data), size):
        part = data[at : at + size]
        first = (0x80 if at + size >= len(data) else 0) | (0 if at else opcode)
        length = bytes([len(part)]) if len(part) < 126 else b"\x7e" + len(part).to_bytes(2)
        found += bytes([first, length[0] | (0x80 if mask else 0)]) + length[1:] + mask + part + b"\x89\x03{{{"
    return found


MADE_BY_MESSAGES = ("resp_new1", "resp_new2", "resp_new3", "cntr_new", "resp_old")


@pytest.mark.parametrize("n_bytes", [1, 11, 10_000])
@pytest.mark.parametrize("n_parts", [1, 2, 5])
def test_messages_of_a_websocket_tell_the_ids_of_responses(n_parts: int, n_bytes: int) -> None:
    """Of each that is made; what a message repeats makes nobody an owner."""
    account = Account()
    watch = IdWatch(account.table, account.table.number("b"))
    messages = [
        {"type": "session.created", "response": ECHO},
        {"type": "response.created", "response": {"tools": [ECHO], "instructions": SPEAKS, "id": "resp_new1"}},
        {"type": "response.output_text.delta", "delta": SPEAKS, "item": {"id": "resp_old"}, "id": "resp_old"},
        {"response": {"id": "resp_new2", "metadata": ECHO}, "type": "response.done"},
        {"type": "response.output_item.done", "item": {"id": "ci_1", "container_id": "cntr_new"}},
        SPEAKS,
        ["response", {"id": "resp_old"}],
        {"type": "response.created", "response": {"metadata": {"x": "x" * 70}, "id": "resp_new3"}},
    ]
    data = b"".join(frames(each, n_parts=n_parts) for each in messages)
    for at in range(0, len(data), n_bytes):
        assert watch.feed(data[at : at + n_bytes]) == data[at : at + n_bytes]
    made = {each: account.table.owner_of(each) for each in MADE_BY_MESSAGES}
    assert made == {**dict.fromkeys(made, account.table.number("b")), "resp_old": UNKNOWN}


def test_frame_that_no_server_may_send_is_passed_over() -> None:
    """Masked, or compressed: the next one is read from where it begins."""
    account = Account()
    watch = IdWatch(account.table, account.table.number("b"))
    bad, good = ({"type": "response.done", "response": {"id": each, "x": "x" * 99}} for each in ("resp_x", "resp_y"))
    watch.feed(frames(bad, mask=bytes(4)) + frames(bad, opcode=0x41) + frames(good))
    assert account.table.owner_of("resp_x") == UNKNOWN
    assert account.table.owner_of("resp_y") == account.table.number("b")


# -- what is read of a body ---------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["file-1", "resp_2", "vs_3", "hello", "file", "", "file-1 ", "0b6d3c1e", "é"])
NAMES = st.sampled_from(["file_id", "file_ids", "conversation", "id", "type", "fileId", "File-Ids", "container", "x"])
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(-5, 5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(body=st.dictionaries(NAMES, VALUES, max_size=4), is_ascii=st.booleans(), is_strict=st.booleans())
def test_every_id_of_a_body_is_found(body: dict[str, object], is_ascii: bool, is_strict: bool) -> None:
    """By either parser; and where one is there, the bytes tell it before the parse."""
    data = json.dumps(body if is_strict else {**body, "n": float("nan")}, ensure_ascii=is_ascii).encode()

    found = {each.text for each in finished(named_ids(data))}

    assert found >= {text for text in ("file-1", "resp_2", "vs_3") if f'"{text}"' in data.decode()}
    assert found <= {"file-1", "resp_2", "vs_3", "hello", "file", "file-1 ", "0b6d3c1e", "é"}
    if found & {"file-1", "resp_2", "vs_3"}:
        assert mentions_objects(data)


FLOODS = {
    "numbers": b'{"file_id":"file-1","a":[' + b"0," * 4_000_000 + b"0]}",
    "in an object of many fields": b'{"file_id":"file-1",%b"a":[%b0]}'
    % (b"".join(b'"k%d":0,' % n for n in range(100)), b"{}," * 3_000_000),
    "fields": b'{"file_id":"file-1",' + b'"a":0,' * 2_000_000 + b'"b":0}',
}


@pytest.mark.parametrize("body", FLOODS.values(), ids=FLOODS.keys())
def test_body_of_too_many_values_is_not_looked_through(body: bytes) -> None:
    """No step of it takes long, and nothing is kept of what is looked at: 64 MiB of numbers were 3 GB."""
    steps, longest = named_ids(body), 0.0

    with pytest.raises(DoubtError, match="too many"):
        while True:
            started = time.process_time()
            try:
                next(steps)
            finally:
                longest = max(longest, time.process_time() - started)

    assert longest < 0.3


def test_id_in_an_object_of_many_fields_is_found() -> None:
    """However many fields an object has, and whichever way it is gone through for that."""
    for n_fields in (2, 100, 1_100, 20_000):
        fields = {f"k{n}": "x" for n in range(n_fields)}
        body = json.dumps({"input": {**fields, "file_id": FILE, "last": [{"file_ids": [STORE]}]}}).encode()

        assert {each.text for each in finished(named_ids(body))} >= {FILE, STORE}


def test_ids_beside_megabytes_of_text_are_found_in_slices() -> None:
    """A picture is passed over, also in escapes: to parse 30 MB of it at once takes over 10 ms."""
    for text in ("QUJD" * 700_000, r"\u00e4" * 400_000):
        body = f'{{"a":"{text}","input":{{"file_id":"{FILE}","url":"{text}"}}}}'.encode()
        assert sum(1 for _ in named_ids(body)) >= len(body) // (128 * 1024)
        assert {each.text for each in finished(named_ids(body))} == {FILE}


def test_mention_is_found_wherever_slices_are_cut() -> None:
    """A large body is searched in slices, none of which may cut a name in two."""
    for at in range(65_536 - 30, 65_536 + 30):
        body = b'{"a":"' + b"x" * at + b'","previous_response_id":"r"}'
        assert finished(looking_for_mentions(body))
        assert not finished(looking_for_mentions(body.replace(b"_id", b"_no")))


# -- Google's objects, and other kinds ----------------------------------------------------------------------------

SPELLED = [
    "files/secret-a",
    "https://generativelanguage.googleapis.com/v1beta/files/secret-a",
    "https://generativelanguage.googleapis.com/v1beta/files/secret-a:download?alt=media",
    "v1beta//files//secret-a",
    "v1beta/%66iles/secret%2Da",
    "v1beta/files%2fsecret-a",
    "v1beta/%2566iles/secret-a",
    "FILES/Secret-A",
    "files\\secret-a",
]


@pytest.mark.parametrize("refuses_unknown", [False, True])
@pytest.mark.parametrize("spelled", SPELLED)
@pytest.mark.parametrize("slash", ["/", "\\/", "\\u002f"])
def test_googles_file_is_its_callers_however_it_is_spelled(spelled: str, slash: str, refuses_unknown: bool) -> None:
    """In `fileUri`, in a batch's `fileName`, or in a picture's address of another API's client."""
    account = Account(refuses_unknown=refuses_unknown)
    account.table.remember("files/secret-a", account.table.number("a"))
    text = json.dumps(spelled).replace("/", slash)
    generate = b"/v1beta/models/gemini-x:generateContent"
    bodies = [
        (generate, '{"contents":[{"parts":[{"fileData":{"fileUri":%s}}]}]}'),
        (generate, '{"contents":[{"parts":[{"file_data":{"file_uri":%s}}]}]}'),
        (b"/v1beta/models/gemini-x:batchGenerateContent", '{"batch":{"inputConfig":{"fileName":%s}}}'),
        (b"/v1beta/cachedContents", '{"contents":[{"parts":[{"fileData":{"fileUri":%s}}]}]}'),
        (b"/v1beta/fileSearchStores/x:importFile", '{"fileName":%s}'),
        (CHATS, '{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":%s}}]}]}'),
    ]
    account.table.remember("filesearchstores/x", account.table.number("a"))
    account.table.remember("filesearchstores/y", account.table.number("b"))
    for path, body in bodies:
        data = (body % text).encode()
        account.ask(A, b"POST", path, data)
        with pytest.raises(VeloxError) as caught:
            account.ask(B, b"POST", path.replace(b"/x:", b"/y:"), data)
        assert caught.value.reason is Reason.UNKNOWN_OBJECT


def test_address_of_elsewhere_names_no_object() -> None:
    """Where unknown objects are refused, too: a video of YouTube, a bucket, a text."""
    account = Account(refuses_unknown=True)
    account.table.remember("files/secret-a", account.table.number("a"))
    for uri in ("https://youtu.be/x", "gs://bucket/a.pdf", "https://example.org/profiles/x", "my report.pdf"):
        part = {"fileData": {"fileUri": uri}}
        account.ask(B, b"POST", b"/v1beta/models/g:generateContent", {"contents": [{"parts": [part]}]})


@pytest.mark.parametrize(
    ("method", "path", "reply", "made"),
    [
        (b"POST", b"/upload/v1beta/files", {"file": {"name": "files/new"}}, "files/new"),
        (b"POST", b"/v1beta/files:register", {"files": [{"name": "files/new"}]}, "files/new"),
        (b"POST", b"/v1beta/models/g:batchGenerateContent", {"name": "batches/new"}, "batches/new"),
        (b"POST", b"/v1beta/models/veo:predictLongRunning", {"name": "models/veo/operations/new"}, "operations/new"),
        (b"POST", b"/v1beta/cachedContents", {"name": "cachedContents/new"}, "cachedcontents/new"),
        (b"POST", b"/v1beta/tunedModels", {"name": "tunedModels/new/operations/1"}, "tunedmodels/new"),
        (b"POST", b"/v1beta/interactions", {"id": "v1_new"}, "v1_new"),
        (b"GET", b"/v1beta/batches/own", {"response": {"responsesFile": "files/new"}}, "files/new"),
        (
            b"GET",
            b"/v1beta/models/veo/operations/own",
            {
                "response": {
                    "generateVideoResponse": {
                        "generatedSamples": [{"video": {"uri": "https://g/v1beta/files/new:download?alt=media"}}]
                    }
                }
            },
            "files/new",
        ),
        (b"GET", b"/v1/fine_tuning/jobs/ftjob-own", {"result_files": ["file-new"]}, "file-new"),
        (b"POST", b"/v1/skills", {"id": "skill_new"}, "skill_new"),
        (b"POST", b"/v1/sessions", {"id": "sesn_new"}, "sesn_new"),
    ],
)
def test_reply_of_each_kind_tells_whose_the_new_object_is(
    method: bytes, path: bytes, reply: dict[str, object], made: str
) -> None:
    """By a name, by the address of what a batch or a video's operation has written, or by an id in a list."""
    account = Account()
    for own in ("batches/own", "operations/own", "ftjob-own"):
        account.table.remember(own, account.table.number("b"))
    (each,) = account.ask(B, method, path, {"x": 1} if method == b"POST" else None)
    each.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    assert json.loads(each.feed(json.dumps(reply).encode(), end=True)) == reply
    assert account.table.owner_of(made) == account.table.number("b")


def test_name_that_a_caller_chose_makes_it_no_owner() -> None:
    """An assistant of OpenAI may be called as a file of Google's is."""
    account = Account()
    (each,) = account.ask(B, b"POST", b"/v1/assistants", {"name": "files/secret-a"})
    each.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    each.feed(b'{"id":"asst_1","name":"files/secret-a"}', True)
    assert account.table.owner_of("files/secret-a") == UNKNOWN


def test_call_belongs_to_who_made_it() -> None:
    """Its id is in the answer's Location; another caller can neither end it nor join it by a WebSocket."""
    account = Account()
    (each,) = account.ask(A, b"POST", b"/v1/realtime/calls", b"v=0", ((b"content-type", b"application/sdp"),))
    each.begin(ReplyHead.of(201, [(b"location", b"/v1/realtime/calls/rtc_1")], None), is_sse=False, is_plain=True)
    account.refused(b"POST", b"/v1/realtime/calls/rtc_1/hangup")
    offer = WebSocketOffer(b"k", (), b"")
    head = RequestHead.of(b"GET", b"/v1/realtime?model=m&call_id=rtc_1", (), offer=offer)
    guard = account.access.guard(head, B)
    assert guard is not None
    with pytest.raises(VeloxError) as caught:
        finished(guard.steps(head, b""))
    assert caught.value.reason is Reason.UNKNOWN_OBJECT


def test_list_of_any_field_has_the_callers_own() -> None:
    """Google's lists are called as what is in them; one that may hold objects in another way is not passed."""
    account = Account()
    account.table.remember("files/mine", account.table.number("b"))
    account.table.remember("files/theirs", account.table.number("a"))
    theirs = [{"name": "files/theirs"}, {"name": "files/old"}, {}]
    pages: list[tuple[object, object]] = [
        (
            {"files": [{"name": "files/mine"}, *theirs], "nextPageToken": "t"},
            {"files": [{"name": "files/mine"}], "nextPageToken": "t"},
        ),
        ({}, {}),
    ]
    for page, wanted in pages:
        (reply,) = account.ask(B, b"GET", b"/v1beta/files?pageSize=2")
        assert reply.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True) is None
        assert json.loads(reply.feed(json.dumps(page).encode(), end=True)) == wanted
    (reply,) = account.ask(B, b"GET", b"/v1beta/files")
    reply.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    with pytest.raises(UpstreamFailure):
        reply.feed(b'{"files":{"files/theirs":{}}}', True)


def test_list_tells_no_id_of_what_it_leaves_out() -> None:
    """A thing without a known owner could be used by whoever knows its id; the caller's own lead on as well."""
    account = Account()
    for each in ("file-1", "file-2"):
        account.table.remember(each, account.table.number("b"))
    account.table.remember("files/mine", account.table.number("b"))
    page = {"object": "list", "first_id": "file-old", "last_id": FILE, "has_more": True}
    old, own = {"id": "file-old", "name": "list"}, [{"id": "file-1"}, {"id": "file-2"}]
    pages: list[tuple[dict[str, object], dict[str, object]]] = [
        (
            {**page, "data": [old, *own, {"id": FILE}]},
            {**page, "data": own, "first_id": "file-1", "last_id": "file-2"},
        ),
        ({**page, "data": [old, {"id": FILE}]}, {**page, "data": [], "first_id": None, "last_id": None}),
        # Ids of things that stand nowhere on the page, and where another field says what leads on.
        ({**page, "data": own, "last_id": "file-x"}, {**page, "data": own, "first_id": "file-1", "last_id": "file-2"}),
        ({"data": [*own, {"id": FILE}], "next": FILE}, {"data": own, "next": "file-2"}),
        (
            {"files": [{"name": "files/mine"}, {"name": "files/Old"}], "nextPageToken": "files/Old"},
            {"files": [{"name": "files/mine"}], "nextPageToken": None},
        ),
        ({"data": [], "has_more": False, "last_id": None}, {"data": [], "has_more": False, "last_id": None}),
    ]
    for told, wanted in pages:
        (reply,) = account.ask(B, b"GET", b"/v1/files?limit=4")
        reply.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
        assert json.loads(reply.feed(json.dumps(told).encode(), end=True)) == wanted


def test_providers_own_skills_are_everybodys() -> None:
    """Named, listed and used, also where unknown objects are refused."""
    account = Account(refuses_unknown=True)
    account.ask(B, b"POST", b"/v1/messages", {"container": {"skills": [{"type": "anthropic", "skill_id": "pptx"}]}})
    account.ask(B, b"GET", b"/v1/skills/pptx")
    with pytest.raises(VeloxError):
        account.ask(B, b"POST", b"/v1/messages", {"container": {"skills": [{"skill_id": "skill_old"}]}})
    (reply,) = account.ask(B, b"GET", b"/v1/skills")
    reply.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    page = json.loads(reply.feed(b'{"data":[{"id":"pptx"},{"id":"skill_old"}]}', True))
    assert page == {"data": [{"id": "pptx"}]}


def test_path_that_is_not_known_needs_a_key_that_names_it() -> None:
    """Nobody could say whose its objects are; with one name of keys there is nothing to keep apart."""
    for path in (b"/v1/new-things", b"/v1/new-things/x", b"/v1/%6eew-things", b"/v9/files-of-x"):
        head = RequestHead.of(b"GET", path)
        with pytest.raises(VeloxError) as caught:
            Account().access.guard(head, Caller("a", id=b"12345678"))
        assert (caught.value.reason, "endpoints" in caught.value.message) == (Reason.FORBIDDEN, True)
        table = ObjectTable(ObjectMemory(1024, 1, 1), 0)
        alone = Access(table, Authenticator([KeyEntry(b"1" * 32, name="a"), KeyEntry(b"2" * 32, name="a")]))
        assert alone.guard(head, Caller("a", id=b"12345678")) is None


def test_key_of_the_organization_keeps_its_files_from_others() -> None:
    """It uses all objects; what it makes is its own, but for what is the account's."""
    account = Account()
    admin = Caller("admin", terms=KeyTerms(endpoints=("all", "organization")), id=b"45678901")
    assert account.ask(admin, b"GET", b"/v1/files/file-aaaaaaaa") == ()
    assert account.ask(admin, b"GET", b"/v1/files") == ()
    (each,) = account.ask(admin, b"POST", b"/v1/files", b"--x", FORM)
    each.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
    each.feed(b'{"id":"file-admin"}', True)
    with pytest.raises(VeloxError):
        account.ask(B, b"GET", b"/v1/files/file-admin")
    assert account.ask(admin, b"POST", b"/v1/agents", {"name": "x"}) == ()


@pytest.mark.parametrize("kind", ["a text", "small values"])
def test_large_body_is_searched_in_short_steps(kind: str) -> None:
    """X9: 20 MB of a text, whose reply may tell of a container, held the loop for 17 ms; of small values for 150."""
    account = Account()
    body = b'{"model":"m","input":"%b"}' % (b"a word " * 3_000_000)
    if kind == "small values":
        body = b'{"model":"m","previous_response_id":"x","input":[%b1]}' % (b"1," * 10_000_000)
    head = RequestHead.of(b"POST", b"/v1/responses", JSON, len(body))
    guard = account.access.guard(head, A)
    assert guard is not None
    n_steps = 0
    try:
        for _ in guard.steps(head, bytearray(body), BodyFields()):
            n_steps += 1
    except VeloxError as error:
        assert kind == "small values" and "too many values" in error.message
    assert n_steps > len(body) // 1_048_576  # of which each has less than a millisecond's work


@pytest.mark.parametrize("n", [0, 262_100, 262_140, 262_200, 600_000])
def test_container_is_foreseen_wherever_it_stands_in_a_large_body(n: int) -> None:
    """X5: a mark that two slices cut is found, too: then what the reply tells of is remembered."""
    account = Account()
    body = b'{"model":"m","input":"%b","tools":[{"type":"code_interpreter"}],"x":"%b"}' % (b"a" * n, b"b" * 300_000)
    with_container = account.ask(A, b"POST", b"/v1/responses", body)
    without = account.ask(A, b"POST", b"/v1/responses", body.replace(b"code_interpreter", b"code_no"))
    assert [type(each).__name__ for each in with_container] != [type(each).__name__ for each in without]
