"""Where AWS credentials come from, with a client that is made up."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.unit.providers.fetch_client import FakeFetchClient, run
from velox.providers.aws import AwsChain, domain_of, region_of
from velox.providers.renewal import Fetched, FetchError
from velox.providers.sigv4 import AwsCredentials

_NOW = 1_790_000_000.0
_LATER = "2026-09-22T00:00:00Z"
_LATER_S = 1_790_035_200.0
_DOCUMENT = {"AccessKeyId": "ASIAX", "SecretAccessKey": "sec/ret", "Token": "tok=en", "Expiration": _LATER}
_MADE = Fetched(AwsCredentials("ASIAX", "sec/ret", "tok=en", _LATER_S), _LATER_S)
_STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult><Credentials>
    <AccessKeyId>ASIAX</AccessKeyId><SecretAccessKey>sec/ret</SecretAccessKey>
    <SessionToken>tok=en</SessionToken><Expiration>2026-09-22T00:00:00Z</Expiration>
  </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
_IMDS = "http://169.254.169.254/latest"
_ROLES = f"{_IMDS}/meta-data/iam/security-credentials/"
_INSTANCE: dict[str, tuple[int, Any] | str] = {
    f"PUT {_IMDS}/api/token": (200, "imds-token"),
    f"GET {_ROLES}": (200, "my-role"),
    f"GET {_ROLES}my-role": (200, {"Code": "Success", **_DOCUMENT}),
}


def _fetch(
    environment: dict[str, str], client: FakeFetchClient | None = None, profile: str | None = None
) -> Fetched[AwsCredentials]:
    environment = {"HOME": "/home/me", **environment}
    chain = AwsChain(
        environment, client or FakeFetchClient(), clock=lambda: _NOW, region="eu-central-1", profile=profile
    )
    assert "sec" not in repr(chain)
    return run(chain())


def _reason(environment: dict[str, str], client: FakeFetchClient | None = None, profile: str | None = None) -> str:
    with pytest.raises(FetchError) as caught:
        _fetch(environment, client, profile)
    for secret in ("sec/ret", "tok=en", "web-token", "imds-token"):
        assert secret not in caught.value.reason
    return caught.value.reason


_KEYS = {"AWS_ACCESS_KEY_ID": "AKIDX", "AWS_SECRET_ACCESS_KEY": "sec/ret"}


def test_environment_comes_first_and_nothing_is_asked() -> None:
    client = FakeFetchClient(_INSTANCE)
    env = {**_KEYS, "AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}

    assert _fetch(env, client) == Fetched(AwsCredentials("AKIDX", "sec/ret"))
    assert _fetch({**env, "AWS_SESSION_TOKEN": "tok=en"}, client).value.session_token == "tok=en"
    assert client.asked == []


def test_environment_with_half_of_a_key_is_an_error() -> None:
    assert "AWS_SECRET_ACCESS_KEY is not" in _reason({"AWS_ACCESS_KEY_ID": "AKIDX"}, FakeFetchClient(_INSTANCE))
    for id_, secret in (("'AKIDX'", "s"), ("AKIDX", '"s"')):
        found = _reason({"AWS_ACCESS_KEY_ID": id_, "AWS_SECRET_ACCESS_KEY": secret}, FakeFetchClient(_INSTANCE))
        assert "the environment gave credentials in quotes" in found
    assert "characters" in _reason({**_KEYS, "AWS_SESSION_TOKEN": "tok=en\nx"})


# -- profiles -------------------------------------------------------------------------------------------

_CREDENTIALS = """
[default]
aws_access_key_id = AKIDD
aws_secret_access_key = sec/ret=
[work]
aws_access_key_id=AKIDW
aws_secret_access_key=sec/ret
aws_session_token=tok=en
"""


def test_profile_has_static_keys_which_are_read_again() -> None:
    files = {"/home/me/.aws/credentials": _CREDENTIALS}

    assert _fetch({}, FakeFetchClient({}, files)) == Fetched(AwsCredentials("AKIDD", "sec/ret="), None, 60.0)
    work = Fetched(AwsCredentials("AKIDW", "sec/ret", "tok=en"), None, 60.0)
    assert _fetch({"AWS_PROFILE": "work"}, FakeFetchClient({}, files)) == work
    assert _fetch(_KEYS, FakeFetchClient({}, files), profile="work") == work

    moved = {
        "/c": "[profile w x]\naws_access_key_id = AKIDW\naws_secret_access_key = sec/ret\nregion = x\ns3 =\n  a = b\n"
    }
    env = {"AWS_CONFIG_FILE": "/c", "AWS_SHARED_CREDENTIALS_FILE": "/none", "AWS_PROFILE": "w x"}
    assert _fetch(env, FakeFetchClient({}, moved)).value.access_key_id == "AKIDW"


def test_profile_that_is_not_there_is_an_error_only_where_it_was_wished() -> None:
    assert "'work' is neither in /home/me/.aws/credentials nor" in _reason({"AWS_PROFILE": "work"})
    files = {"/home/me/.aws/config": "[default]\nregion = eu-west-1\n"}
    assert _fetch({}, FakeFetchClient(_INSTANCE, files)) == _MADE
    assert "has no credentials" in _reason({"AWS_PROFILE": "default"}, FakeFetchClient(_INSTANCE, files))


@pytest.mark.parametrize("section", ["profile default", 'profile "default"', "profile  default"])
def test_default_profile_may_be_named_as_the_others_are(section: str) -> None:
    """As AWS's SDKs read it; it comes before [default]."""
    keys = "aws_access_key_id = {}\naws_secret_access_key = sec/ret\n"
    config = f"[default]\n{keys.format('AKID1')}[{section}]\n{keys.format('AKID2')}"

    assert _fetch({}, FakeFetchClient(_INSTANCE, {"/home/me/.aws/config": config})).value.access_key_id == "AKID2"


def test_name_of_a_profile_may_stand_in_quotes() -> None:
    config = '[profile "w x"]\naws_access_key_id = AKIDW\naws_secret_access_key = sec/ret\n[profile "open]\n'
    client = FakeFetchClient({}, {"/home/me/.aws/config": config})

    assert _fetch({"AWS_PROFILE": "w x"}, client).value.access_key_id == "AKIDW"


@pytest.mark.parametrize("content", [None, "", "[default]\nregion = eu-west-1\n"])
def test_profile_that_is_written_over_does_not_give_way_to_the_instances_role(content: str | None) -> None:
    """It is empty for a moment: who is signed as must not change by that, for hours."""

    async def main() -> None:
        client = FakeFetchClient(_INSTANCE, {"/home/me/.aws/credentials": _CREDENTIALS})
        chain = AwsChain({"HOME": "/home/me"}, client, clock=lambda: _NOW, region="eu-central-1")
        assert (await chain()).value.access_key_id == "AKIDD"

        client.files.clear()
        if content is not None:
            client.files["/home/me/.aws/credentials"] = content
        with pytest.raises(FetchError, match="'default' had credentials and has none any more"):
            await chain()
        assert client.asked == []

        client.files["/home/me/.aws/credentials"] = _CREDENTIALS
        assert (await chain()).value.access_key_id == "AKIDD"

    run(main())


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("sso_session = my\nsso_account_id = 1", "SSO"),
        ("sso_start_url = https://x", "SSO"),
        ("credential_process = /bin/x sec/ret", "credential_process"),
        ("role_arn = arn:aws:iam::1:role/x\nsource_profile = y", "a role that another profile or source assumes"),
        ("role_arn = arn:aws:iam::1:role/x\ncredential_source = Environment", "a role that another"),
    ],
)
def test_profile_that_needs_awss_tools_is_refused(lines: str, what: str) -> None:
    files = {"/home/me/.aws/config": f"[profile work]\n{lines}\n"}

    reason = _reason({"AWS_PROFILE": "work"}, FakeFetchClient(_INSTANCE, files))
    assert f"uses {what}" in reason and "not supported" in reason

    # The keys of a profile with a role are another one's.
    files["/home/me/.aws/credentials"] = "[work]\naws_access_key_id = A\naws_secret_access_key = sec/ret\n"
    if what == "credential_process":
        assert _fetch({"AWS_PROFILE": "work"}, FakeFetchClient({}, files)).value.access_key_id == "A"
    else:
        assert f"uses {what}" in _reason({"AWS_PROFILE": "work"}, FakeFetchClient(_INSTANCE, files))


def test_broken_file_is_told_without_its_lines() -> None:
    for content in (b"aws_secret_access_key = sec/ret\n", b"\xff", b"[default]\nsec/ret\n"):
        files = {"/home/me/.aws/credentials": content}
        assert _reason({}, FakeFetchClient(_INSTANCE, files)) == (
            "/home/me/.aws/credentials can't be read as an AWS configuration file"
        )
    files = {"/home/me/.aws/credentials": b"[default]\naws_access_key_id = A\n"}
    assert "no aws_secret_access_key" in _reason({}, FakeFetchClient({}, files))


# -- web identity ---------------------------------------------------------------------------------------

_ROLE = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x", "AWS_REGION": "us-east-2"}
_STS_URL = "POST https://sts.us-east-2.amazonaws.com/"


def test_web_identity_assumes_the_role_with_the_token_of_now() -> None:
    client = FakeFetchClient({_STS_URL: (200, _STS)}, {"/token": "web-token\n"})
    chain = AwsChain({"HOME": "/", **_ROLE}, client, clock=lambda: _NOW, region="x")

    assert run(chain()) == _MADE
    client.files["/token"] = "web-token-2"
    assert run(chain()) == _MADE

    forms = [parse_qs((asked.body or b"").decode()) for asked in client.asked]
    assert forms[0] == {
        "Action": ["AssumeRoleWithWebIdentity"],
        "Version": ["2011-06-15"],
        "RoleArn": ["arn:aws:iam::1:role/x"],
        "RoleSessionName": ["velox"],
        "WebIdentityToken": ["web-token"],
    }
    assert forms[1]["WebIdentityToken"] == ["web-token-2"]
    assert "web-token" not in repr(client.asked)


def test_web_identity_of_a_profile_and_another_partition() -> None:
    files = {
        "/home/me/.aws/config": "[profile w]\nrole_arn = a\nweb_identity_token_file = /token\nrole_session_name = me\n",
        "/token": "web-token",
    }
    client = FakeFetchClient({"POST https://sts.cn-north-1.amazonaws.com.cn/": (200, _STS)}, files)

    assert _fetch({"AWS_PROFILE": "w", "AWS_REGION": "cn-north-1"}, client) == _MADE
    assert b"RoleSessionName=me" in (client.asked[0].body or b"")


@pytest.mark.parametrize(
    ("region", "domain"),
    [
        ("eu-central-1", "amazonaws.com"),
        ("us-gov-west-1", "amazonaws.com"),
        ("cn-north-1", "amazonaws.com.cn"),
        ("eusc-de-east-1", "amazonaws.eu"),
        ("us-iso-east-1", "c2s.ic.gov"),
        ("us-isob-east-1", "sc2s.sgov.gov"),
    ],
)
def test_each_partition_has_its_domain(region: str, domain: str) -> None:
    client = FakeFetchClient({f"POST https://sts.{region}.{domain}/": (200, _STS)}, {"/token": "web-token"})

    assert _fetch({**_ROLE, "AWS_REGION": region}, client) == _MADE
    assert domain_of(region) == domain


def test_web_identity_that_fails_says_why() -> None:
    refused = (
        "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>No &quot;provider&quot;\n found</Message>"
    )
    files = {"/token": "web-token"}
    reason = _reason(_ROLE, FakeFetchClient({_STS_URL: (400, refused)}, files))
    assert 'arn:aws:iam::1:role/x be assumed: InvalidIdentityToken: No "provider" found' in reason

    assert "it answered 503" in _reason(_ROLE, FakeFetchClient({_STS_URL: (503, "")}, files))
    assert "connection refused" in _reason(_ROLE, FakeFetchClient({}, files))
    assert "/token is missing" in _reason(_ROLE)
    assert "/token is empty" in _reason(_ROLE, FakeFetchClient({}, {"/token": "\n"}))
    assert "AWS_ROLE_ARN" in _reason({**_ROLE, "AWS_ROLE_ARN": ""}, FakeFetchClient({}, files))
    for wrong in ("", _STS.replace("ASIAX", ""), _STS.replace("2026-09-22T00:00:00Z", "soon")):
        assert "STS gave" in _reason(_ROLE, FakeFetchClient({_STS_URL: (200, wrong)}, files))


# -- containers -----------------------------------------------------------------------------------------


def test_container_gives_credentials_by_its_relative_uri() -> None:
    client = FakeFetchClient({"GET http://169.254.170.2/v2/x": (200, {"RoleArn": "r", **_DOCUMENT})})

    assert _fetch({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x"}, client) == _MADE
    assert "authorization" not in client.headers(0)


def test_container_token_is_read_from_its_file_each_time() -> None:
    url = "http://169.254.170.23/v1/credentials"
    client = FakeFetchClient({f"GET {url}": (200, _DOCUMENT)}, {"/pod": "tok=en\n"})
    env = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": url,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/pod",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "older",
    }

    assert _fetch(env, client) == _MADE
    assert client.headers(0)["authorization"] == "tok=en"
    assert "/pod is missing" in _reason(env)
    assert "line break" in _reason(env, FakeFetchClient({}, {"/pod": "tok=en\r\nx: y\n"}))


@pytest.mark.parametrize(
    ("url", "is_right"),
    [
        ("https://example.com/x", True),
        ("http://localhost:8080/x", True),
        ("http://127.0.0.9/x", True),
        ("http://[::1]/x", True),
        ("http://[fd00:ec2::23]/x", True),
        ("http://example.com/x", False),
        ("http://169.254.169.254/x", False),
        ("ftp://127.0.0.1/x", False),
        ("nonsense", False),
        ("http://[::1", False),
    ],
)
def test_container_token_is_sent_in_clear_text_only_to_this_machine(url: str, is_right: bool) -> None:
    env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": url, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "tok=en"}
    client = FakeFetchClient({f"GET {url}": (200, _DOCUMENT)})

    if is_right:
        assert _fetch(env, client) == _MADE
    else:
        assert "AWS_CONTAINER_CREDENTIALS_FULL_URI" in _reason(env, client)
        assert client.asked == []


def test_container_that_fails_says_why() -> None:
    env = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}
    url = "GET http://169.254.170.2/x"
    said = {"code": "InvalidTaskId", "message": "no such\n task"}
    assert _reason(env, FakeFetchClient({url: (400, said)})).endswith("answered 400 (InvalidTaskId: no such task)")
    assert _reason(env, FakeFetchClient({url: (500, b"<html>")})).endswith("answered 500")
    assert "no complete credentials" in _reason(env, FakeFetchClient({url: (200, b"[]")}))
    assert "expire" in _reason(env, FakeFetchClient({url: (200, {**_DOCUMENT, "Expiration": "x"})}))


# -- instances ------------------------------------------------------------------------------------------


def test_instance_is_asked_with_a_session_token() -> None:
    client = FakeFetchClient(_INSTANCE)

    assert _fetch({}, client) == _MADE
    assert client.headers(0) == {"x-aws-ec2-metadata-token-ttl-seconds": "21600"}
    assert client.headers(1) == client.headers(2) == {"x-aws-ec2-metadata-token": "imds-token"}


def test_instance_at_another_place() -> None:
    for env, base in (
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}, "http://[fd00:ec2::254]"),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1338/"}, "http://127.0.0.1:1338"),
    ):
        answers = {key.replace("http://169.254.169.254", base): value for key, value in _INSTANCE.items()}
        assert _fetch(env, FakeFetchClient(answers)) == _MADE


def test_instance_that_gives_expired_credentials_can_get_no_others() -> None:
    """AWS's SDKs use them on: the services still take them."""
    expired = {**_DOCUMENT, "Expiration": "2026-01-01T00:00:00Z"}
    found = _fetch({}, FakeFetchClient({**_INSTANCE, f"GET {_ROLES}my-role": (200, {"Code": "Success", **expired})}))

    assert found.expires_at_s == found.value.expires_at_s == _NOW + 600.0


def test_instance_that_fails_says_why() -> None:
    def reason(**answers: tuple[int, Any]) -> str:
        names = {"token": f"PUT {_IMDS}/api/token", "roles": f"GET {_ROLES}", "role": f"GET {_ROLES}my-role"}
        return _reason({}, FakeFetchClient({**_INSTANCE, **{names[name]: answer for name, answer in answers.items()}}))

    assert _reason({}).endswith("the instance metadata service does not answer (connection refused)")
    assert "have none" in _reason({"AWS_EC2_METADATA_DISABLED": "TRUE"}, FakeFetchClient(_INSTANCE))
    assert "answered 403 to the request for a token" in reason(token=(403, ""))
    assert "no role" in reason(roles=(404, "")) and "no role" in reason(roles=(200, "\n"))
    assert "answered 500 to the request for its role" in reason(roles=(500, ""))
    assert "is none" in reason(roles=(200, "../../user-data"))
    assert "AssumeRoleUnauthorizedAccess: why" in reason(
        role=(200, {"Code": "AssumeRoleUnauthorizedAccess", "Message": "why"})
    )


def test_region_of_the_environment() -> None:
    assert region_of({"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}) == "a"
    assert region_of({"AWS_DEFAULT_REGION": "b"}) == "b"
    assert region_of({}) is None
