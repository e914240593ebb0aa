"""Gemini's paths name the model: what a key may use is checked by the same reading that routes and forwards."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_bound import assert_cpu_below
from velox.gateway.access.endpoints import Routes
from velox.gateway.access.plan import runs_model
from velox.policy.api.table import Group, call_of, google_call, may_name_objects
from velox.types import ApiKind, Dialect

PATHS = Routes(("*",))
WORDS = ["models", "gemini-a", "gpt-4o", "a:b", "tunedModels", "publishers", "google", "..", "%2e", "a%2Fb", ""]
VERBS = ["generateContent", "streamGenerateContent", "countTokens", "GENERATECONTENT", "delete"]


@pytest.mark.parametrize(
    ("path", "model", "stream"),
    [
        (b"/v1beta/models/gemini-a:generateContent", "gemini-a", False),
        (b"/v1beta/models/gemini-a:streamGenerateContent", "gemini-a", True),
        (b"/v1/models/llama3:8b:generateContent", "llama3:8b", False),
        (b"/v1beta/models/anthropic/claude-x:generateContent", "anthropic/claude-x", False),
        (b"/v1beta1/projects/p/locations/l/publishers/google/models/g:generateContent", "g", False),
        (b"/v1beta/vllm/qwen3:generateContent", "vllm/qwen3", False),
        (b"/v1beta/openai/gpt-5:streamGenerateContent", "openai/gpt-5", True),
        (b"/v1beta/a/b/c:8b:generateContent", "a/b/c:8b", False),
    ],
)
def test_model_and_stream_stand_in_the_path(path: bytes, model: str, stream: bool) -> None:
    """Whatever the body says. RC7: a name with a slash may have no `models/` before it, as some SDKs write it."""
    facts, call = PATHS.facts(path), call_of(b"POST", path)

    assert facts.named is not None and (facts.named.model, facts.named.stream) == (model, stream)
    assert (facts.client_api, facts.dialect) == (ApiKind.GENERATE, Dialect.GOOGLE)
    assert call is not None and (call.group, call.path_model) == (Group.INFERENCE, model)


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        (b"/v1beta/models/imagen-4:predict", True),
        (b"/v1beta/models/veo-3:predictLongRunning", True),
        (b"/v1/projects/p/locations/l/publishers/anthropic/models/claude-x:streamRawPredict", True),
        (b"/v1beta/models/gemini-a:generateContent", True),
        (b"/v1/models/owner/name/predictions", True),
        (b"/models/org/name", True),
        (b"/v1beta/models/gemini-a:countTokens", False),
        (b"/v1/files", False),
    ],
)
def test_whatever_is_posted_to_a_model_counts(path: bytes, runs: bool) -> None:
    """A verb that is not known may cost money, too: it is recorded, and stands under the key's budgets."""
    assert runs_model(PATHS.facts(path)) is runs


@pytest.mark.parametrize(
    "path",
    [
        b"/v1beta/models/gpt-4o:x/models/gemini-a:generateContent",
        b"/v1beta/models/gpt-4o/models/gemini-a:generateContent",
        b"/v1beta/models/gpt-4o%2Fmodels%2Fgemini-a:generateContent",
        b"/v1beta/Models/gemini-a:generateContent",
        b"/v1beta/models/gemini-a:GenerateContent",
        b"/v1beta/tunedModels/gemini-a:generateContent",
        b"/v1beta/models/../models/gemini-a:generateContent",
        b"/v1beta/a/../tunedModels/x:generateContent",
        b"/v1beta/a%2Fmodels/x:generateContent",
        b"/v1beta/tunedmodels/x:generateContent",
        b"/v1beta/corpora/x:generateContent",
        b"/v1beta/gemini-a:generateContent",
        b"/v1beta/a//b:generateContent",
    ],
)
def test_path_of_two_readings_is_no_call_of_a_limited_key(path: bytes) -> None:
    """It names no model that a key could be allowed."""
    call = call_of(b"POST", path)

    assert call is None or call.path_model is None


@given(st.lists(st.sampled_from(WORDS), max_size=6), st.sampled_from(VERBS))
def test_both_readings_agree(words: list[str], verb: str) -> None:
    """A model that a limited key was checked for is the one that is asked for."""
    path = ("/" + "/".join(["v1beta", *words]) + ":" + verb).encode()
    call, facts = call_of(b"POST", path), PATHS.facts(path)

    if call is not None and call.path_model is not None and facts.client_api is not None:
        assert facts.named is not None and facts.named.model == call.path_model


PARTS = ["/", ":", "models/", "a", "1", "\n", "files", "%2f", ".", ":countTokens"]


@given(st.text("/:mov1beta", max_size=3), st.lists(st.sampled_from(PARTS), max_size=8))
def test_reading_equals_a_pattern(version: str, parts: list[str]) -> None:
    """The patterns say what is read, but take the square of the path's length."""
    path = f"/v1{version}/{''.join(parts)}".encode()
    found = re.fullmatch(rb"/v1(?:alpha|beta|beta1)?/(?:[^:]*/)?models/([^:]+(?::[^:]+)*):([A-Za-z]+)", path)
    if found is None and b"/models/" not in path[4:]:
        without = rb"/v1(?:alpha|beta|beta1)?/((?!files/|models/)[^:/%]+/[^:%]+(?::[^:%]+)*):(countTokens)"
        found = re.fullmatch(without, path)
        if found is not None and (b"/:" in path or not {b".", b"..", b""}.isdisjoint(found[1].split(b"/"))):
            found = None
    assert google_call(path) == (None if found is None else (found[1], found[2]))


@pytest.mark.parametrize(
    "path",
    [
        b"/v1beta/" + b"models/" * 1150,
        b"/v1beta/" + b"models/" * 570 + b":a" * 1980,
        b"/v1/;chat/" + b"completions" * 650 + b"%3bcompletions",
        b"/v1" + b"/a" * 4000,
    ],
)
def test_no_path_takes_long(path: bytes) -> None:
    """X4: they are looked at before the key: 16 requests a second of the first one stopped a worker."""

    def look() -> None:
        Routes(("*",)).facts(path)
        call_of(b"POST", path)
        may_name_objects(b"POST", path)

    assert_cpu_below(0.03, look)
