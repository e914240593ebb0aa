"""Answers that Velox keeps for models whose provider keeps none: by the real SDK, over several workers and keys."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.harness import RawReply, VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_ledger import usage
from tests.e2e.tools import covers

SAYS = "I look it up."


async def model(call: Call) -> None:
    """Say something and call a tool, in Chat Completions, whatever is asked."""
    asked = json.loads(call.body)
    made = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    base = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": SAYS, "tool_calls": [made]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        await call.reply(200, JSON, json.dumps({**base, "choices": [choice], "usage": usage}).encode())
        return
    deltas = [({"role": "assistant", "content": SAYS}, None), ({"tool_calls": [made]}, None), ({}, "tool_calls")]
    chunks = [{**base, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in deltas]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    await call.reply(200, SSE, text.encode())


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(script=model) as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VeloxProcess]:
    """A gateway of two workers and two callers, with a model of Chat Completions."""
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    both = {"provider": "vllm", "origin": upstream.upstream.url}
    config = {
        "upstreams": [{"name": "vllm", **both}, {"name": "other", **both}],
        "routes": [{"name": "n", "match": {"models": ["n"]}, "to": "other"}, {"name": "all", "to": "vllm"}],
    }
    with routed(config, api_keys_file=str(keys), workers="2") as running:
        yield running


def sent(upstream: RecordingUpstream) -> list[tuple[str, Any]]:
    """Return the messages that the model has got last: who, and what."""
    messages = json.loads(upstream.calls[-1].body)["messages"]
    return [(message["role"], message.get("content") or "") for message in messages]


def get(velox: VeloxProcess, path: str, key: str = "vk-a", method: str = "GET") -> RawReply:
    """Ask on a connection of its own, of any worker."""
    return velox.request(method, path, None, {"authorization": f"Bearer {key}"})


RESULT: Any = {"type": "function_call_output", "call_id": "call_1", "output": "42"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_c2_conversation_goes_on_from_its_last_answer(
    velox: VeloxProcess, upstream: RecordingUpstream, is_stream: bool
) -> None:
    """C2: three turns, each with nothing but what is new; the model gets all of it, through any worker."""
    client = velox.openai(api_key="vk-a")

    def turn(**fields: Any) -> Any:
        if not is_stream:
            return client.responses.create(model="m", **fields)
        events = list(client.responses.create(model="m", stream=True, **fields))
        return events[-1].response  # type: ignore[union-attr]

    first = turn(input="Hi")
    second = turn(input=[RESULT], previous_response_id=first.id)
    for _ in range(4):
        third = turn(input="Thanks", previous_response_id=second.id)
        assert sent(upstream) == [
            *(("user", "Hi"), ("assistant", SAYS), ("tool", "42"), ("assistant", SAYS), ("user", "Thanks")),
        ]
    assert (first.store, third.previous_response_id) == (True, second.id)


def test_c2_conversation_goes_on_at_another_upstream(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """C2: where the answer was made does not matter: it is not kept there."""
    client = velox.openai(api_key="vk-a")
    first = client.responses.create(model="m", input="Hi")
    raw = client.responses.with_raw_response.create(model="n", input=[RESULT], previous_response_id=first.id)
    assert raw.headers["x-velox-upstream"] == "other"
    assert sent(upstream) == [("user", "Hi"), ("assistant", SAYS), ("tool", "42")]


def test_c2_item_is_referred_to_by_its_id(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """C2, RC3: as the Vercel AI SDK does by default: texts by reference, calls in full."""
    client = velox.openai(api_key="vk-a")
    first = client.responses.create(model="m", input="Hi")
    message, call = first.output
    said: Any = {"role": "user", "content": "Hi"}
    for reference in ({"type": "item_reference", "id": message.id}, {"id": message.id}):
        items: Any = [said, reference, call.model_dump(exclude_none=True), RESULT]
        client.responses.create(model="m", input=items)
        assert sent(upstream) == [("user", "Hi"), ("assistant", SAYS), ("tool", "42")]

    with pytest.raises(openai.BadRequestError, match="store: false") as info:
        client.responses.create(model="m", input=[said, {"type": "item_reference", "id": "msg_none"}])
    assert info.value.param == "input[1].id"


def test_answer_can_be_read_and_deleted(velox: VeloxProcess) -> None:
    """By its maker, through any worker, until it is deleted."""
    client = velox.openai(api_key="vk-a")
    made = client.responses.create(model="m", input="Hi", metadata={"k": "v"})
    for _ in range(4):
        assert get(velox, f"/v1/responses/{made.id}").json() == json.loads(made.model_dump_json(exclude_unset=True))
    read = client.responses.retrieve(made.id)
    assert (read.output_text, read.metadata) == (SAYS, {"k": "v"})

    (item,) = client.responses.input_items.list(made.id).data
    assert (item.type, item.content, bool(item.id)) == ("message", "Hi", True)  # type: ignore[union-attr]

    client.responses.delete(made.id)
    for _ in range(4):
        reply = get(velox, f"/v1/responses/{made.id}")
        assert (reply.status, reply.error()["code"]) == (404, "unknown_object")
    with pytest.raises(openai.BadRequestError, match="whole conversation"):
        client.responses.create(model="m", input="And?", previous_response_id=made.id)


def test_answer_is_no_other_callers(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Another key finds neither the answer nor its items, and can't delete it; nothing goes up."""
    made = velox.openai(api_key="vk-a").responses.create(model="m", input="Hi")
    other = velox.openai(api_key="vk-b")
    n_calls = len(upstream.calls)
    for _ in range(4):
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            reply = get(velox, f"/v1/responses/{made.id}{path}", "vk-b", method)
            assert (reply.status, reply.error()["code"]) == (404, "unknown_object")
    with pytest.raises(openai.NotFoundError):
        other.responses.create(model="m", input="And?", previous_response_id=made.id)
    with pytest.raises(openai.BadRequestError):
        other.responses.create(model="m", input=[{"type": "item_reference", "id": made.output[0].id or ""}])
    assert len(upstream.calls) == n_calls
    assert get(velox, f"/v1/responses/{made.id}").status == 200


def test_nothing_is_kept_where_the_client_says_so(velox: VeloxProcess) -> None:
    """`store: false`, as Codex sends."""
    client = velox.openai(api_key="vk-a")
    made = client.responses.create(model="m", input="Hi", store=False)
    assert made.store is False
    assert get(velox, f"/v1/responses/{made.id}").status == 404
    with pytest.raises(openai.BadRequestError) as info:
        client.responses.create(model="m", input="And?", previous_response_id=made.id)
    assert (info.value.code, info.value.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/cancel", 400),
        ("GET", "?stream=true", 400),
        ("GET", "/input_items?limit=0", 400),
        ("GET", "/input_items?order=up", 400),
        ("GET", "/input_items?after=x", 400),
        ("GET", "/other", 404),
        ("POST", "", 404),
    ],
)
def test_what_a_kept_answer_can_t_give_is_refused(velox: VeloxProcess, method: str, path: str, status: int) -> None:
    """In OpenAI's shape, and nothing goes up."""
    made = velox.openai(api_key="vk-a").responses.create(model="m", input="Hi")
    reply = get(velox, f"/v1/responses/{made.id}{path}", method=method)
    assert (reply.status, bool(reply.error()["message"])) == (status, True)


@contextlib.contextmanager
def answered(upstream: RecordingUpstream, n: int, **settings: str) -> Iterator[tuple[VeloxProcess, list[str]]]:
    """Start a gateway with these settings; yield it with the ids of the answers that it has made."""
    config = {"upstreams": [{"name": "vllm", "provider": "vllm", "origin": upstream.upstream.url}]}
    with routed(config, workers="1", **settings) as velox:
        client = velox.openai(api_key="none")
        yield velox, [client.responses.create(model="m", input="Hi").id for _ in range(n)]


@covers("VELOX_KEPT_BYTES")
def test_nothing_is_kept_where_there_is_no_room(upstream: RecordingUpstream) -> None:
    """VELOX_KEPT_BYTES is 0: what refers to an answer of this gateway gets OpenAI's errors, and is sent nowhere."""
    with answered(upstream, 1, kept_bytes="0") as (velox, (answer_id,)):
        upstream.forget()
        client = velox.openai(api_key="none")
        with pytest.raises(openai.BadRequestError) as unknown:
            client.responses.create(model="m", input="And?", previous_response_id=answer_id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError) as gone:
                ask(answer_id)
            assert gone.value.code == "unknown_object"
        assert upstream.calls == []
    assert (unknown.value.code, unknown.value.param) == ("previous_response_not_found", "previous_response_id")


@covers("VELOX_KEPT_ANSWERS")
def test_newest_answers_have_room(upstream: RecordingUpstream) -> None:
    """There is room for 64 ids, of which an answer and each of its items has one."""
    with answered(upstream, 200, kept_answers="64") as (velox, ids):
        found = [velox.request("GET", f"/v1/responses/{each}").status for each in ids]
        assert set(found) == {200, 404} and found[-1] == 200 and found.count(200) < 100


@covers("VELOX_KEPT_FOR")
def test_answer_is_kept_for_a_while(upstream: RecordingUpstream) -> None:
    """A second, here: nobody asks for it meanwhile, which would keep it."""
    with answered(upstream, 1, kept_for="1s") as (velox, (answer_id,)):
        made_s = time.monotonic()
        until(lambda: time.monotonic() - made_s > 1.5, "its time is over")
        assert velox.request("GET", f"/v1/responses/{answer_id}").status == 404


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_websocket_goes_on_from_an_answer_of_another_connection(
    velox: VeloxProcess, upstream: RecordingUpstream
) -> None:
    """One made by HTTP; and one of a socket that is closed. What is not known has the code that Codex looks for."""
    client = velox.openai(api_key="vk-a")
    previous = client.responses.create(model="m", input="Hi").id
    for text in ("One", "Two"):
        with client.responses.connect() as connection:
            connection.response.create(model="m", input=[RESULT], previous_response_id=previous)
            events = []
            for event in connection:
                events.append(event)
                if event.type in ("response.completed", "error"):
                    break
            previous = events[-1].response.id  # type: ignore[union-attr]
            assert sent(upstream)[:3] == [("user", "Hi"), ("assistant", SAYS), ("tool", "42")], text

            connection.response.create(model="m", input="Hi", previous_response_id="resp_none")
            error: Any = next(iter(connection))
            assert (error.type, error.error.code) == ("error", "previous_response_not_found")


NODE = Path(__file__).parent / "node"


async def looking(call: Call) -> None:
    """As model(), and answer with a text where the last message has the result."""
    if json.loads(call.body)["messages"][-1]["role"] != "tool":
        await model(call)
        return
    message = {"role": "assistant", "content": "It is 42."}
    base = {"id": "chatcmpl-2", "created": 1, "model": "m"}
    if not json.loads(call.body).get("stream"):
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        await call.reply(200, JSON, json.dumps({**base, "object": "chat.completion", "choices": [choice]}).encode())
        return
    choice = {"index": 0, "delta": message, "finish_reason": "stop"}
    chunk = json.dumps({**base, "object": "chat.completion.chunk", "choices": [choice]})
    await call.reply(200, SSE, f"data: {chunk}\n\ndata: [DONE]\n\n".encode())


@pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules/ai").is_dir(),
    reason="no Node with its SDKs: tests/install-tools.sh",
)
def test_rc3_ai_sdk_goes_on_by_its_default(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """RC3: a tool loop, and a second turn, with no option set: the real SDK refers to what the assistant said."""
    words = ["node", str(NODE / "references.mjs"), velox.base_url, "vk-a", "m"]
    with upstream.playing(looking):
        env = {"PATH": os.environ["PATH"]}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["errors"] for each in found] == [[], []]
    assert [each["texts"] for each in found] == [["It is 42.", "It is 42."]] * 2
    assert len(upstream.calls) == 8
    assert sent(upstream) == [
        *(("user", "Hi"), ("assistant", SAYS), ("tool", "42"), ("assistant", "It is 42.")),
        *(("user", "Again"), ("assistant", SAYS), ("tool", "42")),
    ]


async def slow(call: Call) -> None:
    """As model(), when the test says so."""
    await call.step()
    await model(call)


def polled(velox: VeloxProcess, answer_id: str, *status: str) -> dict[str, Any]:
    """Ask for an answer, of any worker, until it has one of these."""
    found: dict[str, Any] = {}

    def has_one() -> bool:
        found.clear()
        found.update(get(velox, f"/v1/responses/{answer_id}").json())
        return found.get("status") in status

    until(has_one, f"the answer is {status}", 20.0)
    return found


def test_answer_is_made_in_the_background(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Its client is told at once; who asks later, of any worker, finds it, and goes on from it."""
    client = velox.openai(api_key="vk-a")
    with upstream.playing(slow):
        queued = client.responses.create(model="m", input="Hi", background=True, metadata={"k": "v"})
        assert (queued.status, queued.output, queued.background, queued.metadata) == ("queued", [], True, {"k": "v"})
        polled(velox, queued.id, "in_progress")
        with pytest.raises(openai.BadRequestError, match="still being made"):
            client.responses.create(model="m", input="And?", previous_response_id=queued.id)
        assert get(velox, f"/v1/responses/{queued.id}", "vk-b").status == 404
        upstream.step()
        made = polled(velox, queued.id, "completed")
    assert (made["id"], made["background"], made["store"], made["metadata"]) == (queued.id, True, True, {"k": "v"})
    assert client.responses.retrieve(queued.id).output_text == SAYS
    assert client.responses.cancel(queued.id).status == "completed"

    result: Any = [RESULT]
    second = client.responses.create(model="m", input=result, previous_response_id=queued.id, background=True)
    done = polled(velox, second.id, "completed")
    assert done["previous_response_id"] == queued.id
    assert sent(upstream) == [("user", "Hi"), ("assistant", SAYS), ("tool", "42")]


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_answer_in_the_background_is_given_up(velox: VeloxProcess, upstream: RecordingUpstream, how: str) -> None:
    """Cancelled or deleted through any worker: the model is asked no more."""
    client = velox.openai(api_key="vk-a")
    with upstream.playing(slow):
        queued = client.responses.create(model="m", input="Hi", background=True)
        until(lambda: len(upstream.calls) == 1, "the model is asked", 10.0)
        if how == "cancel":
            assert client.responses.cancel(queued.id).status == "cancelled"
        else:
            client.responses.delete(queued.id)
        until(upstream.calls[0].left.is_set, "the model is asked no more", 10.0)
    found = get(velox, f"/v1/responses/{queued.id}")
    assert (found.json()["status"] if how == "cancel" else found.status) == ("cancelled" if how == "cancel" else 404)


async def failing(call: Call) -> None:
    await call.reply(400, JSON, b'{"error":{"message":"too hot","type":"invalid_request_error"}}')


def test_answer_in_the_background_may_fail(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """As the model's error says; a wrong request is refused at once."""
    client = velox.openai(api_key="vk-a")
    with upstream.playing(failing):
        queued = client.responses.create(model="m", input="Hi", background=True)
        failed = polled(velox, queued.id, "failed")
    assert "too hot" in failed["error"]["message"]
    for fields in ({"store": False}, {"stream": True}):
        with pytest.raises(openai.BadRequestError) as info:
            client.responses.create(model="m", input="Hi", background=True, **fields)  # type: ignore[call-overload]
        assert info.value.param == next(iter(fields))


def test_answer_in_the_background_is_recorded_once(
    upstream: RecordingUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is paid for once, and what its client asks for later costs nothing."""
    config = {"upstreams": [{"name": "vllm", "provider": "vllm", "origin": upstream.upstream.url}]}
    with routed(config, ledger=str(tmp_path)) as velox:
        queued = velox.openai().responses.create(model="m", input="Hi", background=True)
        until(lambda: velox.openai().responses.retrieve(queued.id).status == "completed", "it is made", 20.0)
    (row,) = usage(tmp_path, capsys, "--calls")
    assert (row["input_tokens"], row["output_tokens"]) == (5, 2)


def test_conversation_is_an_object(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Begun with items, gone on with by two models, read and shortened, through any worker."""
    client, again = velox.openai(api_key="vk-a"), velox.openai(api_key="vk-a")
    said: Any = {"type": "message", "role": "user", "content": "Remember 7."}
    made = client.conversations.create(items=[said], metadata={"k": "v"})
    assert (made.object, made.metadata) == ("conversation", {"k": "v"})

    first = client.responses.create(model="m", input="Hi", conversation=made.id)
    assert (first.conversation and first.conversation.id, first.previous_response_id) == (made.id, None)
    assert sent(upstream) == [("user", "Remember 7."), ("user", "Hi")]
    last = again.responses.create(model="n", input=[RESULT], conversation={"id": made.id})
    assert sent(upstream)[1:] == [("user", "Hi"), ("assistant", SAYS), ("tool", "42")]

    items = list(again.conversations.items.list(made.id, order="asc"))
    kinds = ["message", "message", "message", "function_call", "function_call_output", "message", "function_call"]
    assert [item.type for item in items] == kinds
    assert items[-1].id == last.output[-1].id
    (more,) = client.conversations.items.create(made.id, items=[said]).data
    assert again.conversations.items.retrieve(more.id or "", conversation_id=made.id).id == more.id

    for item in [more, *items[2:]]:
        client.conversations.items.delete(item.id or "", conversation_id=made.id)
    assert [item.id for item in again.conversations.items.list(made.id)] == [items[1].id, items[0].id]
    queued = again.responses.create(model="m", input="And?", conversation=made.id, background=True)
    done = polled(velox, queued.id, "completed")
    assert (done["conversation"], done["previous_response_id"]) == ({"id": made.id}, None)
    until(lambda: len(client.conversations.items.list(made.id).data) == 5, "the answer is in the conversation", 10.0)
    assert sent(upstream) == [("user", "Remember 7."), ("user", "Hi"), ("user", "And?")]

    assert client.conversations.update(made.id, metadata={"k": "w"}).metadata == {"k": "w"}
    assert again.conversations.retrieve(made.id).metadata == {"k": "w"}
    other = velox.openai(api_key="vk-b")
    for refused in (
        lambda: other.conversations.retrieve(made.id),
        lambda: other.conversations.items.list(made.id),
        lambda: other.conversations.delete(made.id),
        lambda: other.responses.create(model="m", input="Hi", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            refused()
    assert again.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="conversation"):
        client.responses.create(model="m", input="Hi", conversation=made.id)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "", {"items": 5}, 400),
        ("POST", "", {"items": [{"role": "user", "content": "a"}] * 21}, 400),
        ("POST", "/ID/items", {"items": []}, 400),
        ("GET", "/ID/items?limit=0", None, 400),
        ("GET", "/ID/items/x", None, 404),
        ("DELETE", "/ID/items", None, 404),
        ("GET", "/ID/other", None, 404),
        ("GET", "/conv_vx0", None, 404),
    ],
)
def test_wrong_request_for_a_conversation_is_refused(
    velox: VeloxProcess, upstream: RecordingUpstream, method: str, path: str, body: Any, status: int
) -> None:
    """In OpenAI's shape; nothing goes up."""
    made = velox.openai(api_key="vk-a").conversations.create()
    n_calls = len(upstream.calls)
    data = None if body is None else json.dumps(body).encode()
    target = f"/v1/conversations{path.replace('ID', made.id)}"
    reply = velox.request(method, target, data, {"authorization": "Bearer vk-a"})
    assert (reply.status, bool(reply.error()["message"]), len(upstream.calls)) == (status, True, n_calls)


def test_conversations_of_a_provider_are_its_own(upstream: RecordingUpstream) -> None:
    """Where an upstream has them, the request for one goes there."""
    both = [
        {"name": "openai", "provider": "openai", "origin": upstream.upstream.url, "key": "env:OTHER_KEY"},
        {"name": "vllm", "provider": "vllm", "origin": upstream.upstream.url},
    ]

    async def theirs(call: Call) -> None:
        await call.reply(200, JSON, b'{"id":"conv_68a1","object":"conversation"}')

    with routed({"upstreams": both}, OTHER_KEY="sk-other-0123456789") as velox, upstream.playing(theirs):
        assert velox.request("POST", "/v1/conversations", b"{}").json()["id"] == "conv_68a1"
        assert velox.request("GET", "/v1/conversations/conv_68a1").status == 200
        assert len(upstream.calls) == 2
