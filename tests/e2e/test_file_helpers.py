"""The helpers of official SDKs that upload, wait and poll.

Behind the gateway are two accounts of the vendor, which know their own objects only. The SDKs are of two callers, whose
objects are made at one of them and at the other.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import RecordingUpstream, Script
from tests.e2e.routed import routed
from tests.untrusting import NO_TRUST
from tests.vendors.anthropic_files import AnthropicFiles
from tests.vendors.gemini_files import GeminiFiles
from tests.vendors.openai_files import OpenAIFiles
from tests.vendors.vendor import as_request

# Deprecated, and still in the SDK.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ACCOUNTS = ("one", "two")
NODE = Path(__file__).parent / "node"
of_node = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules/@google/genai").is_dir(),  # the newest of them
    reason="no Node with its SDKs: tests/install-tools.sh",
)
LINES = b"".join(
    json.dumps(
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-4.1"}}
    ).encode()
    + b"\n"
    for name in "ab"
)


class GoogleCaller(NamedTuple):
    """A caller of Google's SDK. contents: of the account that has what it makes, by the names of files."""

    client: genai.Client
    address: str
    key: str
    contents: Mapping[str, bytes]


def playing(account: OpenAIFiles | AnthropicFiles | GeminiFiles) -> Script:
    async def play(call: Call) -> None:
        reply = account.answer(as_request(call.method, call.target, call.headers, call.body))
        await call.reply(reply.status, reply.fields, reply.body)

    return play


@contextlib.contextmanager
def two_accounts(
    provider: str, upstreams: Sequence[RecordingUpstream], where: Callable[[VeloxProcess, str], str]
) -> Iterator[tuple[VeloxProcess, dict[str, str]]]:
    """Run a gateway; return it, and keys by the account that has what their callers make, as where() finds out."""
    entries = [
        {"name": name, "provider": provider, "origin": each.upstream.url, "key": "env:MODEL_KEY"}
        for name, each in zip(ACCOUNTS, upstreams, strict=True)
    ]
    callers = {f"caller-{n}": f"vk-0123456789-{n:02}" for n in range(32)}
    config = {"upstreams": entries, "api_keys": [{"name": name, "key": key} for name, key in callers.items()]}
    with routed(config, MODEL_KEY="sk-0123456789", unknown_objects="refuse") as velox:
        found: dict[str, str] = {}
        for key in callers.values():
            found.setdefault(where(velox, key), key)
            if len(found) == len(ACCOUNTS):
                break
        yield velox, found
    for each in upstreams:
        assert each.failures == []


@pytest.fixture(scope="module")
def sdks() -> Iterator[dict[str, openai.OpenAI]]:
    """OpenAI's SDK by account."""

    def where(velox: VeloxProcess, key: str) -> str:
        files = velox.openai(api_key=key).files.with_raw_response
        return files.create(file=("a.txt", b"x"), purpose="assistants").headers["x-velox-upstream"]

    one, two = (RecordingUpstream(script=playing(OpenAIFiles(name))) for name in ACCOUNTS)
    with one, two, two_accounts("openai", (one, two), where) as (velox, keys):
        yield {name: velox.openai(api_key=key) for name, key in keys.items()}


@pytest.fixture(scope="module")
def claudes() -> Iterator[dict[str, anthropic.Anthropic]]:
    """Anthropic's SDK by account."""

    def sdk(velox: VeloxProcess, key: str) -> anthropic.Anthropic:
        http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
        made = anthropic.Anthropic(base_url=velox.base_url, api_key=key, max_retries=0, http_client=http)
        return running.enter_context(made)

    def where(velox: VeloxProcess, key: str) -> str:
        files = sdk(velox, key).files.with_raw_response
        return files.upload(file=("a.txt", b"x", "text/plain")).headers["x-velox-upstream"]

    accounts = [AnthropicFiles(name) for name in ACCOUNTS]
    with contextlib.ExitStack() as running:
        upstreams = [running.enter_context(RecordingUpstream(script=playing(each))) for each in accounts]
        for account, upstream in zip(accounts, upstreams, strict=True):
            account.origin = upstream.upstream.url
        velox, keys = running.enter_context(two_accounts("anthropic", upstreams, where))
        yield {name: sdk(velox, key) for name, key in keys.items()}


@pytest.fixture(scope="module")
def googles() -> Iterator[dict[str, GoogleCaller]]:
    """Google's SDK by account."""

    def sdk(velox: VeloxProcess, key: str) -> genai.Client:
        options = types.HttpOptions(base_url=velox.base_url, timeout=20_000)
        return running.enter_context(genai.Client(api_key=key, http_options=options))

    def where(velox: VeloxProcess, key: str) -> str:
        made = sdk(velox, key).files.upload(file=io.BytesIO(b"x"), config={"mime_type": "text/plain"})
        assert made.name is not None
        return next(each for each in ACCOUNTS if made.name.startswith(f"files/{each}"))

    accounts = {name: GeminiFiles(name) for name in ACCOUNTS}
    with contextlib.ExitStack() as running:
        upstreams = [running.enter_context(RecordingUpstream(script=playing(each))) for each in accounts.values()]
        velox, keys = running.enter_context(two_accounts("gemini", upstreams, where))
        yield {
            name: GoogleCaller(sdk(velox, key), velox.base_url, key, accounts[name].contents)
            for name, key in keys.items()
        }


@pytest.fixture(params=ACCOUNTS)
def sdk(request: pytest.FixtureRequest, sdks: dict[str, openai.OpenAI]) -> openai.OpenAI:
    return sdks[request.param]


@pytest.fixture(params=ACCOUNTS)
def claude(request: pytest.FixtureRequest, claudes: dict[str, anthropic.Anthropic]) -> anthropic.Anthropic:
    return claudes[request.param]


@pytest.fixture(params=ACCOUNTS)
def google(request: pytest.FixtureRequest, googles: dict[str, GoogleCaller]) -> GoogleCaller:
    return googles[request.param]


def test_file_that_is_waited_for(sdk: openai.OpenAI) -> None:
    """Files: waits until it is processed."""
    made = sdk.files.create(file=("a.txt", b"text"), purpose="assistants")
    done = sdk.files.wait_for_processing(made.id, poll_interval=0.01)

    assert (done.id, done.status) == (made.id, "processed")
    assert sdk.files.content(made.id).read() == b"text"


def test_upload_in_parts(sdk: openai.OpenAI) -> None:
    """Uploads: the parts go to where it has begun, and the file that comes of them can be read."""
    content = bytes(n % 251 for n in range(5000))
    upload = sdk.uploads.upload_file_chunked(
        file=content, filename="b.bin", bytes=len(content), mime_type="text/plain", purpose="assistants", part_size=1024
    )

    assert upload.file is not None and upload.status == "completed"
    assert sdk.files.content(upload.file.id).read() == content
    assert sdk.files.wait_for_processing(upload.file.id, poll_interval=0.01).status == "processed"


def test_vector_store(sdk: openai.OpenAI) -> None:
    """Files are uploaded and polled in a store: alone, and as a batch."""
    first = sdk.files.create(file=("a.txt", b"text"), purpose="assistants")
    store = sdk.vector_stores.create(name="notes", file_ids=[first.id])
    # Its file is put where the store is: nothing of the request for it names the store.
    again = sdk.vector_stores.files.create_and_poll(first.id, vector_store_id=store.id, poll_interval_ms=1)
    batch = sdk.vector_stores.file_batches.create_and_poll(store.id, file_ids=[first.id], poll_interval_ms=1)

    assert (again.id, again.status) == (first.id, "completed")
    assert (batch.status, batch.file_counts.total) == ("completed", 1)


def test_upload_into_a_vector_store(sdk: openai.OpenAI) -> None:
    """The helper uploads a file, which names no store, and puts it into the store then: both are of one account."""
    store = sdk.vector_stores.create(name="notes")
    made = sdk.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("c.txt", io.BytesIO(b"more")), poll_interval_ms=1
    )
    batch = sdk.vector_stores.file_batches.upload_and_poll(
        store.id, files=[("d.txt", b"d"), ("e.txt", b"e")], poll_interval_ms=1
    )

    assert made.status == batch.status == "completed"


def test_batch_and_its_output(sdk: openai.OpenAI) -> None:
    """The file that a batch tells of is its caller's, and where the batch is."""
    file = sdk.files.create(file=("in.jsonl", LINES), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while (batch := sdk.batches.retrieve(batch.id)).output_file_id is None:
        assert batch.status in ("validating", "completed")
    lines = sdk.files.content(batch.output_file_id).text.splitlines()

    assert [json.loads(line)["custom_id"] for line in lines] == ["a", "b"]


def test_run_of_an_assistant(sdk: openai.OpenAI) -> None:
    """Runs are polled until they want a tool's output, and again until they are done."""
    assistant = sdk.beta.assistants.create(model="gpt-4.1")
    run = sdk.beta.threads.create_and_run_poll(assistant_id=assistant.id, poll_interval_ms=1)
    assert run.status == "requires_action" and run.required_action is not None
    (call,) = run.required_action.submit_tool_outputs.tool_calls
    done = sdk.beta.threads.runs.submit_tool_outputs_and_poll(
        run_id=run.id,
        thread_id=run.thread_id,
        tool_outputs=[{"tool_call_id": call.id, "output": "cold"}],
        poll_interval_ms=1,
    )

    assert (done.id, done.status) == (run.id, "completed")


def test_files_of_anthropic(claude: anthropic.Anthropic) -> None:
    """A file is uploaded, listed, named by a message, read and deleted; then it is not there."""
    file = claude.files.upload(file=("a.txt", b"text", "text/plain"))
    document: Any = {"type": "document", "source": {"type": "file", "file_id": file.id}}
    message = claude.messages.create(
        model="claude-opus-4-8", max_tokens=9, messages=[{"role": "user", "content": [document]}]
    )

    assert message.stop_reason == "end_turn"
    assert file.id in [each.id for each in claude.files.list()]
    assert claude.files.retrieve_metadata(file.id).size_bytes == 4
    assert claude.files.download(file.id).read() == b"text"
    assert claude.files.delete(file.id).id == file.id
    with pytest.raises(anthropic.NotFoundError):
        claude.files.retrieve_metadata(file.id)


def test_batch_of_messages(claude: anthropic.Anthropic) -> None:
    """It is polled until it has ended; its results are read from the address that it tells."""
    params: Any = {"model": "claude-opus-4-8", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    batch = claude.messages.batches.create(requests=[{"custom_id": each, "params": params} for each in "ab"])
    states = [batch.processing_status]
    while states[-1] != "ended":
        states.append(claude.messages.batches.retrieve(batch.id).processing_status)
    results = list(claude.messages.batches.results(batch.id))

    assert states == ["in_progress", "in_progress", "ended"]
    assert [each.custom_id for each in results] == ["a", "b"]
    assert all(each.result.type == "succeeded" and each.result.message.stop_reason for each in results)


def test_files_of_google(google: GoogleCaller, googles: dict[str, GoogleCaller]) -> None:
    """A file is uploaded, waited for, named by a request, listed and deleted; no other caller has it."""
    files = google.client.files
    file = files.upload(file=io.BytesIO(b"text"), config={"mime_type": "text/plain", "display_name": "a.txt"})
    name = file.name or ""
    states = [file.state]
    while states[-1] == types.FileState.PROCESSING:
        states.append(files.get(name=name).state)
    said = google.client.models.generate_content(model="gemini-2.5-pro", contents=[file, "What does it say?"])

    assert states == [types.FileState.PROCESSING, types.FileState.PROCESSING, types.FileState.ACTIVE]
    assert said.text == "Hello!"
    assert google.contents[name] == b"text"
    for other in (each for each in googles.values() if each is not google):
        assert name not in [each.name for each in other.client.files.list()]
        with pytest.raises(genai.errors.ClientError, match="404"):
            other.client.models.generate_content(model="gemini-2.5-pro", contents=[file, "What does it say?"])
    assert name in [each.name for each in files.list()]
    files.delete(name=name)
    with pytest.raises(genai.errors.ClientError, match="it may not exist"):
        files.get(name=name)


def helpers_of_node(name: str, address: str, key: str) -> Any:
    """Run the helpers of an SDK for Node: see files.mjs."""
    words = ["node", str(NODE / "files.mjs"), name, address, key]
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@of_node
def test_helpers_of_openai_for_node(sdk: openai.OpenAI) -> None:
    """Files that are waited for, a vector store that takes some, and runs of an assistant."""
    found = helpers_of_node("openai", str(sdk.base_url).removesuffix("/v1/"), sdk.api_key)

    assert found == {"content": "a", "states": ["processed", "completed", "completed", "completed"]}


@of_node
def test_helpers_of_anthropic_for_node(claude: anthropic.Anthropic) -> None:
    """A file that a message names, and a batch whose results are read from the address that it tells."""
    assert claude.api_key is not None
    found = helpers_of_node("anthropic", str(claude.base_url), claude.api_key)

    assert found == {"content": "a", "stop": "end_turn", "results": ["a", "b"], "gone": 404}


@of_node
def test_helpers_of_google_for_node(google: GoogleCaller) -> None:
    """Two files: one that no model reads before it is active, that is listed with the other, and gone once deleted."""
    found = helpers_of_node("google", google.address, google.key)

    assert google.contents[found.pop("file")] == b"a"
    assert found == {
        "size": "1",
        "title": "a.txt",
        "states": ["PROCESSING", "PROCESSING", "ACTIVE"],
        "early": 400,
        "text": "Hello!",
        "listed": [True, True],
        "gone": 403,  # Google's own
    }
