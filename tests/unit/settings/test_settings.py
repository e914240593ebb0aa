"""How settings come together: which source wins, what is unknown or contradicts, and that all is told at once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import typing
from pathlib import Path

import pytest
import trustme
from msgspec.structs import replace

from velox.settings import Settings, SettingsError, load
from velox.settings.machine import available_cores, has_own_cores
from velox.settings.model import VARIABLES
from velox.types import Address, KeyEntry, Origin, Secret

KEY = "sk-very-secret"
DIGEST = hashlib.sha256(KEY.encode()).digest()


def problems(environ: dict[str, str], **overrides: str) -> list[str]:
    """Return what load() finds wrong, one text a problem."""
    with pytest.raises(SettingsError) as raised:
        load(environ, overrides, cores=2)
    assert str(raised.value) == "\n".join(map(str, raised.value.problems))
    return [str(problem) for problem in raised.value.problems]


def test_nothing_set_gives_the_defaults() -> None:
    """The defaults are those of the configuration table, and each is marked as one."""
    settings = load({}, cores=3)

    assert settings.listen == (Address("tcp", "127.0.0.1", 8080),)
    assert settings.admin_listen == Address("tcp", "127.0.0.1", 6060)
    assert (settings.workers, settings.egress_pool_connections) == (3, 3)
    assert settings.upstream_origins == (Origin("https", "api.openai.com", 443, "", b"api.openai.com"),)
    assert (settings.rate_limit_rpm, settings.rate_limit_burst, settings.rate_limit_max_wait_s) == (
        0,
        500,
        1.0,
    )
    assert (settings.queue_depth, settings.queue_batch, settings.queue_timeout_s) == (16384, 64, 5.0)
    assert (settings.max_body_bytes, settings.body_budget_bytes) == (64 << 20, 256 << 20)
    assert settings.openai_api_key is None
    assert settings.config_file is None
    assert settings.api_keys == ()
    assert set(settings.origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("VELOX_LISTEN", "[::1]:1, unix:/s", "listen", (Address("tcp", "::1", 1), Address("unix", path="/s"))),
        ("VELOX_ADMIN_LISTEN", "off", "admin_listen", None),
        ("VELOX_WORKERS", "7", "workers", 7),
        ("VELOX_PIN_CPUS", "off", "pin_cpus", False),
        ("VELOX_PIN_CPUS", "auto", "pin_cpus", None),
        ("VELOX_UPSTREAM_ORIGIN", "http://h:1/b", "upstream_origins", (Origin("http", "h", 1, "/b", b"h:1"),)),
        ("VELOX_UPSTREAM_REQUEST_PATH", "/v1/x", "upstream_request_path", "/v1/x"),
        ("VELOX_PATHS", "/v1", "paths", ("/v1",)),
        ("VELOX_PUBLIC_URL", "https://h/x/", "public_url", Origin("https", "h", 443, "/x", b"h")),
        ("VELOX_WEBSOCKET_PATHS", "*", "websocket_paths", ("*",)),
        ("VELOX_WEBSOCKET_PATHS", "/a/*/b, /c/", "websocket_paths", ("/a/*/b", "/c")),
        ("VELOX_UPSTREAM_WARMUP_PATH", "/w", "upstream_warmup_path", "/w"),
        ("VELOX_HTTP2_ENGINE", "h2", "http2_engine", "h2"),
        ("VELOX_UPSTREAM_HTTP2", "on", "upstream_http2", "on"),
        ("VELOX_EGRESS_POOL_CONNECTIONS", "9", "egress_pool_connections", 9),
        ("VELOX_RATE_LIMIT_RPM", "0", "rate_limit_rpm", 0),
        ("VELOX_RATE_LIMIT_BURST", "1", "rate_limit_burst", 1),
        ("VELOX_RATE_LIMIT_MAX_WAIT", "0", "rate_limit_max_wait_s", 0.0),
        ("VELOX_RATE_LIMIT_TPM", "2M", "rate_limit_tpm", 2_000_000),
        ("VELOX_RATE_LIMIT_CONCURRENCY", "9", "rate_limit_concurrency", 9),
        ("VELOX_KEY_RPM", "0", "key_rpm", 0),
        ("VELOX_LIMIT_BUCKETS", "64", "limit_buckets", 64),
        ("VELOX_BYTES_PER_TOKEN", "3", "bytes_per_token", 3),
        ("VELOX_DEFAULT_MAX_TOKENS", "8k", "default_max_tokens", 8000),
        ("VELOX_QUEUE_DEPTH", "99", "queue_depth", 99),
        ("VELOX_QUEUE_BYTES", "1MiB", "queue_bytes", 1 << 20),
        ("VELOX_QUEUE_FLOOR", "0", "queue_floor_percent", 0),
        ("VELOX_UPSTREAM_CONCURRENCY", "auto", "upstream_concurrency", "auto"),
        ("VELOX_REDIS_PREFIX", "v:", "redis_prefix", "v:"),
        ("VELOX_REDIS_TIMEOUT", "20ms", "redis_timeout_s", 0.02),
        ("VELOX_REDIS_FALLBACK", "refuse", "redis_fallback", "refuse"),
        ("VELOX_REPLICAS", "3", "replicas", 3),
        ("VELOX_BUDGETS_UNREAD", "allow", "budgets_unread", "allow"),
        ("VELOX_QUEUE_BATCH", "3", "queue_batch", 3),
        ("VELOX_QUEUE_TIMEOUT", "250ms", "queue_timeout_s", 0.25),
        ("VELOX_MAX_BODY", "1KiB", "max_body_bytes", 1024),
        ("VELOX_BODY_BUDGET", "1GiB", "body_budget_bytes", 1 << 30),
        ("VELOX_MAX_INFLIGHT", "5", "max_inflight", 5),
        ("VELOX_MAX_CONNECTIONS", "6", "max_connections", 6),
        ("VELOX_API_KEYS", KEY, "api_keys", (KeyEntry(DIGEST),)),
        ("VELOX_AUTH", "none", "auth", "none"),
        ("VELOX_ADMIN_HOSTS", "Velox.internal., b", "admin_hosts", frozenset({"velox.internal", "b"})),
        ("VELOX_PROFILING", "off", "profiling", False),
        ("VELOX_PROFILE_INTERVAL", "5s", "profile_interval_s", 5.0),
        ("VELOX_UPSTREAM_ACCOUNT_HEADERS", "pass", "upstream_account_headers", "pass"),
        ("VELOX_UNKNOWN_OBJECTS", "refuse", "unknown_objects", "refuse"),
        ("VELOX_OBJECT_ROWS", "4096", "object_rows", 4096),
        ("VELOX_KEPT_BYTES", "0", "kept_bytes", 0),
        ("VELOX_KEPT_ANSWERS", "64", "kept_answers", 64),
        ("VELOX_KEPT_FOR", "5m", "kept_for_s", 300.0),
        ("VELOX_DRAIN_TIMEOUT", "0", "drain_timeout_s", 0.0),
        ("VELOX_ACCESS_LOG", "all", "access_log", "all"),
        ("VELOX_HEADER_TIMEOUT", "1s", "header_timeout_s", 1.0),
        ("VELOX_BODY_TIMEOUT", "2s", "body_timeout_s", 2.0),
        ("VELOX_KEEPALIVE_TIMEOUT", "3s", "keepalive_timeout_s", 3.0),
        ("VELOX_CLIENT_WRITE_TIMEOUT", "4s", "write_stall_timeout_s", 4.0),
        ("VELOX_UPSTREAM_CONNECT_TIMEOUT", "5s", "upstream_connect_timeout_s", 5.0),
        ("VELOX_UPSTREAM_TLS_TIMEOUT", "6s", "upstream_tls_timeout_s", 6.0),
        ("VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT", "7s", "upstream_first_byte_timeout_s", 7.0),
        ("VELOX_UPSTREAM_THINKING_TIMEOUT", "8s", "upstream_thinking_timeout_s", 8.0),
        ("VELOX_UPSTREAM_IDLE_TIMEOUT", "8s", "upstream_idle_timeout_s", 8.0),
    ],
)
def test_variable_sets_its_field(name: str, text: str, field: str, value: object) -> None:
    """Each variable sets the field of its own, in the field's unit, and says where it came from."""
    more = {"VELOX_RATE_LIMIT_RPM": "600"} if name == "VELOX_RATE_LIMIT_BURST" else {}
    settings = load({**more, name: text}, cores=2)

    assert getattr(settings, field) == value
    assert settings.origins[name] == "environment"
    assert [other for other, origin in settings.origins.items() if origin != "default"] == [*more, name]


OF_NO_VARIABLE = (
    *(
        "origins",
        "upstreams",
        "routes",
        "file_end",
        "key_file_end",
        "unusable_variables",
        "missing_keys",
        "unused_variables",
        "empty_variables",
    ),
    *("own_prices", "prices_version", "proxies", "traces"),
)


def test_table_names_each_field_once_and_every_value_has_the_declared_type() -> None:
    """The table and the Settings class hold the same fields: load() builds the one from the other."""
    declared = typing.get_type_hints(Settings)
    for of_no_variable in OF_NO_VARIABLE:
        del declared[of_no_variable]
    settings = load({"OPENAI_API_KEY": "k"}, cores=2)

    assert sorted(variable.field for variable in VARIABLES) == sorted(declared)
    for field, hint in declared.items():
        assert _is_a(getattr(settings, field), hint), field


def test_empty_variable_counts_as_not_set() -> None:
    """`VELOX_X=` in a compose file is how people leave a variable out."""
    settings = load({"VELOX_WORKERS": "", "VELOX_API_KEYS": "", "OPENAI_API_KEY": "", "VELOX_CONFIG": ""}, cores=2)

    assert replace(settings, empty_variables=()) == load({}, cores=2)


def test_command_line_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """Each source in its rank; the origin is told."""
    file = tmp_path / "velox.yaml"
    file.write_text("queue_batch: 1\nqueue_depth: 101\nmax_inflight: 11\n")
    environ = {"VELOX_CONFIG": str(file), "VELOX_QUEUE_BATCH": "2", "VELOX_QUEUE_DEPTH": "102"}

    settings = load(environ, {"VELOX_QUEUE_BATCH": "3"}, cores=2)

    assert (settings.queue_batch, settings.queue_depth, settings.max_inflight) == (3, 102, 11)
    names = ("VELOX_QUEUE_BATCH", "VELOX_QUEUE_DEPTH", "VELOX_MAX_INFLIGHT", "VELOX_MAX_BODY")
    assert [settings.origins[name] for name in names] == ["command line", "environment", "file", "default"]
    assert settings.config_file == str(file)


def test_unknown_variable_is_a_problem_that_names_the_nearest_one() -> None:
    """A misspelt limit must not be an absent limit."""
    assert problems({"VELOX_WORKER": "2"}) == ["VELOX_WORKER: there is no such variable; did you mean VELOX_WORKERS?"]
    assert problems({"VELOX_ZZZZ": "2"}) == ["VELOX_ZZZZ: there is no such variable"]


@pytest.mark.parametrize("service", ["VELOX", "VELOX_ADMIN", "VELOX_REDIS_MASTER", "VELOX_2"])
def test_variables_that_kubernetes_injects_are_ignored(service: str) -> None:
    """A Service called velox, or velox-admin, puts these into every pod of its namespace."""
    environ = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP_METRICS": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
        "PORT_80_TCP_PORT": "80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
    }
    given = {f"{service}_{name}": text for name, text in environ.items()}

    assert load({**given, "PATH": "/bin", "OTHER": "x"}, cores=2) == load({}, cores=2)


@pytest.mark.parametrize("name", ["VELOX_PORT", "VELOX_ADMIN_PORT", "VELOX_SERVICE_NAME", "VELOX_PORTS"])
def test_variable_that_only_looks_like_one_of_kubernetes_is_a_problem(name: str) -> None:
    """It would be ignored, and Velox listen elsewhere."""
    (problem,) = problems({name: "8081"})
    assert problem.startswith(f"{name}: ")
    assert ("VELOX_LISTEN=127.0.0.1:8080" in problem) == (name == "VELOX_PORT")


def test_all_problems_are_told_at_once_and_no_secret_is(tmp_path: Path) -> None:
    """B-53: one start tells everything: unknown, wrong, contradicting, missing; no secret's value."""
    found = problems(
        {
            "VELOX_NONSENSE": "1",
            "VELOX_WORKERS": "-2",
            "VELOX_MAX_BODY": "1GiB",
            "VELOX_LISTEN": "0.0.0.0:80",
            "VELOX_API_KEYS_FILE": str(tmp_path / "absent"),
            "VELOX_UPSTREAM_CA_FILE": str(tmp_path),
            "VELOX_UPSTREAM_ORIGIN": f"https://user:{KEY}@h/?api_key={KEY}",
            "OPENAI_API_KEY": f"{KEY}\n",
        }
    )

    names = [problem.split(":")[0].split(" ")[0] for problem in found]
    assert names == [
        "VELOX_NONSENSE",
        "VELOX_WORKERS",
        "VELOX_UPSTREAM_ORIGIN",
        "OPENAI_API_KEY",
        "VELOX_API_KEYS_FILE",
        "VELOX_UPSTREAM_CA_FILE",
        "VELOX_BODY_BUDGET",
    ]
    assert KEY not in "".join(found)
    assert found[1] == "VELOX_WORKERS is '-2': expected a whole number from 1 to 512"


def test_value_with_line_ends_is_shown_on_one_line() -> None:
    """A problem is one line, however the value looks, and short, however long the value is."""
    (problem,) = problems({"VELOX_WORKERS": "1\r\nforged: line" + "x" * 5000})

    assert "\n" not in problem
    assert len(problem) < 300


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:8080"])
def test_listening_beyond_loopback_without_keys_is_refused(listen: str) -> None:
    """No keys and not loopback is a start refused, unless VELOX_AUTH=none says so."""
    (problem,) = problems({"VELOX_LISTEN": listen})

    assert "VELOX_API_KEYS" in problem
    assert "VELOX_AUTH=none" in problem
    assert load({"VELOX_LISTEN": listen, "VELOX_AUTH": "none"}, cores=2).auth == "none"
    assert load({"VELOX_LISTEN": listen, "VELOX_API_KEYS": KEY}, cores=2).api_keys == (KeyEntry(DIGEST),)


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "[::1]:8080", "unix:/tmp/velox.sock"])
def test_listening_on_loopback_needs_no_keys(listen: str) -> None:
    """Only this machine can connect there."""
    assert load({"VELOX_LISTEN": listen}, cores=2).api_keys == ()


def test_keys_with_auth_none_are_a_contradiction() -> None:
    """Keys that nobody would have to present are a mistake, and not a harmless one."""
    assert "VELOX_AUTH" in problems({"VELOX_AUTH": "none", "VELOX_API_KEYS": KEY})[0]


def test_key_file_adds_to_the_keys_of_the_environment(tmp_path: Path) -> None:
    """One key a line; empty lines and comments are skipped; a # inside a key belongs to it."""
    file = tmp_path / "keys"
    file.write_text(f"# callers\n\n{KEY}  # alice\nwith#hash\nsha256:{'ab' * 32}\n")

    settings = load({"VELOX_API_KEYS_FILE": str(file), "VELOX_API_KEYS": "other"}, cores=2)

    assert {key.digest for key in settings.api_keys} == {
        DIGEST,
        hashlib.sha256(b"with#hash").digest(),
        bytes.fromhex("ab" * 32),
        hashlib.sha256(b"other").digest(),
    }
    assert KEY not in repr(settings)


def test_key_file_without_keys_is_refused(tmp_path: Path) -> None:
    """An empty file where keys were meant must not let everyone in."""
    file = tmp_path / "keys"
    file.write_text("# none yet\n")

    assert "at least one key" in problems({"VELOX_API_KEYS_FILE": str(file)})[0]


def test_key_file_with_a_bad_line_is_refused_by_its_number(tmp_path: Path) -> None:
    """The line is named, its text is not."""
    file = tmp_path / "keys"
    file.write_text(f"good\n{KEY} {KEY}\n")

    (problem,) = problems({"VELOX_API_KEYS_FILE": str(file)})

    assert problem.startswith(f"{file}:2: ")
    assert KEY not in problem


@pytest.mark.parametrize("name", ["VELOX_QUEUE_DEPTH", "VELOX_MAX_INFLIGHT", "VELOX_MAX_CONNECTIONS"])
def test_limit_over_all_workers_leaves_each_at_least_one(name: str) -> None:
    """A limit that is split over workers can't be smaller than their number."""
    assert name in problems({"VELOX_WORKERS": "4", name: "3"})[0]
    assert load({"VELOX_WORKERS": "4", name: "4"}, cores=2).workers == 4


def test_body_budget_below_the_largest_body_is_refused() -> None:
    """Else a body that VELOX_MAX_BODY allows could never be taken."""
    assert "VELOX_BODY_BUDGET" in problems({"VELOX_BODY_BUDGET": "1023", "VELOX_MAX_BODY": "1024"})[0]
    assert load({"VELOX_BODY_BUDGET": "1024", "VELOX_MAX_BODY": "1024"}, cores=2).max_body_bytes == 1024


def test_both_listeners_on_one_address_are_refused() -> None:
    """Port 0 is not one address: the kernel chooses two."""
    assert "VELOX_ADMIN_LISTEN" in problems({"VELOX_LISTEN": "127.0.0.1:1", "VELOX_ADMIN_LISTEN": "localhost:1"})[0]
    assert load({"VELOX_LISTEN": "127.0.0.1:0", "VELOX_ADMIN_LISTEN": "127.0.0.1:0"}, cores=2)


def test_ca_file_must_hold_certificates(tmp_path: Path) -> None:
    """Found at start, not at the first connection."""
    good, bad = tmp_path / "good.pem", tmp_path / "bad.pem"
    trustme.CA().cert_pem.write_to_path(str(good))
    bad.write_text("no certificate")

    assert load({"VELOX_UPSTREAM_CA_FILE": str(good)}, cores=2).upstream_ca_file == str(good)
    for path in (bad, tmp_path / "absent", tmp_path):
        assert "PEM" in problems({"VELOX_UPSTREAM_CA_FILE": str(path)})[0]


@pytest.mark.parametrize(
    ("workers", "cores", "all_cores", "available", "pins"),
    [
        (2, 2, 2, 2, True),  # the default on a whole machine
        (3, 2, 2, 2, True),
        (1, 2, 2, 2, False),  # sidecars on a node
        (4, 64, 64, 64, False),
        (2, 4, 64, 4, True),  # a cpuset
        (2, 64, 64, 2, False),  # a quota of time
        (4, 4, 64, 3, False),
    ],
)
def test_worker_has_a_core_of_its_own_where_nobody_else_is_bound_to_it(
    workers: int, cores: int, all_cores: int, available: int, pins: bool
) -> None:
    """C32: gateways with one worker each must not all be bound to the first core of the machine."""
    assert has_own_cores(workers, range(cores), all_cores, available) is pins


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("100000 100000", 1), ("150000 100000", 2), ("1000 100000", 1), ("max 100000", None), ("", None)],
)
def test_cores_are_those_the_quota_leaves(tmp_path: Path, cpu_max: str, cores: int | None) -> None:
    """A container with a CPU quota counts on its quota, rounded up, not on the machine's cores."""
    file, absent = tmp_path / "cpu.max", tmp_path / "absent"
    file.write_text(cpu_max)
    all_cores = available_cores(absent, absent)

    assert available_cores(file, absent) == (all_cores if cores is None else min(cores, all_cores))


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [
        *(("100000\n", "100000\n", 1), ("5000", "100000", 1), ("150000", "100000", 2)),
        *(("-1\n", "100000\n", None), ("1", "0", None)),
    ],
)
def test_cores_are_those_the_quota_of_cgroup_v1_leaves(
    tmp_path: Path, quota: str, period: str, cores: int | None
) -> None:
    """As nodes have it still whose kernel, or kubelet, was not moved to version 2: two files, and -1 for none."""
    (tmp_path / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu.cfs_period_us").write_text(period)
    absent = tmp_path / "absent"
    all_cores = available_cores(absent, absent)

    assert available_cores(absent, tmp_path) == (all_cores if cores is None else min(cores, all_cores))


@pytest.mark.parametrize("version", [1, 2])
def test_cores_are_those_the_quota_of_a_service_leaves(tmp_path: Path, version: int) -> None:
    """CPUQuota= of systemd is at the group of the service, or of the slice that it is in, not at the root."""
    own, absent = tmp_path / "own", tmp_path / "absent"
    # A group may have any bytes in its name.
    own.write_bytes(b"3:cpu,cpuacct:/all\xff\x1c/velox.service\n1:name=systemd:/x\n0::/all\xff\x1c/velox.service\n")
    service = tmp_path / os.fsdecode(b"all\xff\x1c/velox.service")
    service.mkdir(parents=True)
    if version == 2:
        (service / "cpu.max").write_text("max 100000\n")
        (service.parent / "cpu.max").write_text("100000 100000\n")
        assert available_cores(tmp_path / "cpu.max", absent, own) == 1
    else:
        (service / "cpu.cfs_quota_us").write_text("100000\n")
        (service / "cpu.cfs_period_us").write_text("100000\n")
        assert available_cores(absent, tmp_path, own) == 1


@pytest.mark.parametrize(
    ("environ", "soft", "hard"),
    [
        ({}, 768, 921),
        ({"VELOX_MEMORY_HARD": "512MiB"}, 512, 512),
        ({"VELOX_MEMORY_SOFT": "1000MiB"}, 1000, 1000),
        ({"VELOX_MEMORY_SOFT": "600MiB"}, 600, 921),
        ({"VELOX_MEMORY_HARD": "off"}, 768, None),
    ],
)
def test_default_of_one_limit_of_memory_is_never_beyond_the_other(
    environ: dict[str, str], soft: int, hard: int | None
) -> None:
    """Else what starts on a machine without a limit would be refused in a container, for a setting that nobody set."""
    settings = load({"VELOX_WORKERS": "1", **environ}, memory_bytes=1 << 30)
    assert settings.memory_soft_bytes == soft << 20
    assert settings.memory_hard_bytes == (None if hard is None else hard << 20)


def _is_a(value: object, hint: object) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return value in arguments
    if origin in {tuple, frozenset}:
        return isinstance(value, origin)
    if arguments:  # a union
        return any(_is_a(value, argument) for argument in arguments)
    assert isinstance(hint, type)
    return type(value) is hint if not dataclasses.is_dataclass(hint) else isinstance(value, hint | Secret)
