"""`velox reload` before it asks anybody: where the gateway is, by which token, with other settings that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.cli import main
from velox.settings.loading import admin_place
from velox.settings.routing.upstreams import files_of_bad
from velox.types import Address

BAD = "admin_listen: 127.0.0.1:7070\nadmin_token: token-token-token\nworkerz: 1\nroutes: [1]\n"


def place(environ: dict[str, str], **overrides: str) -> tuple[Address | None, str | None, int]:
    """Return the address, the token and the number of problems."""
    address, token, _, problems = admin_place(environ, overrides)
    return address, None if token is None else token.reveal(), len(problems)


def test_place_is_the_default_without_settings() -> None:
    """Loopback, and no token."""
    assert place({}) == (Address("tcp", "127.0.0.1", 6060), None, 0)


def test_place_is_found_in_a_file_that_is_bad_otherwise(tmp_path: Path) -> None:
    """Which is when one wants to ask. Environment and command line stand before it."""
    file = tmp_path / "velox.yaml"
    file.write_text(BAD)
    environ = {"VELOX_CONFIG": str(file)}
    assert place(environ) == (Address("tcp", "127.0.0.1", 7070), "token-token-token", 0)
    assert place({"VELOX_CONFIG": "/absent"}, VELOX_CONFIG=str(file))[0] == Address("tcp", "127.0.0.1", 7070)
    assert place({**environ, "VELOX_ADMIN_LISTEN": "unix:/x"})[0] == Address("unix", path="/x")
    assert place(environ, VELOX_ADMIN_LISTEN="[::1]:1")[0] == Address("tcp", "::1", 1)


def test_place_of_a_file_that_is_no_yaml_is_the_default(tmp_path: Path) -> None:
    """Nothing can be known from it."""
    file = tmp_path / "velox.yaml"
    file.write_text("admin_listen: [\n")
    assert place({"VELOX_CONFIG": str(file)}) == (Address("tcp", "127.0.0.1", 6060), None, 0)


def test_token_is_read_from_its_file(tmp_path: Path) -> None:
    """As the gateway reads it."""
    file = tmp_path / "token"
    file.write_text("token-of-the-file\n")
    assert place({"VELOX_ADMIN_TOKEN_FILE": str(file)})[1] == "token-of-the-file"
    assert place({"VELOX_ADMIN_TOKEN_FILE": str(tmp_path / "absent")})[2] == 1


@pytest.mark.parametrize(
    ("argv", "environ", "said"),
    [
        (["--admin", "127.0.0.1:1"], {}, "the gateway can't be reached at 127.0.0.1:1 (Connection refused)"),
        (["--admin", "localhost"], {}, "velox reload: --admin is 'localhost': expected"),
        (["--admin", "localhost"], {"VELOX_ADMIN_LISTEN": "127.0.0.1:1"}, "velox reload: --admin is 'localhost': "),
        (["--admin", "off"], {}, "velox reload: --admin is off: send SIGHUP to the supervisor instead"),
        (["--config", "/absent"], {}, "velox reload: --config is '/absent': expected a file that can be read"),
        (["--config", "/absent", "--admin", "127.0.0.1:1"], {}, "the gateway can't be reached at 127.0.0.1:1"),
        ([], {"VELOX_CONFIG": "/absent", "VELOX_ADMIN_LISTEN": "127.0.0.1:1"}, "the gateway can't be reached at"),
        ([], {"VELOX_ADMIN_LISTEN": "localhost"}, "velox reload: VELOX_ADMIN_LISTEN is 'localhost': expected"),
        ([], {"VELOX_ADMIN_LISTEN": "off"}, "VELOX_ADMIN_LISTEN is off: send SIGHUP to the supervisor instead"),
    ],
)
def test_gateway_that_can_not_be_asked_is_exit_code_2(
    argv: list[str], environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, in one line."""
    assert main(["reload", *argv], environ) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("environ", "code", "said"),
    [
        ({"VELOX_ADMIN_LISTEN": "127.0.0.1:1"}, 1, "the gateway can't be reached at 127.0.0.1:1 (Connection"),
        ({"VELOX_ADMIN_LISTEN": "unix:/absent"}, 1, "the gateway can't be reached at unix:/absent (No such"),
        ({"VELOX_ADMIN_LISTEN": "127.0.0.1:1", "VELOX_ADMIN_TLS_CERT": "/absent"}, 1, "can't be reached at"),
        ({"VELOX_ADMIN_LISTEN": "127.0.0.1:1", "VELOX_ADMIN_TOKEN_FILE": "/absent"}, 1, "can't be reached at"),
        ({"VELOX_ADMIN_LISTEN": "localhost"}, 2, "velox health: VELOX_ADMIN_LISTEN is 'localhost': expected"),
        ({"VELOX_ADMIN_LISTEN": "off"}, 2, "velox health: VELOX_ADMIN_LISTEN is off, so nothing can be asked"),
    ],
)
def test_health_that_can_not_be_asked_is_told_in_one_line(
    environ: dict[str, str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By variables alone; no token is needed."""
    assert main(["health"], environ) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err and err.startswith("velox health: ") and err.count("\n") == 1


def test_files_that_a_bad_file_names_are_found(tmp_path: Path) -> None:
    """As lists and texts; what has no shape, or is no file, is none."""
    file = tmp_path / "velox.yaml"
    file.write_text("""\
upstreams:
  - {name: a, keys: [file:/a/1, env:X, 'file:']}
  - {keys: 'file:/a/2, file:/a/3'}
  - {keys: {x: file:/a/4}}
  - just a text
  - {name: b, keyz: [file:/a/5], ca_file: /a/ca, cert_file: /a/cert, key_file: }
routes: file:/a/6
prices: /a/prices
""")
    assert files_of_bad(str(file)) == {"/a/1", "/a/2", "/a/3", "/a/ca", "/a/cert", "/a/prices"}
    file.write_text("upstreams: [\n")
    assert files_of_bad(str(file)) == frozenset()
    assert files_of_bad(str(tmp_path / "absent")) == frozenset()
