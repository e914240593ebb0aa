"""The routes: how they are written, what they come to, and what is refused, each in one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from velox.cli import main
from velox.outcomes import Refusal
from velox.policy.cache.rules import CacheRule, CacheScope
from velox.policy.join.rules import JoinRule
from velox.policy.routes.entries import (
    Canary,
    Delay,
    HashOn,
    HeaderRules,
    Hedge,
    Match,
    Mirror,
    RouteEntry,
    Target,
    UpstreamEntry,
    asked_model,
)
from velox.runtime.commands.explain import read_headers
from velox.settings import Settings, SettingsError, load
from velox.settings.problems import Problem
from velox.settings.routing.routes import parse_routes
from velox.settings.routing.routing import route_problems
from velox.settings.show import route_lines
from velox.settings.yaml.tree import Entry, Tree

TOO_LONG = frozenset({Refusal.CONTEXT_LENGTH})
UPSTREAMS = """upstreams:
  - {name: openai, origin: https://api.openai.com, models: [gpt-4o*, o1]}
  - {name: azure, origin: http://azure.test}
  - {name: backup, origin: http://backup.test}
  - {name: claude, origin: http://claude.test, models: [claude-*]}
api_keys:
  - {name: team-a, key: one}
  - {name: team-b, key: two}
"""
ROUTES = """routes:
  - name: chat
    match:
      models: [gpt-4o*, "chat"]
      paths: /v1/chat/*
      headers: {X-Tenant: acme, x-b: "*"}
      keys: [team-a, team-b]
      tags: [x]
    to: [openai, {upstream: azure, model: gpt-4o-eu}]
    balance: hash
    hash_on: header:X-Session
    fallback: [backup, {upstream: claude, model: claude-x}]
    hedge: {after: 300ms, at_most: 2.5%}
    mirror: {to: backup, percent: 10}
    canary: {to: azure, model: next, percent: 5%}
    request_headers: {set: {X-A: "1 2"}, remove: [X-B, x-c]}
    response_headers: {remove: server}
  - name: alias
    match: {models: [big]}
    to: [azure, openai]
    model: gpt-4o
    fallback: [backup, {upstream: claude, model: claude-x}]
    hedge: {}
    balance: peak_ewma
  - {name: rest, to: azure}
"""


def of_file(tmp_path: Path, content: str, **environ: str) -> Settings:
    """Load settings from a file that holds `content`."""
    file = tmp_path / "velox.yaml"
    file.write_text(content)
    return load({"VELOX_CONFIG": str(file), **environ}, cores=2)


def problems(tmp_path: Path, content: str, **environ: str) -> list[str]:
    """Return what is wrong with such a file, the path cut down to its name."""
    with pytest.raises(SettingsError) as raised:
        of_file(tmp_path, content, **environ)
    told = [str(problem).replace(f"{tmp_path}/", "") for problem in raised.value.problems]
    assert "sk-secret" not in repr(told)
    return told


def test_list_becomes_routes(tmp_path: Path) -> None:
    """Each field is where it belongs; a model of the route is that of every target without one."""
    settings = of_file(tmp_path, UPSTREAMS + ROUTES)

    chat = RouteEntry(
        "chat",
        Match(("gpt-4o*", "chat"), ("/v1/chat/*",), (("x-tenant", "acme"), ("x-b", "*")), ("team-a", "team-b"), ("x",)),
        (Target("openai"), Target("azure", "gpt-4o-eu")),
        "hash",
        HashOn("header", b"x-session"),
        None,
        (Target("backup"), Target("claude", "claude-x", refusals=TOO_LONG)),
        Hedge(Delay(seconds=0.3), 2.5),
        Mirror(Target("backup"), 10.0),
        Canary(Target("azure", "next"), 5.0),
        HeaderRules(((b"x-a", b"1 2"),), (b"x-b", b"x-c")),
        HeaderRules((), (b"server",)),
    )
    alias = RouteEntry(
        "alias",
        Match(("big",)),
        (Target("azure", "gpt-4o"), Target("openai", "gpt-4o")),
        "peak_ewma",
        model="gpt-4o",
        fallback=(Target("backup", "gpt-4o"), Target("claude", "claude-x", refusals=TOO_LONG)),
        hedge=Hedge(Delay(percentile=95.0), 5.0),
    )
    assert settings.routes == (chat, alias, RouteEntry("rest", Match(), (Target("azure"),)))
    assert [route.where.rpartition(":")[2] for route in settings.routes] == ["10", "26", "33"]
    assert [target.where.rpartition(":")[2] for target in settings.routes[0].to] == ["17", "17"]


def test_route_says_how_its_answers_are_kept(tmp_path: Path) -> None:
    """Only how long has to be said."""
    content = """upstreams: [{name: openai, origin: "http://a"}]
routes:
  - {name: a, match: {models: [a]}, to: openai, cache: {ttl: 10m}}
  - {name: b, match: {models: [b]}, to: openai, cache: {ttl: 90s, scope: team, sampled: true}}
  - {name: c, to: openai}
"""
    found = [route.cache for route in of_file(tmp_path, content).routes]
    assert found == [CacheRule(600.0), CacheRule(90.0, CacheScope.TEAM, sampled=True), None]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("{}", "expected `ttl`"),
        ("{ttl: 0s}", "cache.ttl is '0s': expected a duration from 1s"),
        ("{ttl: 1m, scope: user}", "cache.scope is 'user': expected key, team or all"),
        ("{ttl: 1m, vary: x}", "there is no such field"),
        ("10m", "expected"),
    ],
)
def test_cache_that_is_not_understood_is_refused(tmp_path: Path, field: str, told: str) -> None:
    content = f"upstreams: [{{name: openai, origin: 'http://a'}}]\nroutes: [{{name: a, to: openai, cache: {field}}}]"
    assert any(told in each for each in problems(tmp_path, content)), problems(tmp_path, content)


def test_route_joins_calls_by_a_rule(tmp_path: Path) -> None:
    """A switch stands for the usual one."""
    content = """upstreams: [{name: openai, origin: "http://a"}]
routes:
  - {name: a, match: {models: [a]}, to: openai, join: true}
  - {name: b, match: {models: [b]}, to: openai, join: {sampled: true}}
  - {name: c, match: {models: [c]}, to: openai, join: {equal: false, retries: true, keep: 2m}}
  - {name: d, match: {models: [d]}, to: openai, join: false}
  - {name: e, to: openai}
"""
    settings = of_file(tmp_path, content)
    found = [route.join for route in settings.routes]
    assert found == [JoinRule(), JoinRule(sampled=True), JoinRule(False, False, True, 120.0), None, None]
    lines = "\n".join(route_lines(settings))
    assert "join equal requests, sampled too" in lines and "join retries, kept for 120s" in lines


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("sometimes", "join is 'sometimes': expected"),
        ("[true]", "expected fields, such as `join: {retries: true, keep: 30s}`"),
        ("{equal: false}", "expected `retries: true` beside `equal: false`"),
        ("{keep: 10s}", "expected `retries: true` with it"),
        ("{retries: true, equal: false, sampled: true}", "expected no `equal: false` beside it"),
        ("{retries: true, keep: 1h}", "join.keep is '1h': expected a duration from 1s to"),
        ("{scope: all}", "there is no such field"),
    ],
)
def test_join_that_is_not_understood_is_refused(tmp_path: Path, field: str, told: str) -> None:
    content = f"upstreams: [{{name: openai, origin: 'http://a'}}]\nroutes: [{{name: a, to: openai, join: {field}}}]"
    assert any(told in each for each in problems(tmp_path, content)), problems(tmp_path, content)


def test_routes_may_lead_to_the_upstream_of_the_variables(tmp_path: Path) -> None:
    """It is called default; a second origin is default-2."""
    content = "routes: [{name: a, to: default, fallback: default-2}]"

    settings = of_file(tmp_path, content, VELOX_UPSTREAM_ORIGIN="http://a,http://b")

    assert settings.routes[0].targets == (Target("default"), Target("default-2"))
    (told,) = problems(tmp_path, content)
    assert told == "velox.yaml:1: fallback is 'default-2': there is no such upstream; did you mean default?"


def test_fallback_may_be_for_some_reasons_only(tmp_path: Path) -> None:
    """S12: it is asked after failures, too, only where it says so. Without `for` it is for failures."""
    content = (
        "routes: [{name: a, to: azure, fallback: [backup, {upstream: openai, model: o1, for: [context_length]},"
        " {upstream: claude, for: 'failure, content_filter'}]}]"
    )

    (route,) = of_file(tmp_path, UPSTREAMS + content).routes

    assert [(each.on_failure, each.refusals) for each in route.fallback] == [
        (True, frozenset()),
        (False, {Refusal.CONTEXT_LENGTH}),
        (True, {Refusal.CONTENT_FILTER}),
    ]
    assert [str(each) for each in route.fallback] == [
        "backup",
        "openai (o1) for context_length",
        "claude for failure and content_filter",
    ]


def test_fallback_with_another_model_is_for_long_prompts_too(tmp_path: Path) -> None:
    """By default: it may have room. Not with the model that refused, nor where the file says who is for them."""
    cases = {
        "to: azure, fallback: [backup, {upstream: openai, model: o1}]": [set(), {Refusal.CONTEXT_LENGTH}],
        "to: {upstream: azure, model: o1}, fallback: [backup, {upstream: openai, model: o1}]": [
            {Refusal.CONTEXT_LENGTH},
            set(),
        ],
        "to: azure, fallback: {upstream: openai, model: o1, for: [failure]}": [set()],
        "to: azure, fallback: [{upstream: openai, model: o1}, {upstream: backup, model: c, for: [context_length]}]": [
            set(),
            {Refusal.CONTEXT_LENGTH},
        ],
        "to: azure, fallback: [{upstream: openai, model: o1}, {upstream: backup, model: c, for: [content_filter]}]": [
            {Refusal.CONTEXT_LENGTH},
            {Refusal.CONTENT_FILTER},
        ],
    }
    for text, refusals in cases.items():
        (route,) = of_file(tmp_path, UPSTREAMS + f"routes: [{{name: a, {text}}}]").routes
        assert [each.refusals for each in route.fallback] == refusals, text
        assert [each.on_failure for each in route.fallback[:1]] == [True]


def test_model_of_a_route_is_that_of_each_target_without_one(tmp_path: Path) -> None:
    """However a target is written: the client's name for the model means nothing to any of them."""
    content = (
        "routes: [{name: a, to: {upstream: azure}, model: m, fallback: [backup, {upstream: openai, model: o1}],"
        " canary: {to: claude, model: claude-x, percent: 1}, mirror: {to: backup, percent: 1}}]"
    )

    (route,) = of_file(tmp_path, UPSTREAMS + content).routes

    assert [target.model for target in route.targets] == ["m", "m", "o1", "m", "claude-x"]


def test_target_may_take_off_what_a_name_begins_with(tmp_path: Path) -> None:
    """Such a target gets the client's name without it, whatever model its route names; the route may be strict."""
    routes = "routes:\n  - {name: a, to: {upstream: azure, strip: az/}, model: m, strict: true}\n"
    (route,) = of_file(tmp_path, UPSTREAMS + routes).routes
    (target,) = route.to

    assert route.strict
    assert (target.model, target.strip, str(target)) == (None, "az/", "azure without az/")
    assert asked_model(target.naming, "az/gpt-5") == "gpt-5"
    assert asked_model(target.naming, "gpt-5") == "gpt-5"
    assert asked_model(target.naming, None) is None
    assert asked_model("own", "az/gpt-5") == "own"
    assert asked_model(None, "az/gpt-5") == "az/gpt-5"


def test_hash_without_a_field_is_by_user(tmp_path: Path) -> None:
    """The OpenAI API's own field for who asks."""
    (route,) = of_file(tmp_path, "routes: [{name: a, to: default, balance: hash}]").routes

    assert (route.balance, route.hash_on) == ("hash", HashOn("user"))


def test_check_prints_each_route(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it is for, where it leads, where it was written; of headers that are set the names only."""
    of_file(tmp_path, UPSTREAMS + ROUTES)

    assert main(["check"], {"VELOX_CONFIG": str(tmp_path / "velox.yaml")}) == 0

    out = capsys.readouterr().out.replace(f"{tmp_path}/", "")
    printed = [" ".join(line.split()) for line in out[out.index("route: ") :].splitlines()]
    assert printed[:6] == [
        "route: chat models gpt-4o*, chat; paths /v1/chat/*; headers x-tenant: acme, x-b: *; keys team-a, team-b;"
        " tags x velox.yaml:10",
        "to openai, azure (gpt-4o-eu) by hash; hash on header:x-session; then backup, claude (claude-x);"
        " hedge after 0.3s, at most 2.5%; canary 5% to azure (next); mirror 10% to backup;"
        " request sets x-a, removes x-b, x-c; response removes server",
        "route: alias models big velox.yaml:26",
        "to azure (gpt-4o), openai (gpt-4o) by peak_ewma; then backup (gpt-4o), claude (claude-x);"
        " hedge after p95, at most 5%",
        "route: rest everything velox.yaml:33",
        "to azure",
    ]
    assert "1 2" not in out


def test_long_list_of_routes_is_shortened(tmp_path: Path) -> None:
    """The first hundred, two lines each, then how many more."""
    routes = "".join(f"- {{name: r{n}, match: {{models: m{n}}}, to: default}}\n" for n in range(103))

    lines = route_lines(of_file(tmp_path, f"routes:\n{routes}"))

    assert (len(lines), lines[-1]) == (201, "route: and 3 more")


def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Return what `velox check` says of one request, and its exit code."""
    code = main(["check", *arguments], {"VELOX_CONFIG": str(tmp_path / "velox.yaml")})
    captured = capsys.readouterr()
    return code, (captured.out + captured.err).replace(f"{tmp_path}/", "").splitlines()


def test_check_explains_which_route_a_request_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Why none before it, then the upstreams in their order."""
    of_file(tmp_path, UPSTREAMS + ROUTES)
    acme = ("--header", "X-Tenant: acme", "--header", "x-b:2", "--header", "x-velox-tag: y, x")

    assert asked(tmp_path, capsys, "--model", "gpt-4o", "--key", "team-b", *acme) == (
        0,
        [
            "caller team-b (velox.yaml:8)",
            "endpoint chat: POST /v1/chat/completions",
            "route chat (velox.yaml:10): the first that is for this request",
            "  first openai, azure (gpt-4o-eu), always the same one for the same header:x-session",
            "  then backup",
            "  then claude (claude-x)",
            "  but 5% to azure (next)",
            "  and a copy of 10% to backup",
            "limit: none",
            "forwarded",
        ],
    )
    assert asked(tmp_path, capsys, "--model", "big", "--path", "/v1/embeddings") == (
        0,
        [
            "caller: any with a key",
            "endpoint embeddings: POST /v1/embeddings",
            "not chat (velox.yaml:10): it is for models gpt-4o*, chat; here big",
            "route alias (velox.yaml:26): the first that is for this request",
            "  first azure (gpt-4o), openai (gpt-4o), the faster and less busy one of two",
            "  then backup (gpt-4o)",
            "  then claude (claude-x)",
            "limit: none",
            "forwarded",
        ],
    )
    assert asked(tmp_path, capsys, "--model", "gpt-4o", *acme)[1][2] == (
        "not chat (velox.yaml:10): it is for keys team-a, team-b; here none"
    )


def test_check_explains_which_budgets_count_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the settings and of the key; not those of others, and of other models."""
    file = tmp_path / "velox.yaml"
    file.write_text(
        f"ledger: {tmp_path / 'ledger'}\n"
        "budgets:\n"
        "  - {per: gateway, models: [gpt-*], usd: 2000, window: week}\n"
        "  - {per: key, keys: [b], usd: 5, window: day}\n"
        "  - {per: key, models: [o1], usd: 1, window: day}\n"
        "api_keys:\n"
        "  - {name: a, key: k-a, budgets: [2M tokens/24h]}\n"
        "  - {name: b, key: k-b}\n"
    )
    asked = ["check", "--model", "gpt-4o"]

    assert main([*asked, "--key", "a"], {"VELOX_CONFIG": str(file)}) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[lines.index("limit: none") + 1 :] == [
        f"budget: budgets[0] per gateway, models gpt-* {file}:3",
        "$2000.00 per week of UTC",
        f"budget: budgets[0] of the key per key {file}:7",
        "2000000 tokens per 1d",
        "forwarded",
    ]
    assert main([*asked, "--key", "b"], {"VELOX_CONFIG": str(file)}) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("budget: ")] == [
        "budgets[0]",
        "budgets[1]",
    ]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/v1/messages/count_tokens", "/v1/responses/input_tokens"])
def test_check_names_no_budget_where_no_model_works(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such requests are not recorded, and pass with a budget that is used up."""
    file = tmp_path / "velox.yaml"
    file.write_text(f"ledger: {tmp_path / 'ledger'}\nbudgets: [{{per: gateway, usd: 5, window: day}}]\nauth: none\n")

    assert main(["check", "--path", path], {"VELOX_CONFIG": str(file)}) == 0
    assert "budget" not in capsys.readouterr().out


def test_check_explains_that_nothing_takes_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, so that a script can ask; upstreams without the model are named."""
    of_file(tmp_path, UPSTREAMS + "routes:\n- {name: a, match: {models: ['*']}, to: [openai, claude]}\n")

    assert asked(tmp_path, capsys, "--path", "/v1/files") == (
        1,
        [
            "caller: any with a key",
            "endpoint files: GET /v1/files",
            "not a (velox.yaml:10): it is for models *; here none",
            "refused with 404 unknown_route: no route is for this request",
        ],
    )
    assert asked(tmp_path, capsys, "--model", "llama")[1][3:] == [
        "  never openai, claude: not among its models",
        "refused with 404 unknown_model: no upstream of this route has the model",
    ]


LIMITED = """upstreams:
  - {name: one, origin: http://one.test, weight: 3}
  - {name: two, origin: http://two.test}
api_keys:
  - {name: team, key: vk-team-secret, models: [gpt-4o*], rpm: 60}
  - vk-other-secret
limits:
  - {per: model, models: [gpt*], rpm: 600}
  - {per: model, models: [o1], rpm: 6}
  - {per: gateway, keys: [other], rpm: 6}
paths: /v1
"""


def typed(tmp_path: Path, key: str, *arguments: str) -> tuple[int, list[str]]:
    """Return what `velox check --key -` says, and its exit code. key: on its standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "velox", "check", "--config", str(tmp_path / "velox.yaml"), "--key", "-", *arguments],
        input=key,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).replace(f"{tmp_path}/", "").splitlines()


@pytest.mark.slow
def test_check_reads_the_key_itself_from_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it says is as for its name; a key that is none of the gateway's gets 401. No key is ever shown."""
    (tmp_path / "velox.yaml").write_text(LIMITED.replace("[other]", "[team]"))
    found = typed(tmp_path, "vk-team-secret\n", "--model", "gpt-4o")
    assert found == asked(tmp_path, capsys, "--model", "gpt-4o", "--key", "team")
    code, lines = typed(tmp_path, "vk-nobody-secret\n", "--model", "gpt-4o")
    assert (code, lines[-1]) == (
        1,
        "refused with 401 auth_invalid: no valid API key was given; send Authorization: Bearer KEY",
    )
    assert "secret" not in str(found) + str(lines)
    assert typed(tmp_path, "\n")[0] == 2


def test_check_says_what_the_gateway_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Caller, endpoint, way, limits; exit code 0 if it is forwarded, 1 if it is refused."""
    (tmp_path / "velox.yaml").write_text(LIMITED.replace("[other]", "[team]"))
    code, lines = asked(tmp_path, capsys, "--model", "gpt-4o", "--key", "team")

    assert (code, [" ".join(line.split()) for line in lines]) == (
        0,
        [
            "caller team (velox.yaml:5): models gpt-4o*",
            "endpoint chat: POST /v1/chat/completions",
            "route *: the first that is for this request",
            "first one weight 3, two weight 1, in turn, by weight",
            "limit: key team per key 60 requests a minute, 10 at once velox.yaml:5",
            "limit: limits[0] per model: models gpt* 600 requests a minute, 100 at once velox.yaml:8",
            "limit: limits[2] per gateway: keys team 6 requests a minute, 6 at once velox.yaml:10",
            "forwarded",
        ],
    )


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["--model", "o1", "--key", "team"], "403 forbidden: this key may not use this model"),
        (["--path", "/v2/x", "--key", "team"], "404 unknown_route: this path is not served here"),
        (
            ["--model", "gpt-4o", "--path", "/openai/deployments/o1/chat/completions", "--key", "team"],
            "404 unknown_route: this path is not served here",
        ),
        (
            ["--path", "/v1/batches", "--model", "gpt-4o", "--key", "team"],
            "403 forbidden: this key may not use this endpoint",
        ),
    ],
)
def test_check_says_how_a_request_would_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], refused: str
) -> None:
    """As the gateway's own parts do it: exit code 1, the status and the reason in the last line."""
    (tmp_path / "velox.yaml").write_text(LIMITED.replace("[other]", "[team]"))
    code, lines = asked(tmp_path, capsys, *arguments)
    assert code == 1
    assert lines[-1].startswith(f"refused with {refused}")
    assert "secret" not in "".join(lines)


def test_check_refuses_what_is_no_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key itself is no name, and is not repeated; a header has a name and a value."""
    of_file(tmp_path, UPSTREAMS)

    code, lines = asked(tmp_path, capsys, "--key", "sk-secret")
    assert (code, lines) == (2, ["velox check: --key is the name of a key, and no key has this one"])
    assert asked(tmp_path, capsys, "--header", "a")[0] == 2
    assert asked(tmp_path, capsys, "--path", "/\udcff/v1/rerank", "--model", "\udcff") == (
        0,
        [
            "caller: any with a key",
            "endpoint rerank: POST /\\udcff/v1/rerank",
            "route *: the first that is for this request",
            "  first azure, backup, in turn, by weight",
            "  never openai, claude: not among its models",
            "limit: none",
            "forwarded",
        ],
    )
    assert read_headers(["A: b:c", "a:d"]) == [(b"a", b"b:c"), (b"a", b"d")]


A = "name: a, to: azure"
BAD = {
    "{to: azure}": ["a route: expected `name`, such as `name: chat`"],
    "{name: a}": ["a route: expected `to`, such as `to: [openai]`"],
    "{name: a, to: []}": ["to: expected at least one value"],
    "{name: a, to: }": ["to: expected at least one value"],
    "{name: a, to: [[azure]]}": ["to: expected names of upstreams"],
    "{name: a, to: a b}": ["to: expected a name of 1 to 64 letters"],
    "{name: '*', to: azure}": ["name: expected a name of 1 to 64 letters"],
    "text": ["a route: expected fields such as `name: chat`"],
    "{name: a, to: [azure, opnai]}": ["to is 'opnai': there is no such upstream; did you mean openai?"],
    "{name: a, to: {upstream: bakup}}": ["to is 'bakup': there is no such upstream; did you mean backup?"],
    "{name: a, to: {model: m}}": ["an item of `to`: expected `upstream`, such as `upstream: openai`"],
    "{name: a, to: {upstream: azure, modle: m}}": ["to.modle: there is no such field of an item of `to`; did you mean"],
    "{name: a, to: {upstream: azure, model: m*}}": ["to.model: expected the name of one model"],
    "{name: a, to: [azure, backup, azure]}": ["to: expected each upstream once, or with different models"],
    f"{{{A}, fallbak: backup}}": ["fallbak: there is no such field of a route; did you mean fallback?"],
    f"{{{A}, fallback: gone}}": ["fallback is 'gone': there is no such upstream"],
    f"{{{A}, mirror: {{to: gone, percent: 1}}}}": ["mirror.to is 'gone': there is no such upstream"],
    f"{{{A}, canary: {{to: gone, percent: 1}}}}": ["canary.to is 'gone': there is no such upstream"],
    f"{{{A}, fallback: azure}}": [
        "fallback is 'azure': expected an upstream, or a model of it, that is not in `to`: thi"
    ],
    f"{{{A}, fallback: {{upstream: azure, for: [context_length]}}}}": [
        "fallback is 'azure for context_length': expected an upstream, or a model of it, that is not in `to`"
    ],
    f"{{{A}, fallback: {{upstream: backup, for: [tiredness]}}}}": [
        "fallback.for is 'tiredness': expected failure, context_length or content_filter"
    ],
    "{name: a, to: {upstream: azure, model: m, strip: az/}}": ["to.strip: expected this or `model`, not both"],
    "{name: a, to: {upstream: azure, strip: 'a b'}}": ["to.strip: expected the name of one model"],
    "{name: a, to: azure, strict: perhaps}": ["strict is 'perhaps': expected on or off"],
    "{name: a, to: {upstream: azure, for: [failure]}}": ["to.for: there is no such field of an item of `to`"],
    f"{{{A}, fallback: [backup, {{upstream: backup}}]}}": ["fallback: expected each upstream once"],
    f"{{{A}, model: m, fallback: {{upstream: azure, model: m}}}}": ["fallback is 'azure (m)': expected an upstream"],
    f"{{{A}, mirror: {{to: azure, percent: 1}}}}": ["mirror.to is 'azure': expected an upstream, or a model of it"],
    f"{{{A}, canary: {{to: azure, percent: 1}}}}": ["canary.to is 'azure': expected an upstream, or a model of it"],
    f"{{{A}, canary: {{to: backup}}}}": ["`canary`: expected `percent`, such as `percent: 5`"],
    f"{{{A}, mirror: {{percent: 5}}}}": ["`mirror`: expected `to`, such as `to: next`"],
    f"{{{A}, canary: {{to: backup, percent: 100.1}}}}": ["canary.percent is '100.1': expected percent from 0 to 100"],
    f"{{{A}, canary: {{to: backup, percent: -1}}}}": ["canary.percent is '-1': expected percent from 0 to 100"],
    f"{{{A}, mirror: {{to: backup, percent: x}}}}": ["mirror.percent is 'x': expected percent from 0 to 100"],
    f"{{{A}, mirror: backup}}": ["mirror: expected fields"],
    f"{{{A}, balance: random}}": ["balance is 'random': expected round_robin, least_inflight, peak_ewma, hash, prefi"],
    f"{{{A}, hash_on: user}}": ["hash_on: expected `balance: hash` with it"],
    f"{{{A}, hash_on: user, balance: prefix}}": ["hash_on: expected `balance: hash` with it"],
    f"{{{A}, balance: hash, hash_on: header}}": ["hash_on is 'header': expected user, header:NAME or prefix"],
    f"{{{A}, balance: hash, hash_on: 'header:a b'}}": ["hash_on is 'header:a b': expected user, header:NAME or prefix"],
    f"{{{A}, model: 'a*'}}": ["model: expected the name of one model"],
    f"{{{A}, hedge: {{after: 5}}}}": [
        "hedge.after is '5': expected a number with its unit (ms, s, m or h), for example"
    ],
    f"{{{A}, hedge: {{after: p49}}}}": ["hedge.after is 'p49': expected a number with its unit"],
    f"{{{A}, hedge: {{at_most: 0}}}}": ["hedge.at_most is '0': expected percent from 0.001 to 100"],
    f"{{{A}, hedge: {{at_most: 5%%}}}}": ["hedge.at_most is '5%%': expected percent"],
    f"{{{A}, match: x}}": ["match: expected fields"],
    f"{{{A}, match: {{model: x}}}}": ["match.model: there is no such field of `match`; did you mean models?"],
    f"{{{A}, match: {{models: []}}}}": ["match.models: expected at least one value"],
    f"{{{A}, match: {{models: [a b]}}}}": ["match.models: expected names of models"],
    f"{{{A}, match: {{models: [m, m]}}}}": ["match.models: expected each value once"],
    f"{{{A}, match: {{paths: v1}}}}": ["match.paths is 'v1': expected a path such as /v1/models"],
    f"{{{A}, match: {{paths: '/v1/%2e'}}}}": ["match.paths is '/v1/%2e': expected a path"],
    f"{{{A}, match: {{tags: [a b]}}}}": ["match.tags: expected tags of 1 to 64"],
    f"{{{A}, match: {{keys: [sk secret]}}}}": ["match.keys: expected names of keys, and never a key itself"],
    f"{{{A}, match: {{keys: [team-a, sk-secret]}}}}": [
        "match.keys: expected names of keys; name 2 of this route is no"
    ],
    f"{{{A}, match: {{headers: {{authorization: sk-secret}}}}}}": ["match.headers: expected `keys` instead"],
    f"{{{A}, match: {{headers: {{x-velox-tag: a}}}}}}": ["match.headers: expected `tags` instead"],
    f"{{{A}, match: {{headers: {{X-Velox-Tags: a}}}}}}": ["match.headers: expected `tags` instead"],
    f"{{{A}, match: {{headers: {{a: b, A: c}}}}}}": ["match.headers: expected each name once"],
    f"{{{A}, match: {{headers: {{'a:': b}}}}}}": ["match.headers: expected the name of a header field"],
    f"{{{A}, request_headers: {{}}}}": ["`request_headers`: expected `set` or `remove`"],
    f"{{{A}, request_headers: {{add: {{a: b}}}}}}": [
        "request_headers.add: there is no such field of `request_headers`",
        "`request_headers`: expected `set` or `remove`",
    ],
    f"{{{A}, request_headers: {{set: {{connection: close}}}}}}": ["request_headers.set: expected no connection: Velox"],
    f"{{{A}, request_headers: {{set: {{x-api-key: sk-secret}}}}}}": [
        "request_headers.set: expected no x-api-key: a key"
    ],
    f"{{{A}, response_headers: {{remove: [Content-Length]}}}}": [
        "response_headers.remove is 'Content-Length': expected"
    ],
    f"{{{A}, response_headers: {{set: {{a: b}}, remove: [A]}}}}": [
        "response_headers.remove: expected other names than"
    ],
    "{name: a, to: claude, model: gpt-4o}": ["to is 'claude (gpt-4o)': expected a model that the upstream has; its `m"],
    f"{{{A}, fallback: {{upstream: claude, model: x}}}}": [
        "fallback is 'claude (x)': expected a model that the upstre"
    ],
    "{name: a, to: [openai, claude], match: {models: [o1, llama]}}": [
        "match.models is 'llama': expected an upstream in"
    ],
    "{name: a, to: [openai], match: {models: [claude*]}}": [
        "match.models is 'claude*': expected an upstream in `to` th"
    ],
    "{name: r, to: azure}\n  - {name: r, to: gone, balance: x}": [
        "balance is 'x'",
        "name is 'r': expected each name once; the route at velox.yaml:11 has it",
        "to is 'gone': there is no such upstream",
    ],
}


@pytest.mark.parametrize("content", BAD, ids=range(len(BAD)))
def test_route_that_is_wrong_is_told_with_its_line(content: str, tmp_path: Path) -> None:
    """File and line, field, what was expected; all of them at once, and no key."""
    told = problems(tmp_path, f"{UPSTREAMS}# line 9\nroutes:\n  - {content}\n")

    expected = BAD[content]
    assert len(told) == len(expected), told
    for line, begins in zip(told, expected, strict=True):
        place, _, rest = line.partition(": ")
        assert place in ("velox.yaml:11", "velox.yaml:12")
        assert rest.startswith(begins), line


@pytest.mark.parametrize("content", ["routes: []", "routes: {a: b}", "routes: a"])
def test_list_of_another_shape_is_refused(content: str, tmp_path: Path) -> None:
    """There must be one route at least."""
    (told,) = problems(tmp_path, content)

    assert told.startswith("velox.yaml:1: routes: expected a list of routes, such as")


def test_wrong_upstreams_and_wrong_routes_are_told_together(tmp_path: Path) -> None:
    """An upstream that is wrong is there all the same: a route to it is not told of."""
    content = "workers: 0\nupstreams:\n- {name: a, origin: x}\nroutes:\n- {name: r, to: [a, b], balance: x}\n"

    told = problems(tmp_path, content)

    assert [line.partition(": expected")[0].partition(": there")[0] for line in told] == [
        "velox.yaml:1: workers is '0'",
        "velox.yaml:3: origin is 'x'",
        "velox.yaml:5: balance is 'x'",
        "velox.yaml:5: to is 'b'",
    ]


def test_keys_that_nobody_has_are_told_unless_they_may_come(tmp_path: Path) -> None:
    """As with limits: VELOX_API_KEYS_FILE can change; without any keys all callers are one."""
    content = "routes: [{name: a, to: default, match: {keys: [team-x]}}]"
    (tmp_path / "keys").write_text("k\n")

    assert of_file(tmp_path, content, VELOX_API_KEYS_FILE=str(tmp_path / "keys")).routes[0].match.keys == ("team-x",)
    (told,) = problems(tmp_path, content)
    assert told.startswith("velox.yaml:1: match.keys: expected `api_keys` or `api_keys_file` with it")


def unreachable(*matches: Match) -> list[str]:
    """Return the names of the routes with these that can't be reached."""
    upstream = load({}, cores=2).upstreams[0]
    routes = [RouteEntry(str(n), match, (Target("default"),), where="f:1") for n, match in enumerate(matches)]
    return [problem.value.strip("'") for problem in route_problems(routes, [upstream])]


M = Match
REACHED = {
    "all different": ((M(("a",)), M(("b",)), M(("c*",)), M()), []),
    "after everything": ((M(), M(("a",)), M(keys=("k",)), M()), ["1", "2", "3"]),
    "twice the same": ((M(("a",), keys=("k",)), M(("a",), keys=("k",))), ["1"]),
    "name under a pattern": ((M(("gpt-*",)), M(("gpt-4",)), M(("gpt*",)), M(("gpt-*-x", "gpt-5"))), ["1", "3"]),
    "some are left": ((M(("gpt-*",)), M(("gpt-4", "o1")), M(("*",)), M(("x",)), M()), ["3"]),
    "path": ((M(paths=("/v1/*",)), M(paths=("/v1/chat/*",)), M(paths=("/v1",)), M(("a",), ("/v1/x",))), ["1", "3"]),
    "more asked for": ((M(("a",), keys=("k",)), M(("a",)), M(("a",), keys=("k",), tags=("t",))), ["2"]),
    "fewer keys": ((M(keys=("k", "l")), M(keys=("l",)), M(keys=("l", "m"))), ["1"]),
    "fewer tags": ((M(tags=("k", "l")), M(tags=("l",)), M(tags=("l", "m"))), ["1"]),
    "headers": (
        (M(headers=(("a", "*"),)), M(headers=(("a", "1"), ("b", "2"))), M(headers=(("b", "2"),)), M(("x",))),
        ["1"],
    ),
    "one header of two": (
        (M(headers=(("a", "1"), ("b", "2"))), M(headers=(("a", "1"),)), M(headers=(("a", "*"),))),
        [],
    ),
    "end of a name": ((M(("*-mini",)), M(("gpt-4o-mini",)), M(("o*-mini",)), M(("mini",))), ["1", "2"]),
}


@pytest.mark.parametrize("name", REACHED)
def test_route_that_nothing_reaches_is_told(name: str) -> None:
    """One that an earlier route takes everything of; the other way round is how routes are meant."""
    matches, expected = REACHED[name]

    assert unreachable(*matches) == expected


def test_unreachable_route_names_the_one_before(tmp_path: Path) -> None:
    """With where both stand."""
    (told,) = problems(tmp_path, "routes:\n- {name: all, to: default}\n- {name: b, to: default, match: {models: x}}\n")

    assert told == (
        "velox.yaml:3: a route is 'b': it never matches: all (velox.yaml:2) matches all of its requests first;"
        " move it before all"
    )


@pytest.mark.slow
def test_ten_thousand_routes_of_any_kind_are_checked_in_bounded_work() -> None:
    """Also where each could be meant with each other; what is then not looked at is not refused."""
    assert unreachable(*(M((f"*-{n}-*",)) for n in range(9_999)), M(("*-7-*",))) == []
    assert unreachable(*(M((f"m{n}",)) for n in range(9_999)), M(("m7",))) == ["9999"]


def text(value: str) -> Tree:
    """Return a text of the file."""
    return Tree("f:1", text=value)


@pytest.mark.slow
def test_number_of_routes_and_targets_is_bounded() -> None:
    """At the bound they pass, one more is told."""

    def routes(n_routes: int, n_targets: int = 1) -> list[Problem]:
        to = Tree("f:1", items=tuple(text(f"u{n}") for n in range(n_targets)))
        items = [
            Tree("f:1", fields=(Entry("name", "f:1", text(f"r{n}")), Entry("to", "f:1", to))) for n in range(n_routes)
        ]
        return parse_routes(Tree("f:1", items=tuple(items)))[1]

    assert routes(10_000) == routes(1, 64) == []
    assert "expected at most 10000" in str(routes(10_001)[0])
    assert "expected at most 64 upstreams" in str(routes(1, 65)[0])


def test_upstream_has_the_models_that_its_patterns_are_for() -> None:
    """And any, without patterns."""
    (usual,) = load({}, cores=2).upstreams

    assert isinstance(usual, UpstreamEntry) and usual.has_model("anything")
