"""Two callers that share an account: whatever one makes is out of the other's reach, on every path of each SDK."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.harness import RawReply, VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.tools import Client
from tests.e2e.vendor_account import PROVIDER_KEY, VENDORS, VendorAccount, root_of

PLACE = re.compile(r"\{[^}]*\}|abc-123")
METHODS = ("GET", "POST", "DELETE", "PATCH")
# Made in another way than by a POST to their collection.
MADE_BY = {
    "/v1beta/batches": "/v1beta/models/gemini-x:batchGenerateContent",
    "/v1beta/models/veo-x/operations": "/v1beta/models/veo-x:predictLongRunning",
}
# The account's own, or a model's: nobody makes them, or all share them.
OF_ACCOUNT = re.compile(
    r"/v1(beta)?/(organizations?|projects|safety|vaults|tunnels|environments|deployments|deployment_runs|webhook\w*"
    r"|credentials|triggers|agents(?!/sessions)|fine_tuning/checkpoints|models(?!/veo-x/operations))\b"
)
# Objects that no request makes: the API tells of them by other ways.
NOT_MADE = {"/v1beta/operations", "/v1beta/fileSearchStores/abc-123/operations", "/v1/chatkit/threads"}


# Each vendor, and each setting of VELOX_UNKNOWN_OBJECTS; the rest of them with `make test-more`.
EACH = pytest.mark.parametrize(
    ("vendor", "setting"),
    [
        ("openai", "pass"),
        ("anthropic", "refuse"),
        ("google", "pass"),
        pytest.param("openai", "refuse", marks=pytest.mark.more),
        pytest.param("anthropic", "pass", marks=pytest.mark.more),
        pytest.param("google", "refuse", marks=pytest.mark.more),
    ],
)


@dataclass
class Two:
    """A gateway with two callers' keys and one of the organization."""

    account: VendorAccount
    upstream: RecordingUpstream
    velox: VeloxProcess
    clients: dict[str, Client]
    opened: contextlib.ExitStack

    def ask(self, who: str, method: str, path: str, body: object = None, **headers: str) -> RawReply:
        """One exchange."""
        own = {"x-api-key": f"vk-{who}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.account.vendor == "anthropic":
            own["anthropic-version"] = "2023-06-01"
        data = None if body is None or method in ("GET", "DELETE") else json.dumps(body).encode()
        client = self.clients[who]
        client.send(method, path, data, own)
        reply = client.read()
        if reply.header("connection") == "close":
            client.sock.close()
            self.clients[who] = self.opened.enter_context(Client(self.velox))
        return reply

    def make(self, who: str, collection: str) -> str:
        """Make an object; return its id."""
        before = set(self.account.made(collection))
        body = {"model": "m", "store": True, "messages": [], "input": "x", "max_tokens": 1}
        reply = self.ask(who, "POST", MADE_BY.get(collection, collection), body)
        assert reply.status in (200, 201), (collection, reply.status, reply.body)
        (made,) = set(self.account.made(collection)) - before
        return made


@contextlib.contextmanager
def two_keys(vendor: str, setting: str) -> Iterator[Two]:
    """Run it, with two workers."""
    account = VendorAccount(vendor)
    keys = [{"name": name, "key": f"vk-{name}"} for name in ("alice", "bob")]
    admin = {"name": "admin", "key": "vk-admin", "endpoints": ["all", "organization"]}
    with RecordingUpstream(script=account.script) as upstream:
        account.origin = upstream.upstream.url
        entry = {"name": "vendor", "provider": VENDORS[vendor], "origin": account.origin, "key": "env:VENDOR_KEY"}
        config = {"upstreams": [entry], "api_keys": [*keys, admin]}
        settings = {"VENDOR_KEY": PROVIDER_KEY, "unknown_objects": setting, "workers": "2"}
        with routed(config, **settings) as velox, contextlib.ExitStack() as opened:
            clients = {name: opened.enter_context(Client(velox)) for name in ("alice", "bob", "admin")}
            yield Two(account, upstream, velox, clients, opened)
            assert upstream.failures == []
            assert account.keyless == []


def is_not_found(reply: RawReply, vendor: str) -> bool:
    """Say whether a reply is the 404 of an object that is not there, in the vendor's shape."""
    if reply.status != 404:
        return False
    document: dict[str, Any] = json.loads(reply.body)
    error = document["error"]
    if vendor == "google":
        return bool(error["code"] == 404 and error["status"] == "NOT_FOUND")
    if vendor == "anthropic":
        return bool(document["type"] == "error" and error["type"] == "not_found_error")
    return bool(error["code"] == "unknown_object" and error["type"] == "invalid_request_error")


def ids_of(page: Mapping[str, object]) -> set[str]:
    """Return the ids of a list of any vendor."""
    items = [each for value in page.values() if isinstance(value, list) for each in value]
    return {str(each.get("id") or each["name"]).rpartition("/")[2] for each in items}


@EACH
def test_no_path_of_an_sdk_leads_to_another_callers_object(vendor: str, setting: str) -> None:
    """Read, listed, changed, used or deleted by each verb: 404, and nothing goes up; its maker reaches all of it."""
    with two_keys(vendor, setting) as two:
        account = two.account
        collections = [each for each in account.collections if not OF_ACCOUNT.match(each) and each not in NOT_MADE]
        collections = [each for each in collections if not each.startswith("/upload/")]
        made = {each: (two.make("alice", each), two.make("bob", each)) for each in collections}

        for collection, (hers, his) in made.items():
            for who, own, other in (("alice", hers, his), ("bob", his, hers)):
                page = two.ask(who, "GET", collection)
                assert page.status == 200, (collection, page.body)
                found = ids_of(json.loads(page.body))
                assert own in found and other not in found, (collection, who, found)

        two.upstream.forget()
        # An upload into an object stands below a word of its own.
        roots = {path: root_of(path.removeprefix("/upload")) for path in account.paths if PLACE.search(path)}
        named = [(path, made[root][0]) for path, root in roots.items() if root in made]
        asked = [(verb, PLACE.sub("sub-1", PLACE.sub(hers, path, count=1))) for path, hers in named for verb in METHODS]
        for method, path in asked:
            reply = two.ask("bob", method, path, {"model": "m"})
            assert is_not_found(reply, vendor), (method, path, reply.status, reply.body)
        assert two.upstream.calls == [], "bob's requests went up"

        for method, path in asked:
            if method != "DELETE":
                reply = two.ask("alice", method, path, {"model": "m"})
                assert reply.status == 200, (method, path, reply.status, reply.body)
        for collection, (hers, _) in made.items():
            assert two.ask("alice", "DELETE", f"{collection}/{hers}").status == 200
            assert hers not in account.made(collection)


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_is_the_accounts_needs_a_key_of_the_organization(vendor: str) -> None:
    """Vaults, agents, environments, webhooks, administration: every path and verb, also written in another way."""
    with two_keys(vendor, "pass") as two:
        paths = [
            PLACE.sub("x-1", path) for path in two.account.paths if OF_ACCOUNT.match(path) and "/models" not in path
        ]
        assert len(paths) > 8
        two.upstream.forget()
        for path in paths:
            word = path.split("/")[2]
            for each in (path, path.replace(word, f"%{ord(word[0]):x}{word[1:]}"), path.replace(word, word.title())):
                for method in ("GET", "POST", "DELETE"):
                    reply = two.ask("bob", method, each, {})
                    assert reply.status == 403, (method, each, reply.status)
        assert two.upstream.calls == []
        assert {two.ask("admin", "GET", path).status for path in paths} <= {200, 404}
        assert len(two.upstream.calls) == len(paths)


BODIES = {
    "openai": [
        ("/v1/responses", {"previous_response_id": "/v1/responses"}),
        ("/v1/responses", {"conversation": "/v1/conversations"}),
        ("/v1/responses", {"conversation": {"id": "/v1/conversations"}}),
        ("/v1/responses", {"tools": [{"type": "file_search", "vector_store_ids": ["/v1/vector_stores"]}]}),
        ("/v1/responses", {"tools": [{"type": "code_interpreter", "container": "/v1/containers"}]}),
        ("/v1/responses", {"input": [{"content": [{"type": "input_file", "file_id": "/v1/files"}]}]}),
        ("/v1/responses", {"tools": [{"environment": {"skills": [{"skill_id": "/v1/skills"}]}}]}),
        ("/v1/chat/completions", {"messages": [{"content": [{"file": {"file_id": "/v1/files"}}]}]}),
        ("/v1/batches", {"input_file_id": "/v1/files", "endpoint": "/v1/chat/completions"}),
        ("/v1/fine_tuning/jobs", {"training_file": "/v1/files"}),
        ("/v1/vector_stores", {"file_ids": ["/v1/files"]}),
        ("/v1/threads/runs", {"assistant_id": "/v1/assistants"}),
        ("/v1/videos/edits", {"video": {"id": "/v1/videos"}}),
        ("/v1/containers", {"file_ids": ["/v1/files"], "name": "x"}),
    ],
    "anthropic": [
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"source": {"file_id": "/v1/files"}}]}]}),
        ("/v1/messages", {"container": {"skills": [{"type": "custom", "skill_id": "/v1/skills"}]}}),
        ("/v1/messages/batches", {"requests": [{"params": {"messages": [{"source": {"file_id": "/v1/files"}}]}}]}),
        ("/v1/sessions", {"resources": [{"type": "memory_store", "memory_store_id": "/v1/memory_stores"}]}),
        ("/v1/sessions", {"resources": [{"type": "file", "file_id": "/v1/files"}]}),
        ("/v1/messages", {"user_profile_id": "/v1/user_profiles", "messages": []}),
    ],
    "google": [
        ("/v1beta/models/g:generateContent", {"contents": [{"parts": [{"fileData": {"fileUri": "/v1beta/files"}}]}]}),
        ("/v1beta/models/g:generateContent", {"contents": [], "cachedContent": "/v1beta/cachedContents"}),
        ("/v1beta/models/g:streamGenerateContent", {"contents": [], "cached_content": "/v1beta/cachedContents"}),
        (
            "/v1beta/models/g:generateContent",
            {"contents": [], "tools": [{"fileSearch": {"fileSearchStoreNames": ["/v1beta/fileSearchStores"]}}]},
        ),
        ("/v1beta/models/g:batchGenerateContent", {"batch": {"inputConfig": {"fileName": "/v1beta/files"}}}),
        ("/v1beta/cachedContents", {"contents": [{"parts": [{"fileData": {"fileUri": "/v1beta/files"}}]}]}),
        ("/v1beta/interactions", {"input": "x", "previous_interaction_id": "/v1beta/interactions"}),
    ],
}


@EACH
def test_no_body_uses_another_callers_object(vendor: str, setting: str) -> None:
    """By its id, name or address, wherever it stands."""
    with two_keys(vendor, setting) as two:
        hers: dict[str, str] = {}
        for collection in re.findall(r'"(/v1(?:beta)?/[A-Za-z_/]+)"', json.dumps(BODIES[vendor])):
            if collection in two.account.collections and collection not in hers:
                hers[collection] = two.make("alice", collection)
        for path, template in BODIES[vendor]:
            text = json.dumps(template)
            for collection, made in hers.items():
                is_named = vendor == "google" and not collection.endswith("interactions")
                name = f"{collection.removeprefix('/v1beta/')}/{made}" if is_named else made
                text = text.replace(f'"{collection}"', json.dumps(name))
            body = {"model": "m", "max_tokens": 1, "messages": [], **json.loads(text)}
            if vendor == "google":
                body = json.loads(text)
            two.upstream.forget()
            reply = two.ask("bob", "POST", path, body)
            assert is_not_found(reply, vendor), (path, body, reply.status, reply.body)
            assert two.upstream.calls == []
            reply = two.ask("alice", "POST", path, body)
            assert two.upstream.calls, (path, body, reply.status, reply.body)
