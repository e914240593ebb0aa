"""The certificate that clients are shown: everything that could make a handshake fail is found at the start."""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from velox.cli import main
from velox.settings import SettingsError, load
from velox.settings.checks.certificates import CertificateError, read_certificate

CERT, KEY, CLIENT_CA = "VELOX_TLS_CERT", "VELOX_TLS_KEY", "VELOX_TLS_CLIENT_CA"
PRIVATE = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def problems(environ: dict[str, str]) -> list[str]:
    """Return what load() finds wrong."""
    with pytest.raises(SettingsError) as raised:
        load(environ, cores=2)
    return [str(problem) for problem in raised.value.problems]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate, its key, both in one file, somebody else's key, a key with a password in two forms, and none."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    mine, other = authority.issue_cert("gateway.test"), authority.issue_cert("other.test")
    private = serialization.load_pem_private_key(mine.private_key_pem.bytes(), None)
    password = serialization.BestAvailableEncryption(b"secret")
    forms = serialization.PrivateFormat
    contents = {
        "cert": b"".join(pem.bytes() for pem in mine.cert_chain_pems),
        "key": mine.private_key_pem.bytes(),
        "both": mine.private_key_and_cert_chain_pem.bytes(),
        "other": other.private_key_pem.bytes(),
        "locked": private.private_bytes(serialization.Encoding.PEM, forms.PKCS8, password),
        "locked-old": private.private_bytes(serialization.Encoding.PEM, forms.TraditionalOpenSSL, password),
        "damaged": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "authority": authority.cert_pem.bytes(),
        "empty": b"",
        "large": b"#" * (2**20 + 1),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    return {name: str(folder / name) for name in (*contents, "pipe", "absent")}


def certificate(folder: Path, private: PRIVATE, *, until: datetime.datetime) -> tuple[str, str]:
    """Write a certificate that ends at some time, and its key; return both paths."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway.test")])
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    built = builder.not_valid_before(datetime.datetime(1999, 1, 1)).not_valid_after(until)
    algorithm = None if isinstance(private, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    (folder / "made.pem").write_bytes(built.sign(private, algorithm).public_bytes(serialization.Encoding.PEM))
    (folder / "made.key").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(folder / "made.pem"), str(folder / "made.key")


def test_certificate_and_key_are_taken(files: dict[str, str]) -> None:
    """In two files, or in one that stands in both variables."""
    two = load({CERT: files["cert"], KEY: files["key"], CLIENT_CA: files["authority"]}, cores=2)
    assert (two.tls_cert_file, two.tls_key_file) == (files["cert"], files["key"])
    assert two.tls_client_ca_file == files["authority"]
    assert load({CERT: files["both"], KEY: files["both"]}, cores=2).tls_cert_file == files["both"]


@pytest.mark.parametrize(
    ("cert", "key", "authority", "named", "words"),
    [
        ("cert", "", "", CERT, "expected VELOX_TLS_KEY with it"),
        ("", "key", "", KEY, "expected VELOX_TLS_CERT with it"),
        ("", "", "authority", CLIENT_CA, "expected VELOX_TLS_CERT and VELOX_TLS_KEY with it"),
        ("absent", "key", "", CERT, "No such file"),
        ("cert", "absent", "", KEY, "No such file"),
        ("cert", "key", "absent", CLIENT_CA, "No such file"),
        ("pipe", "key", "", CERT, "regular file"),
        ("large", "key", "", CERT, "at most"),
        ("cert", "other", "", KEY, "the private key of the certificate in VELOX_TLS_CERT"),
        ("cert", "locked", "", KEY, "without a password"),
        ("cert", "locked-old", "", KEY, "without a password"),
        ("cert", "cert", "", KEY, "PEM private key"),
        ("key", "key", "", CERT, "PEM certificate"),
        ("empty", "key", "", CERT, "PEM certificate"),
        ("damaged", "key", "", CERT, "damaged"),
        ("cert", "key", "key", CLIENT_CA, "certificates of authorities"),
        ("cert", "key", "damaged", CLIENT_CA, "certificates of authorities"),
    ],
)
def test_files_that_can_not_be_used_are_refused(
    files: dict[str, str], cert: str, key: str, authority: str, named: str, words: str
) -> None:
    """One line: which variable, which file, what is wrong. Nothing of a key."""
    given = ((CERT, cert), (KEY, key), (CLIENT_CA, authority))

    (problem,) = problems({name: files[file] for name, file in given if file})

    assert problem.startswith(named) and words in problem
    assert "\n" not in problem and "PRIVATE" not in problem


def test_file_without_permission_is_refused(files: dict[str, str]) -> None:
    """The usual mistake: the key is root's, and the gateway is not. In a child, for a root gives that up for good."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cert, key = Path(folder) / "cert", Path(folder) / "key"
        cert.write_bytes(Path(files["cert"]).read_bytes())
        key.touch(mode=0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if os.getuid() == 0:
                    os.setresuid(4242, 4242, 4242)
                (problem,) = problems({CERT: str(cert), KEY: str(key)})
                code = 0 if problem.startswith(KEY) and "Permission denied" in problem else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_tls_with_unix_sockets_only_is_refused(files: dict[str, str]) -> None:
    """The operator believes in TLS that never happens."""
    environ = {CERT: files["cert"], KEY: files["key"], "VELOX_LISTEN": "unix:/run/velox.sock"}

    (problem,) = problems(environ)

    assert problem.startswith(CERT) and "IP:PORT" in problem
    assert load({**environ, "VELOX_LISTEN": "unix:/run/velox.sock,127.0.0.1:8443"}, cores=2)


@pytest.mark.parametrize("year", [2001, 2049, 2050, 2099])
@pytest.mark.parametrize("kind", ["rsa", "ec", "ed25519"])
def test_end_of_validity_is_read(tmp_path: Path, year: int, kind: str) -> None:
    """RFC 5280 §4.1.2.5: two digits of the year up to 2049, four from then on."""
    private: PRIVATE
    if kind == "rsa":
        private = rsa.generate_private_key(65537, 2048)
    else:
        private = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    until = datetime.datetime(year, 2, 28, 23, 59, 58)

    found = read_certificate(*certificate(tmp_path, private, until=until), None)

    assert found.not_after == f"{year}-02-28 23:59:58 UTC"
    assert found.not_after_s == until.replace(tzinfo=datetime.UTC).timestamp()
    assert found.is_expired == (year == 2001)


def test_kinds_of_keys_are_told_apart(tmp_path: Path) -> None:
    """OpenSSL keeps a certificate for each: another kind does not take the old one's place."""
    until = datetime.datetime(2040, 1, 1)
    kinds = set()
    for private in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())):
        kinds.add(read_certificate(*certificate(tmp_path, private, until=until), None).key_kind)
    assert len(kinds) == 2


def test_key_that_openssl_finds_too_weak_is_refused(tmp_path: Path) -> None:
    made = certificate(tmp_path, rsa.generate_private_key(65537, 1024), until=datetime.datetime(2040, 1, 1))

    with pytest.raises(CertificateError, match="too small"):
        read_certificate(*made, None)


def test_expired_certificate_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gateway that does not start at all would be worse: other listeners, and those that do not check."""
    cert, key = certificate(tmp_path, ec.generate_private_key(ec.SECP256R1()), until=datetime.datetime(2020, 1, 1))

    assert main(["check"], {CERT: cert, KEY: key}) == 0

    assert "WARNING: the certificate in VELOX_TLS_CERT has expired on 2020-01-01" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("year", "said"),
    [
        (2020, "WARNING: the certificate in VELOX_ADMIN_TLS_CERT has expired on 2020-01-01 00:00:00 UTC: no client"),
        (2040, "the admin listener shows a certificate that is valid until 2040-01-01 00:00:00 UTC"),
    ],
)
def test_check_says_when_the_certificate_of_the_admin_listener_expires(
    tmp_path: Path, year: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody else does before a scrape fails."""
    cert, key = certificate(tmp_path, ec.generate_private_key(ec.SECP256R1()), until=datetime.datetime(year, 1, 1))

    assert main(["check"], {"VELOX_ADMIN_TLS_CERT": cert, "VELOX_ADMIN_TLS_KEY": key}) == 0

    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(said)]


def test_check_says_what_clients_are_shown(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The paths, the end of validity, and that they must show one too; nothing of the key."""
    assert main(["check"], {CERT: files["cert"], KEY: files["key"], CLIENT_CA: files["authority"]}) == 0

    told = capsys.readouterr().out
    assert files["cert"] in told and "valid until" in told and "they must show one of their own" in told
    assert "PRIVATE" not in told


def test_key_is_in_no_repr(files: dict[str, str]) -> None:
    """A traceback or a log line may show it."""
    found = read_certificate(files["cert"], files["key"], None)

    assert "PRIVATE" not in repr(found) and "key_pem" not in repr(found)
