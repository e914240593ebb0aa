"""The table of the API knows every path of the official SDKs: a new one of a new version shows here."""

from __future__ import annotations

import re

import pytest

from tests.sdk_paths import anthropic_paths, google_paths, openai_paths, sample
from velox.policy.api.objects import KINDS
from velox.policy.api.table import Group, call_of, is_organizations
from velox.protocol.named_objects import GOOGLES

# Below these nothing is kept that belongs to a caller; what stands behind them is a model.
_OF_MODELS = re.compile(r"/v1(?:beta)?/models\b")
OPENAI = [path if path.startswith("/v1/") else f"/v1{path}" for path in sorted(openai_paths())]
# Google's SDK asks for some of them by another version, as its user or its defaults say.
GOOGLES_V1 = sorted(path.replace("/v1beta/", "/v1/") for path in google_paths())
SDKS = {
    "googles v1": GOOGLES_V1,
    "openai": OPENAI,
    "anthropic": sorted(anthropic_paths()),
    "google": sorted(google_paths()),
}


def fault(path: str) -> str | None:
    """Return what the table does not know of a path of an SDK; None: it has all."""
    asked = sample(path)
    for method in (b"GET", b"POST", b"DELETE"):
        call = call_of(method, asked.encode())
        if call is None or call.group is None:
            return "the table does not know it"
    call = call_of(b"GET", asked.encode())
    assert call is not None, "looked up above"
    is_operation = "/operations/" in asked
    if "abc-123" not in asked or call.group is Group.ORGANIZATION or (_OF_MODELS.match(asked) and not is_operation):
        return None
    if call.kind is None:
        return "its objects have no owner"
    outer = asked.split("abc-123")[0].rstrip("/")
    return None if call.object_id == "abc-123" and outer.endswith(call.collection) else "another object is looked at"


@pytest.mark.parametrize("name", SDKS)
def test_every_path_of_an_sdk_is_known_and_its_objects_have_an_owner(name: str) -> None:
    """A path with an id in it names an object of a kind, unless it is the organization's, or a model."""
    faults = {path: found for path in SDKS[name] if (found := fault(path)) is not None}

    assert faults == {}


def test_every_kind_that_is_named_as_googles_are_is_found_in_texts() -> None:
    """The table of kinds and the reader of names agree."""
    named = {kind.path[-1].lower() for kind in KINDS if "name" in kind.made and kind.group is not Group.ORGANIZATION}
    assert named - {"voices"} == GOOGLES


def test_administration_is_the_organizations() -> None:
    """Whatever its SDK calls it, and credentials and what runs by itself with it."""
    words = (
        "/organization",
        "/projects",
        "/safety",
        "/vaults",
        "/webhook",
        "/tunnels",
        "/environments",
        "/agents/auto",
    )
    paths = [
        path for paths in SDKS.values() for path in paths if path.startswith(tuple(f"/v1{word}" for word in words))
    ]
    assert [path for path in paths if not is_organizations(b"GET", sample(path).encode())] == []
    assert len(paths) > 100


def test_path_that_no_sdk_has_is_unknown() -> None:
    """Else the test above could not fail."""
    assert [fault(path) for path in ("/v1/new_things", "/v1/things/{id}")] == ["the table does not know it"] * 2
    assert fault("/v1/audio/{id}") == "its objects have no owner"


def test_the_sdks_have_not_become_unreadable() -> None:
    """The sources still hold about as many paths as when this was written: else nothing would be compared."""
    assert (len(OPENAI) > 200, len(SDKS["anthropic"]) > 150, len(SDKS["google"]) > 60) == (True, True, True)
    assert {"/v1/files/{file_id}", "/v1/skills/{skill_id}/content"} <= set(OPENAI)
    assert {"/v1/vaults/{vault_id}/credentials", "/v1/sessions/{session_id}/events"} <= set(SDKS["anthropic"])
    assert {"/v1beta/files/{file}", "/upload/v1beta/files", "/v1beta/cachedContents/abc-123"} <= set(SDKS["google"])
