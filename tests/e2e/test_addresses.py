"""Addresses in answers lead to the gateway: what the official SDKs follow, and what a client could follow by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.e2e.harness import RawReply
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.tools import covers
from tests.e2e.vendor_account import PROVIDER_KEY, VENDORS, VendorAccount

VeloxAsk = Callable[..., RawReply]
KEYS = [{"name": name, "key": f"vk-{name}"} for name in ("alice", "bob")]
HERE = "http://velox.test"  # as request() names the gateway
CHUNK = 8 * 1024 * 1024  # of google-genai's uploads


def entry(vendor: str, origin: str, name: str = "vendor") -> dict[str, object]:
    """Return an upstream of a vendor's."""
    return {"name": name, "provider": VENDORS[vendor], "origin": origin, "key": "env:VENDOR_KEY"}


@pytest.fixture
def google() -> Iterator[tuple[VendorAccount, RecordingUpstream]]:
    """Google's account."""
    account = VendorAccount("google")
    with RecordingUpstream(script=account.script) as upstream:
        account.origin = upstream.upstream.url
        yield account, upstream
        assert upstream.failures == []
        assert account.keyless == []


def test_anthropics_sdk_reads_the_results_of_a_batch_through_the_gateway() -> None:
    """W4: it follows `results_url` with the key that it has: this gateway's, which the vendor must never see."""
    account = VendorAccount("anthropic")
    with RecordingUpstream(script=account.script) as upstream:
        account.origin = upstream.upstream.url
        config = {"upstreams": [entry("anthropic", account.origin)], "api_keys": KEYS}
        with routed(config, VENDOR_KEY=PROVIDER_KEY) as velox:
            with anthropic.Anthropic(base_url=velox.base_url, api_key="vk-alice", max_retries=0) as client:
                made = client.messages.batches.create(requests=[])
                assert made.results_url == f"{velox.base_url}/v1/messages/batches/{made.id}/results"
                assert [each.custom_id for each in client.messages.batches.results(made.id)] == ["a"]
                assert [each.results_url for each in client.messages.batches.list()] == [made.results_url]
            other = anthropic.Anthropic(base_url=velox.base_url, api_key="vk-bob", max_retries=0)
            with other, pytest.raises(anthropic.NotFoundError):
                other.get(made.results_url, cast_to=object)
        assert upstream.failures == []
        assert account.keyless == []


@pytest.mark.parametrize("n_bytes", [5, CHUNK + 5])
def test_googles_sdk_uploads_a_file_through_the_gateway(
    n_bytes: int, google: tuple[VendorAccount, RecordingUpstream]
) -> None:
    """C52: each piece goes where the upload began, though the SDK sends no key with it, and the file is its caller's.

    The other upstream, which is asked first as often, has no such API.
    """
    account, _ = google
    with RecordingUpstream() as other:
        upstreams = [entry("anthropic", other.upstream.url, "claude"), entry("google", account.origin)]
        content = bytes(n % 251 for n in range(n_bytes))
        config = {"upstreams": upstreams, "api_keys": KEYS, "routes": [{"name": "all", "to": ["claude", "vendor"]}]}
        with routed(config, VENDOR_KEY=PROVIDER_KEY, workers="2") as velox:
            client = genai.Client(api_key="vk-alice", http_options=types.HttpOptions(base_url=velox.base_url))
            for n in range(3):
                made = client.files.upload(file=io.BytesIO(content), config={"mime_type": "text/plain"})
                assert bytes(account.uploads[f"AB-{n}"]) == content
            assert made.name in [each.name for each in client.files.list()]
            bob = genai.Client(api_key="vk-bob", http_options=types.HttpOptions(base_url=velox.base_url))
            assert list(bob.files.list()) == []
            with pytest.raises(genai.errors.ClientError) as caught:
                bob.files.get(name=made.name or "")
            assert caught.value.code == 404
            client.files.delete(name=made.name or "")
            client.close()
            bob.close()
        assert [call.target for call in other.calls] == []


def start_upload(ask: VeloxAsk, who: str = "alice") -> str:
    """Begin an upload; return where its pieces go."""
    reply = ask("POST", "/upload/v1beta/files", b"{}", who, {"x-goog-upload-command": "start"})
    assert reply.status == 200
    url = reply.header("x-goog-upload-url") or ""
    assert reply.header("x-goog-upload-control-url") == url
    return url


def test_pass_of_an_upload_is_for_that_upload_and_its_caller(google: tuple[VendorAccount, RecordingUpstream]) -> None:
    """It stands for no other path, with no other caller's key, not changed, and not once its key is gone."""
    account, upstream = google
    config = {"upstreams": [entry("google", account.origin)], "api_keys": KEYS}
    with routed(config, VENDOR_KEY=PROVIDER_KEY) as velox:

        def ask(
            method: str, path: str, body: bytes | None, who: str = "", more: dict[str, str] | None = None
        ) -> RawReply:
            key = {"x-goog-api-key": f"vk-{who}"} if who else {}
            return velox.request(method, path, body or b"", {**key, **(more or {})})

        url = start_upload(ask)
        assert url.startswith(f"{HERE}/upload/v1beta/files?upload_id=AB-0&upload_protocol=resumable&velox-pass=")
        target = url.removeprefix(HERE)
        finish = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
        begin, _, sealed = target.rpartition("=")
        refused = [
            ask("POST", target.partition("&velox-pass")[0], b"x", "", finish),  # without it, and without a key
            ask("POST", target.replace("AB-0", "AB-1"), b"x", "", finish),
            ask("GET", f"/v1beta/files?velox-pass={sealed}", None),
            ask("POST", f"{begin}={sealed[:-4]}AAAA", b"x", "", finish),
            ask("POST", f"{begin}=", b"x", "", finish),
            ask("POST", target, b"x", "bob", finish),
        ]
        assert [reply.status for reply in refused] == [401] * len(refused)
        # With a key of one's own, but another caller's upload.
        assert ask("POST", "/upload/v1beta/files?upload_id=AB-0", b"x", "bob", finish).status == 404
        assert len(upstream.calls) == 1

        done = ask("POST", target, b"x", "", finish)
        assert (done.status, done.header("x-goog-upload-status")) == (200, "final")
        assert b"velox" not in upstream.calls[-1].target.encode(), "the pass is the gateway's own"
        name = json.loads(done.body)["file"]["name"]
        assert ask("GET", f"/v1beta/{name}", None, "alice").status == 200
        assert ask("GET", f"/v1beta/{name}", None, "bob").status == 404


@pytest.mark.parametrize("has_keys", [True, False])
@covers("VELOX_PUBLIC_URL")
def test_addresses_begin_as_was_said(has_keys: bool, google: tuple[VendorAccount, RecordingUpstream]) -> None:
    """Behind a proxy that ends TLS: with its name and path. Without keys an upload goes on, too."""
    account, _ = google
    config = {"upstreams": [entry("google", account.origin)], **({"api_keys": KEYS} if has_keys else {})}
    with routed(config, VENDOR_KEY=PROVIDER_KEY, public_url="https://ai.example.org/llm") as velox:

        def ask(
            method: str, path: str, body: bytes | None, who: str = "", more: dict[str, str] | None = None
        ) -> RawReply:
            key = {"x-goog-api-key": f"vk-{who}"} if who and has_keys else {}
            return velox.request(method, path, body or b"", {**key, **(more or {})})

        url = start_upload(ask)
        assert url.startswith("https://ai.example.org/llm/upload/v1beta/files?upload_id=AB-0&")
        finish = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
        done = ask("POST", url.removeprefix("https://ai.example.org/llm"), b"x", "", finish)
        assert done.status == 200
        name = json.loads(done.body)["file"]["name"]
        assert json.loads(done.body)["file"]["uri"] == f"https://ai.example.org/llm/v1beta/{name}"


async def addressed(call: Call) -> None:
    """Tell addresses of the upstream's own, and of others, in all fields that have them."""
    own = f"http://{call.header('host')}"
    fields = [
        ("content-type", "application/json"),
        ("operation-location", f"{own}/openai/operations/images/abc?api-version=1"),
        ("azure-asyncoperation", f"{own.replace('http', 'HTTP')}/openai/operations/images/abc"),
        ("location", "/openai/operations/images/abc"),
        ("link", f'<{own}/openai/files?after=x>; rel="next", <https://docs.example.org/x>; rel="deprecation"'),
        ("x-goog-upload-url", f"{own}/upload/v1beta/files?upload_id=1"),
    ]
    urls = [f"{own}/openai/files/file-1/content", "https://storage.example.org/signed?sig=1", f"{own}.evil.example/x"]
    text = json.dumps({"id": "file-1", "next": urls[0], "output": urls, "said": f"see {own}/openai/files"})
    await call.reply(200, fields, text.replace(f'"{own}/openai', f'"{own}/openai'.replace("/", "\\/"), 1).encode())


def test_azures_addresses_lead_to_the_gateway() -> None:
    """With the path that its clients ask here; other hosts' pass, and what a text only speaks of."""
    with RecordingUpstream(script=addressed) as upstream:
        config = {
            "upstreams": [
                {
                    "name": "azure",
                    "provider": "azure",
                    "origin": upstream.upstream.url,
                    "resource": "res",
                    "key": "env:VENDOR_KEY",
                }
            ],
            "api_keys": KEYS,
        }
        with routed(config, VENDOR_KEY=PROVIDER_KEY) as velox:
            for path in ("/v1/files", "/v1/images/generations:submit"):
                reply = velox.request("POST", path, b'{"model":"m"}', {"api-key": "vk-alice"})
                assert reply.status == 200, reply.body
                assert reply.header("operation-location") == f"{HERE}/operations/images/abc?api-version=1"
                assert reply.header("azure-asyncoperation") == f"{HERE}/operations/images/abc"
                assert reply.header("location") == "/operations/images/abc"
                assert reply.header("link") == (
                    f'<{HERE}/files?after=x>; rel="next", <https://docs.example.org/x>; rel="deprecation"'
                )
                if path == "/v1/files":
                    found = json.loads(reply.body)
                    assert found["next"] == f"{HERE}/files/file-1/content"
                    assert found["output"][1] == "https://storage.example.org/signed?sig=1"
                    assert found["output"][2].endswith(".evil.example/x"), "another host"
                    assert found["said"].startswith("see http://127.0.0.1"), "a text that speaks of an address"
                else:
                    assert reply.header("x-goog-upload-url") is None, "no upload begins there"


def test_googles_file_is_named_to_google_as_google_knows_it(google: tuple[VendorAccount, RecordingUpstream]) -> None:
    """What a client was told as the file's address stands in `fileUri` of its next request."""
    account, upstream = google
    config = {"upstreams": [entry("google", account.origin)], "api_keys": KEYS}
    account.origin = "https://generativelanguage.googleapis.com"  # as it says, whatever server stands before it
    with routed(config, VENDOR_KEY=PROVIDER_KEY) as velox:
        client = genai.Client(api_key="vk-alice", http_options=types.HttpOptions(base_url=velox.base_url))
        made = client.files.upload(file=io.BytesIO(b"x"), config={"mime_type": "text/plain"})
        assert made.uri == f"{velox.base_url}/v1beta/{made.name}"
        client.models.generate_content(model="gemini-x", contents=[made, "what is it?"])
        assert json.loads(upstream.calls[-1].body)["contents"][0]["parts"][0]["fileData"]["file_uri"] == (
            f"{account.origin}/v1beta/{made.name}"
        )
        client.caches.create(
            model="gemini-x",
            config={
                "contents": [
                    types.Content(parts=[types.Part.from_uri(file_uri=made.uri, mime_type="text/plain")], role="user")
                ]
            },
        )
        assert f"{account.origin}/v1beta/{made.name}" in upstream.calls[-1].body.decode()
        client.close()


def test_openais_sdk_reaches_its_callers_objects() -> None:
    """Files, a vector store of them, a response that names one; another caller has none of it."""
    account = VendorAccount("openai")
    with RecordingUpstream(script=account.script) as upstream:
        account.origin = upstream.upstream.url
        config = {"upstreams": [entry("openai", account.origin)], "api_keys": KEYS}
        with routed(config, VENDOR_KEY=PROVIDER_KEY, unknown_objects="refuse") as velox:
            base = f"{velox.base_url}/v1"
            alice = openai.OpenAI(base_url=base, api_key="vk-alice", max_retries=0)
            bob = openai.OpenAI(base_url=base, api_key="vk-bob", max_retries=0)
            with alice, bob:
                file = alice.files.create(file=("a.txt", b"x"), purpose="assistants")
                store = alice.vector_stores.create(file_ids=[file.id])
                skill = alice.skills.create(files=[("SKILL.md", b"x")])
                assert [each.id for each in alice.files.list()] == [file.id]
                assert alice.files.content(file.id).read() == b"the content"
                assert [each.id for each in alice.skills.list()] == [skill.id]
                assert alice.vector_stores.retrieve(store.id).id == store.id
                assert (list(bob.files.list()), list(bob.skills.list())) == ([], [])
                for ask in (
                    lambda: bob.files.content(file.id),
                    lambda: bob.files.delete(file.id),
                    lambda: bob.vector_stores.create(file_ids=[file.id]),
                    lambda: bob.vector_stores.files.list(store.id),
                    lambda: bob.skills.content.retrieve(skill.id),
                ):
                    with pytest.raises(openai.NotFoundError):
                        ask()
                assert alice.files.delete(file.id).id == file.id
        assert upstream.failures == []
        assert account.keyless == []


def test_googles_sdk_reaches_its_callers_files_and_batches(google: tuple[VendorAccount, RecordingUpstream]) -> None:
    """Also where unknown objects are refused; another caller can neither download, use nor cancel them."""
    account, _ = google
    config = {"upstreams": [entry("google", account.origin)], "api_keys": KEYS}
    with routed(config, VENDOR_KEY=PROVIDER_KEY, unknown_objects="refuse") as velox:
        clients = {
            name: genai.Client(api_key=f"vk-{name}", http_options=types.HttpOptions(base_url=velox.base_url))
            for name in ("alice", "bob")
        }
        made: dict[str, list[str | None]] = {"alice": [], "bob": []}
        for who in ("bob", "alice", "bob", "alice"):
            file = clients[who].files.upload(file=io.BytesIO(b"x"), config={"mime_type": "text/plain"})
            made[who].append(file.name)
        for who, client in clients.items():
            assert [each.name for each in client.files.list(config={"page_size": 2})] == made[who]
        alice, bob = clients["alice"], clients["bob"]
        mine = made["alice"][0] or ""
        assert alice.files.download(file=mine) == b"the content"
        batch = alice.batches.create(model="gemini-x", src=mine)
        with pytest.raises(genai.errors.ClientError, match="404"):
            bob.files.download(file=mine)
        with pytest.raises(genai.errors.ClientError, match="404"):
            bob.batches.create(model="gemini-x", src=mine)
        with pytest.raises(genai.errors.ClientError, match="404"):
            bob.batches.cancel(name=batch.name or "")
        alice.batches.cancel(name=batch.name or "")
        for client in clients.values():
            client.close()
