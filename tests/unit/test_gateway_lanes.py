"""Paths that are none of a provider's APIs: where they go up, and where nothing is for them."""

from __future__ import annotations

import pytest

from velox.dialects.facts import ModelFacts
from velox.errors import Reason, VeloxError
from velox.gateway.forward import Forwarder
from velox.gateway.lane_request import Asked
from velox.gateway.lanes import Lanes, Sides
from velox.heads import RequestHead
from velox.policy.routes import NO_RULES
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.dialects import sides
from velox.types import BodyFields, Surface


def lanes(provider: str) -> Lanes:
    row = PROVIDERS[provider]
    return Lanes(Sides({}, {}), row, {}, lambda model: facts_of(row, model))


def test_rules_of_models_are_gone_through_once_for_each_name() -> None:
    """They are many, and stand beside a translation of a few microseconds."""
    asked_for = []

    def facts(model: str) -> ModelFacts:
        asked_for.append(model)
        return ModelFacts()

    found = Lanes(sides(), PROVIDERS["openai"], {}, facts)
    for model in ("m", "m", "n", "m"):
        asked = Asked(
            surface=Surface.COUNT_MESSAGES,
            head=RequestHead.of(b"POST", b"/v1/messages/count_tokens"),
            fields=BodyFields(model=model),
            body=b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
            model=model,
            rules=NO_RULES,
            id="1",
            now_s=0,
            strict=False,
            has_limits=False,
            to_be_read=False,
            on_bug=lambda _: None,
            on_tokens=None,
            on_translated=lambda *_: None,
            on_lost=lambda *_: None,
        )
        assert b"input_tokens" in found.estimate(asked).body

    assert asked_for == ["m", "n"]


def test_other_paths_go_below_the_providers_own_beginning() -> None:
    """Azure has all of OpenAI's API below /openai; a path that the row gives already has it."""
    azure = Forwarder(PROVIDERS["azure"], base_path="/gw", root_path="/v1/chat", key="k", client_keys_are_ours=False)
    head = RequestHead.of(b"GET", b"/v1/files?limit=2")

    assert azure.build(head, BodyFields(), None).target == b"/gw/openai/v1/files?limit=2"
    assert azure.build(head, BodyFields(), None, target=b"/openai/v1/x").target == b"/gw/openai/v1/x"


def test_path_that_a_provider_has_nothing_at_is_refused_here() -> None:
    """Bedrock would answer with an error of its own, or with a signature that it does not take."""
    lanes("anthropic").check_passes()
    lanes("azure").check_passes()
    for name in ("bedrock", "vertex", "bedrock-mantle"):
        with pytest.raises(VeloxError) as raised:
            lanes(name).check_passes()
        assert raised.value.reason is Reason.UNKNOWN_ROUTE


def test_list_of_models_is_where_the_provider_has_it() -> None:
    """Nowhere at those that list what no caller may use as it is."""
    found = {name: lanes(name).model_list for name in ("openai", "gemini", "bedrock", "azure", "zai")}

    assert found == {
        "openai": "/v1/models",
        "gemini": "/v1beta/openai/models",
        "bedrock": "",
        "azure": "",
        "zai": "/paas/v4/models",
    }
