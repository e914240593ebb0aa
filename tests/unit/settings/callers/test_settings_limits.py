"""The limits: how they are written, what they come to for a caller, and what is refused, each in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.cli import main
from velox.policy.limits.limit_rules import LimitRule, called, rules_of
from velox.policy.spellings import filled
from velox.settings import Settings, SettingsError, load
from velox.settings.checks.contradictions import extra_problems
from velox.settings.parse import concurrency, redis_prefix, redis_url
from velox.settings.show import limit_lines
from velox.types import ANYONE, Caller, KeyTerms, Rates, Scope

PASSWORD = "pw-very-secret"
KEYS = "api_keys:\n  - {name: team-a, key: one, rpm: 1200, tpm: 2M}\n  - {name: team-b, key: two, priority: low}\n"
LIMITS = """limits:
  - per: key
    keys: [team-a]
    models: [gpt-4o*, o1]
    rpm: 600
    burst: 60
    tpm: 200k
    concurrency: 20
  - {per: gateway, keys: [team-a, team-b], tpm: 2M, tpm_burst: 5000}
  - {per: key+model, rpm: 30}
  - {per: model, models: llama-*, concurrency: 8}
"""
NO_RULES = {"VELOX_RATE_LIMIT_RPM": "0"}


def of_file(tmp_path: Path, content: str, **environ: str) -> Settings:
    """Load settings from a file that holds `content`."""
    file = tmp_path / "velox.yaml"
    file.write_text(content)
    return load({"VELOX_CONFIG": str(file), **environ}, cores=2)


def problems(environ: dict[str, str]) -> list[str]:
    """Return what load() finds wrong; a password is in none of it."""
    with pytest.raises(SettingsError) as raised:
        load(environ, cores=2)
    told = [str(problem) for problem in raised.value.problems]
    assert PASSWORD not in repr(told)
    return told


def test_list_of_limits_becomes_rules(tmp_path: Path) -> None:
    """Each field is where it belongs; bursts that are not given follow from their rates."""
    settings = of_file(tmp_path, KEYS + LIMITS)

    assert settings.limits == (
        LimitRule("limits[0]", Scope.KEY, Rates(600, 60, 200_000, 200_000, 20), ("team-a",), ("gpt-4o*", "o1")),
        LimitRule("limits[1]", Scope.GATEWAY, Rates(0, 0, 2_000_000, 5000), ("team-a", "team-b")),
        LimitRule("limits[2]", Scope.KEY_MODEL, Rates(30, 10)),
        LimitRule("limits[3]", Scope.MODEL, Rates(concurrency=8), models=("llama-*",)),
    )
    assert [rule.where.rpartition(":")[2] for rule in settings.limits] == ["5", "12", "13", "14"]
    assert settings.limit_rules[2:] == settings.limits


def test_variable_holds_the_same_list_on_one_line(tmp_path: Path) -> None:
    """Where there is no file: VELOX_LIMITS is YAML too, and beats the file's."""
    settings = of_file(tmp_path, LIMITS, VELOX_LIMITS="[{per: model, rpm: 60}]")

    assert settings.limits == (LimitRule("limits[0]", Scope.MODEL, Rates(60, 10)),)
    assert settings.origins["VELOX_LIMITS"] == "environment"


def test_variables_are_the_gateways_limit_and_that_of_every_key() -> None:
    """The simple case needs no file."""
    names = ("RPM", "BURST", "TPM", "TPM_BURST", "CONCURRENCY")
    gateway = {f"VELOX_RATE_LIMIT_{name}": text for name, text in zip(names, ("6k", "7", "2M", "9k", "3"), strict=True)}
    key = {"VELOX_KEY_RPM": "600", "VELOX_KEY_TPM": "100k", "VELOX_KEY_CONCURRENCY": "4", "VELOX_API_KEYS": "k"}

    rules = load({**gateway, **key}, cores=2).limit_rules

    assert rules == (
        LimitRule("VELOX_RATE_LIMIT", Scope.GATEWAY, Rates(6000, 7, 2_000_000, 9000, 3)),
        LimitRule("VELOX_KEY", Scope.KEY, Rates(600, 100, 100_000, 100_000, 4), of_key=True),
    )


def test_nothing_set_limits_nothing() -> None:
    """A first run must not surprise; a rate of the gateway has a burst of 500."""
    assert rules_of(ANYONE, load({}, cores=2).limit_rules) == ()
    (only,) = rules_of(ANYONE, load({"VELOX_RATE_LIMIT_RPM": "10k"}, cores=2).limit_rules)
    assert (only.scope, only.rates) == (Scope.GATEWAY, Rates(10_000, 500))
    assert rules_of(ANYONE, load(NO_RULES, cores=2).limit_rules) == ()


@pytest.mark.parametrize(
    ("rates", "bursts"),
    [
        (Rates(rpm=1), (1, 0)),
        (Rates(rpm=9), (9, 0)),
        (Rates(rpm=60), (10, 0)),
        (Rates(rpm=66), (11, 0)),
        (Rates(rpm=60, burst=60), (60, 0)),
        (Rates(tpm=500), (0, 500)),
        (Rates(tpm=500, tpm_burst=7), (0, 7)),
        (Rates(burst=5, tpm_burst=5, concurrency=1), (0, 0)),
    ],
)
def test_burst_not_given_follows_from_its_rate(rates: Rates, bursts: tuple[int, int]) -> None:
    """A sixth of a minute's requests, at least 10, at most the minute's; a minute's tokens."""
    assert (filled(rates).burst, filled(rates).tpm_burst) == bursts


def test_key_with_a_limit_of_its_own_has_that_one_and_the_others_of_every_key(tmp_path: Path) -> None:
    """Field by field, a burst with its rate; rules that name other keys are not its."""
    limited = {"VELOX_KEY_RPM": "60", "VELOX_KEY_BURST": "5", "VELOX_KEY_CONCURRENCY": "2"}
    settings = of_file(tmp_path, KEYS + LIMITS, **NO_RULES, **limited)
    team_a, team_b = (Caller(key.caller_name, terms=KeyTerms(rates=key.terms.rates)) for key in settings.api_keys)

    of_a, of_b, of_other = (rules_of(caller, settings.limit_rules) for caller in (team_a, team_b, Caller("other")))

    assert of_a[0].rates == Rates(1200, 200, 2_000_000, 2_000_000, 2)
    assert of_b[0].rates == of_other[0].rates == Rates(60, 5, concurrency=2)
    assert [rule.name for rule in of_a] == ["VELOX_KEY", *(f"limits[{n}]" for n in range(4))]
    assert [rule.name for rule in of_b] == ["VELOX_KEY", "limits[1]", "limits[2]", "limits[3]"]
    assert [rule.name for rule in of_other] == ["VELOX_KEY", "limits[2]", "limits[3]"]


def test_message_calls_a_limit_as_it_is_written(tmp_path: Path) -> None:
    """By its variable, or by its place in the list, counted from 0 as everywhere in paths of YAML and JSON."""
    gateway, key, first, *_ = of_file(tmp_path, KEYS + LIMITS).limit_rules

    assert called(gateway, "rpm") == "VELOX_RATE_LIMIT_RPM"
    assert called(key, "concurrency") == "VELOX_KEY_CONCURRENCY"
    assert called(first, "tpm") == "limits[0].tpm"


NUMBER = "expected a whole number from"
BAD_LISTS = {
    "- {per: model, rpm: -600}": [f"limit.yaml:2: rpm is '-600': {NUMBER} 1 to 60000000, for example 500, 200k or 2M"],
    "- {per: model, rpm: 0}": [f"limit.yaml:2: rpm is '0': {NUMBER} 1"],
    "- {per: model, rpm: 1e6}": [f"limit.yaml:2: rpm is '1e6': {NUMBER} 1"],
    "- {per: model, rpm: 60/min}": [f"limit.yaml:2: rpm is '60/min': {NUMBER} 1"],
    "- {per: model, tpm: 2m}": [f"limit.yaml:2: tpm is '2m': {NUMBER} 1"],
    "- {per: model, tpm: 101M}": [f"limit.yaml:2: tpm is '101M': {NUMBER} 1 to 100000000"],
    "- {per: model, tpm:}": [f"limit.yaml:2: tpm is '': {NUMBER} 1"],
    "- {per: model, rpm: 6, burst: 0}": [f"limit.yaml:2: burst is '0': {NUMBER} 1"],
    "- {per: model, concurrency: 1.5}": [f"limit.yaml:2: concurrency is '1.5': {NUMBER} 1"],
    "- {per: model, rpm: [6]}": ["limit.yaml:2: rpm: expected one number, not a list"],
    "- {per: model, burst: 6}": ["limit.yaml:2: burst: expected rpm with it"],
    "- {per: model, rpm: 6, tpm_burst: 6}": ["limit.yaml:2: tpm_burst: expected tpm with it"],
    "- per: model": ["limit.yaml:2: a limit: expected rpm, tpm or concurrency: it limits nothing"],
    "- rpm: 6": ["limit.yaml:2: a limit: expected `per`, which is gateway, team, user, key, model or key+model"],
    "- {per: group, rpm: 6}": ["limit.yaml:2: per is 'group': expected gateway, team, user, key, model or key+model"],
    "- {per: [model], rpm: 6}": ["limit.yaml:2: per is 'model': expected gateway, team, user, key, model or key+model"],
    "- {per: model, rpm: 6, rpm: 7}": ["limit.yaml:2: rpm: expected each field of a limit once"],
    "- {per: model, rmp: 6}": [
        "limit.yaml:2: rmp: there is no such field of a limit; did you mean rpm?",
        "limit.yaml:2: a limit: expected rpm",
    ],
    "- {per: model, rpm: 6, models: []}": ["limit.yaml:2: models: expected names of models, `*` for any text"],
    "- {per: model, rpm: 6, models: [a b]}": ["limit.yaml:2: models: expected names of models"],
    "- {per: key, rpm: 6, keys: []}": ["limit.yaml:2: keys: expected names of keys, and never a key itself"],
    "- {per: key, rpm: 6, keys: [team-a, sk_absent]}": [
        "limit.yaml:2: keys: expected names of keys; name 2 of this limit is no key's"
    ],
    "- {per: model, rpm: 6}\n- text": ["limit.yaml:3: a limit: expected fields such as `per: key` and `rpm: 600`"],
    "- text": ["limit.yaml:1: limits is 'text': expected a YAML list such as [{per: key, rpm: 600}]"],
    "- {per: model, rpm: {a: b}}": ["limit.yaml:1: limits: expected one value, or a list"],
    "- {per: x, rpm: y}\n- {per: model, rpm: 1, burst: 0}": [
        "limit.yaml:2: per is 'x'",
        "limit.yaml:2: rpm is 'y'",
        "limit.yaml:3: burst is '0'",
    ],
}


@pytest.mark.parametrize("content", BAD_LISTS, ids=range(len(BAD_LISTS)))
def test_limit_that_is_wrong_is_told_with_its_line(content: str, tmp_path: Path) -> None:
    """B-53: file and line, field, what was expected; all of them at once. No name that is no key's is shown."""
    file = tmp_path / "limit.yaml"
    file.write_text("limits:\n" + "".join(f"  {line}\n" for line in content.splitlines()) + KEYS)

    told = [each.replace(f"{tmp_path}/", "") for each in problems({"VELOX_CONFIG": str(file)})]

    expected = BAD_LISTS[content]
    assert len(told) == len(expected), told
    for line, begins in zip(told, expected, strict=True):
        assert line.startswith(begins)
    assert "sk_absent" not in "".join(told)


BAD_VARIABLES = {
    "VELOX_RATE_LIMIT_RPM=-1": f"VELOX_RATE_LIMIT_RPM is '-1': {NUMBER} 0",
    "VELOX_RATE_LIMIT_RPM=100/s": f"VELOX_RATE_LIMIT_RPM is '100/s': {NUMBER} 0",
    "VELOX_RATE_LIMIT_BURST=0": f"VELOX_RATE_LIMIT_BURST is '0': {NUMBER} 1",
    "VELOX_RATE_LIMIT_TPM_BURST=5": "VELOX_RATE_LIMIT_TPM_BURST is '5': expected VELOX_RATE_LIMIT_TPM with it",
    "VELOX_KEY_BURST=5": "VELOX_KEY_BURST is '5': expected VELOX_KEY_RPM with it",
    "VELOX_KEY_TPM_BURST=5": "VELOX_KEY_TPM_BURST is '5': expected VELOX_KEY_TPM with it",
    "VELOX_KEY_CONCURRENCY=few": f"VELOX_KEY_CONCURRENCY is 'few': {NUMBER} 0",
    "VELOX_KEY_RPM=5": "VELOX_KEY_RPM is 5: expected VELOX_API_KEYS or VELOX_API_KEYS_FILE with it",
    "VELOX_LIMITS=[{per: key, rpm: 5}]": "VELOX_LIMITS:1: a limit of keys: expected VELOX_API_KEYS or",
    "VELOX_LIMITS=[{per: model, rpm: 5, keys: [a]}]": "VELOX_LIMITS:1: a limit of keys: expected VELOX_API_KEYS or",
    "VELOX_LIMITS=5": "VELOX_LIMITS is '5': expected a YAML list such as [{per: key, rpm: 600}]",
    "VELOX_LIMITS=[": "VELOX_LIMITS is '[': expected a YAML list",
    "VELOX_LIMITS=[{per: x, rpm: y}]": "VELOX_LIMITS is '[{per: x, rpm: y}]': per: expected gateway, team, user, key,",
    "VELOX_UPSTREAM_CONCURRENCY=abc": f"VELOX_UPSTREAM_CONCURRENCY is 'abc': {NUMBER} 1 to 10000000, auto or off",
    "VELOX_UPSTREAM_CONCURRENCY=0": f"VELOX_UPSTREAM_CONCURRENCY is '0': {NUMBER} 1",
    "VELOX_UPSTREAM_CONCURRENCY=1": "VELOX_UPSTREAM_CONCURRENCY is 1: expected at least VELOX_WORKERS, 2",
    "VELOX_QUEUE_FLOOR=31": f"VELOX_QUEUE_FLOOR is '31': {NUMBER} 0 to 30",
    "VELOX_QUEUE_BYTES=1M": "VELOX_QUEUE_BYTES is '1M': expected bytes",
    "VELOX_BYTES_PER_TOKEN=0": f"VELOX_BYTES_PER_TOKEN is '0': {NUMBER} 1",
    "VELOX_LIMIT_BUCKETS=63": f"VELOX_LIMIT_BUCKETS is '63': {NUMBER} 64",
    f"VELOX_REDIS_URL=http://:{PASSWORD}@h": "VELOX_REDIS_URL is hidden: expected redis://",
    "VELOX_REDIS_FALLBACK=closed": "VELOX_REDIS_FALLBACK is 'closed': expected local or refuse",
    "VELOX_BUDGETS_UNREAD=on": "VELOX_BUDGETS_UNREAD is 'on': expected strict, refuse or allow",
    "VELOX_REDIS_TIMEOUT=50": "VELOX_REDIS_TIMEOUT is '50': expected a number with its unit",
    "VELOX_REDIS_PREFIX=a b": "VELOX_REDIS_PREFIX is 'a b': expected 1 to 64 visible ASCII characters",
    "VELOX_REPLICAS=-2": f"VELOX_REPLICAS is '-2': {NUMBER} 0",
}


@pytest.mark.parametrize("given", BAD_VARIABLES)
def test_variable_that_is_wrong_is_one_line_and_nothing_starts(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The variable, what it is, what was expected; exit code 2. A password is in no line."""
    name, _, text = given.partition("=")

    assert main(["check"], {"VELOX_WORKERS": "2", "VELOX_RATE_LIMIT_RPM": "600", name: text}) == 2

    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, lines[0]) == ("", "not valid: 1 problem in the settings, nothing was started:")
    assert lines[1].startswith(f"  {BAD_VARIABLES[given]}") and len(lines) == 2, lines
    assert PASSWORD not in err


def test_burst_of_a_rate_that_is_switched_off_may_stay() -> None:
    """A 0 says that the limit is not wanted for now."""
    rules = load({"VELOX_KEY_RPM": "0", "VELOX_KEY_BURST": "5", "VELOX_API_KEYS": "k"}, cores=2).limit_rules

    assert rules[1].rates == Rates()


def test_name_that_no_key_has_may_come_with_the_file_of_keys(tmp_path: Path) -> None:
    """The file changes while the gateway runs. `velox check` counts such names, and shows none: it may be a key."""
    keys = tmp_path / "keys"
    keys.write_text("- {name: team-a, key: one}\n")
    limits = "limits: [{per: key, rpm: 6, keys: [team-a, sk-absent]}]\n"

    settings = of_file(tmp_path, limits, VELOX_API_KEYS_FILE=str(keys))

    (line,) = [line for line in limit_lines(settings) if "limits[0]" in line]
    assert "keys team-a, 1 that no key has now" in line and "sk-absent" not in line


def test_key_without_a_name_is_called_as_the_log_calls_it() -> None:
    """By the first digits of its digest."""
    name = load({"VELOX_API_KEYS": "k"}, cores=2).api_keys[0].caller_name
    limits = f"[{{per: key, keys: ['{name}'], rpm: 6}}]"

    assert load({"VELOX_API_KEYS": "k", "VELOX_LIMITS": limits}, cores=2).limits[0].keys == (name,)


def test_number_of_limits_is_bounded() -> None:
    """Each is looked at for every caller and model: at the bound they pass, one more is told."""
    rule = "{per: model, rpm: 6}"

    assert len(load({"VELOX_LIMITS": f"[{','.join([rule] * 256)}]"}, cores=2).limits) == 256
    assert "expected at most 256" in problems({"VELOX_LIMITS": f"[{','.join([rule] * 257)}]"})[0]


@pytest.mark.parametrize(
    "text",
    [
        "redis://h",
        "redis://h:6379/0",
        f"redis://:{PASSWORD}@h:1/15",
        f"rediss://user:{PASSWORD}@redis.example:6380",
        "redis://[::1]:6379",
        "unix:///run/redis.sock",
        f"unix://:{PASSWORD}@/run/redis.sock?db=2",
    ],
)
def test_redis_is_a_url_of_its_three_schemes(text: str) -> None:
    """What the client library takes; its password is never shown."""
    assert redis_url(text).reveal() == text
    assert PASSWORD not in repr(load({"VELOX_REDIS_URL": text}, cores=2))


@pytest.mark.parametrize(
    "text",
    [
        *("h", "h:6379", "redis://", "redis:h", "http://h", "valkey://h", "redis://h:0", "redis://h:x", "redis://h/x"),
        *("redis://h:99999", "redis://h?db=1", "redis://h#f", "redis://h /0", "unix://", "unix:///", "unix://h/x"),
        *(f"redis://:{PASSWORD}@/0", "unix:///run/redis.sock?socket_timeout=60"),
    ],
)
def test_redis_of_another_form_is_refused_without_being_shown(text: str) -> None:
    """One line, with no part of what was given."""
    (problem,) = problems({"VELOX_REDIS_URL": text})

    has_bad_port = text.rpartition(":")[2] in ("0", "x", "99999")
    wanted = "a port from 1 to 65535" if has_bad_port else "redis://[USER:PASSWORD@]HOST"
    assert problem.startswith(f"VELOX_REDIS_URL is hidden: expected {wanted}")


def test_redis_needs_its_package() -> None:
    """Told at the start and not at the first request; without a URL nothing is looked for."""
    asked: list[str] = []
    values = {"redis_url": redis_url(f"redis://:{PASSWORD}@h")}

    (problem,) = extra_problems(values, asked.append)

    assert str(problem) == "VELOX_REDIS_URL: expected the package redis with it: pip install -r requirements.lock"
    assert asked == ["redis"]
    assert list(extra_problems(values, lambda name: name)) == []
    assert list(extra_problems({"redis_url": None}, asked.append)) == [] and asked == ["redis"]


def test_upstream_concurrency_is_a_number_or_a_word() -> None:
    """Off is 0."""
    assert (concurrency("off"), concurrency("auto"), concurrency("8")) == (0, "auto", 8)
    assert redis_prefix("x" * 64) == "x" * 64


def test_check_prints_each_limit_with_whom_it_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is counted apart, which requests, how much, and where it was written."""
    file = tmp_path / "velox.yaml"
    file.write_text(KEYS + LIMITS)

    assert main(["check"], {"VELOX_CONFIG": str(file), "VELOX_KEY_RPM": "600", "VELOX_RATE_LIMIT_RPM": "10k"}) == 0

    out = capsys.readouterr().out
    lines = [" ".join(line.replace(f"{tmp_path}/", "").split()) for line in out.splitlines() if "limit: " in line]
    assert lines == [
        "limit: VELOX_RATE_LIMIT_RPM per gateway 10,000 requests a minute, 500 at once environment",
        "limit: VELOX_KEY_RPM per key 600 requests a minute, 100 at once environment",
        "limit: limits[0] per key: keys team-a; models gpt-4o*, o1 600 requests a minute, 60 at once;"
        " 200,000 tokens a minute, 200,000 at once; 20 running velox.yaml:5",
        "limit: limits[1] per gateway: keys team-a, team-b 2,000,000 tokens a minute, 5,000 at once velox.yaml:12",
        "limit: limits[2] per key+model 30 requests a minute, 10 at once velox.yaml:13",
        "limit: limits[3] per model: models llama-* 8 running velox.yaml:14",
        "limit: key team-a its own 1,200 requests a minute, 200 at once; 2,000,000 tokens a minute, 2,000,000 at once"
        " velox.yaml:2",
        "limit: key team-b its own priority low velox.yaml:3",
    ]


def test_check_says_so_when_nothing_is_limited() -> None:
    """One line, so that nobody looks for more."""
    assert limit_lines(load(NO_RULES, cores=2)) == ["limit: none"]


def test_long_list_of_keys_is_shortened(tmp_path: Path) -> None:
    """The first twenty keys that have limits of their own, then how many more."""
    keys = "".join(f"  - {{name: team-{n}, key: k{n}, rpm: 60}}\n" for n in range(23))

    lines = limit_lines(of_file(tmp_path, f"api_keys:\n{keys}", **NO_RULES))

    assert len(lines) == 21
    assert lines[-1] == "limit: and 3 more keys that have their own"
