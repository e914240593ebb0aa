"""The client certificate for upstreams: everything that could make its handshake fail is found at the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from velox.settings import SettingsError, load

CERT, KEY = "VELOX_UPSTREAM_CERT_FILE", "VELOX_UPSTREAM_KEY_FILE"


def problems(environ: dict[str, str]) -> list[str]:
    """Return what load() finds wrong."""
    with pytest.raises(SettingsError) as raised:
        load(environ, cores=2)
    return [str(problem) for problem in raised.value.problems]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A certificate, its key, both in one file, somebody else's key, a key with a password, and none."""
    authority = trustme.CA()
    mine, other = authority.issue_cert("gateway.test"), authority.issue_cert("other.test")
    private = serialization.load_pem_private_key(mine.private_key_pem.bytes(), None)
    locked = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    contents = {
        "cert": mine.cert_chain_pems[0].bytes(),
        "key": mine.private_key_pem.bytes(),
        "both": mine.private_key_and_cert_chain_pem.bytes(),
        "other": other.private_key_pem.bytes(),
        "locked": locked,
        "empty": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in (*contents, "absent")}


def test_certificate_and_key_in_one_file_or_two(files: dict[str, str]) -> None:
    """The key's file is needed only where the certificate's has none."""
    two = load({CERT: files["cert"], KEY: files["key"]}, cores=2)
    assert (two.upstream_cert_file, two.upstream_key_file) == (files["cert"], files["key"])
    one = load({CERT: files["both"]}, cores=2)
    assert (one.upstream_cert_file, one.upstream_key_file) == (files["both"], None)


@pytest.mark.parametrize(
    ("cert", "key", "named", "words"),
    [
        ("absent", "key", CERT, "expected a file that can be read"),
        ("cert", "absent", KEY, "expected a file that can be read"),
        ("cert", "other", CERT, "key values mismatch"),
        ("cert", "locked", CERT, "without a password"),
        ("cert", "", CERT, "its own private key"),
        ("empty", "key", CERT, "PEM certificate"),
        ("key", "key", CERT, "PEM certificate"),
        ("", "key", KEY, "expected VELOX_UPSTREAM_CERT_FILE with it"),
    ],
)
def test_pair_that_can_not_be_used_is_refused(
    files: dict[str, str], cert: str, key: str, named: str, words: str
) -> None:
    """The message says which file and why, and shows nothing of the key."""
    environ = {name: files[file] for name, file in ((CERT, cert), (KEY, key)) if file}

    (problem,) = problems(environ)

    assert problem.startswith(named) and words in problem
    assert "PRIVATE" not in problem


def test_certificate_that_nobody_would_be_shown_is_refused(files: dict[str, str]) -> None:
    """With plain origins only the operator believes in a proof of identity that never happens."""
    plain = {CERT: files["both"], "VELOX_UPSTREAM_ORIGIN": "http://a.test,unix:/run/up.sock"}

    (problem,) = problems(plain)

    assert problem.startswith(CERT) and "https" in problem
    assert load({**plain, "VELOX_UPSTREAM_ORIGIN": "http://a.test,https://b.test"}, cores=2)
