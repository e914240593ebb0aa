"""Where AWS credentials come from, in the order of AWS's SDKs; the first that is configured is the one.

    1  environment          AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    2  web identity         AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN (EKS): AssumeRoleWithWebIdentity
    3  profile              ~/.aws/credentials, ~/.aws/config: keys, or a role with a web identity
    4  container            AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI (ECS, EKS pod identity)
    5  instance metadata    IMDSv2 only

One that is configured and does not work is an error: the next ones are not tried, so that nobody signs as somebody
else. Nor are they when the profile has given credentials once and its files have none any more: files that are written
over, and not replaced, are empty for a moment. SSO, credential processes and chains of roles need AWS's own tools and
are refused with what to do instead.
AWS_BEARER_TOKEN_BEDROCK comes before all of these: it is a key like any other (rows.py).

Knows: what to ask whom, and how an answer is read. Does not know: sockets, files, when to ask again (renewal.py).
"""

from __future__ import annotations

import configparser
import html
import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from velox.heads import Headers
from velox.providers.renewal import FetchClient, Fetched, FetchError, HttpRequest, Reply, one_line
from velox.providers.sigv4 import AwsCredentials

__all__ = ["AwsChain", "domain_of", "region_of", "xml_text"]

# Files are read again: keys in them may be rotated.
_FILE_AGAIN_S: Final = 60.0
_CONTAINER: Final = "http://169.254.170.2"
# Where a container's credentials may be asked for without TLS: ECS, EKS pod identity.
_CONTAINER_HOSTS: Final = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"})
_IMDS: Final = {"ipv4": "http://169.254.169.254", "ipv6": "http://[fd00:ec2::254]"}
_IMDS_TIMEOUT_S: Final = 2.0
_IMDS_TOKEN_S: Final = b"21600"
_IMDS_ROLES: Final = "/latest/meta-data/iam/security-credentials/"
# How long credentials that IMDS gives although they have expired are used, as in AWS's SDKs: it does so when it can't
# get others, and the services still take them.
_IMDS_EXTENSION_S: Final = 600.0
# What a profile may have that only AWS's own tools can use: before its keys, as in AWS's SDKs, and after them.
_NO_KEYS_COUNT: Final = {
    "role_arn": "a role that another profile or source assumes",
    "sso_session": "SSO",
    "sso_start_url": "SSO",
    "sso_account_id": "SSO",
}
_AFTER_KEYS: Final = {"credential_process": "credential_process"}
_DOMAINS: Final = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
}
_QUOTES: Final = "'\""
_TAG: Final = r"<{0}>([^<]*)</{0}>"


class _Document(msgspec.Struct):
    """Credentials as metadata services write them; code and message: of an error."""

    access_key_id: str | None = msgspec.field(default=None, name="AccessKeyId")
    secret_access_key: str | None = msgspec.field(default=None, name="SecretAccessKey")
    token: str | None = msgspec.field(default=None, name="Token")
    expiration: str | None = msgspec.field(default=None, name="Expiration")
    code: str | None = msgspec.field(default=None, name="Code")
    message: str | None = msgspec.field(default=None, name="Message")
    code_of_ecs: str | None = msgspec.field(default=None, name="code")
    message_of_ecs: str | None = msgspec.field(default=None, name="message")


_DOCUMENT: Final = msgspec.json.Decoder(_Document)


def region_of(environment: Mapping[str, str]) -> str | None:
    """Return the region that the environment names."""
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or None


def domain_of(region: str) -> str:
    """Return the domain of the services in a region: each partition of AWS has its own."""
    return next((domain for start, domain in _DOMAINS.items() if region.startswith(start)), "amazonaws.com")


class AwsChain:
    """Fetches credentials, each time anew.

    profile: set by the user for this upstream: then the environment's own keys don't count. region: of the upstream,
    for STS where the environment names none. clock: Unix time.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        client: FetchClient,
        *,
        clock: Callable[[], float],
        region: str,
        profile: str | None = None,
    ) -> None:
        self._environment: Final = environment
        self._client: Final = client
        self._clock: Final = clock
        self._region: Final = region
        self._profile: Final = profile
        self._had_profile = False

    def __repr__(self) -> str:
        return f"<AwsChain {self._profile or ''}>"

    async def __call__(self) -> Fetched[AwsCredentials]:
        """Return credentials. Raises FetchError."""
        env = self._environment
        if self._profile is None:
            if env.get("AWS_ACCESS_KEY_ID"):
                return self._of_environment()
            if env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
                return await self._of_web_identity(
                    env["AWS_WEB_IDENTITY_TOKEN_FILE"], env.get("AWS_ROLE_ARN"), env.get("AWS_ROLE_SESSION_NAME")
                )
        found = await self._of_profile()
        if found is not None:
            self._had_profile = True
            return found
        if self._had_profile:
            raise FetchError("the AWS profile 'default' had credentials and has none any more; restart to use others")
        if env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return await self._of_container()
        return await self._of_instance()

    def _of_environment(self) -> Fetched[AwsCredentials]:
        env = self._environment
        secret = env.get("AWS_SECRET_ACCESS_KEY")
        if not secret:
            raise FetchError("AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not")
        token = env.get("AWS_SESSION_TOKEN") or None
        return Fetched(_checked(env["AWS_ACCESS_KEY_ID"], secret, token, None, "the environment"))

    # -- files ------------------------------------------------------------------------------------------

    async def _of_profile(self) -> Fetched[AwsCredentials] | None:
        env = self._environment
        wanted = self._profile or env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE")
        name, home = wanted or "default", env.get("HOME", "~")
        keys_path = env.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials"
        config_path = env.get("AWS_CONFIG_FILE") or f"{home}/.aws/config"
        section = "default" if name == "default" else f"profile {name}"
        keys = await self._section(keys_path, lambda found: found == name)
        # As in AWS's SDKs, [profile default] comes before [default], and a name may stand in quotes.
        config = await self._section(config_path, lambda found: _profile_of(found) == name)
        if config is None and name == "default":
            config = await self._section(config_path, lambda found: found == name)
        if keys is None and config is None:
            if wanted is None:
                return None
            raise FetchError(
                f"the AWS profile {name!r} is neither in {keys_path} nor, as [{section}], in {config_path}"
            )
        both = {**(keys or {}), **(config or {})}
        if both.get("web_identity_token_file"):
            return await self._of_web_identity(
                both["web_identity_token_file"], both.get("role_arn"), both.get("role_session_name")
            )
        _check_profile(name, both, _NO_KEYS_COUNT)
        for fields, path in ((keys or {}, keys_path), (config or {}, config_path)):
            if "aws_access_key_id" in fields:
                if not fields.get("aws_secret_access_key"):
                    raise FetchError(f"the AWS profile {name!r} in {path} has no aws_secret_access_key")
                where = f"the AWS profile {name!r}"
                token = fields.get("aws_session_token") or None
                made = _checked(fields["aws_access_key_id"], fields["aws_secret_access_key"], token, None, where)
                return Fetched(made, None, _FILE_AGAIN_S)
        _check_profile(name, both, _AFTER_KEYS)
        if wanted is None:
            return None  # a region, an output format
        raise FetchError(f"the AWS profile {name!r} has no credentials")

    async def _section(self, path: str, is_meant: Callable[[str], bool]) -> dict[str, str] | None:
        content = await self._client.read(path)
        if content is None:
            return None
        parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
        try:
            parser.read_string(content.decode("utf-8"))
        except (configparser.Error, UnicodeDecodeError):
            # The error would show the line, which may be a key.
            raise FetchError(f"{path} can't be read as an AWS configuration file") from None
        name = next(filter(is_meant, parser.sections()), None)
        return None if name is None else dict(parser[name])

    # -- web identity -------------------------------------------------------------------------------------

    async def _of_web_identity(self, path: str, role: str | None, session: str | None) -> Fetched[AwsCredentials]:
        if not role:
            raise FetchError("a web identity token file is set, but no role: set AWS_ROLE_ARN")
        token = await self._client.read(path)
        if token is None or not token.strip():
            raise FetchError(f"the web identity token file {path} is {'missing' if token is None else 'empty'}")
        region = region_of(self._environment) or self._region
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": role,
            "RoleSessionName": session or "velox",
            "WebIdentityToken": token.decode("utf-8", "replace").strip(),
        }
        domain = domain_of(region)
        headers: Headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"accept", b"text/xml")]
        body = urlencode(form).encode("ascii")
        reply = await self._client.ask(HttpRequest(b"POST", f"https://sts.{region}.{domain}/", headers, body))
        text = reply.body.decode("utf-8", "replace")
        if reply.status != 200:
            said = ": ".join(filter(None, (xml_text("Code", text), xml_text("Message", text))))
            raise FetchError(f"STS did not let {role} be assumed: {one_line(said) or f'it answered {reply.status}'}")
        expires_at_s = _time(xml_text("Expiration", text), "STS")
        token_text = xml_text("SessionToken", text)
        made = _checked(
            xml_text("AccessKeyId", text), xml_text("SecretAccessKey", text), token_text, expires_at_s, "STS"
        )
        return Fetched(made, expires_at_s)

    # -- metadata services ----------------------------------------------------------------------------------

    async def _of_container(self) -> Fetched[AwsCredentials]:
        env = self._environment
        relative = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        url = _CONTAINER + relative if relative else env["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        if not relative:
            _check_container_url(url)
        headers: Headers = [(b"accept", b"application/json")]
        token = (env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN") or "").encode("latin-1", "replace")
        path = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        if path:
            found = await self._client.read(path)
            if found is None:
                raise FetchError(f"the container's authorization token file {path} is missing")
            token = found.rstrip(b"\r\n")
        if b"\r" in token or b"\n" in token:
            raise FetchError("the container's authorization token has a line break")
        if token:
            headers.append((b"authorization", token))
        reply = await self._client.ask(HttpRequest(b"GET", url, headers))
        return self._read(reply, "the container's credentials endpoint")

    async def _of_instance(self) -> Fetched[AwsCredentials]:
        env = self._environment
        if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise FetchError("no AWS credentials: the environment, the profile and the container have none")
        mode = env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ipv4").lower()
        base = (env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _IMDS.get(mode, _IMDS["ipv4"])).rstrip("/")
        ttl: Headers = [(b"x-aws-ec2-metadata-token-ttl-seconds", _IMDS_TOKEN_S)]
        try:
            reply = await self._client.ask(
                HttpRequest(b"PUT", f"{base}/latest/api/token", ttl, b"", timeout_s=_IMDS_TIMEOUT_S)
            )
        except FetchError as exc:
            raise FetchError(
                "no AWS credentials: the environment, the profile and the container have none, and the instance "
                f"metadata service does not answer ({exc.reason})"
            ) from None
        if reply.status != 200 or not reply.body:
            raise FetchError(f"the instance metadata service answered {reply.status} to the request for a token")
        token: Headers = [(b"x-aws-ec2-metadata-token", reply.body.strip())]
        reply = await self._client.ask(HttpRequest(b"GET", base + _IMDS_ROLES, token, timeout_s=_IMDS_TIMEOUT_S))
        role = reply.body.decode("utf-8", "replace").strip().partition("\n")[0].strip()
        if reply.status == 404 or (reply.status == 200 and not role):
            raise FetchError("no AWS credentials: this instance has no role")
        if reply.status != 200:
            raise FetchError(f"the instance metadata service answered {reply.status} to the request for its role")
        url = base + _IMDS_ROLES + role
        if re.fullmatch(r"[\w+=,.@-]+", role) is None:
            raise FetchError("the instance metadata service named a role that is none")
        reply = await self._client.ask(HttpRequest(b"GET", url, token, timeout_s=_IMDS_TIMEOUT_S))
        return self._read(reply, "the instance metadata service", may_extend=True)

    def _read(self, reply: Reply, who: str, *, may_extend: bool = False) -> Fetched[AwsCredentials]:
        """Read the credentials that a metadata service gives."""
        try:
            found = _DOCUMENT.decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = _Document()
        code = found.code or found.code_of_ecs
        if reply.status != 200 or (code is not None and code != "Success"):
            said = ": ".join(filter(None, (code, found.message or found.message_of_ecs)))
            raise FetchError(f"{who} answered {reply.status}{' (' + one_line(said) + ')' if said else ''}")
        expires_at_s = None if found.expiration is None else _time(found.expiration, who)
        now_s = self._clock()
        if may_extend and expires_at_s is not None and expires_at_s <= now_s:
            expires_at_s = now_s + _IMDS_EXTENSION_S
        made = _checked(found.access_key_id, found.secret_access_key, found.token, expires_at_s, who)
        return Fetched(made, expires_at_s, _FILE_AGAIN_S if expires_at_s is None else None)


def _profile_of(section: str) -> str | None:
    """Return the name of the profile that a section of AWS's config file is of; None: it is of something else."""
    try:
        kind, *name = shlex.split(section)
    except ValueError:  # also of an empty one
        return None
    return " ".join(name) if kind == "profile" else None


def _check_profile(name: str, fields: Mapping[str, str], refused: Mapping[str, str]) -> None:
    for field, what in refused.items():
        if field in fields:
            raise FetchError(
                f"the AWS profile {name!r} uses {what}, which is not supported; export its credentials "
                "(aws configure export-credentials), or use a role of the instance, the container or a web identity"
            )


def _checked(
    key_id: str | None, secret: str | None, token: str | None, expires_at_s: float | None, who: str
) -> AwsCredentials:
    """Return credentials that can be signed with. Raises FetchError."""
    if not key_id or not secret:
        raise FetchError(f"{who} gave no complete credentials")
    for value in (key_id, token or ""):
        if not value.isascii() or not value.isprintable() or " " in value:
            raise FetchError(f"{who} gave credentials with characters that no request can carry")
    # `docker run --env-file` keeps them, and no key of AWS has any.
    if any(len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES for value in (key_id, secret)):
        raise FetchError(f"{who} gave credentials in quotes, which count as a part of them here")
    return AwsCredentials(key_id, secret, token or None, expires_at_s)


def xml_text(name: str, text: str) -> str | None:
    """Return the text of the first element of a name in an answer of AWS; None: there is none."""
    found = re.search(_TAG.format(name), text)
    return None if found is None else html.unescape(found[1]).strip()


def _time(text: str | None, who: str) -> float:
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        raise FetchError(f"{who} gave no time at which its credentials expire") from None
    if found.tzinfo is None:
        raise FetchError(f"{who} gave a time without its zone")
    return found.timestamp()


def _check_container_url(url: str) -> None:
    """Refuse to send the token in clear text off this machine. Raises FetchError."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host:
        raise FetchError("AWS_CONTAINER_CREDENTIALS_FULL_URI is no URL")
    if parts.scheme == "https" or host in _CONTAINER_HOSTS:
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if parts.scheme != "http" or not is_loopback:
        raise FetchError(
            f"AWS_CONTAINER_CREDENTIALS_FULL_URI leads to {host}, which is neither https nor this machine's own"
        )
