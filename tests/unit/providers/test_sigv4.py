"""Signatures of AWS: botocore makes the same ones."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from velox.heads import Headers
from velox.providers.sigv4 import AwsCredentials, Signer

_NOW_S = 1_790_000_000.7
_PLAIN = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
_SESSION = AwsCredentials("ASIAEXAMPLE", "k/+Secret", "IQoJb3JpZ2luX2VjE=+/token")


@pytest.fixture(scope="module", autouse=True)
def _frozen_botocore() -> Any:
    """Let botocore's signer read the time of the test: it takes no clock."""
    before = botocore.auth.get_current_datetime
    botocore.auth.get_current_datetime = lambda: datetime.fromtimestamp(int(_TIME[0]), UTC)
    yield
    botocore.auth.get_current_datetime = before


_TIME = [_NOW_S]


def _by_botocore(
    credentials: AwsCredentials, region: str, service: str, method: str, url: str, headers: Headers, body: bytes
) -> dict[str, str]:
    request = AWSRequest(method=method, url=url, data=body)
    for name, value in headers:
        request.headers.add_header(name.decode(), value.decode())
    theirs = Credentials(credentials.access_key_id, credentials.secret_access_key, credentials.session_token)
    botocore.auth.SigV4Auth(theirs, service, region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def _check(
    credentials: AwsCredentials = _PLAIN,
    region: str = "us-east-1",
    service: str = "bedrock",
    method: str = "POST",
    target: str = "/",
    headers: Headers | None = None,
    body: bytes = b"",
    signer: Signer | None = None,
    now_s: float = _NOW_S,
) -> None:
    host, headers = f"bedrock-runtime.{region}.amazonaws.com", headers or []
    _TIME[0] = now_s
    theirs = _by_botocore(credentials, region, service, method, f"https://{host}{target}", headers, body)

    signer = signer or Signer(region, service)
    ours = signer.sign(credentials, method.encode(), host.encode(), target.encode(), headers, body, now_s=now_s)

    names = [name.decode() for name, _ in ours]
    assert names[-1] == "authorization"
    assert {name.decode(): value.decode() for name, value in ours} == {name: theirs[name] for name in names}


def test_signature_of_a_request_is_that_of_botocore() -> None:
    _check(target="/model/us.amazon.nova-micro-v1%3A0/converse", headers=[(b"content-type", b"application/json")])
    _check(
        _SESSION,
        "eu-central-1",
        target="/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fabc/converse-stream",
        headers=[(b"content-type", b"application/json"), (b"x-amz-target", b" a   b ")],
        body=b'{"messages":[]}',
    )


_PATH = st.text(string.ascii_letters + string.digits + "-._~%:+=@!$'()*,;", max_size=20)
_QUERY = st.text(string.ascii_letters + string.digits + "-._~%:+", max_size=8)
_VALUE = st.text(string.ascii_letters + string.digits + " -._~%:+=/;,\t", min_size=1, max_size=20)
_SECRET = st.text(string.ascii_letters + string.digits + "+/=", min_size=1, max_size=50)


@given(
    credentials=st.builds(
        AwsCredentials, st.text(string.ascii_uppercase, min_size=1, max_size=20), _SECRET, st.none() | _SECRET
    ),
    region=st.sampled_from(["us-east-1", "eu-central-1", "us-gov-west-1", "cn-north-1"]),
    service=st.sampled_from(["bedrock", "sts", "bedrock-mantle"]),
    method=st.sampled_from(["GET", "POST", "PUT"]),
    segments=st.lists(_PATH, max_size=5),
    query=st.lists(st.tuples(_QUERY, st.none() | _QUERY), max_size=4),
    fields=st.dictionaries(
        st.sampled_from(["content-type", "x-amz-a", "x-amz-content-type", "x-amz-meta"]), _VALUE.map(str.strip)
    ),
    body=st.binary(max_size=300),
    now_s=st.floats(1e9, 4e9),
)
def test_signature_of_any_request_is_that_of_botocore(
    credentials: AwsCredentials,
    region: str,
    service: str,
    method: str,
    segments: list[str],
    query: list[tuple[str, str | None]],
    fields: dict[str, str],
    body: bytes,
    now_s: float,
) -> None:
    target = "/" + "/".join(segments)
    if query:
        target += "?" + "&".join(name if value is None else f"{name}={value}" for name, value in query)
    headers = [(name.encode(), value.encode()) for name, value in fields.items() if value]
    _check(credentials, region, service, method, target, headers, body, now_s=now_s)


def test_signature_does_not_cover_what_a_proxy_may_change_and_replaces_what_is_stale() -> None:
    signer = Signer("us-east-1", "bedrock")
    sent: Headers = [(b"content-type", b"application/json")]
    more: Headers = [
        *sent,
        (b"user-agent", b"x"),
        (b"accept", b"*/*"),
        (b"x-amz-date", b"stale"),
        (b"x-amz-security-token", b"stale"),
        (b"authorization", b"stale"),
    ]

    for credentials in (_PLAIN, _SESSION):
        first = signer.sign(credentials, b"POST", b"h", b"/a", sent, b"{}", now_s=_NOW_S)
        assert signer.sign(credentials, b"POST", b"h", b"/a", more, b"{}", now_s=_NOW_S) == first


def test_signer_makes_a_new_key_for_another_day_and_other_credentials() -> None:
    signer = Signer("us-east-1", "bedrock")
    for credentials in (_PLAIN, _SESSION, _PLAIN):
        for now_s in (_NOW_S, _NOW_S + 1, _NOW_S + 86400, _NOW_S):
            _check(credentials, signer=signer, now_s=now_s)


def test_secrets_are_in_no_repr() -> None:
    assert "Secret" not in repr(_SESSION) and "token" not in repr(_SESSION).replace("session_token", "")
    assert "EXAMPLE" not in repr(Signer("r", "s"))
