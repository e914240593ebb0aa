"""The command line: what each command prints, where, and its exit code."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from velox.build import DESCRIPTION
from velox.cli import main
from velox.ledger.sqlite import SqliteStore
from velox.runtime.capacity import shortages
from velox.runtime.commands.check import check_lines
from velox.runtime.ledger.folder import folder_problem
from velox.settings import load


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`velox --version` prints name, version, build and Python, and is a success."""
    with pytest.raises(SystemExit) as exited:
        main(["--version"], {})

    assert exited.value.code == 0
    assert capsys.readouterr().out == f"velox {DESCRIPTION}\n"


def test_check_prints_value_and_origin_of_each_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a variable: name, value in use, where it came from; then who may come in."""
    assert main(["check", "--all"], {"VELOX_WORKERS": "3", "OPENAI_API_KEY": "sk-secret"}) == 0

    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["VELOX_WORKERS", "3", "environment"] in lines
    assert ["VELOX_QUEUE_DEPTH", "16384", "default"] in lines
    assert ["OPENAI_API_KEY", "hidden", "environment"] in lines
    assert out.endswith("clients need no key: only this machine can connect\n")
    assert "sk-secret" not in out + err


def test_check_begins_with_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    """U13: whether it is valid, then what may be a mistake; what was set stands behind, without defaults."""
    assert main(["check"], {"VELOX_WORKERS": "3", "VELOX_API_KEYS": "key-0a9f8e7d", "VELOX_LISTEN": "0.0.0.0:81"}) == 0

    lines = capsys.readouterr().out.splitlines()
    warnings = [line for line in lines if line.startswith("WARNING: ")]
    assert lines[0] == f"valid, with {len(warnings)} warnings"
    assert lines[1 : len(warnings) + 1] == warnings and not lines[len(warnings) + 1]
    assert "WARNING: clients on other machines send their keys without TLS (VELOX_TLS_CERT)" in warnings
    assert any("go up without a credential: default" in line for line in warnings)
    assert lines[len(warnings) + 2] == "listening: http://0.0.0.0:81; admin listener: http://127.0.0.1:6060"
    end = next(n for n, line in enumerate(lines) if line.endswith("as by default: `velox check --all` prints them"))
    assert [line.split()[0] for line in lines[end - 3 : end]] == ["VELOX_LISTEN", "VELOX_WORKERS", "VELOX_API_KEYS"]
    assert not any("default" in line.split()[-1:] for line in lines[end - 3 : end])


def test_check_without_a_warning_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"OPENAI_API_KEY": "sk-0a9f8e7d", "VELOX_WORKERS": "1", "VELOX_MAX_CONNECTIONS": "64"}
    assert main(["check"], environ) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert (first, second) == ("valid", "")


def test_check_has_all_of_it_for_programs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """U13: no secret in it, and each setting with where its value comes from."""
    file = tmp_path / "velox.yaml"
    file.write_text(
        "upstreams: [{name: u, origin: 'https://h.example', keys: [env:KEY_OF_U], proxy: 'http://p:1'}]\n"
        "routes: [{name: r, match: {models: [a*]}, to: [{upstream: u, model: b}]}]\n"
    )
    environ = {"VELOX_CONFIG": str(file), "KEY_OF_U": "sk-secret", "VELOX_API_KEYS": "key-0a9f8e7d"}
    assert main(["check", "--json"], environ) == 0

    out = capsys.readouterr().out
    found = json.loads(out)
    assert (found["valid"], found["problems"]) == (True, [])
    assert found["upstreams"] == [
        {
            "name": "u",
            "origins": ["https://h.example"],
            "provider": "openai-compatible",
            "keys": ["env:KEY_OF_U"],
            "models": [],
            "proxies": ["http://p:1"],
            "where": f"{file}:1",
        }
    ]
    assert found["routes"][0]["match"] == "models a*" and found["routes"][0]["where"] == f"{file}:2"
    assert {"name": "VELOX_QUEUE_DEPTH", "value": "16384", "origin": "default"} in found["settings"]
    assert found["access"] == "clients must present the one key"
    assert "sk-secret" not in out and "key-0a9f8e7d" not in out


def test_check_says_for_programs_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """U13: on standard output, with the exit code of settings that can't be used."""
    assert main(["check", "--json"], {"VELOX_WORKERS": "none", "VELOX_QUEUE_DEPTH": "x"}) == 2

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["valid"] is False and not err
    assert [each.partition(" is ")[0] for each in found["problems"]] == ["VELOX_WORKERS", "VELOX_QUEUE_DEPTH"]


@pytest.mark.parametrize(
    ("environ", "door"),
    [
        ({"VELOX_API_KEYS": "a"}, "clients must present the one key"),
        ({"VELOX_API_KEYS": "a,b"}, "clients must present one of 2 keys"),
        (
            {"VELOX_LISTEN": "0.0.0.0:1", "VELOX_AUTH": "none"},
            "clients need no key and can come from other machines (VELOX_AUTH=none)",
        ),
    ],
)
def test_check_says_who_may_come_in(environ: dict[str, str], door: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line says whether a key is needed."""
    assert main(["check"], environ) == 0
    assert capsys.readouterr().out.splitlines()[-1] == door


@pytest.mark.parametrize(
    ("environ", "is_told"),
    [
        ({"VELOX_UPSTREAM_ORIGIN": "https://llm.example.com/v1"}, True),
        ({"VELOX_UPSTREAM_ORIGIN": "https://llm.example.com/v1", "VELOX_UPSTREAM_WARMUP_PATH": "/models"}, False),
        ({"VELOX_UPSTREAM_ORIGIN": "https://llm.example.com/openai"}, False),
        ({"VELOX_UPSTREAM_ORIGIN": "https://llm.example.com"}, False),
    ],
)
def test_check_warns_of_an_origin_that_doubles_the_v1_of_paths(
    environ: dict[str, str], is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says where a request would go. A warm-up path without /v1 tells that the clients' have none either."""
    assert main(["check"], environ) == 0

    warning = (
        "WARNING: upstream default gets /v1/models as https://llm.example.com/v1/v1/models: take /v1 off the origin;"
        " or, where clients leave it out, set VELOX_UPSTREAM_WARMUP_PATH=/models, and"
        " VELOX_UPSTREAM_REQUEST_PATH without /v1, too"
    )
    assert (warning in capsys.readouterr().out.splitlines()) is is_told


def test_check_tells_of_keys_that_have_expired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked about a request with such a key, it prints the answer that the client would get."""
    file = tmp_path / "velox.yaml"
    file.write_text(
        "api_keys:\n  - {name: old, key: a, expires: 2020-01-31}\n  - {name: new, key: b, expires: 9999-01-31}\n"
    )
    environ = {"VELOX_CONFIG": str(file)}

    assert main(["check"], environ) == 0
    assert f"WARNING: expired, so clients with it get 401: 1 of the keys: old ({file}:2)\n" in capsys.readouterr().out
    assert main(["check", "--model", "gpt-4o", "--key", "old"], environ) == 1
    assert capsys.readouterr().out.endswith("\nrefused with 401 auth_invalid: the key has expired\n")
    assert main(["check", "--model", "gpt-4o", "--key", "new"], environ) == 0


def test_check_warns_of_a_ledger_that_this_user_can_not_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another one may: check is run by hand, and the gateway by its own user. Nothing is made."""
    (tmp_path / "file").touch()
    for name in ("file", "file/in/it"):
        assert main(["check"], {"VELOX_LEDGER": str(tmp_path / name)}) == 0
        told = f"WARNING: this user can't keep records in VELOX_LEDGER: {tmp_path / 'file'} is no folder"
        assert told in capsys.readouterr().out.splitlines()
    assert main(["check"], {"VELOX_LEDGER": str(tmp_path / "new/ledger")}) == 0
    assert "can't keep records" not in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_check_of_another_user_takes_a_folder_that_it_may_not_look_into() -> None:
    """As systemd makes it for a dynamic user: a link into a folder of its own."""
    with tempfile.TemporaryDirectory() as name:  # which others may look into, unlike pytest's
        folder, link = Path(name), Path(name) / "ledger"
        folder.chmod(0o755)
        (folder / "private" / "ledger").mkdir(parents=True)
        (folder / "private").chmod(0o700)
        link.symlink_to("private/ledger")
        told, pipe = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.setuid(65534)
                os.write(pipe, folder_problem(str(link)).encode())
            finally:
                os._exit(0)
        os.close(pipe)
        os.waitpid(pid, 0)
        with open(told, "rb") as said:
            assert said.read().decode() == f"{link} leads where this user may not look"


@pytest.mark.parametrize("text", ["on", "yes"])
def test_switch_without_what_it_needs_is_shown_as_it_was_written(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not as the program has it: nobody finds `true` in a file that says `on`."""
    assert main(["check"], {"VELOX_MANAGED_KEYS": text}) == 2
    assert f"VELOX_MANAGED_KEYS is '{text}': expected VELOX_LEDGER with it" in capsys.readouterr().err


def test_check_says_what_a_worker_can_need_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    """Memory and connections, from the settings and this machine's limit on open files."""
    assert main(["check"], {"VELOX_MAX_CONNECTIONS": "100", "VELOX_WORKERS": "1"}) == 0

    lines = capsys.readouterr().out.splitlines()
    (memory,) = [line for line in lines if line.startswith("memory: at most ")]
    (connections,) = [line for line in lines if line.startswith("connections: ")]
    assert " a worker: " in memory and "request bodies 288 MiB" in memory
    assert connections.startswith("connections: a worker takes 100 of clients, of ")


@pytest.mark.parametrize(
    ("n_bytes", "workers", "advice"),
    [
        (1 << 30, 16, "set VELOX_WORKERS to 8 or less, or give it more"),
        (100 << 20, 1, "give it more"),
        (1 << 30, 8, ""),
        (0, 64, ""),
    ],
)
def test_check_warns_of_workers_without_limits_of_memory(n_bytes: int, workers: int, advice: str) -> None:
    """With less than 128 MiB each they are not watched, and the kernel would kill the container."""
    environ = {"VELOX_WORKERS": str(workers)}

    def warnings(**more: str) -> list[str]:
        lines = check_lines(load({**environ, **more}, memory_bytes=n_bytes), shows_all=False, memory_bytes=n_bytes)
        return [line for line in lines if line.startswith("WARNING: the container has ")]

    assert [line.endswith(f"the gateway: {advice}") for line in warnings()] == [True] * bool(advice)
    # The log says the same at the start: a gateway that is killed in its first seconds was not checked by anybody.
    at_start = [f"WARNING: {line}" for line in shortages(load(environ, memory_bytes=n_bytes), 1 << 30, n_bytes)]
    assert at_start == warnings()
    assert warnings(VELOX_MEMORY_SOFT="64MiB") == []


@pytest.mark.parametrize("command", ["check", "serve"])
def test_wrong_settings_are_all_printed_and_nothing_starts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, every problem on a line of its own on standard error, nothing on standard output."""
    code = main([command], {"VELOX_WORKERS": "0", "VELOX_QUEUE": "1", "OPENAI_API_KEY": "sk-secret\n"})

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    begin = "not valid" if command == "check" else "velox"
    assert err.splitlines()[0] == f"{begin}: 3 problems in the settings, nothing was started:"
    assert len(err.splitlines()) == 4
    assert "sk-secret" not in err


@pytest.mark.parametrize("fallback", ["local", "refuse"])
def test_redis_that_is_not_there_is_told_in_one_line(fallback: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and no password. `serve` starts: tests/e2e/test_replicas.py."""
    environ = {"VELOX_REDIS_URL": "redis://:pw-very-secret@127.0.0.1:1/0", "VELOX_REDIS_FALLBACK": fallback}

    assert main(["check"], environ) == 2

    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("velox: VELOX_REDIS_URL can't be used: ")
    assert "pw-very-secret" not in err


def test_config_option_beats_the_variable(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """--config names the file, whatever VELOX_CONFIG says."""
    file = tmp_path_factory.mktemp("config") / "velox.yaml"
    file.write_text("workers: 5\n")

    assert main(["check", "--config", str(file)], {"VELOX_CONFIG": "/absent"}) == 0
    assert ["VELOX_WORKERS", "5", "file"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_serve_with_simulator_and_origin_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Two upstreams were named: neither is silently dropped."""
    assert main(["serve", "--sim"], {"VELOX_UPSTREAM_ORIGIN": "https://example.com"}) == 2
    assert "VELOX_UPSTREAM_ORIGIN" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["--ttft", "5"],
        ["--listen", "unix:/x"],
        ["--listen", "example.com:1"],
        ["--error-rate", "2"],
        ["--cert", "only.pem"],
        ["--tokens", "0"],
    ],
)
def test_simulator_with_wrong_options_does_not_start(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and what was expected."""
    assert main(["sim", *argv], {}) == 2
    assert capsys.readouterr().err.startswith("velox sim: ")


def test_simulator_without_its_certificate_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure while starting is told in one line, exit code 1."""
    assert main(["sim", "--listen", "127.0.0.1:0", "--cert", "/absent", "--key", "/absent"], {}) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("argv", [[], ["fly"], ["serve", "--si"], ["check", "extra"]])
def test_unknown_words_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2; options are not abbreviated, so a new one never changes what an old line means."""
    with pytest.raises(SystemExit) as exited:
        main(argv, {})

    assert exited.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("words", [["key", "create", "--modles", "x"], ["serve", "--prot", "1"]], ids=" ".join)
def test_what_a_command_does_not_know_is_told_with_its_own_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not with that of the whole command line, which has none of its arguments."""
    with pytest.raises(SystemExit) as exited:
        main(words, {})

    command = " ".join(word for word in words[:-2])
    err = capsys.readouterr().err
    assert exited.value.code == 2
    assert err.startswith(f"usage: velox {command} ")
    assert err.endswith(f"velox {command}: error: unrecognized arguments: {' '.join(words[-2:])}\n")


def test_usage_of_calls_tells_that_it_is_not_by_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--by` is for sums; a script that gives both goes on as before."""
    SqliteStore(tmp_path, days=1).close()
    told = "velox usage: --by has no effect: --calls prints each call, not sums\n"

    assert main(["usage", "--calls", "--by", "key"], {"VELOX_LEDGER": str(tmp_path)}) == 0
    assert capsys.readouterr().err == told
    assert main(["usage", "--calls"], {"VELOX_LEDGER": str(tmp_path)}) == 0
    assert main(["usage", "--by", "key"], {"VELOX_LEDGER": str(tmp_path)}) == 0
    assert capsys.readouterr().err == ""


WITHOUT_SECRETS = """
ledger: LEDGER
api_keys: [{name: web, key: vk-of-the-web-0123456789, models: [gpt-4o]}]
upstreams:
  - {name: openai, provider: openai, keys: [env:OPENAI_OF_ROOT, file:/nowhere/of-root]}
  - {name: claude, provider: anthropic, key: env:ANTHROPIC_OF_ROOT}
"""


def test_commands_need_no_providers_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U4: what asks nothing of providers works for who may not read their keys; `check` says what `serve` needs."""
    file = tmp_path / "velox.yaml"
    file.write_text(WITHOUT_SECRETS.replace("LEDGER", str(tmp_path / "ledger")))
    environ = {"VELOX_CONFIG": str(file)}

    assert main(["check"], environ) == 0
    told = capsys.readouterr().out
    for missing in ("variable OPENAI_OF_ROOT", "file '/nowhere/of-root'", "variable ANTHROPIC_OF_ROOT"):
        assert f"`velox serve` would not start, and nothing else needs it: expected a key in the {missing}" in told
    assert main(["check", "--model", "gpt-4o", "--key", "web"], environ) == 0
    assert main(["prices", "gpt-4o"], environ) == 0
    for command in (["usage"], ["key", "list"], ["audit"]):
        main(command, environ)
        assert "expected a key" not in capsys.readouterr().err

    assert main(["serve"], environ) == 2
    assert "expected a key in the variable OPENAI_OF_ROOT, which is not set" in capsys.readouterr().err


def test_key_that_is_no_reference_is_wrong_for_all_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U4: what is wrong with the file itself is no missing secret."""
    file = tmp_path / "velox.yaml"
    file.write_text(WITHOUT_SECRETS.replace("env:ANTHROPIC_OF_ROOT", "sk-ant-in-the-file"))
    assert main(["check"], {"VELOX_CONFIG": str(file)}) == 2
    shown = capsys.readouterr().err
    assert "never a key itself" in shown and "sk-ant-in-the-file" not in shown
