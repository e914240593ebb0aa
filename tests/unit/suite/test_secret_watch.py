"""The watch over the whole suite: it finds what must not be there, and says where."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.secret_watch import SecretWatch

ROOT = Path(__file__).parents[3]
SECRET = "sk-secret-0123456789"


@pytest.fixture
def watch(tmp_path: Path) -> SecretWatch:
    return SecretWatch(home=tmp_path)


def test_secret_in_what_was_written_is_found_with_file_and_line(watch: SecretWatch) -> None:
    """The finding names the file, the line and the kind of secret, and does not repeat the secret itself."""
    watch.secret(SECRET, "the key of a client")
    with watch.open("stderr") as file:
        file.write(b'all is well\n{"message":"got sk-secret-0123456789 from a client"}\n')

    (finding,) = watch.search()

    assert "-stderr:2: the key of a client was written" in finding
    assert "got <HERE> from" in finding and SECRET not in finding
    assert Path(finding.partition(":")[0]).read_bytes().count(b"\n") == 2, "it is kept, to be looked at"


def test_what_holds_no_secret_is_removed(watch: SecretWatch) -> None:
    """A run without a finding leaves nothing behind."""
    watch.secret(SECRET, "the key of a client")
    watch.note("page", b"velox_requests_total 1\n")
    folder = watch._folder
    assert folder is not None and folder.is_dir()

    assert watch.search() == []
    watch.close()

    assert not folder.exists()


@pytest.mark.parametrize("name", ["Access-Control-Request-Headers", "access-control-request-headers"])
def test_names_of_headers_are_no_secret(watch: SecretWatch, name: str) -> None:
    """A browser asks for them by name; errors that say where a key may stand name them too."""
    watch.request("/v1/chat/completions", {name: "authorization"}, None)
    watch.note("error", b"two different credentials were given, in authorization and x-api-key")

    assert watch.search() == []


@pytest.mark.parametrize(
    "written",
    [b'quoted: {\\"content\\":\\"the tale of a fox\\"}]}', gzip.compress(b'{"content":"the tale of a fox"}]}')],
    ids=["as JSON in JSON", "in a profile"],
)
def test_body_is_found_in_any_form(watch: SecretWatch, written: bytes) -> None:
    """The end of a request's body is what is searched for, also with its quotes escaped, also in what is packed."""
    watch.request("/v1/chat/completions", {}, b'{"model":"m","messages":[{"content":"the tale of a fox"}]}')
    watch.note("page", written)

    assert len(watch.search()) == 1


def test_settings_and_the_files_they_name_hold_secrets(watch: SecretWatch, tmp_path: Path) -> None:
    """Keys, tokens, private keys and the keys in a YAML file; digests and certificates are none."""
    files = {
        "keys": "# for the team\nsk-in-the-file # of the keys\n",
        "tls.pem": "-----BEGIN CERTIFICATE-----\nAAAABBBBCCCC\n-----END CERTIFICATE-----\n"
        "-----BEGIN PRIVATE KEY-----\nSECRETBASE64LINE\n-----END PRIVATE KEY-----\n",
        "velox.yaml": "workers: 2\napi_keys:\n- name: team-a\n  key: sk-in-the-yaml\n- sk-plain-item\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    watch.settings(
        {
            "VELOX_API_KEYS": "sk-one-of-two,sk-two-of-two,sha256:" + "a" * 64,
            "VELOX_API_KEYS_FILE": str(tmp_path / "keys"),
            "VELOX_ADMIN_TOKEN": "token-of-the-admin",
            "VELOX_TLS_CERT": str(tmp_path / "tls.pem"),
            "VELOX_CONFIG": str(tmp_path / "velox.yaml"),
            "VELOX_WORKERS": "2222222222",
        }
    )

    assert set(watch._secrets) == {
        b"sk-one-of-two", b"sk-two-of-two", b"sk-in-the-file", b"token-of-the-admin", b"SECRETBASE64LINE",
        b"sk-in-the-yaml", b"sk-plain-item",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["0", "2"])
@pytest.mark.more
def test_run_that_wrote_a_secret_fails_though_its_tests_passed(tmp_path: Path, jobs: str) -> None:
    """A real run, in one process or in some: a planted secret, all tests pass, the exit code says no."""
    planted = tmp_path / "test_planted.py"
    planted.write_text(
        "from tests.secret_watch import WATCH\n"
        "def test_passes():\n"
        f"    WATCH.secret({SECRET!r}, 'the planted key')\n"
        f"    WATCH.note('page', b'x\\ny {SECRET}')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.secret_watch", "-p", "no:cacheprovider"]
    command += ["-n", jobs, "--rootdir", str(tmp_path), "-c", os.devnull, str(planted)]

    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip

    assert "1 passed" in done.stdout and done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "was written" in line]
    assert "test_passes-page:2: the planted key was written" in line
