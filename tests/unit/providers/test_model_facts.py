"""The facts of models: what the table says, and what users say over it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from velox.dialects.facts.model_facts import ModelFacts
from velox.policy.routes.model_rule import ModelRule
from velox.providers.model_facts import RULES, facts_of
from velox.providers.rows import PROVIDERS
from velox.settings import SettingsError, load
from velox.settings.routing.model_facts import FIELDS


def facts(provider: str, model: str) -> ModelFacts:
    return facts_of(PROVIDERS[provider], model)


@pytest.mark.parametrize(
    ("model", "thinking", "sampling", "prefill", "schema"),
    [
        ("claude-opus-4-7", "adaptive", False, False, True),
        ("claude-opus-5", "adaptive", False, False, True),
        ("claude-sonnet-5-20260901", "adaptive", False, False, True),
        ("claude-of-tomorrow-9", "adaptive", False, False, True),
        ("claude-fable-5", "always", False, False, True),
        ("claude-opus-5-5", "always", False, False, True),
        ("anthropic/claude-opus-5.5", "always", False, False, True),
        ("claude-sonnet-5-5", "between_tools", False, False, True),
        ("claude-haiku-5-5", "adaptive", False, False, True),
        ("claude-opus-4-6", "adaptive", True, False, True),
        ("anthropic/claude-opus-4.6", "adaptive", True, False, True),
        ("claude-opus-4-5-20251101", "budget", True, True, True),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "budget", True, True, True),
        ("claude-haiku-4-5", "budget", True, True, True),
        ("claude-opus-4-1@20250805", "budget", True, True, True),
        ("claude-opus-4-20250514", "budget", True, True, False),
        ("claude-sonnet-4@20250514", "budget", True, True, False),
        ("claude-3-7-sonnet-latest", "budget", True, True, False),
        ("claude-3-5-haiku-20241022", "none", True, True, False),
        ("CLAUDE-3-OPUS-20240229", "none", True, True, False),
    ],
)
def test_claude_is_known_by_its_version(model: str, thinking: str, sampling: bool, prefill: bool, schema: bool) -> None:
    """Newer ones refuse sampling, budgets and prefills; one that nobody knows is a newer one."""
    found = facts("anthropic", model)

    assert (found.thinking, found.sampling, found.prefill, found.json_schema) == (thinking, sampling, prefill, schema)
    assert found.forced_choice == (thinking in ("adaptive", "none"))
    assert 4096 <= found.max_output <= 32_000 and found.cache_marks


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("claude-fable-5", "always"),
        ("claude-fable-5-2", "always"),
        ("claude-mythos-5", "always"),
        ("claude-opus-5-5", "always"),
        ("claude-sonnet-5-5", "between_tools"),
    ],
)
def test_claude_that_always_thinks_does_so_on_bedrock(model: str, thinking: str) -> None:
    """There, too, thinking of type "disabled" is a 400."""
    for found in (facts("anthropic", model), facts("bedrock", f"us.anthropic.{model}")):
        assert (found.thinking, found.forced_choice) == (thinking, False)


def test_bedrock_takes_marks_and_pictures_from_few_models_only() -> None:
    """Where a model is not known to take something, it is not sent."""
    claude, nova, other = (facts("bedrock", each) for each in ("anthropic.claude-opus-5", "amazon.nova-pro", "x.y"))

    assert (claude.cache_marks, nova.cache_marks, other.cache_marks) == (True, True, False)
    # The recordings have marks of Nova behind texts; behind tools and results they are a 400.
    assert {"tools.cache_control", "tool_results.cache_control", "top_k"} <= set(nova.refused)
    assert claude.refused == ("tools.strict", "cache_control.scope") and other.refused == ("top_k",)
    assert (claude.images_in_results, nova.images_in_results, other.images_in_results) == (True, True, False)
    assert {claude.call_ids, nova.call_ids, other.call_ids} == {"bedrock"}
    assert facts("bedrock", "openai.gpt-oss-120b-1:0").thinking == "reasoning_effort"
    assert facts("bedrock", "us.amazon.nova-2-lite-v1:0").thinking == "nova"


@pytest.mark.parametrize(
    ("model", "takes_strict"),
    [
        ("us.anthropic.claude-opus-4-6-v1", True),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("anthropic.claude-haiku-4-5-20251001-v1:0", True),
        ("global.anthropic.claude-opus-4-7", False),
        ("anthropic.claude-sonnet-5", False),
        ("anthropic.claude-sonnet-4-20250514-v1:0", False),
    ],
)
def test_converse_takes_strict_tools_of_few_versions_of_claude_only(model: str, takes_strict: bool) -> None:
    """Others answer 400 to the field: "tools.0.custom.strict: Extra inputs are not permitted"."""
    assert ("tools.strict" not in facts("bedrock", model).refused) == takes_strict
    assert facts("anthropic", model).refused == ()


PENALTIES = ("presence_penalty", "frequency_penalty")


@pytest.mark.parametrize(
    ("provider", "model", "is_newer", "refused"),
    [
        ("gemini", "gemini-3-flash-preview", False, ()),
        ("gemini", "gemini-3.1-flash-lite", False, ()),
        ("vertex", "gemini-3.5-flash", False, ()),
        ("gemini", "gemini-3.5-flash", True, PENALTIES),
        ("vertex", "gemini-3.5-flash-lite", True, PENALTIES),
        ("vertex", "gemini-3.6-flash", True, PENALTIES),
        ("gemini", "gemini-3.7-flash", True, ("thinking_level.minimal", *PENALTIES)),
        ("openrouter", "google/gemini-3.8-flash", True, ("thinking_level.minimal", *PENALTIES)),
        ("vertex", "gemini-4-argon", True, ("thinking_level.minimal", *PENALTIES)),
        ("gemini", "gemini-flash-latest", True, ("thinking_level.minimal", *PENALTIES)),
    ],
)
def test_newer_gemini_takes_no_sampling(provider: str, model: str, is_newer: bool, refused: tuple[str, ...]) -> None:
    """It ignores it; penalties, an end with the model's words and, since 3.7, the level "minimal" are a 400."""
    found = facts(provider, model)

    assert (found.sampling, found.prefill) == (not is_newer, not is_newer)
    assert found.refused == refused


@pytest.mark.parametrize(
    ("model", "thinking", "refused"),
    [
        ("gemini-3-pro-preview", "level", ("thinking_level.minimal", "thinking_level.medium")),
        ("gemini-3.1-pro-preview", "level", ("thinking_level.minimal",)),
        ("gemini-3-flash-preview", "level", ()),
        ("gemini-4-argon", "level", ("thinking_level.minimal", "presence_penalty", "frequency_penalty")),
        ("gemini-5", "level", ()),
        ("gemini-2.5-pro", "thinking_budget", ("thinking_budget.0",)),
        ("gemini-2.5-flash-lite", "thinking_budget", ()),
        ("gemini-2.0-flash", "none", ()),
    ],
)
def test_gemini_is_known_by_its_version(model: str, thinking: str, refused: tuple[str, ...]) -> None:
    """Levels since 3, budgets in 2.5. Vertex takes ids of calls since 3."""
    for provider in ("gemini", "vertex"):
        found = facts(provider, model)
        assert (found.thinking, found.refused) == (thinking, refused)
        assert found.json_with_tools == (not model.startswith("gemini-2"))
        assert found.call_ids == ("none" if provider == "vertex" and model.startswith("gemini-2") else "any")


def test_models_of_openai_take_sampling_or_effort() -> None:
    """Not both. A deployment of any name is a current model."""
    reasons, answers, chat, own = (facts("azure", each) for each in ("gpt-5.2", "gpt-4o", "gpt-5-chat-latest", "mine"))

    assert (reasons.sampling, reasons.thinking) == (False, "effort")
    assert (answers.sampling, answers.thinking) == (True, "none")
    assert (chat.sampling, chat.thinking) == (True, "none")
    assert (own.sampling, own.thinking) == (True, "effort")


@pytest.mark.parametrize(
    ("provider", "model", "efforts"),
    [
        ("anthropic", "claude-opus-4-7", "none low medium high xhigh max"),
        ("anthropic", "claude-opus-4-6", "none low medium high max"),
        ("bedrock", "eu.anthropic.claude-sonnet-4-6", "none low medium high max"),
        ("openai", "o3-mini", "low medium high"),
        ("openai", "gpt-5-mini", "minimal low medium high"),
        ("openai", "gpt-5-codex", "low medium high"),
        ("openai", "gpt-5-pro", "high"),
        ("azure", "gpt-5.1", "none low medium high"),
        ("openai", "gpt-5.1-codex-max", "low medium high xhigh"),
        ("openai", "gpt-5.2", "none low medium high xhigh"),
        ("openai", "gpt-5.2-pro", "medium high xhigh"),
        ("openai", "gpt-5.6-sol", "none low medium high xhigh max"),
        ("openai", "gpt-6-astra", "low medium high xhigh max"),
        ("openai", "gpt-6-luna", "none low medium high xhigh max"),
        ("openai", "gpt-6.1-sol", "low medium high xhigh max"),
        ("foundry", "gpt-6.2-astra", "low medium high xhigh max"),
        ("openai", "gpt-6.2-sol", "low medium high xhigh max"),
        ("azure", "gpt-6.1-terra", "none low medium high xhigh max"),
        ("openai", "gpt-7", "none minimal low medium high xhigh max"),
        ("zai", "glm-5.3", "low high max"),
        ("zai", "glm-5.2", "none minimal low medium high xhigh max"),
        ("openrouter", "any", "none minimal low medium high xhigh max"),
        ("vllm", "any", "none low medium high"),
        ("groq", "openai/gpt-oss-120b", "low medium high"),
        ("openai", "o3-deep-research-2025-06-26", "medium"),
        ("azure", "o4-mini-deep-research", "medium"),
        ("xai", "grok-4.3", "none low medium high"),
        ("xai", "grok-4.5", "low medium high"),
        ("xai", "grok-4.6", "low medium high xhigh"),
        ("xai", "grok-4.7", "low medium high xhigh"),
        ("xai", "grok-4.20-multi-agent-0309", "low medium high xhigh"),
    ],
)
def test_efforts_are_those_of_the_version(provider: str, model: str, efforts: str) -> None:
    """An unknown model of OpenAI takes all of them; a server of others the usual ones."""
    assert facts(provider, model).efforts == tuple(efforts.split())


@pytest.mark.parametrize(
    ("model", "thinking", "refuses"),
    [
        ("grok-3", "none", False),
        ("grok-3-mini", "effort", True),
        ("grok-4-0709", "none", True),
        ("grok-4-fast-reasoning", "none", True),
        ("grok-4-1-fast-non-reasoning", "none", False),
        ("grok-code-fast-1", "none", True),
        ("grok-4.3", "effort", True),
        ("grok-4.7", "effort", True),
    ],
)
def test_grok_refuses_stops_and_penalties_where_it_reasons(model: str, thinking: str, refuses: bool) -> None:
    """With a 400; only some models take an effort."""
    found = facts("xai", model)
    assert (found.thinking, {"stop", "presence_penalty"} <= set(found.refused)) == (thinking, refuses)


@pytest.mark.parametrize("provider", ["openai", "azure", "foundry"])
def test_first_gpt_5_and_o_models_take_no_stop_strings(provider: str) -> None:
    """OpenAI's reference, huggingface/smolagents#1671: "Unsupported parameter: 'stop'". Those for chats do."""
    for model in ("gpt-5", "gpt-5-mini-2025-08-07", "o4-mini"):
        assert facts(provider, model).refused == ("top_k", "stop")
    for model in ("gpt-5-chat-latest", "gpt-4.1", "gpt-5.1"):
        assert facts(provider, model).refused == ("top_k",)


def test_models_of_openai_at_aws_take_no_sampling() -> None:
    """As at OpenAI, by AWS's names; its open ones do."""
    closed, open_ = facts("bedrock-mantle", "openai.gpt-5.5"), facts("bedrock-mantle", "openai.gpt-oss-120b")

    assert (closed.sampling, closed.efforts) == (False, ("none", "low", "medium", "high", "xhigh"))
    assert (open_.sampling, open_.efforts) == (True, ("low", "medium", "high"))


def test_groq_takes_reasoning_back_from_models_that_reason_alone() -> None:
    """Others answer 400: "`messages[3].reasoning`: reasoning is not supported with this model"."""
    fields = {name: facts("groq", name).reasoning_field for name in ("openai/gpt-oss-20b", "qwen/qwen3-32b", "llama-4")}

    assert fields == {"openai/gpt-oss-20b": "reasoning", "qwen/qwen3-32b": "reasoning", "llama-4": ""}


def test_mistral_reasons_where_it_is_adjustable() -> None:
    """Its newer Small and Medium know "none" and "high"; others answer 400 to the field."""
    for name, thinking in (
        ("mistral-small-latest", "effort"),
        ("mistral-small-2603", "effort"),
        ("mistral-medium-3-5", "effort"),
        ("mistral-small-2506", "none"),
        ("mistral-large-2512", "none"),
        ("codestral-latest", "none"),
    ):
        assert facts("mistral", name).thinking == thinking
    assert facts("mistral", "mistral-medium-3-5").efforts == ("none", "high")


def test_qwen_at_groq_has_no_efforts_but_a_switch() -> None:
    """It answers 400 to any other: "`reasoning_effort` must be one of `none` or `default`"."""
    assert facts("groq", "qwen/qwen3-32b").thinking == "switch"
    assert facts("groq", "openai/gpt-oss-20b").thinking == "effort"


def test_newest_glm_is_not_told_to_stop_reasoning() -> None:
    """It can't, and takes efforts of three names; the ones before are switched on and off."""
    assert (facts("zai", "glm-5.3-flash").thinking, facts("zai", "glm-5.2").thinking) == ("effort", "toggle")


@pytest.mark.parametrize(
    ("provider", "model", "most"),
    [
        ("openai", "gpt-4o-mini", 16_384),
        ("azure", "gpt-4.1-nano", 32_768),
        ("openai", "gpt-4-turbo", 4096),
        ("openai", "gpt-4-0613", 0),
        ("openai", "gpt-3.5-turbo", 4096),
        ("openai", "gpt-5.2", 0),
        ("anthropic", "claude-3-5-haiku-20241022", 8192),
        ("bedrock", "anthropic.claude-3-haiku-20240307-v1:0", 4096),
        ("vertex", "claude-opus-4-1@20250805", 32_000),
        ("anthropic", "claude-opus-4-5", 0),
        ("vertex", "gemini-2.0-flash", 8192),
        ("bedrock", "us.amazon.nova-pro-v1:0", 10_000),
        ("bedrock", "us.amazon.nova-2-lite-v1:0", 0),
        ("vllm", "gpt-4o", 0),
    ],
)
def test_most_output_is_known_of_older_models(provider: str, model: str, most: int) -> None:
    """Newer ones give as much as clients ask for."""
    assert facts(provider, model).most_output == most


def test_rules_of_the_table_say_what_there_is_to_say() -> None:
    """Names of facts, values of their types, providers that there are, patterns in lower case."""
    kinds = {name: type(getattr(ModelFacts(), name)) for name in ModelFacts.__struct_fields__}
    for rule in RULES:
        assert all(type(value) is kinds[name] for name, value in rule.facts)
        assert set(rule.providers) <= set(PROVIDERS)
        assert all(pattern == pattern.lower() for pattern in rule.models)


def settings_of(folder: Path, rules: str) -> list[ModelFacts]:
    """Return the facts of `glm-9` at two upstreams under such rules."""
    file = folder / "velox.yaml"
    file.write_text(
        "upstreams:\n  - {provider: zai, key: none}\n  - {provider: groq, key: none}\nmodel_facts:\n" + rules
    )
    upstreams = load({"VELOX_CONFIG": str(file)}, cores=2).upstreams
    return [facts_of(PROVIDERS[each.provider], "GLM-9", each.model_facts) for each in upstreams]


def test_users_override_the_table(tmp_path: Path) -> None:
    """Field by field, for all providers or for some; the last rule counts."""
    zai, groq = settings_of(
        tmp_path,
        "  - {models: [GLM-*], max_output: 7, thinking: budget, sampling: false}\n"
        "  - {models: [glm-9], providers: [zai], max_output: 8, refused: [n, name], renamed: {seed: random_seed}}\n",
    )

    assert (zai.max_output, groq.max_output) == (8, 7)
    assert (zai.thinking, zai.sampling, groq.sampling) == ("budget", False, False)
    assert (zai.refused, zai.renamed) == (("n", "name"), (("seed", "random_seed"),))
    assert groq.refused == PROVIDERS["groq"].facts.refused


BAD = {
    "  []\n": "model_facts: expected a list of 1 to 256 rules",
    "  - text\n": "a rule of `model_facts`: expected fields such as",
    "  - {max_output: 1}\n": "a rule of `model_facts`: expected `models`",
    "  - {models: [a]}\n": "a rule of `model_facts`: expected a fact",
    "  - {models: [a], max_output: 0}\n": "max_output is '0': expected a whole number from 1",
    "  - {models: [a], thinking: hard}\n": "thinking is 'hard': expected none, adaptive",
    "  - {models: [a], efforts: [low, huge]}\n": "efforts is 'huge': expected none, minimal",
    "  - {models: [a], sampling: perhaps}\n": "sampling is 'perhaps': expected on or off",
    "  - {models: [a], providers: [grok], sampling: off}\n": "providers is 'grok': there is no such provider",
    "  - {models: [a], max_ouput: 1}\n": "max_ouput: there is no such field of a rule of `model_facts`; did you mean",
    "  - {models: [a], refused: ['a b']}\n": "refused is 'a b': expected names of fields",
    "  - {models: [a], renamed: {a: 'b c'}}\n": "renamed: expected names of fields",
    "  - {models: [a], renamed: x}\n": "renamed: expected fields",
    "  - {models: [a], beta_fields: {shine: 'by '}}\n": "beta_fields: expected fields, each with `taken`",
    "  - {models: [a], beta_fields: {shine: ''}}\n": "beta_fields: expected fields, each with `taken`",
    "  - {models: [a], beta_fields: {'a b': taken}}\n": "beta_fields: expected fields, each with `taken`",
    "  - {models: [a], added_marks: sometimes}\n": "added_marks is 'sometimes': expected agents, always or never",
    "  - {models: [a], family: 'a b'}\n": "family is 'a b': expected the name of a model",
}


@pytest.mark.parametrize("rules", BAD, ids=range(len(BAD)))
def test_rule_that_is_wrong_is_told(rules: str, tmp_path: Path) -> None:
    """With file and line."""
    with pytest.raises(SettingsError) as raised:
        settings_of(tmp_path, rules)

    assert any(BAD[rules] in str(problem) for problem in raised.value.problems), raised.value.problems
    assert all("velox.yaml:" in str(problem) for problem in raised.value.problems)


def test_users_add_fields_of_betas_to_those_of_the_table(tmp_path: Path) -> None:
    """Field by field: a rule says what it has learned, and the table's others stay."""
    (tmp_path / "velox.yaml").write_text(
        "upstreams: [{provider: bedrock, region: eu-west-1, key: env:AWS_KEY}]\n"
        "model_facts:\n"
        "  - {models: ['*claude*'], beta_fields: {shine: shiny-2027-01-01 shiny-2027-02-01, speed: taken}}\n"
        "  - {models: ['*claude*'], beta_fields: {tools.gleam: by gleam-2027, shine: refused}}\n"
    )
    (entry,) = load({"VELOX_CONFIG": str(tmp_path / "velox.yaml"), "AWS_KEY": "secret-of-aws"}).upstreams
    fields = dict(facts_of(PROVIDERS["bedrock"], "anthropic.claude-x", entry.model_facts).beta_fields)

    assert (fields["shine"], fields["speed"], fields["tools.gleam"]) == ("refused", "taken", "by gleam-2027")
    assert fields["thread"] == "refused" and fields["tools.defer_loading"] == "tool-search-tool-2025-10-19"


ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123"


def test_family_says_what_an_arn_is(tmp_path: Path) -> None:
    """C22: all that the table knows of that model is known of the ARN, and a rule of its own counts beside."""
    (tmp_path / "velox.yaml").write_text(
        "upstreams: [{provider: bedrock, region: us-east-1, key: env:AWS_KEY}]\n"
        "model_facts:\n"
        "  - {models: ['arn:*:application-inference-profile/abc*'], family: Anthropic.claude-haiku-4-5-20251001-v1:0}\n"
        "  - {models: ['*anthropic.claude*'], max_output: 1234}\n"
    )
    (entry,) = load({"VELOX_CONFIG": str(tmp_path / "velox.yaml"), "AWS_KEY": "secret-of-aws"}).upstreams
    row = PROVIDERS["bedrock"]
    known = facts_of(row, ARN, entry.model_facts)
    other = facts_of(row, "anthropic.claude-haiku-4-5-20251001-v1:0", entry.model_facts)

    assert known.thinking == "budget" and known.cache_marks and known.betas and known.max_output == 1234
    assert msgspec.structs.replace(known, family="") == other
    assert facts_of(row, ARN, ()).thinking == "none"


@pytest.mark.parametrize(
    ("model", "most"),
    [
        ("meta.llama3-1-70b-instruct-v1:0", 4096),
        ("us.meta.llama3-3-70b-instruct-v1:0", 4096),
        ("us.meta.llama4-maverick-17b-instruct-v1:0", 8192),
        ("mistral.mistral-large-2407-v1:0", 8192),
        ("mistral.mixtral-8x7b-instruct-v0:1", 4096),
        ("us.deepseek.r1-v1:0", 8192),
        ("cohere.command-r-plus-v1:0", 4096),
        ("ai21.jamba-1-5-large-v1:0", 4096),
        ("qwen.qwen3-32b-v1:0", 16_384),
        ("us.amazon.nova-pro-v1:0", 10_000),
        ("us.amazon.nova-premier-v1:0", 10_000),
        ("us.amazon.nova-2-lite-v1:0", 0),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", 4096),
        ("anthropic.claude-3-5-haiku-20241022-v1:0", 8192),
        ("anthropic.claude-opus-4-8", 0),
        ("openai.gpt-oss-120b-1:0", 0),
    ],
)
def test_most_tokens_of_models_on_bedrock_are_known(model: str, most: int) -> None:
    """C27: Claude Code asks for 32,000 of every model, and Bedrock answers 400 to more than a model has."""
    assert facts("bedrock", model).most_output == most
    own = ModelRule((model,), (("most_output", 77),))
    assert facts_of(PROVIDERS["bedrock"], model, [own]).most_output == 77


def test_every_fact_can_be_said() -> None:
    """One that is added later, too."""
    assert set(FIELDS) == {"models", "providers", *ModelFacts.__struct_fields__}


def test_betas_of_bedrock_are_those_of_the_model() -> None:
    """It answers 400 "invalid beta flag" where the model has not what one asks for."""
    binding = "thinking-binding-controls-2026-08-01"
    for model, is_taken in (
        ("us.anthropic.claude-opus-5-5", True),
        ("anthropic.claude-haiku-5-5", True),
        ("anthropic.claude-fable-5-2", True),
        ("anthropic.claude-fable-5", False),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", False),
    ):
        betas = facts("bedrock", model).betas
        assert (binding in betas) == is_taken
        assert {"compact-2026-01-12", "context-1m-2025-08-07"} <= set(betas)


def test_betas_of_bedrock_are_the_users_to_say(tmp_path: Path) -> None:
    """The table ages; a pattern takes all of a family."""
    assert "context-1m-2025-08-07" in facts("bedrock", "us.anthropic.claude-opus-5").betas
    path = tmp_path / "velox.yaml"
    rule = '{models: ["*claude*"], providers: [bedrock], betas: ["context-*", "new-2027-01-01"]}'
    path.write_text(f"upstreams: [{{provider: bedrock, region: eu-west-1}}]\nmodel_facts: [{rule}]\n")

    (entry,) = load({"VELOX_CONFIG": str(path)}).upstreams

    own = facts_of(PROVIDERS["bedrock"], "anthropic.claude-x", entry.model_facts)
    assert own.betas == ("context-*", "new-2027-01-01")


def test_breakpoints_and_verbosity_are_of_newer_models() -> None:
    """Of OpenAI's own servers: others answer 400 to fields that they don't know."""
    new, chat, other = facts("openai", "gpt-5.6"), facts("openai", "gpt-5-chat-latest"), facts("groq", "gpt-5.6")

    assert new.verbosity and dict(new.renamed) == {"prompt_cache_breakpoint": "prompt_cache_breakpoint"}
    assert not chat.verbosity and not other.verbosity and "prompt_cache_breakpoint" not in dict(other.renamed)
    assert facts("azure", "gpt-5").verbosity and not facts("azure", "gpt-5").renamed


@pytest.mark.parametrize(
    ("provider", "model", "refused"),
    [
        ("anthropic", "claude-opus-5", "properties.keys"),
        ("foundry", "claude-opus-5", "properties.keys"),
        ("vertex", "claude-haiku-4-5", "malformed"),
        ("bedrock", "eu.anthropic.claude-sonnet-4-5-v1:0", "top.anyOf"),
        ("bedrock", "amazon.nova-pro-v1:0", "top.oneOf"),
        ("openrouter", "anthropic/claude-opus-5", "properties.keys"),
        ("openai", "gpt-4o", "top.not"),
        ("foundry", "gpt-5.2", "top.enum"),
        ("azure", "my-deployment", "top.allOf"),
        ("gemini", "gemini-3-pro-preview", "top.ref"),
    ],
)
def test_schemas_are_known_by_the_vendor_of_the_model(provider: str, model: str, refused: str) -> None:
    """C18, C19, C20: wherever it is served."""
    assert refused in facts(provider, model).schemas_refuse
    assert not facts("vllm", "qwen3").schemas_refuse
