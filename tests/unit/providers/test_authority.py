"""The fields that say who a request is from."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import Any, Generic, TypeVar

import pytest

from velox.heads import Headers
from velox.providers.authority import (
    NO_PROOF,
    Authority,
    BearerAuthority,
    NoCredentialsError,
    SigV4Authority,
)
from velox.providers.sigv4 import AwsCredentials, Signer

T = TypeVar("T")
NOW = 1_790_000_000.0
_SENT: Headers = [(b"content-type", b"application/json")]


class _Held(Generic[T]):
    """A source whose value the test sets."""

    def __init__(self, value: T | None) -> None:
        self.value = value
        self.problem: str | None = None
        self.n_runs = 0
        self.version = 3
        self.refused: list[int] = []

    def renewed(self, version: int) -> asyncio.Future[None] | None:
        self.refused.append(version)
        return None

    def current(self, now_s: float) -> T:
        if self.value is None:
            raise NoCredentialsError("the metadata server answered 404")
        return self.value

    async def run(self) -> None:
        self.n_runs += 1


def _fields(authority: Authority) -> Headers:
    return authority.headers(b"POST", b"h", b"/model/a%3Ab/converse", _SENT, b"{}", now_s=NOW)


def test_bearer_is_the_token_of_now() -> None:
    source = _Held("one")
    authority = BearerAuthority(source, [(b"x-goog-user-project", b"p")])

    assert _fields(authority) == [(b"authorization", b"Bearer one"), (b"x-goog-user-project", b"p")]
    source.value = "two"
    assert _fields(authority)[0] == (b"authorization", b"Bearer two")


def test_signature_is_made_with_the_credentials_of_now() -> None:
    source = _Held(AwsCredentials("A", "s"))
    authority = SigV4Authority(source, "us-east-1", "bedrock")
    signer = Signer("us-east-1", "bedrock")

    for credentials in (AwsCredentials("A", "s"), AwsCredentials("B", "t", "token")):
        source.value = credentials
        expected = signer.sign(
            credentials, b"POST", b"h", b"/model/a%3Ab/converse", _SENT, b"{}", now_s=1_790_000_000.0
        )
        assert _fields(authority) == expected


@pytest.mark.parametrize("is_aws", [False, True])
def test_without_credentials_the_reason_is_raised_and_the_problem_told(is_aws: bool) -> None:
    source: _Held[Any] = _Held(None)
    source.problem = "the metadata server answered 404"
    authority: Authority = SigV4Authority(source, "us-east-1", "bedrock") if is_aws else BearerAuthority(source)

    with pytest.raises(NoCredentialsError, match="metadata server answered 404"):
        _fields(authority)
    assert authority.problem == source.problem
    asyncio.run(authority.run())
    assert source.n_runs == 1


# -- what is refused, what may not be shown ------------------------------------------------------------------


def test_proof_is_what_goes_up_and_no_reply_may_show() -> None:
    bearer, aws = BearerAuthority(_Held("one")), _Held(AwsCredentials("A", "s", "token"))

    assert bearer.proof(0.0) == (b"one", 3)
    assert SigV4Authority(aws, "us-east-1", "bedrock").proof(0.0) == (b"token", 3)
    aws.value = AwsCredentials("A", "s")
    assert SigV4Authority(aws, "us-east-1", "bedrock").proof(0.0) == (None, 3)
    assert BearerAuthority(_Held[str](None)).proof(0.0) == NO_PROOF


@pytest.mark.parametrize(
    ("status", "said", "is_renewed"),
    [
        (403, b"ExpiredTokenException:http://internal.amazon.com/coral/", True),
        (403, b"UnrecognizedClientException", True),
        (401, b"ExpiredToken", True),
        (400, b"ExpiredToken", False),
        (403, b"AccessDeniedException", False),
        (403, b"", False),
        (500, b"ExpiredTokenException", False),
    ],
)
def test_aws_says_by_a_name_that_credentials_are_refused(status: int, said: bytes, is_renewed: bool) -> None:
    source = _Held(AwsCredentials("A", "s"))
    authority = SigV4Authority(source, "us-east-1", "bedrock")

    assert authority.refused(3, status, [(b"x-amzn-errortype", said)] if said else [], NOW) is None
    assert source.refused == ([3] if is_renewed else [])


def _refusal(ahead_s: float, name: bytes = b"InvalidSignatureException", date: str | None = None) -> Headers:
    told = formatdate(NOW + ahead_s, usegmt=True) if date is None else date
    return [(b"x-amzn-errortype", name + b":http://internal.amazon.com/coral/"), (b"date", told.encode())]


def _refused(authority: Authority, version: int, said: Headers) -> asyncio.Future[None] | None:
    async def ask() -> asyncio.Future[None] | None:
        return authority.refused(version, 403, said, NOW)

    return asyncio.run(ask())


def test_signatures_have_the_time_of_aws_where_this_clock_is_wrong() -> None:
    """Also each request that was under way when that was found out is sent once more, and no other."""
    source = _Held(AwsCredentials("A", "s"))
    authority = SigV4Authority(source, "us-east-1", "bedrock")
    before = authority.proof(NOW).version

    for _ in range(2):
        done = _refused(authority, before, _refusal(-3600.0))
        assert done is not None and done.done()
    assert dict(_fields(authority))[b"x-amz-date"] == b"20260921T131320Z"
    after = authority.proof(NOW).version
    assert after != before
    assert _refused(authority, after, _refusal(-3590.0)) is None, "another reason"

    done = _refused(authority, after, _refusal(0.0))  # somebody has set this clock
    assert done is not None and dict(_fields(authority))[b"x-amz-date"] == b"20260921T141320Z"
    assert source.refused == []


@pytest.mark.parametrize(
    "said",
    [
        *(_refusal(119.0), _refusal(-119.0), _refusal(999.0, b"AccessDeniedException"), _refusal(0.0, date="")),
        *(_refusal(0.0, date="yesterday"), _refusal(0.0, date="Sun, 06 Nov 99999 08:49:37 GMT"), _refusal(999.0)[:1]),
    ],
)
def test_other_refusals_set_no_clock(said: Headers) -> None:
    """Of another kind, at about the same time, or at a time that can't be read."""
    authority = SigV4Authority(_Held(AwsCredentials("A", "s")), "us-east-1", "bedrock")

    assert _refused(authority, 3, said) is None
    assert authority.proof(NOW).version == 3


def test_credentials_are_renewed_also_once_the_clock_was_set() -> None:
    """The number of their renewal is told apart from that of the clock's."""
    source = _Held(AwsCredentials("A", "s"))
    authority = SigV4Authority(source, "us-east-1", "bedrock")
    _refused(authority, 3, _refusal(3600.0))

    _refused(authority, authority.proof(NOW).version, [(b"x-amzn-errortype", b"ExpiredToken")])

    assert source.refused == [3]


@pytest.mark.parametrize(("status", "is_renewed"), [(401, True), (403, False), (429, False), (500, False)])
def test_a_token_is_refused_by_401(status: int, is_renewed: bool) -> None:
    source = _Held("one")
    assert BearerAuthority(source).refused(3, status, [], NOW) is None
    assert source.refused == ([3] if is_renewed else [])
