"""Where Google's tokens come from, with a client that is made up. The signature is a real one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from tests.unit.providers.fetch_client import FakeFetchClient, run
from velox.providers.google import GoogleChain
from velox.providers.renewal import Fetched, FetchError
from velox.runtime.signing.chains import google_signer

_NOW = 1_790_000_000.0
_TOKEN_URL = "POST https://oauth2.googleapis.com/token"
_GIVEN = (200, {"access_token": "ya29.tok", "expires_in": 3599, "token_type": "Bearer"})
_MADE = Fetched("ya29.tok", _NOW + 3599.0)
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_METADATA = "GET http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"


def _fetch(client: FakeFetchClient, environment: dict[str, str] | None = None) -> Fetched[str]:
    env = {"HOME": "/home/me"} if environment is None else environment
    chain = GoogleChain(env, client, clock=lambda: _NOW, make_signer=google_signer)
    return run(chain())


def _reason(client: FakeFetchClient, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(FetchError) as caught:
        _fetch(client, environment)
    for secret in ("ya29", "s3cret", "PRIVATE", "subject"):
        assert secret not in caught.value.reason.replace("subject_", "")
    return caught.value.reason


def _file(**fields: Any) -> tuple[dict[str, str], dict[str, bytes | str]]:
    return {"GOOGLE_APPLICATION_CREDENTIALS": "/adc.json"}, {"/adc.json": json.dumps(fields)}


def _form(client: FakeFetchClient, at: int = 0) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs((client.asked[at].body or b"").decode()).items()}


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.slow
def test_key_of_a_service_account_signs_an_assertion(key: rsa.RSAPrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    env, files = _file(type="service_account", client_email="me@p.iam", private_key=pem, private_key_id="k1")
    client = FakeFetchClient({_TOKEN_URL: _GIVEN}, files)

    assert _fetch(client, env) == _MADE

    form = _form(client)
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    header, payload, signed, signature = jwt._unverified_decode(form["assertion"])  # type: ignore[no-untyped-call]
    assert header == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert payload == {
        "iss": "me@p.iam",
        "scope": _SCOPE,
        "aud": "https://oauth2.googleapis.com/token",
        "iat": int(_NOW),
        "exp": int(_NOW) + 3600,
    }
    assert crypt.verify_signature(signed, signature, public)  # type: ignore[no-untyped-call]


def test_broken_key_is_told_without_it() -> None:
    env, files = _file(type="service_account", client_email="me@p.iam", private_key="PRIVATE", private_key_id="k1")
    assert "private key of the Google service account can't be read" in _reason(FakeFetchClient({}, files), env)
    env, files = _file(type="service_account", client_email="me@p.iam")
    assert "no complete key" in _reason(FakeFetchClient({}, files), env)


def test_user_of_gclouds_own_file_refreshes() -> None:
    user = {"type": "authorized_user", "client_id": "id", "client_secret": "s3cret", "refresh_token": "s3cret-r"}
    files: dict[str, bytes | str] = {"/home/me/.config/gcloud/application_default_credentials.json": json.dumps(user)}
    client = FakeFetchClient({_TOKEN_URL: _GIVEN}, files)

    assert _fetch(client) == _MADE
    assert _form(client) == {
        "grant_type": "refresh_token",
        "client_id": "id",
        "client_secret": "s3cret",
        "refresh_token": "s3cret-r",
    }

    refused = (400, {"error": "invalid_grant", "error_description": "Token has been expired\nor revoked."})
    reason = _reason(FakeFetchClient({_TOKEN_URL: refused}, files))
    assert reason.endswith("gave no token: it answered 400 (invalid_grant: Token has been expired or revoked.)")


def test_metadata_server_comes_last() -> None:
    client = FakeFetchClient({_METADATA: _GIVEN})

    assert _fetch(client) == _MADE
    assert client.headers(0) == {"metadata-flavor": "Google"}
    assert client.asked[0].url.endswith(f"?scopes={_SCOPE}")

    moved = FakeFetchClient({_METADATA.replace("metadata.google.internal", "127.0.0.1:99"): _GIVEN})
    assert _fetch(moved, {"HOME": "/", "GCE_METADATA_HOST": "127.0.0.1:99"}) == _MADE

    assert "metadata server does not answer (connection refused)" in _reason(FakeFetchClient())
    assert "answered 404" in _reason(FakeFetchClient({_METADATA: (404, "<html>")}))


_FEDERATED = {
    "type": "external_account",
    "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "https://sts.googleapis.com/v1/token",
}
_STS = "POST https://sts.googleapis.com/v1/token"


def test_workload_identity_exchanges_the_token_of_a_file() -> None:
    env, files = _file(**_FEDERATED, credential_source={"file": "/subject"})
    files["/subject"] = "subject-1\n"
    client = FakeFetchClient({_STS: _GIVEN}, files)

    assert _fetch(client, env) == _MADE
    assert _form(client) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "audience": _FEDERATED["audience"],
        "scope": _SCOPE,
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "subject_token": "subject-1",
        "subject_token_type": _FEDERATED["subject_token_type"],
    }
    del files["/subject"]
    assert "/subject of /adc.json is missing" in str(_error(FakeFetchClient({_STS: _GIVEN}, files), env))


def _error(client: FakeFetchClient, env: dict[str, str]) -> FetchError:
    with pytest.raises(FetchError) as caught:
        _fetch(client, env)
    return caught.value


def test_workload_identity_by_url_impersonates_a_service_account() -> None:
    source = {
        "url": "http://169.254.169.254/id?x=1",
        "headers": {"Metadata": "true"},
        "format": {"type": "json", "subject_token_field_name": "access_token"},
    }
    url = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/me@p.iam:generateAccessToken"
    env, files = _file(**_FEDERATED, credential_source=source, service_account_impersonation_url=url)
    answers: dict[str, Any] = {
        "GET http://169.254.169.254/id": (200, {"access_token": "subject-2", "n": 1}),
        _STS: (200, {"access_token": "federated", "expires_in": 3600}),
        f"POST {url}": (200, {"accessToken": "ya29.tok", "expireTime": "2026-09-22T00:00:00Z"}),
    }
    client = FakeFetchClient(answers, files)

    assert _fetch(client, env) == Fetched("ya29.tok", 1_790_035_200.0)
    assert client.headers(0) == {"metadata": "true"}
    assert _form(client, 1)["subject_token"] == "subject-2"
    assert client.headers(2)["authorization"] == "Bearer federated"
    assert json.loads(client.asked[2].body or b"")["scope"] == [_SCOPE]

    denied = {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no getAccessToken"}}
    reason = _reason(FakeFetchClient({**answers, f"POST {url}": (403, denied)}, files), env)
    assert "answered 403 (PERMISSION_DENIED: no getAccessToken)" in reason
    broken = {**answers, "GET http://169.254.169.254/id": (200, {"other": "x"})}
    assert "has no token where /adc.json says" in _reason(FakeFetchClient(broken, files), env)


def test_file_that_is_no_good_is_told() -> None:
    env, files = _file(type="impersonated_service_account")
    assert "'impersonated_service_account', which is not supported" in _reason(FakeFetchClient({}, files), env)
    env, files = _file(
        **_FEDERATED, credential_source={"environment_id": "aws1", "regional_cred_verification_url": "x"}
    )
    assert "neither from a file nor from a URL" in _reason(FakeFetchClient({}, files), env)
    env, files = _file(type="authorized_user", token_uri="http://evil")
    assert "not https" in _reason(FakeFetchClient({}, files), env)
    for content in ("s3cret", b"\xff", "[]"):
        assert "can't be read as a file of Google credentials" in _reason(
            FakeFetchClient({}, {"/adc.json": content}), env
        )
    assert "/adc.json is missing" in _reason(FakeFetchClient(), env)


def test_answer_without_a_usable_token_is_told() -> None:
    for given in (
        (200, {}),
        (200, {"access_token": ""}),
        (200, {"access_token": "a\nb"}),
        (200, "nonsense"),
        (500, b"\xff"),
    ):
        assert "token" in _reason(FakeFetchClient({_METADATA: given}))
    assert _fetch(FakeFetchClient({_METADATA: (200, {"access_token": "t"})})) == Fetched("t", None, 300.0)
