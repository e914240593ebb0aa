"""B-53 for keys and the admin listener: what is wrong is told at the start, all at once, without a secret."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from velox.cli import main
from velox.settings import SettingsError, load

SECRET = "sk-very-secret"
TOKEN = "VELOX_ADMIN_TOKEN"
OPEN = {"VELOX_LISTEN": "0.0.0.0:8080"}
OPEN_ADMIN = {"VELOX_ADMIN_LISTEN": "0.0.0.0:6060"}
# FOLDER stands for a folder that holds these files.
FILES = {
    "good": f"{SECRET}\n",
    "empty": "# none\n\n",
    "spaces": f"ok\n{SECRET} {SECRET}\nalso-ok\n",
    "limits.yaml": f"- {{name: team-a, key: {SECRET}, rpm: -60}}\n",
    "differs.yaml": f"- {{name: team-a, key: {SECRET}}}\n",
    "token": f"{SECRET}\n",
    "two-words": f"{SECRET} {SECRET}",
    "nothing": "\n",
}

# Each configuration, and how each of its problems begins.
WRONG: list[tuple[Mapping[str, str], list[str]]] = [
    (OPEN, ["VELOX_LISTEN is '0.0.0.0:8080': expected VELOX_API_KEYS or VELOX_API_KEYS_FILE"]),
    ({**OPEN, "VELOX_API_KEYS": ""}, ["VELOX_LISTEN is"]),
    ({"VELOX_CORS_ORIGINS": "*"}, ["VELOX_CORS_ORIGINS is '*': expected the origins themselves"]),
    ({"VELOX_CORS_ORIGINS": "https://a/b"}, ["VELOX_CORS_ORIGINS is 'https://a/b': expected origins of web pages"]),
    (
        {**OPEN, "VELOX_API_KEYS_FILE": "FOLDER/empty"},
        ["VELOX_API_KEYS_FILE is 'FOLDER/empty': expected at least one key"],
    ),
    ({"VELOX_API_KEYS_FILE": "FOLDER/absent"}, ["VELOX_API_KEYS_FILE is 'FOLDER/absent': expected a file that can be"]),
    ({"VELOX_API_KEYS_FILE": "FOLDER"}, ["VELOX_API_KEYS_FILE is 'FOLDER': expected a file that can be read"]),
    ({"VELOX_API_KEYS_FILE": "FOLDER/spaces"}, ["FOLDER/spaces:2: VELOX_API_KEYS_FILE: expected 1 to 512 visible"]),
    (
        {"VELOX_API_KEYS_FILE": "FOLDER/limits.yaml"},
        ["FOLDER/limits.yaml:1: rpm: expected a whole number from 1 to"],
    ),
    (
        {"VELOX_API_KEYS": SECRET, "VELOX_API_KEYS_FILE": "FOLDER/differs.yaml"},
        ["FOLDER/differs.yaml:1: a key: expected each key once; it stands at VELOX_API_KEYS too"],
    ),
    (
        {"VELOX_API_KEYS": f"{SECRET},,b"},
        ["VELOX_API_KEYS is hidden: in key 2 of those between commas, expected 1 to 512 visible ASCII characters"],
    ),
    ({"VELOX_API_KEYS": f"{SECRET} x"}, ["VELOX_API_KEYS is hidden: in key 1 of those between commas, expected"]),
    (
        {"VELOX_API_KEYS": "sha256:12"},
        ["VELOX_API_KEYS is hidden: in key 1 of those between commas, expected 64 hexadecimal digits after sha256:"],
    ),
    (
        {"VELOX_API_KEYS": f"sha256:{hashlib.sha256(b'').hexdigest()}"},
        ["VELOX_API_KEYS is hidden: in key 1 of those between commas, expected the digest of a key"],
    ),
    ({"VELOX_AUTH": "none", "VELOX_API_KEYS": SECRET}, ["VELOX_AUTH is 'none': expected keys, or no VELOX_API_KEYS"]),
    ({"VELOX_AUTH": "off"}, ["VELOX_AUTH is 'off': expected keys or none"]),
    ({"VELOX_API_KEY": SECRET}, ["VELOX_API_KEY: there is no such variable; did you mean VELOX_API_KEYS?"]),
    (OPEN_ADMIN, ["VELOX_ADMIN_LISTEN is '0.0.0.0:6060': expected VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE"]),
    ({"VELOX_ADMIN_LISTEN": "[::]:6060"}, ["VELOX_ADMIN_LISTEN is '[::]:6060': expected VELOX_ADMIN_TOKEN or"]),
    ({**OPEN_ADMIN, TOKEN: f"{SECRET} x"}, ["VELOX_ADMIN_TOKEN is hidden: expected visible ASCII characters only"]),
    (
        {**OPEN_ADMIN, f"{TOKEN}_FILE": "FOLDER/nothing"},
        ["VELOX_ADMIN_TOKEN_FILE is 'FOLDER/nothing': in it, expected"],
    ),
    ({f"{TOKEN}_FILE": "FOLDER/two-words"}, ["VELOX_ADMIN_TOKEN_FILE is 'FOLDER/two-words': in it, expected visible"]),
    (
        {f"{TOKEN}_FILE": "FOLDER/absent"},
        ["VELOX_ADMIN_TOKEN_FILE is 'FOLDER/absent': expected a file that can be read"],
    ),
    (
        {TOKEN: SECRET, f"{TOKEN}_FILE": "FOLDER/token"},
        ["VELOX_ADMIN_TOKEN_FILE is 'FOLDER/token': expected this or VELOX_ADMIN_TOKEN, not both"],
    ),
    ({"VELOX_ADMIN_HOSTS": "a b"}, ["VELOX_ADMIN_HOSTS is 'a b': expected names of hosts"]),
    ({"VELOX_ADMIN_HOSTS": "velox:6060"}, ["VELOX_ADMIN_HOSTS is 'velox:6060': expected names of hosts"]),
    ({"VELOX_PROFILING": "maybe"}, ["VELOX_PROFILING is 'maybe': expected on or off"]),
    ({"VELOX_PROFILE_INTERVAL": "60"}, ["VELOX_PROFILE_INTERVAL is '60': expected a number with its unit"]),
    ({"VELOX_UPSTREAM_ACCOUNT_HEADERS": "on"}, ["VELOX_UPSTREAM_ACCOUNT_HEADERS is 'on': expected drop or pass"]),
    (
        {**OPEN, **OPEN_ADMIN, "VELOX_PROFILING": "2", "VELOX_WORKERS": "-1"},
        ["VELOX_PROFILING", "VELOX_WORKERS", "VELOX_LISTEN", "VELOX_ADMIN_LISTEN"],
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the table."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def placed(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables with the folder's name in them."""
    return {name: text.replace("FOLDER", str(folder)) for name, text in environ.items()}


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize(("environ", "expected"), WRONG, ids=range(len(WRONG)))
def test_wrong_configuration_is_told_in_one_line_a_problem(
    environ: Mapping[str, str],
    expected: list[str],
    command: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, a line for each problem and no more, nothing is started, no key and no token is shown."""
    code = main([command], placed(environ, folder))

    out, err = capsys.readouterr()
    first, *lines = err.splitlines()
    assert (code, out) == (2, "")
    begin = "not valid" if command == "check" else "velox"
    assert first.startswith(f"{begin}: {len(expected)} problem")
    assert len(lines) == len(expected), lines
    for line, begins in zip(lines, expected, strict=True):
        assert line.startswith("  " + begins.replace("FOLDER", str(folder))), line
    assert SECRET not in err


@pytest.mark.parametrize(
    "environ",
    [
        {**OPEN, "VELOX_API_KEYS": SECRET},
        {**OPEN, "VELOX_API_KEYS_FILE": "FOLDER/good"},
        {**OPEN, "VELOX_AUTH": "none"},
        {"VELOX_LISTEN": "unix:/run/velox.sock"},
        {"VELOX_API_KEYS": SECRET, "VELOX_API_KEYS_FILE": "FOLDER/good"},
        {**OPEN_ADMIN, TOKEN: SECRET},
        {**OPEN_ADMIN, f"{TOKEN}_FILE": "FOLDER/token"},
        {"VELOX_ADMIN_LISTEN": "unix:/run/velox-admin.sock"},
        {"VELOX_ADMIN_LISTEN": "[::1]:6060"},
        {"VELOX_ADMIN_LISTEN": "off"},
    ],
)
def test_closed_doors_and_local_ones_are_right(environ: Mapping[str, str], folder: Path) -> None:
    """Beyond loopback with keys and a token; a unix socket is guarded by its file's mode."""
    settings = load(placed(environ, folder), cores=2)

    assert SECRET not in repr(settings)


def test_token_is_taken_from_its_file_without_the_line_end(folder: Path) -> None:
    """As editors and secrets leave it."""
    settings = load({f"{TOKEN}_FILE": str(folder / "token")}, cores=2)

    assert settings.admin_token is not None
    assert settings.admin_token.reveal() == SECRET


def test_profiles_keep_a_minute_apart_where_others_can_ask_for_them() -> None:
    """On loopback there is no pause, unless it is given."""
    assert load({}, cores=2).profile_pause_s == 0.0
    assert load({"VELOX_ADMIN_LISTEN": "unix:/x"}, cores=2).profile_pause_s == 0.0
    assert load({**OPEN_ADMIN, TOKEN: SECRET}, cores=2).profile_pause_s == 60.0
    assert load({**OPEN_ADMIN, TOKEN: SECRET, "VELOX_PROFILE_INTERVAL": "0"}, cores=2).profile_pause_s == 0.0
    assert load({"VELOX_PROFILE_INTERVAL": "5s"}, cores=2).profile_pause_s == 5.0


def test_token_and_keys_are_told_of_and_not_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`velox check` says that they are there, and how many keys are limited."""
    environ = {"VELOX_API_KEYS_FILE": str(folder / "limited"), TOKEN: SECRET}
    (folder / "limited").write_text(f"- {{name: team-a, key: {SECRET}, models: [m]}}\n- other\n")

    assert main(["check"], environ) == 0

    out = capsys.readouterr().out
    assert ["VELOX_ADMIN_TOKEN", "hidden", "environment"] in [line.split() for line in out.splitlines()]
    assert out.endswith("clients must present one of 2 keys; 1 of them may use some models only\n")
    assert "objects: each of 2 names of keys sees the files, responses and others that it made" in out
    assert SECRET not in out
    with pytest.raises(SettingsError):
        load({**environ, f"{TOKEN}_FILE": "x"}, cores=2)


def test_origins_of_pages_stand_in_the_file_as_a_group(folder: Path) -> None:
    """C17: `cors: {origins: [...]}`, or by the variable's name; a field that is none of it is told of."""
    file = folder / "velox.yaml"
    for text in (
        'cors: {origins: ["https://app.example", "http://localhost:*"]}',
        "cors:\n  origins: https://app.example,http://localhost:*",
        'cors_origins: ["https://app.example", "http://localhost:*"]',
    ):
        file.write_text(text)
        settings = load({"VELOX_CONFIG": str(file)}, cores=2)
        assert settings.cors_origins == ("https://app.example", "http://localhost:*")
    for text in ("cors: {origin: x}", "cors: [x]", "cors: x", "cors: {origins: [{a: b}]}"):
        file.write_text(text)
        with pytest.raises(SettingsError) as refused:
            load({"VELOX_CONFIG": str(file)}, cores=2)
        (problem,) = refused.value.problems
        assert "cors" in str(problem)
