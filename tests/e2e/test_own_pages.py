"""Lists of an account on which another caller has hundreds of things before one's own, between them and behind them.

The SDKs page by themselves. Each of them stops, or fails, at a page that is empty in the middle.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types

from tests.e2e.collecting import uncollected, unreachable
from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed
from tests.patience import NEVER_S
from tests.untrusting import NO_TRUST
from tests.vendors.anthropic_files import AnthropicFiles
from tests.vendors.gemini_files import GeminiFiles
from tests.vendors.openai_files import OpenAIFiles
from tests.vendors.vendor import as_request

# Deprecated, and still in the SDK.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NODE = Path(__file__).parent / "node"
of_node = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules/@google/genai").is_dir(),  # the newest of them
    reason="no Node with its SDKs: tests/install-tools.sh",
)
OWN, OTHER, NOBODY = "vk-own-0123456789", "vk-other-0123456789", "vk-nobody-0123456789"
# In the order in which they are made: who, and how many. Of pages of ten, 25 have nothing of the caller's before the
# first that has, then three, then two more to the end.
MADE = ((OTHER, 250), (OWN, 2), (OTHER, 33), (OWN, 1), (OTHER, 25))


class Running(NamedTuple):
    """own: what the caller has made, by the fake's names. targets: of the pages that were asked for.

    failing: of the next pages: how many are well, then a status, or 0 for one that does not come. folder: of what the
    worker says, whose garbage collector is off.
    """

    velox: VeloxProcess
    upstream: RecordingUpstream
    own: list[str]
    targets: list[str]
    failing: list[int]
    folder: str

    def left(self) -> dict[str, int]:
        """Return what a collection frees in the worker, by type, once nothing runs."""
        for sample in ("velox_inflight_requests", "velox_upstream_streams"):  # SDKs keep their connections
            self.velox.wait_metric(sample, lambda n: n == 0)
        (worker,) = self.velox.worker_pids()
        return dict(unreachable(worker, self.folder))


@contextlib.contextmanager
def running(provider: str, account: OpenAIFiles | AnthropicFiles | GeminiFiles) -> Iterator[Running]:
    targets: list[str] = []
    failing: list[int] = []

    async def play(call: Call) -> None:
        if call.method == "GET":
            targets.append(call.target)
            if failing:
                if failing == [0, 0]:
                    await call.silence()
                    return
                if not failing[0]:
                    await call.reply(failing[1], [("content-type", "application/json")], b'{"error":{"message":"no"}}')
                    return
                failing[0] -= 1
        reply = account.answer(as_request(call.method, call.target, call.headers, call.body))
        await call.reply(reply.status, reply.fields, reply.body)

    keys = [{"name": key[3:-11], "key": key} for key in (OWN, OTHER, NOBODY)]
    with RecordingUpstream(script=play) as upstream, tempfile.TemporaryDirectory() as folder:
        entry = {"name": "one", "provider": provider, "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        config = {"upstreams": [entry], "api_keys": keys}
        more = {"unknown_objects": "refuse", "upstream_first_byte_timeout": f"{NEVER_S:g}s"}
        with routed(config, launcher=uncollected(folder), MODEL_KEY="sk-0123456789", **more) as velox:
            yield Running(velox, upstream, [], targets, failing, folder)
        assert upstream.failures == []


def google(run: Running, key: str) -> genai.Client:
    options = types.HttpOptions(base_url=run.velox.base_url, timeout=20_000)
    return genai.Client(api_key=key, http_options=options)


def claude(run: Running, key: str) -> anthropic.Anthropic:
    http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    return anthropic.Anthropic(base_url=run.velox.base_url, api_key=key, max_retries=0, http_client=http)


def node(name: str, run: Running, key: str) -> Any:
    """List with an SDK for Node: see lists.mjs."""
    words = ["node", str(NODE / "lists.mjs"), name, run.velox.base_url, key]
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def googles() -> Iterator[Running]:
    with running("gemini", GeminiFiles("one")) as run:
        for key, n in MADE:
            client = google(run, key)
            for _ in range(n):
                made = client.files.upload(file=io.BytesIO(b"x"), config={"mime_type": "text/plain"})
                if key == OWN:
                    run.own.append(made.name or "")
        yield run


@pytest.fixture(scope="module")
def openais() -> Iterator[Running]:
    with running("openai", OpenAIFiles("one")) as run:
        for key, n in MADE:
            client = run.velox.openai(api_key=key)
            for _ in range(n):
                made = client.files.create(file=("a.txt", b"x"), purpose="batch")
                if key == OWN:
                    run.own.append(made.id)
        yield run


@pytest.fixture(scope="module")
def claudes() -> Iterator[Running]:
    """As the others, and as many batches, whose list has another form."""
    params: Any = {"model": "claude-opus-4-8", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    with running("anthropic", AnthropicFiles("one")) as run:
        for key, n in MADE:
            with claude(run, key) as client:
                for _ in range(n):
                    made = client.files.upload(file=("a.txt", b"x", "text/plain"))
                    batch = client.messages.batches.create(requests=[{"custom_id": "a", "params": params}])
                    if key == OWN:
                        run.own.extend((made.id, batch.id))
        yield run


@pytest.mark.parametrize("size", [10, 100])
def test_googles_sdk_lists_its_own(googles: Running, size: int) -> None:
    """It raises IndexError at an empty page, also at the last one."""
    config: types.ListFilesConfigDict = {"page_size": size}
    with google(googles, OWN) as client:
        assert [each.name for each in client.files.list(config=config)] == googles.own
    with google(googles, NOBODY) as client:
        assert list(client.files.list(config=config)) == []


@of_node
def test_googles_sdk_for_node_lists_its_own(googles: Running) -> None:
    """It raises TypeError at an empty page."""
    assert node("google", googles, OWN) == googles.own
    assert node("google", googles, NOBODY) == []


def test_openais_sdk_lists_its_own(openais: Running) -> None:
    """It takes an empty page for the end; so does that for Node."""
    assert [each.id for each in openais.velox.openai(api_key=OWN).files.list(limit=10)] == openais.own
    assert list(openais.velox.openai(api_key=NOBODY).files.list(limit=10)) == []


@of_node
def test_openais_sdk_for_node_lists_its_own(openais: Running) -> None:
    """By the id of the last item of a page."""
    assert node("openai", openais, OWN) == openais.own


def test_ids_of_others_are_told_to_nobody(openais: Running) -> None:
    """Not as what leads on, either; the caller's own id leads on."""
    url, auth = f"{openais.velox.base_url}/v1/files", {"authorization": f"Bearer {OWN}"}
    with httpx.Client(headers=auth, verify=NO_TRUST, trust_env=False) as client:
        first = client.get(url, params={"limit": 10}).json()
        then = client.get(url, params={"limit": 10, "after": first["last_id"]}).json()
        none = client.get(url, headers={"authorization": f"Bearer {NOBODY}"}, params={"limit": 10}).json()

    own = openais.own
    assert ([each["id"] for each in first["data"]], first["has_more"]) == (own[:2], True)
    assert (first["first_id"], first["last_id"]) == (own[0], own[1])
    assert ([each["id"] for each in then["data"]], then["first_id"], then["last_id"]) == (own[2:], own[2], own[2])
    assert none == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


def test_pages_go_up_as_the_client_asks_for_them(openais: Running) -> None:
    """With what its query says beside the place in the list, and in one request of the client's."""
    openais.targets.clear()
    openais.velox.openai(api_key=OWN).files.list(limit=100, purpose="batch", order="asc")

    place = "/v1/files?limit=100&order=asc&purpose=batch"
    assert openais.targets == [place, f"{place}&after=file-one99", f"{place}&after=file-one199"]


def test_key_of_a_query_stays_here(googles: Running) -> None:
    """Also where the pages that follow are asked for: what they say beside their place is as the client says it."""
    googles.targets.clear()
    url = f"{googles.velox.base_url}/v1beta/files"
    with httpx.Client(headers={"x-goog-api-key": OWN}, verify=NO_TRUST, trust_env=False) as client:
        page = client.get(url, params={"key": "AIza-of-elsewhere", "pageSize": 100}).json()

    assert [each["name"] for each in page["files"]] == googles.own
    place = "/v1beta/files?pageSize=100"
    assert googles.targets == [place, *(f"{place}&pageToken={n}" for n in (100, 200, 300))]


@pytest.mark.parametrize("status", [400, 429])
def test_page_that_fails_is_told_as_it_failed(openais: Running, status: int) -> None:
    """Not as a list that ends there."""
    openais.failing[:] = [3, status]
    try:
        with pytest.raises(openai.APIStatusError) as caught:
            openais.velox.openai(api_key=OWN, max_retries=0).files.list(limit=10)
    finally:
        openais.failing.clear()
    assert caught.value.status_code == status


def leave(openais: Running) -> Call:
    """Ask for a list, and leave while its fourth page is awaited; return that page's call."""
    openais.failing[:] = [3, 0]
    n_before = len(openais.upstream.calls)
    at = urlsplit(openais.velox.base_url)
    try:
        with socket.create_connection((at.hostname, at.port), timeout=20.0) as client:
            client.sendall(
                f"GET /v1/files?limit=10 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {OWN}\r\n\r\n".encode()
            )
            page = openais.upstream.wait_call(n_before + 4)
        openais.upstream.wait_left(page)
    finally:
        openais.failing.clear()
    return page


def test_client_that_leaves_ends_it(openais: Running) -> None:
    """The page that is under way is given up, and no other is asked for."""
    n_before = len(openais.upstream.calls)
    page = leave(openais)
    assert page.ended == "left" and len(openais.upstream.calls) == n_before + 4


def test_nothing_of_a_list_stays_in_the_worker(openais: Running) -> None:
    """Whole, with a page that fails, or without its client: no reference cycle is left."""

    def ask() -> int:
        with httpx.Client(headers={"authorization": f"Bearer {OWN}"}, verify=NO_TRUST, trust_env=False) as client:
            return client.get(f"{openais.velox.base_url}/v1/files", params={"limit": 10}).status_code

    assert ask() == 200
    leave(openais)
    openais.left()  # of what came before, and of modules that are loaded with the first
    for _ in range(3):
        assert ask() == 200
        openais.failing[:] = [3, 400]
        assert ask() == 400
        openais.failing.clear()
        leave(openais)
    assert openais.left() == {}


@pytest.mark.parametrize("limit", [10, 100])
def test_anthropics_sdk_lists_its_own(claudes: Running, limit: int) -> None:
    """Files by a token; batches by an id, forwards and backwards."""
    files, batches = claudes.own[::2], claudes.own[1::2]
    with claude(claudes, OWN) as client:
        assert [each.id for each in client.files.list(limit=limit)] == files
        assert [each.id for each in client.messages.batches.list(limit=limit)] == batches
        back = [each.id for each in client.messages.batches.list(limit=limit, before_id=batches[2])]
    assert back == batches[:2]
    with claude(claudes, NOBODY) as client:
        assert list(client.files.list(limit=limit)) == []
        assert list(client.messages.batches.list(limit=limit)) == []


def test_list_in_which_only_others_are_is_refused_at_the_bound(claudes: Running) -> None:
    """Their ids would lead on, and are not told."""
    with claude(claudes, OWN) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            client.messages.batches.list(limit=1)
        assert (caught.value.status_code, "first 100 pages" in str(caught.value)) == (504, True)
        page = client.files.list(limit=1)  # by a token, which is the client's
        assert page.data == [] and page.has_next_page()


@of_node
def test_anthropics_sdk_for_node_lists_its_own(claudes: Running) -> None:
    """By a token."""
    assert node("anthropic", claudes, OWN) == claudes.own[::2]
