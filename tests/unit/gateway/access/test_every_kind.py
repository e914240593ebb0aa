"""What one key makes another can neither read, list, use, cancel nor delete: every kind of the one table of kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from velox.errors import Reason, VeloxError
from velox.gateway.access.access import Access
from velox.gateway.auth import Authenticator
from velox.gateway.reply.filters import ReplyFilter
from velox.heads import Header, ReplyHead, RequestHead
from velox.policy.api.groups import Group
from velox.policy.api.objects import CHAT, KINDS, ObjectKind
from velox.protocol.slices import finished
from velox.shm.object_table import ObjectMemory, ObjectTable
from velox.types import BodyFields, Caller, KeyEntry, KeyTerms

JSON: Final[Header] = (b"content-type", b"application/json")
A: Final = Caller("a", terms=KeyTerms(endpoints=("all",)), id=b"12345678")
B: Final = Caller("b", terms=KeyTerms(endpoints=("all",)), id=b"23456789")
OWNED: Final = [kind for kind in KINDS if kind.group is not Group.ORGANIZATION]
# Google's ids are names: the collection's, a slash, and what is its own.
OF_GOOGLE: Final = frozenset(
    {"cachedContents", "fileSearchStores", "corpora", "ragStores", "tunedModels", "tuningJobs", "batchPredictionJobs"}
    | {"operations", "generatedFiles"}
)
# Where a body of another endpoint uses an object of a kind; others are named in paths alone.
USED: Final[dict[str, dict[str, Any]]] = {
    "files": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "ID"}]}]},
    "batches": {"batch_id": "ID"},
    "responses": {"previous_response_id": "ID"},
    "conversations": {"conversation": {"id": "ID"}},
    "vector_stores": {"tools": [{"type": "file_search", "vector_store_ids": ["ID"]}]},
    "containers": {"tools": [{"type": "code_interpreter", "container": "ID"}]},
    "threads": {"thread_id": "ID"},
    "assistants": {"assistant_id": "ID"},
    "evals": {"eval_id": "ID"},
    "uploads": {"upload_id": "ID"},
    "videos": {"video_id": "ID"},
    "skills": {"container": {"skills": [{"type": "custom", "skill_id": "ID"}]}},
    "memory_stores": {"memory_store_id": "ID"},
    "datasets": {"dataset_id": "ID"},
    "interactions": {"previous_interaction_id": "ID"},
    "cachedContents": {"cachedContent": "cachedContents/ID"},
    "fileSearchStores": {"tools": [{"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/ID"]}}]},
    "generatedFiles": {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/generatedFiles/ID"}},
}


class Account:
    """One account of a provider that two keys share."""

    def __init__(self) -> None:
        table = ObjectTable(ObjectMemory(1024, 1, 1), 0)
        auth = Authenticator([KeyEntry(b"1" * 32, name="a"), KeyEntry(b"2" * 32, name="b")])
        self.access: Final = Access(table, auth)

    def ask(self, caller: Caller, method: bytes, path: str, body: object = None) -> Sequence[ReplyFilter]:
        """Show a request to its guard; return the filters of its reply. Raises VeloxError."""
        data = b"" if body is None else json.dumps(body).encode()
        head = RequestHead.of(method, path.encode(), [JSON], len(data) if data else None)
        guard = self.access.guard(head, caller)
        fields = BodyFields(stores=True)
        if guard is None or not guard.concerns(data, fields):
            return ()
        return finished(guard.steps(head, data, fields))

    def told(self, filters: Sequence[ReplyFilter], document: object) -> Any:
        """Let a reply pass; return what the client gets."""
        data = json.dumps(document).encode()
        for each in filters:
            each.begin(ReplyHead.of(200, [JSON], len(data)), is_sse=False, is_plain=True)
            data = each.feed(data, True) if each.reads_body else data
        return json.loads(data)


def is_googles(kind: ObjectKind) -> bool:
    return len(kind.path) == 1 and kind.path[0] in OF_GOOGLE


def base_of(kind: ObjectKind) -> str:
    return "/v1beta/" if is_googles(kind) else "/v1/"


def told_of(field: str, object_id: str) -> dict[str, Any]:
    """Return what tells an id in a field, which may stand in an object."""
    name, _, rest = field.partition(".")
    return {name: told_of(rest, object_id) if rest else object_id}


def made(account: Account, kind: ObjectKind) -> str:
    """Make an object by A; return its id as it stands in a path."""
    object_id = "skill_k1" if kind.path == ("skills",) else "k1-of-a"
    name = f"{kind.path[-1]}/{object_id}" if is_googles(kind) else object_id
    document = {"name": name} if is_googles(kind) else told_of(kind.made[0], object_id)
    filters = account.ask(A, b"POST", base_of(kind) + kind.collection, {})
    assert filters, "nobody would know whose it is"
    assert account.told(filters, document) == document
    return object_id


@pytest.mark.parametrize("kind", OWNED, ids=lambda kind: kind.collection)
def test_another_key_can_do_nothing_with_an_object(kind: ObjectKind) -> None:
    """W3, X5: 404, as for an object that is not there; who made it can do all of that."""
    account = Account()
    object_id = made(account, kind)
    path = f"{base_of(kind)}{kind.collection}/{object_id}"
    attacks: list[tuple[bytes, str, object]] = [
        (b"GET", path, None),
        (b"DELETE", path, None),
        (b"POST", path, {"metadata": {}}),
        (b"PATCH", path, {"metadata": {}}),
        (b"POST", f"{path}/cancel", {}),
        (b"POST", f"{path}:cancel", {}),
        (b"GET", f"{path}/content", None),
        (b"GET", f"{path}/items", None),
        (b"DELETE", f"{path}/items/x", None),
    ]
    use = USED.get(kind.path[0])
    if use is not None and len(kind.path) == 1:
        body = json.loads(json.dumps(use).replace("ID", object_id))
        where = "/v1beta/models/gemini-3-pro:generateContent" if is_googles(kind) else "/v1/responses"
        attacks.append((b"POST", where, {"model": "m", **body}))
    for method, target, body in attacks:
        try:
            account.ask(A, method, target, body)
        except VeloxError as exc:
            assert exc.reason is not Reason.UNKNOWN_OBJECT, (method, target)
        with pytest.raises(VeloxError) as caught:
            account.ask(B, method, target, body)
        assert caught.value.status in (403, 404), (method, target, caught.value)
        assert caught.value.reason is Reason.UNKNOWN_OBJECT or target.endswith(":cancel"), (method, target)


@pytest.mark.parametrize("kind", OWNED, ids=lambda kind: kind.collection)
def test_list_shows_a_key_its_own_objects(kind: ObjectKind) -> None:
    """W3: whatever the field of the list is called, and whether an object has an `id` or a `name`."""
    account = Account()
    object_id = made(account, kind)
    is_google = is_googles(kind)
    own_field = "id" if "." in kind.made[0] else kind.made[0]
    item = {"name": f"{kind.path[-1]}/{object_id}"} if is_google else {own_field: object_id}
    field = kind.path[-1] if is_google else "data"
    page = {field: [item], "has_more": False}
    for caller, wanted in ((A, [item]), (B, [])):
        filters = account.ask(caller, b"GET", base_of(kind) + kind.collection)
        assert account.told(filters, page)[field] == wanted


def test_chat_completions_are_a_kind_where_they_are_stored() -> None:
    """And are none where nobody asks for that."""
    assert any(kind.path == CHAT for kind in OWNED)


CODE: Final = {"model": "m", "input": "x", "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}
RUNS: Final = {"model": "m", "max_tokens": 9, "messages": [], "tools": [{"type": "code_execution_20250825"}]}
ITEM: Final = {"id": "ci_1", "type": "code_interpreter_call", "container_id": "cntr_k1", "code": "1"}
SHELL: Final = {"id": "sh_1", "type": "shell_call", "environment": {"container_id": "cntr_k1", "type": "x"}}


@pytest.mark.parametrize(
    ("path", "asked", "answer", "container"),
    [
        ("/v1/responses", CODE, {"id": "resp_k1", "output": [{"type": "message"}, ITEM]}, "cntr_k1"),
        ("/v1/responses", CODE, {"id": "resp_k1", "output": [SHELL]}, "cntr_k1"),
        ("/v1/messages", RUNS, {"id": "msg_1", "container": {"id": "container_k1", "expires_at": "x"}}, "container_k1"),
        (
            "/v1/responses",
            CODE,
            [{"type": "response.created", "response": {"id": "resp_k1"}}, {"item": ITEM}],
            "cntr_k1",
        ),
        (
            "/v1/responses",
            CODE,
            [{"type": "response.created", "response": {"id": "resp_k1"}}, {"item": SHELL}],
            "cntr_k1",
        ),
        (
            "/v1/messages",
            RUNS,
            [{"type": "message_start", "message": {"id": "msg_1"}}, {"delta": {"container": {"id": "container_k1"}}}],
            "container_k1",
        ),
        ("/v1/messages", RUNS, [{"message": {"container": {"id": "container_k1"}}}], "container_k1"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_container_that_a_model_made_is_its_callers(
    path: str, asked: object, answer: object, container: str, size: int
) -> None:
    """K6: another key can neither read, list, use nor delete it, nor its files; however the reply is cut."""
    account = Account()
    is_stream = isinstance(answer, list)
    text = json.dumps(answer) if not isinstance(answer, list) else "".join(f"data: {json.dumps(e)}\n\n" for e in answer)
    data = text.encode()
    for each in account.ask(A, b"POST", path, asked):
        each.begin(ReplyHead.of(200, [JSON], None), is_sse=is_stream, is_plain=True)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        passed = b"".join(each.feed(piece, n == len(pieces)) for n, piece in enumerate(pieces, 1))
        assert passed == data
    uses = {"tools": [{"type": "code_interpreter", "container": container}]}
    attacks: list[tuple[bytes, str, object]] = [
        (b"GET", f"/v1/containers/{container}", None),
        (b"DELETE", f"/v1/containers/{container}", None),
        (b"GET", f"/v1/containers/{container}/files/cfile_1/content", None),
        (b"POST", "/v1/responses", {"model": "m", **uses}),
        (b"POST", "/v1/messages", {"model": "m", "container": container}),
        (b"POST", "/v1/messages", {"model": "m", "container": {"id": container, "skills": []}}),
    ]
    for attack in attacks:
        account.ask(A, *attack)
        with pytest.raises(VeloxError) as caught:
            account.ask(B, *attack)
        assert caught.value.reason is Reason.UNKNOWN_OBJECT, attack
    page = {"object": "list", "data": [{"id": container}]}
    for caller, n in ((A, 1), (B, 0)):
        assert len(account.told(account.ask(caller, b"GET", "/v1/containers"), page)["data"]) == n


def test_container_that_a_model_only_speaks_of_is_nobodys() -> None:
    """Its text, and the arguments of a call, are no place where the API tells of one."""
    account = Account()
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"container": {"id": "container_x"}}}
    answers = [
        ("/v1/messages", RUNS, {"id": "msg_1", "content": [call, {"type": "text", "text": json.dumps(call)}]}),
        ("/v1/responses", CODE, {"id": "resp_2", "output": [{"type": "x", "input": {"container_id": "container_x"}}]}),
    ]
    for path, asked, answer in answers:
        account.told(account.ask(A, b"POST", path, asked), answer)
    account.ask(B, b"GET", "/v1/containers/container_x")


def test_answer_of_later_is_its_callers() -> None:
    """K6: xAI tells a request's id in place of an answer, which is asked for at another path."""
    account = Account()
    filters = account.ask(A, b"POST", "/v1/chat/completions", {"model": "grok-4", "messages": [], "deferred": True})
    account.told(filters, {"request_id": "0b8f-1"})
    account.ask(A, b"GET", "/v1/chat/deferred-completion/0b8f-1")
    with pytest.raises(VeloxError) as caught:
        account.ask(B, b"GET", "/v1/chat/deferred-completion/0b8f-1")
    assert caught.value.reason is Reason.UNKNOWN_OBJECT


@pytest.mark.parametrize(
    ("path", "answer", "named"),
    [
        ("/v1/videos/generations", {"request_id": "0b8f-2"}, "/v1/videos/0b8f-2"),
        ("/v1/conversations", {"object": "conversation.response", "conversation_id": "c-1"}, "/v1/conversations/c-1"),
        ("/v1/conversations/c-0/restart", {"conversation_id": "c-2"}, "/v1/conversations/c-2/history"),
        ("/v1/embed-jobs", {"job_id": "e-1", "meta": {}}, "/v1/embed-jobs/e-1/cancel"),
        ("/v1/datasets", {"id": "d-1"}, "/v1/datasets/d-1"),
        ("/v1/finetuning/finetuned-models", {"finetuned_model": {"id": "f-1"}}, "/v1/finetuning/finetuned-models/f-1"),
    ],
)
def test_object_of_another_provider_is_its_makers(path: str, answer: dict[str, Any], named: str) -> None:
    """K6: xAI's videos, Mistral's conversations, Cohere's datasets and jobs."""
    account = Account()
    assert account.told(account.ask(A, b"POST", path, {"model": "m"}), answer) == answer
    account.ask(A, b"GET", named)
    with pytest.raises(VeloxError) as caught:
        account.ask(B, b"GET", named)
    assert caught.value.reason is Reason.UNKNOWN_OBJECT


def test_list_without_an_object_around_it_shows_a_key_its_own() -> None:
    """Mistral's list of conversations."""
    account = Account()
    account.told(account.ask(A, b"POST", "/v1/conversations", {}), {"conversation_id": "c-1"})
    page = [{"id": "c-1"}, {"id": "c-of-others"}]
    assert account.told(account.ask(A, b"GET", "/v1/conversations"), page) == page[:1]
    assert account.told(account.ask(B, b"GET", "/v1/conversations"), page) == []
