"""What goes up to a service of Claude's Messages API that is not Anthropic's: what it takes, as it calls it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gateway.translation.claude_features import ASKED, DROPPED, FETCH, SEARCH, TOOL, example
from velox.dialects.as_sent.claude_fields import BETAS_OF, fitted, names_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.facts.model_facts import ModelFacts
from velox.policy.routes.model_rule import ModelRule
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

CLOUDS = ("bedrock", "vertex", "bedrock-mantle")
SERVICES = (*CLOUDS, "foundry", "deepseek", "zai", "openrouter", "openai-compatible")
MARK = {"type": "ephemeral"}


def facts(row: str, model: str = "anthropic.claude-opus-4-8") -> ModelFacts:
    return facts_of(PROVIDERS[row], model)


def sent(
    row: str, body: dict[str, Any], *betas: str, model: str = "anthropic.claude-opus-4-8"
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return what goes up: the body, the betas, and what is left out."""
    dropped = DroppedFields()
    found = fitted(json.dumps({**ASKED, **body}).encode(), betas, facts(row, model), dropped)
    return json.loads(found.body), found.betas, dropped.names


def tool_of(row: str, field: dict[str, Any], *betas: str) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    body, names, lost = sent(row, {"tools": [{**TOOL, **field}]}, *betas)
    (tool,) = body["tools"]
    return tool, names, lost


@pytest.mark.parametrize("row", ["bedrock", "bedrock-mantle"])
@pytest.mark.parametrize("beta", ["fine-grained-tool-streaming-2025-05-14", ""])
def test_eager_streaming_is_a_beta_at_aws(row: str, beta: str) -> None:
    """C6: Bedrock refuses the field with the beta and without it, and takes the beta alone."""
    tool, names, lost = tool_of(row, {"eager_input_streaming": True}, *filter(None, [beta]))

    assert (tool, names, lost) == (TOOL, ("fine-grained-tool-streaming-2025-05-14",), ())


@pytest.mark.parametrize("row", [each for each in SERVICES if "bedrock" not in each])
def test_eager_streaming_comes_off_elsewhere(row: str) -> None:
    """C6: only Anthropic's own surfaces take it."""
    tool, names, lost = tool_of(row, {"eager_input_streaming": True})

    assert (tool, names, lost) == (TOOL, (), ("eager_input_streaming",))


@pytest.mark.parametrize("row", SERVICES)
@pytest.mark.parametrize("value", [False, None])
def test_eager_streaming_that_is_off_is_no_loss(row: str, value: object) -> None:
    assert tool_of(row, {"eager_input_streaming": value}) == (TOOL, (), ())


@pytest.mark.parametrize(
    ("row", "field", "taken", "added"),
    [
        ("bedrock", {"defer_loading": True}, True, "tool-search-tool-2025-10-19"),
        ("vertex", {"defer_loading": True}, True, "tool-search-tool-2025-10-19"),
        ("bedrock-mantle", {"input_examples": [{}]}, True, "tool-examples-2025-10-29"),
        ("bedrock", {"input_examples": [{"a": 1}]}, True, "tool-examples-2025-10-29"),
        ("vertex", {"input_examples": [{"a": 1}]}, False, ""),
        ("bedrock", {"allowed_callers": ["direct"]}, False, ""),
        ("deepseek", {"defer_loading": True}, False, ""),
        ("zai", {"input_examples": [{}]}, False, ""),
    ],
)
def test_advanced_tools_have_another_beta_there_or_come_off(
    row: str, field: dict[str, Any], taken: bool, added: str
) -> None:
    """C6: the beta of Anthropic's own API is translated into those that a cloud has for the fields."""
    tool, names, lost = tool_of(row, field, "advanced-tool-use-2025-11-20")

    assert tool == ({**TOOL, **field} if taken else TOOL)
    assert (names == (added,)) if row in CLOUDS and taken else added not in names
    assert lost == (() if taken else (*field, "anthropic-beta"))


@pytest.mark.parametrize("row", SERVICES)
@pytest.mark.parametrize("content", ["note", [{"type": "text", "text": "note"}]])
def test_words_of_the_system_between_messages_are_the_users(row: str, content: object) -> None:
    """C7: in their place, in the message of the user that they follow, behind its results of tools."""
    results = [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": content},
        call,
        {"role": "user", "content": results},
        {"role": "system", "content": content},
        {"role": "assistant", "content": "Done"},
        {"role": "user", "content": "More"},
    ]
    body, names, lost = sent(row, {"messages": messages}, "mid-conversation-system-2026-04-07")

    note = {"type": "text", "text": "note"}
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, note]},
        call,
        {"role": "user", "content": [*results, note]},
        {"role": "assistant", "content": "Done"},
        {"role": "user", "content": "More"},
    ]
    assert (names, lost) == ((), ())


def test_words_of_the_system_at_other_places() -> None:
    """C7: at the begin, behind the assistant, and between a call and its results, where no text may stand."""
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "b"}
    body, _, lost = sent(
        "vertex",
        {
            "messages": [
                {"role": "system", "content": "one"},
                {"role": "user", "content": "Hi"},
                call,
                {"role": "system", "content": [{"type": "tool_addition", "tool": {}}, {"type": "text", "text": "two"}]},
                {"role": "user", "content": [result, {"type": "text", "text": "more"}]},
                {"role": "assistant", "content": "ok"},
                {"role": "system", "content": "three"},
                {"role": "system", "content": ""},
            ]
        },
    )

    def text(words: str) -> dict[str, str]:
        return {"type": "text", "text": words}

    assert body["messages"] == [
        {"role": "user", "content": [text("one"), text("Hi")]},
        call,
        {"role": "user", "content": [result, text("two"), text("more")]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": [text("three")]},
    ]
    assert lost == ("defer_loading",)


@pytest.mark.parametrize(
    ("model", "passes"),
    [
        *(("claude-opus-4-8", True), ("claude-opus-5", True), ("claude-sonnet-5-5", True), ("claude-fable-5", True)),
        *(("claude-opus-4-7", False), ("claude-sonnet-5-20260901", False), ("claude-3-5-haiku-20241022", False)),
    ],
)
def test_older_claude_at_anthropic_knows_no_words_of_the_system_between_messages(model: str, passes: bool) -> None:
    """C7: a route may send a newer model's client to it."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "note"}]
    body, names, _ = sent("anthropic", {"messages": messages}, "mid-conversation-system-2026-04-07", model=model)

    assert (body["messages"] == messages) is passes
    assert names == (("mid-conversation-system-2026-04-07",) if passes else ())


@pytest.mark.parametrize("row", ["bedrock", "vertex"])
@pytest.mark.parametrize("field", DROPPED)
def test_field_and_beta_come_off_together(row: str, field: str) -> None:
    """C8, N8: both are named, at each cloud alike; all else stays."""
    given, beta = DROPPED[field]
    body, names, lost = sent(row, {**given, "temperature": 1}, *filter(None, [beta, "context-1m-2025-08-07"]))

    kept = {"output_config": {"effort": "low"}} if field.startswith("output_config") else {}
    assert body == {**ASKED, **kept, "temperature": 1}
    assert names == ("context-1m-2025-08-07",)
    assert lost == ((field, "anthropic-beta") if beta else (field,))


@pytest.mark.parametrize("row", [*CLOUDS, "foundry"])
@pytest.mark.parametrize("field", ["thread", "compaction"])
def test_what_the_answer_needs_is_refused(row: str, field: str) -> None:
    """C8: state of a conversation elsewhere, and an answer of another kind."""
    if (row, field) == ("vertex", "compaction"):
        body, names, _ = sent(row, {"compaction": {"type": "full"}})
        assert "compaction" in body and names == ("compact-2026-09-04",)
        return
    with pytest.raises(BadRequestError) as raised:
        sent(row, {field: {"type": "create"}})

    assert raised.value.param == field


@pytest.mark.parametrize("row", SERVICES)
def test_thread_is_refused_so_that_the_sdk_goes_on(row: str) -> None:
    """RC5: Anthropic's tool runner sends the whole conversation when it is told so in `error.details`."""
    with pytest.raises(BadRequestError) as raised:
        sent(row, {"thread": {"type": "create"}}, "message-threads-2026-08-12")

    assert json.loads(raised.value.details) == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert sent(row, {"thread": None})[0] == ASKED


def test_schema_of_the_answer_goes_where_it_stands_now() -> None:
    """C8: `output_format` was its name before it was released; without it the answer would be another one."""
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    body, names, lost = sent(
        "bedrock", {"output_format": schema, "output_config": {"effort": "low"}}, "structured-outputs-2025-11-13"
    )

    assert body == {**ASKED, "output_config": {"effort": "low", "format": schema}}
    assert (names, lost) == ((), ())


def test_tools_that_the_service_runs_not_come_off() -> None:
    """C8: Vertex has one search, Bedrock none; the client's own tools stay."""
    body, names, lost = sent("bedrock", {"tools": [SEARCH, TOOL, FETCH]}, "web-fetch-2025-09-10")
    assert (body["tools"], names, lost) == ([TOOL], (), ("server_tools", "anthropic-beta"))

    body, names, lost = sent("vertex", {"tools": [SEARCH, FETCH]})
    assert (body["tools"], names, lost) == ([SEARCH], ("web-search-2025-03-05",), ("server_tools",))

    body, _, _ = sent("bedrock", {"tools": [SEARCH], "tool_choice": {"type": "auto"}})
    assert body == ASKED


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "web_search"}, {"type": "any"}])
def test_forced_tool_that_is_not_there_is_refused(choice: dict[str, str]) -> None:
    """C8: the answer would come from memory."""
    with pytest.raises(BadRequestError) as raised:
        sent("bedrock", {"tools": [SEARCH], "tool_choice": choice})
    assert raised.value.param == "tool_choice"

    body, _, _ = sent("bedrock", {"tools": [SEARCH, TOOL], "tool_choice": {"type": "any"}})
    assert body["tools"] == [TOOL]


def test_edits_of_the_context_go_with_their_betas() -> None:
    """C8: a compaction needs a beta of its own, which a client may have forgotten."""
    compact, clear = {"type": "compact_20260112"}, {"type": "clear_tool_uses_20250919"}
    given = {"context_management": {"edits": [compact, clear]}}
    body, names, lost = sent("bedrock", given, "context-management-2025-06-27")

    assert body == {**ASKED, **given}
    assert (names, lost) == (("context-management-2025-06-27", "compact-2026-01-12"), ())


@pytest.mark.parametrize("row", SERVICES)
def test_mark_on_the_request_goes_to_its_last_block(row: str) -> None:
    """N1: "cache_control: Extra inputs are not permitted" at Bedrock and Vertex; thinking has no marks."""
    text, _, lost = sent(row, {"cache_control": MARK})
    blocks, _, _ = sent(
        row,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "b"}, {"type": "thinking", "thinking": "c"}],
                },
            ],
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    )
    null, _, _ = sent(row, {"cache_control": None})

    assert text == {
        **ASKED,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": MARK}]}],
    }
    assert blocks["messages"][1]["content"] == [
        {"type": "text", "text": "b", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "thinking", "thinking": "c"},
    ]
    assert (null, lost) == (ASKED, ())


@pytest.mark.parametrize("row", CLOUDS)
@pytest.mark.parametrize("kind", ["image", "document"])
@pytest.mark.parametrize("is_result", [False, True])
def test_url_that_the_service_does_not_read_is_refused_before_it_is_asked(row: str, kind: str, is_result: bool) -> None:
    """C46, W7: the next target of the route may read it."""
    block: dict[str, Any] = {"type": kind, "source": {"type": "url", "url": "https://example.com/a"}}
    if is_result:
        block = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    given = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, block]}]}
    with pytest.raises(BadRequestError) as raised:
        sent(row, given)

    place = "messages[0].content[1].content[0]" if is_result else "messages[0].content[1]"
    assert raised.value.param == f"{place}.source"
    assert sent("foundry", given)[0] == {**ASKED, **given}


def test_history_of_tools_that_are_not_there_comes_off() -> None:
    """C8: a message of which nothing is left comes off, too; names of tools that were found stay as texts."""
    calls = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "x", "input": {}},
        {"type": "fallback", "to": {"model": "m"}},
    ]
    text = {"type": "text", "text": "found"}
    user = {"role": "user", "content": "Hi"}
    messages = [user, {"role": "assistant", "content": [*calls, text]}, {"role": "assistant", "content": calls}, user]
    body, _, lost = sent("bedrock", {"messages": messages})
    assert body["messages"] == [user, {"role": "assistant", "content": [text]}, user]
    assert lost == ("server_tools",)

    found = {"type": "tool_reference", "tool_name": "look"}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [found]}
    body, _, _ = sent("zai", {"messages": [{"role": "user", "content": [result]}]})
    assert body["messages"][0]["content"][0]["content"] == [{"type": "text", "text": "look"}]

    for kind in ("container_upload",):
        with pytest.raises(BadRequestError):
            sent("bedrock", {"messages": [{"role": "user", "content": [{"type": kind, "file_id": "file_1"}]}]})


def test_most_tokens_are_those_of_the_model() -> None:
    """C27: also of a request that goes up as it came."""
    body, _, lost = sent("bedrock", {"max_tokens": 32000}, model="anthropic.claude-3-5-haiku-20241022-v1:0")

    assert (body["max_tokens"], lost) == (8192, ("max_tokens",))


@pytest.mark.parametrize("row", ["bedrock", "vertex"])
def test_unknown_betas_are_named_at_each_cloud(row: str) -> None:
    """N8: Bedrock and Vertex alike."""
    _, names, lost = sent(row, {}, "context-1m-2025-08-07", "oauth-2025-04-20")

    assert (names, lost) == (("context-1m-2025-08-07",), ("anthropic-beta",))


def test_strict_route_refuses_what_would_come_off() -> None:
    with pytest.raises(BadRequestError):
        fitted(json.dumps({**ASKED, "speed": "fast"}).encode(), (), facts("vertex"), DroppedFields(strict=True))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"tools":1,"messages":"a"}',
        b'{"tools":[1]}',
        b'{"messages":[1,"system"]}',
        b'{"output_config":1,"context_management":1,"cache_control":1,"messages":[]}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("row", SERVICES)
def test_what_can_not_be_read_is_for_the_provider(row: str, body: bytes) -> None:
    """It goes up as it is, or with what could be read made to fit; its provider says what is wrong with it."""
    fitted(body, (), facts(row), DroppedFields())


def test_body_without_such_fields_passes_byte_for_byte() -> None:
    body = b'{"model": "m",  "max_tokens":9, "messages":[{"role":"user","content":"x"}],"future":{"a":1.50}}'

    for row in SERVICES:
        assert fitted(body, (), facts(row), DroppedFields()).body is body


def test_names_of_betas_are_taken_from_all_headers_once() -> None:
    given = ["a-2025-08-07, b-2025", "a-2025-08-07,c", "", " "]

    assert names_of(given) == ("a-2025-08-07", "b-2025", "c")


def test_users_add_betas_and_their_fields() -> None:
    """Rules of the settings: a new beta with its field, one that the service has learned, one by another name."""
    rule = ModelRule(
        ("*claude*",),
        (
            ("betas", ("shiny-*", "context-1m-2025-08-07")),
            ("beta_fields", (("shine", "shiny-2027-01-01"), ("speed", "taken"), ("dull", "refused"))),
        ),
        ("bedrock",),
    )
    known = facts_of(PROVIDERS["bedrock"], "anthropic.claude-x", [rule])
    dropped = DroppedFields()
    given = {**ASKED, "shine": 1, "speed": "fast", "dull": 2, "thinking": {"type": "adaptive"}, "fallbacks": [1]}
    found = fitted(json.dumps(given).encode(), ("oauth-2025-04-20",), known, dropped)

    assert json.loads(found.body) == {**ASKED, "shine": 1, "speed": "fast", "thinking": {"type": "adaptive"}}
    assert (found.betas, dropped.names) == (("shiny-2027-01-01",), ("dull", "fallbacks", "anthropic-beta"))


@given(st.sampled_from(SERVICES), st.sets(st.sampled_from(sorted(BETAS_OF))), st.booleans())
def test_fitting_twice_is_fitting_once(row: str, paths: set[str], has_betas: bool) -> None:
    """What goes up is what the service takes: nothing comes off it again."""
    body, betas = example(paths)
    known = facts(row)
    try:
        once = fitted(json.dumps(body).encode(), tuple(betas) if has_betas else (), known, DroppedFields())
    except BadRequestError:
        return
    dropped = DroppedFields()
    twice = fitted(once.body, once.betas, known, dropped)

    assert (json.loads(twice.body), set(twice.betas), dropped.names) == (json.loads(once.body), set(once.betas), ())


@pytest.mark.parametrize("row", ["deepseek", "zai", "vllm"])
def test_tools_of_the_client_are_functions_for_other_vendors(row: str) -> None:
    """As on translated models: no other model is trained for Anthropic's types, which have no schema."""
    bash = {"type": "bash_20250124", "name": "bash", "cache_control": MARK}
    body, _, lost = sent(row, {"tools": [bash, TOOL, {"type": "computer_20250124", "name": "computer"}]})

    assert [sorted(tool) for tool in body["tools"]] == [
        ["cache_control", "description", "input_schema", "name"],
        ["input_schema", "name"],
    ]
    assert (body["tools"][0]["name"], lost) == ("bash", ("server_tools",))
    clouds, _, _ = sent("bedrock", {"tools": [bash]})
    assert clouds["tools"] == [bash]


@pytest.mark.parametrize(
    ("row", "model", "taken"),
    [
        *(("bedrock", "anthropic.claude-opus-4-8", True), ("bedrock", "anthropic.claude-sonnet-4-6", True)),
        *(("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", False), ("vertex", "claude-haiku-4-5", False)),
        *(("vertex", "claude-opus-4-5@20251101", False), ("anthropic", "claude-haiku-4-5", False)),
    ],
)
def test_effort_comes_off_where_the_model_has_none(row: str, model: str, taken: bool) -> None:
    """K1: "output_config.effort: Extra inputs are not permitted"; a client sends it for the model that it named."""
    config = {"output_config": {"effort": "high"}}
    body, _, lost = sent(row, config, model=model)

    assert body == {**ASKED, **(config if taken else {})}
    assert lost == (() if taken else ("output_config.effort",))


def test_effort_of_opus_4_5_goes_to_bedrock_with_its_beta() -> None:
    config = {"output_config": {"effort": "high"}}

    assert sent("bedrock", config, model="anthropic.claude-opus-4-5-20251101-v1:0") == (
        {**ASKED, **config},
        ("effort-2025-11-24",),
        (),
    )


@pytest.mark.parametrize("indent", [None, 1])
def test_marks_come_off_where_the_model_has_no_cache(indent: int | None) -> None:
    """K1: Bedrock answers 403 to marks for Claude 3; a property of a tool that is called so is none."""
    schema = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
    given = {
        **ASKED,
        "cache_control": MARK,
        "system": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}, "type": "text", "text": "a"}],
        "tools": [{**TOOL, "input_schema": schema, "cache_control": MARK}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": json.dumps(MARK), "cache_control": MARK}]}],
    }
    dropped = DroppedFields()
    known = facts("bedrock", "anthropic.claude-3-haiku-20240307-v1:0")
    found = fitted(json.dumps(given, indent=indent).encode(), (), known, dropped)

    assert json.loads(found.body) == {
        **ASKED,
        "system": [{"type": "text", "text": "a"}],
        "tools": [{**TOOL, "input_schema": schema}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": json.dumps(MARK)}]}],
    }
    assert dropped.names == ("cache_control",)
    assert not facts("bedrock", "anthropic.claude-3-5-sonnet-20240620-v1:0").cache_marks
    assert facts("vertex", "claude-3-haiku@20240307").cache_marks


_NAMES = st.sampled_from(
    [
        *("tools", "messages", "system", "thinking", "output_config", "context_management", "edits", "type", "role"),
        *("content", "source", "name", "cache_control", "max_tokens", "tool_choice", "speed", "thread", "strict"),
        *("effort", "budget_tokens", "defer_loading", "temperature", "tool_name", "eager_input_streaming"),
    ]
)
_VALUES = st.sampled_from(
    [
        *(None, True, 0, 1.5, 32_000, 10**50, "", "system", "user", "text", "tool_result", "web_search_20250305"),
        *("server_tool_use", "tool_reference", "image", "url", "enabled", "adaptive", "any", "ephemeral", "\ud800"),
    ]
)
_ANYTHING = st.recursive(
    _VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5), max_leaves=20
)


@given(st.sampled_from(SERVICES), st.dictionaries(_NAMES, _ANYTHING, max_size=6), st.booleans())
def test_whatever_a_client_sends_is_json_or_a_refusal(row: str, body: dict[str, Any], is_renamed: bool) -> None:
    """Nothing else is raised, and what goes up can be read."""
    for model in ("anthropic.claude-opus-4-8", "anthropic.claude-3-haiku-20240307-v1:0", "anthropic.claude-haiku-4-5"):
        try:
            found = fitted(json.dumps(body).encode(), (), facts(row, model), DroppedFields(), is_renamed=is_renamed)
        except BadRequestError as exc:
            assert exc.message
        else:
            assert isinstance(json.loads(found.body), dict)


def test_number_that_is_no_limit_is_for_the_provider() -> None:
    """Python reads no integer of 5,000 digits."""
    body = b'{"max_tokens":%b,"thinking":{"type":"adaptive"}}' % (b"9" * 5000)
    found = fitted(body, (), facts("bedrock", "anthropic.claude-haiku-4-5"), DroppedFields(), is_renamed=True)

    assert b"9" * 5000 in found.body
