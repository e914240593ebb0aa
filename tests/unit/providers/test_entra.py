"""Where Microsoft Entra's tokens come from, with a client that is made up."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest

from tests.unit.providers.fetch_client import FakeFetchClient, run
from velox.providers.entra import EntraChain
from velox.providers.renewal import Fetched, FetchError

_NOW = 1_790_000_000.0
_SCOPE = "https://cognitiveservices.azure.com/.default"
_GIVEN = (200, {"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": "eyJ.tok"})
_MADE = Fetched("eyJ.tok", _NOW + 3599.0)
_CLIENT = {"AZURE_TENANT_ID": "t/1", "AZURE_CLIENT_ID": "c1"}
_URL = "POST https://login.microsoftonline.com/t%2F1/oauth2/v2.0/token"
_IMDS = "GET http://169.254.169.254/metadata/identity/oauth2/token"


def _fetch(environment: dict[str, str], client: FakeFetchClient) -> Fetched[str]:
    return run(EntraChain(environment, client, clock=lambda: _NOW, scope=_SCOPE)())


def _reason(environment: dict[str, str], client: FakeFetchClient) -> str:
    with pytest.raises(FetchError) as caught:
        _fetch(environment, client)
    assert "s3cret" not in caught.value.reason and "eyJ" not in caught.value.reason
    return caught.value.reason


def _form(client: FakeFetchClient) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs((client.asked[0].body or b"").decode()).items()}


def test_client_secret_gets_a_token() -> None:
    client = FakeFetchClient({_URL: _GIVEN})

    assert _fetch({**_CLIENT, "AZURE_CLIENT_SECRET": "s3cret"}, client) == _MADE
    assert _form(client) == {
        "grant_type": "client_credentials",
        "client_id": "c1",
        "client_secret": "s3cret",
        "scope": _SCOPE,
    }
    assert "s3cret" not in repr(client.asked)

    china = FakeFetchClient({_URL.replace("microsoftonline.com", "chinacloudapi.cn"): _GIVEN})
    host = {"AZURE_AUTHORITY_HOST": "https://login.chinacloudapi.cn/"}
    assert _fetch({**_CLIENT, **host, "AZURE_CLIENT_SECRET": "s3cret"}, china) == _MADE


def test_client_that_is_refused_says_why() -> None:
    said = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret\r\nTrace ID: 1"}
    env = {**_CLIENT, "AZURE_CLIENT_SECRET": "s3cret"}
    assert _reason(env, FakeFetchClient({_URL: (401, said)})) == (
        "Entra, for the client c1, gave no token: it answered 401 "
        "(invalid_client: AADSTS7000215: Invalid client secret Trace ID: 1)"
    )
    assert "connection refused" in _reason(env, FakeFetchClient())
    for missing in _CLIENT:
        assert f"but {missing} is not" in _reason({**env, missing: ""}, FakeFetchClient())
    assert "not https" in _reason({**env, "AZURE_AUTHORITY_HOST": "http://x"}, FakeFetchClient())


def test_workload_identity_sends_the_token_of_now() -> None:
    client = FakeFetchClient({_URL: _GIVEN}, {"/federated": "one\n"})
    env = {**_CLIENT, "AZURE_FEDERATED_TOKEN_FILE": "/federated"}

    assert _fetch(env, client) == _MADE
    form = _form(client)
    assert form["client_assertion"] == "one"
    assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    client.asked.clear()
    client.files["/federated"] = "two"
    _fetch(env, client)
    assert _form(client)["client_assertion"] == "two"

    assert "missing" in _reason(env, FakeFetchClient())
    assert "empty" in _reason(env, FakeFetchClient({}, {"/federated": " "}))


def test_app_service_has_an_endpoint_of_its_own() -> None:
    env = {"IDENTITY_ENDPOINT": "http://127.0.0.1:41/msi/token", "IDENTITY_HEADER": "s3cret"}
    client = FakeFetchClient(
        {"GET http://127.0.0.1:41/msi/token": (200, {"access_token": "eyJ.tok", "expires_on": "1790003599"})}
    )

    assert _fetch(env, client) == Fetched("eyJ.tok", 1_790_003_599.0)
    assert client.headers(0) == {"x-identity-header": "s3cret"}
    query = "api-version=2019-08-01&resource=https%3A%2F%2Fcognitiveservices.azure.com"
    assert client.asked[0].url.endswith("?" + query)


def test_managed_identity_of_the_instance_comes_last() -> None:
    client = FakeFetchClient(
        {_IMDS: (200, {"access_token": "eyJ.tok", "expires_in": "3599", "expires_on": "1790003599"})}
    )

    assert _fetch({"AZURE_CLIENT_ID": "mine"}, client) == _MADE
    assert client.headers(0) == {"metadata": "true"}
    assert "client_id=mine" in client.asked[0].url

    assert "does not answer (connection refused)" in _reason({}, FakeFetchClient())
    said = {"error": "invalid_request", "error_description": "Identity not found"}
    assert "400 (invalid_request: Identity not found)" in _reason({}, FakeFetchClient({_IMDS: (400, said)}))
