"""`velox import litellm`: what becomes of a LiteLLM configuration: nothing is dropped in silence, no key is written.

The configurations in configs/ follow examples of LiteLLM's public documentation; each names its source.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.markdown import ROOT, blocks, commands
from tests.migrate.imported import deployment, imported, loaded, report, targets
from velox.cli import main
from velox.settings import load
from velox.settings import parse as parsers
from velox_migrate.litellm import import_litellm
from velox_migrate.providers import PROVIDERS, UNSUPPORTED

CONFIGS = sorted((ROOT / "tests/migrate/configs").glob("*.yaml"))
PAGE = ROOT / "docs/moving-in.md"
SECRET = "sk-Very-Secret-0123456789abcdef"


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_documented_configuration_passes_velox_check(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written by the command, and accepted as soon as the variables are set that the report names."""
    output = tmp_path / "velox.yaml"

    assert main(["import", "litellm", str(path), "-o", str(output)], {}) == 0

    names = import_litellm(path.read_bytes(), str(path), {}).notes.variables
    assert main(["check", "--config", str(output)], {name: f"key-in-{name}" for name in names}) == 0
    assert "example-master" not in output.read_text() + capsys.readouterr().err


def test_load_balancing_example_means_the_same(tmp_path: Path) -> None:
    """Weights from rpm, an alias, a fallback, limits, the router's retries and timeouts before the library's."""
    made = loaded(imported((ROOT / "tests/migrate/configs/load_balancing.yaml").read_text()), tmp_path)

    assert [upstream.weight for upstream in made.upstreams] == [1, 10, 1000, 1]
    assert [str(upstream.origins[0]) for upstream in made.upstreams][2:] == [
        "http://10.0.0.1:8003",
        "https://api.openai.com",
    ]
    assert targets(made, "zephyr-beta")[1] == ["openai (gpt-4o)", "openai (gpt-3.5-turbo-16k) for context_length"]
    assert made.routes[1].match.models == ("gpt-4o", "gpt-4")
    assert [(rule.models, rule.rates.rpm) for rule in made.limits][:2] == [
        (("zephyr-beta",), 60660),
        (("gpt-4o", "gpt-4"), 200),
    ]
    assert (made.retries, made.upstream_total_timeout_s, made.upstream_first_byte_timeout_s) == (2, 30.0, 30.0)
    assert made.rate_limit_rpm == 0


def test_quick_start_example_names_what_it_leaves_out() -> None:
    """Each setting without a place, with its line."""
    result = imported((ROOT / "tests/migrate/configs/quick_start.yaml").read_text())

    text = report(result)
    for line, name in (
        ("29", "model_info.version"),
        ("35", "litellm_settings.drop_params"),
    ):
        assert f"config.yaml:{line}: {name}: " in text
    assert "general_settings.alerting" in text
    head = (result.text or "").partition("\n\n")[0].replace("\n#", "")
    assert text.split() == head.split()[8:], "the report stands at the head of the file, too"


def mappings(value: object) -> Iterator[dict[str, Any]]:
    """Yield each mapping whose fields are settings."""
    assert isinstance(value, dict)
    yield value
    for name in ("router_settings", "litellm_settings", "general_settings"):
        yield value[name]
    for item in value["model_list"]:
        yield from (item, item["litellm_params"], item["model_info"])
    for item in value["credential_list"]:
        yield item
    yield value["router_settings"]["model_group_alias"]["alias"]


@pytest.mark.parametrize(
    ("config", "seconds", "subjects"),
    [
        ({"router_settings": {"timeout": 0}}, (60.0, 600.0), {"router_settings.timeout"}),
        ({"litellm_settings": {"request_timeout": 0}}, (60.0, 600.0), {"litellm_settings.request_timeout"}),
        (
            {"router_settings": {"timeout": 0}, "litellm_settings": {"request_timeout": 90}},
            *((90.0, 90.0), {"router_settings.timeout"}),
        ),
    ],
)
def test_timeout_of_zero_is_none(
    config: dict[str, object], seconds: tuple[float, float], subjects: set[str], tmp_path: Path
) -> None:
    """As LiteLLM takes it. Nothing would ever be answered within the shortest time that Velox knows."""
    result = imported({"model_list": [deployment("a", "openai/a")], **config})
    made = loaded(result, tmp_path)
    assert (made.upstream_first_byte_timeout_s, made.upstream_total_timeout_s) == seconds
    assert {note.subject for note in result.notes.of("left out")} == subjects


def test_report_names_what_velox_has_for_money() -> None:
    """Who reads that there is nothing looks no further, and goes on without the limit."""
    deployments = [deployment("a", "openai/a", max_budget=10, input_cost_per_token=1, base_model="b")]
    shown = report(imported({"model_list": deployments, "litellm_settings": {"max_budget": 100}}))
    assert "`budgets`, which need VELOX_LEDGER (docs/budgets.md)" in shown and "VELOX_PRICES" in shown


def test_no_setting_is_dropped_in_silence() -> None:
    """A field that nobody knows is named, wherever it stands, with its own line."""
    config = {
        "model_list": [
            {**deployment("a", "openai/a", litellm_credential_name="one"), "model_info": {"mode": "chat"}},
            {**deployment("b", "groq/b"), "model_info": {"id": "1"}},
        ],
        "credential_list": [{"credential_name": "one", "credential_values": {"api_key": "os.environ/ONE_KEY"}}],
        "router_settings": {"num_retries": 1, "model_group_alias": {"alias": {"model": "a", "hidden": True}}},
        "litellm_settings": {"request_timeout": 5},
        "general_settings": {"database_url": "postgresql://user:password@host/db"},
    }
    names = []
    for n, mapping in enumerate(mappings(config)):
        names.append(f"strange_{n}_setting")
        mapping[names[-1]] = {"some": ["thing"]}

    result = imported(config)

    lines = yaml.safe_dump(config, sort_keys=False).splitlines()
    shown = report(result)
    for name in names:
        line = next(n for n, text in enumerate(lines, 1) if name in text)
        note = next(note for note in result.notes.of("left out") if note.subject.endswith(name) or line in note.lines)
        assert line in note.lines and note.text
    assert {"model_info.mode", "general_settings.database_url"} <= {n.subject for n in result.notes.of("left out")}
    assert "password" not in shown


def test_no_secret_is_written_anywhere() -> None:
    """Neither into the file nor into the report, wherever somebody has put one."""
    config = {
        "model_list": [
            deployment("a", "openai/a", api_key=SECRET, extra_headers={"x-team": SECRET, "x-api-key": "short"}),
            deployment("a", "azure/a", api_base="https://a.test", azure_ad_token=SECRET, client_secret=SECRET),
            deployment("b", "openai/b", api_base=f"https://user:{SECRET}@b.test/v1"),
            deployment("c", "openai/c", api_base=f"https://c.test/v1?key={SECRET}"),
            deployment("d", "bedrock/d", aws_secret_access_key=SECRET),
            deployment("e", "openai/e", **{SECRET: SECRET}, organization=SECRET, tags=[f"{SECRET} "]),
        ],
        "credential_list": [{"credential_name": "x", "credential_values": {"api_key": SECRET}, SECRET: SECRET}],
        "router_settings": {"redis_password": SECRET, "routing_strategy": SECRET, "timeout": SECRET},
        "general_settings": {"master_key": SECRET, "database_url": f"postgresql://u:{SECRET}@h/db", SECRET: 1},
        "litellm_settings": {"cache_params": {"password": SECRET}, "callbacks": [SECRET]},
        "environment_variables": {"OPENAI_API_KEY": SECRET, SECRET: SECRET},
        SECRET: SECRET,
    }

    result = imported(config, {"OPENAI_API_KEY": SECRET})

    assert result.text is not None and "[env:OPENAI_KEY]" in result.text
    assert SECRET not in result.text + report(result)
    assert SECRET[3:] not in result.text + report(result)


def test_key_in_the_file_becomes_one_variable_for_each_key(tmp_path: Path) -> None:
    """The same key is one variable; no new name is one that the file, or a provider, has already."""
    config = {
        "model_list": [
            deployment("a", "openai/a", api_key="k-one"),
            deployment("b", "openai/b", api_key="k-one"),
            deployment("c", "openai/c", api_key="k-two"),
            deployment("d", "openai/d", api_key="os.environ/OPENAI_KEY"),
            deployment("e", "openai/e"),
            deployment("f", "openai/f", api_key="os.environ/VELOX_OWN"),
        ]
    }

    result = imported(config)

    names = ["OPENAI_API_KEY", "OPENAI_KEY", "OPENAI_KEY_2", "OPENAI_KEY_3", "OPENAI_KEY_4"]
    assert sorted(result.notes.variables) == names
    refs = [str(upstream.keys[0]) for upstream in loaded(result, tmp_path).upstreams]
    assert refs == [f"env:{name}" for name in ("OPENAI_KEY_2", "OPENAI_KEY_3", "OPENAI_KEY", "OPENAI_API_KEY")] + [
        "env:OPENAI_KEY_4"
    ]


def test_concurrency_is_of_one_deployment(tmp_path: Path) -> None:
    """Its own, or the usual one if it has no rpm or tpm either; then it shares no upstream."""
    config = {
        "model_list": [
            deployment("a", "openai/a"),
            deployment("b", "openai/b"),
            deployment("c", "openai/c", max_parallel_requests=7),
            deployment("d", "openai/d", rpm=100),
            deployment("e", "openai/e", tpm=100),
        ],
        "router_settings": {"default_max_parallel_requests": 5},
    }

    made = loaded(imported(config), tmp_path)

    found = [(upstream.name, upstream.concurrency) for upstream in made.upstreams]
    assert found == [("openai", 5), ("openai-2", 5), ("openai-3", 7), ("openai-4", 0)]


def test_base_may_be_in_a_variable(tmp_path: Path) -> None:
    """That of the provider, as LiteLLM looks it up; its value is the import's to tell, and one of the file counts."""
    config = {
        "model_list": [
            deployment("a", "openai/a"),
            deployment("b", "azure/b"),
            deployment("c", "hosted_vllm/c"),
            deployment("d", "groq/d", api_base="https://mine.test/v1"),
        ],
        "environment_variables": {
            "AZURE_API_BASE": "https://r.openai.azure.com",
            "GROQ_API_BASE": "https://no.test/v1",
        },
    }
    environ = {"OPENAI_BASE_URL": "https://o.test/v1", "HOSTED_VLLM_API_BASE": "http://v.test:8000"}

    result = imported(config, environ)

    origins = [str(upstream.origins[0]) for upstream in loaded(result, tmp_path).upstreams]
    assert origins == [
        "https://o.test",
        "https://r.openai.azure.com",
        "http://v.test:8000",
        "https://mine.test",
    ]
    assert "it is what the variable OPENAI_BASE_URL says" in report(result)
    assert "nor is AZURE_API_BASE set" in report(imported({"model_list": [deployment("b", "azure/b")]}))


@pytest.mark.parametrize("name", sorted(name for name, provider in PROVIDERS.items() if provider.unverified))
def test_base_that_is_not_verified_is_told(name: str) -> None:
    """But not where the file names another."""
    doubtful = imported({"model_list": [deployment("a", f"{name}/m")]})
    named = imported({"model_list": [deployment("a", f"{name}/m", api_base="https://h.test/v1")]})

    assert f"{name}: api_base: its URL is not verified" in report(doubtful)
    assert "not verified" not in report(named)


@pytest.mark.parametrize(
    ("params", "origin"),
    [
        ({"model": "openai/m", "api_base": "https://h.test/v1/"}, "https://h.test"),
        ({"model": "openai/m", "api_base": "https://h.test/proxy/v1/chat/completions"}, "https://h.test/proxy"),
        ({"model": "openai/m", "api_base": "https://h.test"}, "https://h.test"),
        ({"model": "openai/m", "api_base": "os.environ/BASE"}, "https://from.test"),
        ({"model": "m", "custom_llm_provider": "groq"}, "https://api.groq.com/openai"),
        ({"model": "ollama/m"}, "http://localhost:11434"),
        ({"model": "azure/m", "api_base": "https://r.openai.azure.com/"}, "https://r.openai.azure.com"),
        (
            {"model": "azure/m", "api_base": "https://r.openai.azure.com/openai/deployments/m"},
            "https://r.openai.azure.com",
        ),
        ({"model": "baseten/m"}, "https://inference.baseten.co"),
        ({"model": "baseten/abcd1234"}, "https://model-abcd1234.api.baseten.co/environments/production/sync"),
        ({"model": "openai/m", "api_base": "https://h.test/api/v4"}, None),
        ({"model": "openai/m", "api_base": "os.environ/NOT_THERE_BASE"}, None),
        ({"model": "openai/m", "api_base": "os.environ/NOT_THERE_BASE", "custom_llm_provider": "hosted_vllm"}, None),
        ({"model": "hosted_vllm/m"}, None),
        ({"model": "some-model"}, None),
        ({"model": "nobody/m"}, None),
    ],
)
def test_origin_is_where_litellm_asks(params: dict[str, str], origin: str | None, tmp_path: Path) -> None:
    """Without the /v1 that clients send; a deployment that has none such is named."""
    result = imported({"model_list": [{"model_name": "a", "litellm_params": params}]}, {"BASE": "https://from.test/v1"})

    if origin is None:
        assert result.text is None and "nothing of this deployment is carried over" in report(result)
    else:
        assert [str(upstream.origins[0]) for upstream in loaded(result, tmp_path).upstreams] == [origin]


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_provider_has_an_origin(name: str) -> None:
    """Each row of the table is a URL with /v1, or a server of one's own."""
    base = PROVIDERS[name].base
    assert not base or (base.endswith("/v1") and parsers.origin(base))
    assert base or imported({"model_list": [deployment("a", f"{name}/m", api_base="http://h.test")]}).text


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_provider_of_another_api_is_named(name: str) -> None:
    """With what to do instead, and nothing is written."""
    result = imported({"model_list": [deployment("a", f"{name}/m")]})

    assert result.text is None
    assert f"config.yaml:4: {name}/m: {UNSUPPORTED[name]}; nothing of this deployment is carried over" in report(result)
    assert name not in PROVIDERS


def test_fields_of_a_deployment(tmp_path: Path) -> None:
    """Timeouts, concurrency, headers; merge keys and credentials stand for what they name."""
    text = """
common: &common {timeout: 300, stream_timeout: 60, max_parallel_requests: 7}
credential_list:
  - {credential_name: shared, credential_values: {api_key: os.environ/SHARED_KEY, api_base: "https://h.test/v1"}}
model_list:
  - model_name: a
    litellm_params:
      <<: *common
      model: openai/a
      litellm_credential_name: shared
      extra_headers: {X-Team: "platform 7", Host: h}
      organization: org-abc
"""
    result = imported(text)
    (upstream,) = loaded(result, tmp_path).upstreams

    assert (upstream.timeouts.first_byte_s, upstream.timeouts.total_s, upstream.timeouts.idle_s) == (300, 300, 60)
    assert upstream.concurrency == 7
    assert upstream.headers == ((b"x-team", b"platform 7"), (b"openai-organization", b"org-abc"))
    assert str(upstream.keys[0]) == "env:SHARED_KEY"
    assert "extra_headers: one of them can't be sent" in report(result)


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ("model_list: [", 2, "config.yaml:1:14: the file: expected a value"),
        ("- a\n", 2, "expected `model_list` and other fields"),
        ("", 2, "expected fields"),
        ("model_list: []\n", 1, "no model is left that Velox could ask for"),
    ],
)
def test_file_that_can_be_no_velox_file_is_told(
    content: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is written."""
    (tmp_path / "config.yaml").write_text(content)

    assert main(["import", "litellm", str(tmp_path / "config.yaml"), "-o", str(tmp_path / "out")], {}) == code

    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_file_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody may have worked on it."""
    (tmp_path / "velox.yaml").write_text("mine")

    assert main(["import", "litellm", str(CONFIGS[0]), "-o", str(tmp_path / "velox.yaml")], {}) == 1

    assert "can't be written (File exists)" in capsys.readouterr().err
    assert (tmp_path / "velox.yaml").read_text() == "mine"
    assert main(["import", "litellm", str(tmp_path / "missing.yaml")], {}) == 2


def test_page_shows_what_its_commands_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of docs/moving-in.md, to the letter, and the check after it."""
    monkeypatch.chdir(tmp_path)
    source, made = blocks(PAGE, "yaml")
    Path("config.yaml").write_text(source)
    environ = {"OPENAI_KEY": "k1", "AZURE_API_KEY": "k2", "VELOX_API_KEYS": "k3"}

    # Those of the database and of scripts are run by tests/e2e/test_moving.py.
    shown = [command for command in commands(PAGE) if command.startswith(".venv/bin/velox ")]
    assert len(shown) == 2
    for command in shown:
        _, *arguments = shlex.split(command)
        assert main(arguments, environ) == 0, capsys.readouterr().err

    assert Path("velox.yaml").read_text() == made
    settings = load(environ, {"VELOX_CONFIG": "velox.yaml"}, cores=1)
    assert [entry.provider for entry in settings.upstreams] == ["openai", "azure", "vllm", "bedrock"]


MODELS = ["openai/a", "openai/*", "*", "gpt-4o", "groq/llama", "groq/*", "azure/x", "bedrock/y", "hosted_vllm/z", "w"]
NAMES = ["a", "b", "*", "groq/*", "gpt-*", "c d", "x,y", "null", "12"]
DEPLOYMENTS = st.fixed_dictionaries(
    {"model_name": st.sampled_from(NAMES)},
    optional={
        "litellm_params": st.fixed_dictionaries(
            {"model": st.sampled_from(MODELS)},
            optional={
                "api_base": st.sampled_from(["http://h.test/v1", "http://h.test:1/x", "nowhere", "http://h/v2"]),
                "api_key": st.sampled_from(["os.environ/A_KEY", "secret-1", "secret-2", "none"]),
                "rpm": st.sampled_from([1, 90, 10**9, 0.5, "many"]),
                "weight": st.sampled_from([0, 1, 2, 0.3, 5000]),
                "order": st.integers(1, 3),
                "timeout": st.sampled_from([0, 0.00001, 10, 10**7]),
                "tags": st.lists(st.sampled_from(["x", "y", "default", "a b"]), max_size=2, unique=True),
                "max_parallel_requests": st.sampled_from([0, 5, 10**9]),
                "extra_headers": st.just({"x-a": "b: c", "te": "x"}),
            },
        )
    },
)
CONFIGURATIONS = st.fixed_dictionaries(
    {"model_list": st.lists(DEPLOYMENTS, max_size=6)},
    optional={
        "router_settings": st.fixed_dictionaries(
            {},
            optional={
                "fallbacks": st.lists(
                    st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3), max_size=2),
                    max_size=3,
                ),
                "default_fallbacks": st.lists(st.sampled_from(NAMES), max_size=2),
                "model_group_alias": st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES), max_size=3),
                "routing_strategy": st.sampled_from(["least-busy", "simple-shuffle", "other"]),
                "routing_groups": st.lists(
                    st.fixed_dictionaries({"models": st.lists(st.sampled_from(NAMES), max_size=3)}), max_size=2
                ),
                "max_fallbacks": st.sampled_from([0, 1, 9]),
                "default_max_parallel_requests": st.sampled_from([0, 3]),
                "enable_tag_filtering": st.booleans(),
                "num_retries": st.sampled_from([0, 3, 50]),
                "timeout": st.sampled_from([0, 0.1, 10**8]),
            },
        )
    },
)


def test_pattern_whose_spare_is_its_first_one_keeps_that(tmp_path: Path) -> None:
    """LiteLLM asks the second, which has no rpm, only while the first can't be asked; here both are one upstream."""
    first = {"model_name": "*", "litellm_params": {"model": "openai/*", "rpm": 1}}
    second = {"model_name": "*", "litellm_params": {"model": "openai/*"}}

    result = imported({"model_list": [first, second]})

    assert (
        result.text is not None
        and "to: [openai]\n" in result.text
        and "fallback" not in result.text.split("routes:")[1]
    )
    loaded(result, tmp_path)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(config=CONFIGURATIONS)
def test_whatever_is_written_is_accepted(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """No configuration becomes a file that Velox refuses, and the same one becomes the same file."""
    result = imported(copy.deepcopy(config))

    assert result.text == imported(config).text
    if result.text is not None:
        loaded(result, tmp_path_factory.mktemp("import"))
    assert "secret-1" not in (result.text or "") + report(result)
