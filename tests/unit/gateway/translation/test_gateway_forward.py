"""What goes up: built from what may pass, with the right credential, below the origin's path."""

from __future__ import annotations

import pytest

from tests.unit.gateway.access.test_gateway_routes import head
from tests.unit.providers.fixed_source import FixedSource
from velox.gateway.translation.forward import Forwarder
from velox.heads import Headers
from velox.net.upstream.interface import PlainFields
from velox.protocol.head_template import HeadTemplate
from velox.providers.authority import BearerAuthority
from velox.providers.rows import OPENAI, PROVIDERS
from velox.types import BodyFields


def forwarder(*, base_path: str = "", key: str | None = None, ours: bool = False) -> Forwarder:
    return Forwarder(OPENAI, base_path=base_path, root_path="/v1/responses", key=key, client_keys_are_ours=ours)


CLIENT_CREDENTIALS: Headers = [
    (b"authorization", b"Bearer client"),
    (b"x-api-key", b"client"),
    (b"openai-organization", b"org-client"),
]


def test_client_credential_passes_without_a_key_of_our_own() -> None:
    """Without OPENAI_API_KEY the client's own credential and account headers go up."""
    request = forwarder().build(head(b"GET", b"/v1/models", CLIENT_CREDENTIALS), BodyFields(), None)

    assert request.headers == CLIENT_CREDENTIALS


def test_own_key_replaces_every_client_credential() -> None:
    """With OPENAI_API_KEY nothing of the client's credential or account goes up."""
    request = forwarder(key="sk-ours").build(head(b"GET", b"/v1/models", CLIENT_CREDENTIALS), BodyFields(), None)

    assert request.headers == [(b"authorization", b"Bearer sk-ours")]


@pytest.mark.parametrize(
    ("provider", "host", "target", "wanted"),
    [
        ("vertex", "", "/v1/projects/p/x?$httpMethod=DELETE&a=b", "/v1/projects/p/x?a=b"),
        ("vertex", "", "/v1beta1/projects/p/publishers/google/models/m:predict?fields=predictions&key=k", None),
        ("gemini", "", "/v1beta/models/imagen-4:predict?%24fields=a&alt=proto&prettyPrint=1", None),
        ("gemini", "", "/v1beta/models/imagen-4:predict?alt=sse&alt=media", "/v1beta/models/imagen-4:predict?alt=sse"),
        ("openai-compatible", "", "/v1beta/models/g:generateContent?fields=candidates", None),
        ("openai-compatible", "eu.googleapis.com:443", "/v1/chat/completions?fields=choices", None),
        ("gemini", "", "/?fields=a", "/v1/responses"),
        ("openai-compatible", "example.com", "/v1/chat/completions?fields=a&key=b", "as it came"),
        ("openai-compatible", "googleapis.com.example.com", "/v1/x?$fields=a", "as it came"),
    ],
)
def test_system_parameters_of_googles_go_up_to_none_of_its_apis(
    provider: str, host: str, target: str, wanted: str | None
) -> None:
    """On paths that pass as well: they would take the usage out of an answer, or make another request of it. Others may
    mean what they like by such names."""
    made = Forwarder(
        PROVIDERS[provider],
        base_path="",
        root_path="/v1/responses",
        key="k",
        client_keys_are_ours=True,
        host=host.encode(),
    )
    request = made.build(head(b"POST", target.encode(), []), BodyFields(), b"{}")

    up = target if wanted == "as it came" else target.partition("?")[0] if wanted is None else wanted
    assert request.target == up.encode()


def test_key_in_a_query_goes_up_where_it_is_the_clients_own() -> None:
    made = Forwarder(PROVIDERS["gemini"], base_path="", root_path="/", key=None, client_keys_are_ours=False)
    asked = head(b"GET", b"/v1beta/models?key=theirs&fields=models.name&$req=a", [])

    assert made.build(asked, BodyFields(), None).target == b"/v1beta/models?key=theirs&fields=models.name"
    assert made.dropped_parameters(asked.shape) == ["$req"]


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("provider", ["vertex", "gemini"])
def test_project_that_pays_is_not_a_clients_to_say_beside_our_token(provider: str, passes: bool) -> None:
    """Google's SDKs send the quota project of a developer's own login: another account's token may not use it."""
    authority = BearerAuthority(FixedSource("tok"), [(b"x-goog-user-project", b"ours")])
    google = Forwarder(
        PROVIDERS[provider],
        base_path="",
        root_path="/",
        key=None,
        client_keys_are_ours=True,
        account_headers_pass=passes,
        authority=authority,
    )
    asked = head(b"POST", b"/v1beta/models/gemini-3:generateContent", [(b"x-goog-user-project", b"theirs")])

    request = google.build(asked, BodyFields(), b"{}")

    assert [value for name, value in request.headers if name == b"x-goog-user-project"] == [
        b"theirs" if passes else b"ours"
    ]
    assert google.names_account(asked) == passes


def test_key_of_ours_never_goes_up() -> None:
    """A client that presents a key of Velox does not present it to the upstream."""
    request = forwarder(ours=True).build(head(b"GET", b"/v1/models", CLIENT_CREDENTIALS), BodyFields(), None)

    assert request.headers == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"cookie", b"a=b"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"x-forwarded-host", b"evil"),
        (b"forwarded", b"for=1.2.3.4"),
        (b"via", b"1.1 x"),
        (b"x-velox-priority", b"high"),
        (b"x-request-timeout-ms", b"500"),
        (b"x-request-id", b"a b"),
        (b"x-request-id", b"a" * 65),
    ],
)
def test_claims_about_the_way_are_dropped(name: bytes, value: bytes) -> None:
    """B-26: a client can't claim where it came from, nor speak as Velox."""
    request = forwarder().build(head(b"GET", b"/v1/models", [(name, value)]), BodyFields(), None)

    assert request.headers == []


@pytest.mark.parametrize(
    "header",
    [
        (b"x-stainless-retry-count", b"1"),
        (b"x-request-id", b"my-id_1"),
        (b"x-api-version", b"2"),
        (b"openai-beta", b"assistants=v2"),
        (b"user-agent", b"OpenAI/Python"),
        (b"idempotency-key", b"k"),
    ],
)
def test_other_headers_pass_unchanged(header: tuple[bytes, bytes]) -> None:
    """What a provider may know of, and Velox does not, goes through."""
    assert forwarder().build(head(b"GET", b"/v1/models", [header]), BodyFields(), None).headers == [header]


def test_stream_asks_for_no_compression() -> None:
    """Accept-encoding of a stream is identity; elsewhere it is the client's."""
    wanted: Headers = [(b"accept-encoding", b"gzip")]

    streamed = forwarder().build(head(b"POST", b"/v1/responses", wanted), BodyFields(stream=True), b"{}")
    plain = forwarder().build(head(b"POST", b"/v1/responses", wanted), BodyFields(), b"{}")

    assert streamed.headers == [(b"accept-encoding", b"identity")]
    assert plain.headers == wanted


@pytest.mark.parametrize(
    ("base_path", "method", "path", "target"),
    [
        ("", b"GET", b"/v1/models", b"/v1/models"),
        ("/api", b"GET", b"/v1/models", b"/api/v1/models"),
        ("", b"POST", b"/", b"/v1/responses"),
        ("/api", b"POST", b"/", b"/api/v1/responses"),
        ("", b"GET", b"/", b"/"),
    ],
)
def test_target_goes_below_the_origins_path(base_path: str, method: bytes, path: bytes, target: bytes) -> None:
    """The path goes up as it came; a bare POST / goes to VELOX_UPSTREAM_REQUEST_PATH."""
    assert forwarder(base_path=base_path).build(head(method, path), BodyFields(), None).target == target


def test_secret_is_the_key_as_it_goes_up() -> None:
    """F-26 looks for what was sent; where the client's own key passes, there is nothing to look for."""
    ours = forwarder(key="sk-ours")

    assert (ours.secret, forwarder().secret) == (b"sk-ours", None)
    assert ours.build(head(b"GET", b"/v1/models", []), BodyFields(), None).headers[0][1].endswith(b" sk-ours")


def test_warmup_carries_the_credential() -> None:
    """The HEAD that warms a connection is one that a provider would accept."""
    request = forwarder(base_path="/api", key="sk-ours").warmup("/v1/models")

    assert (request.method, request.target) == (b"HEAD", b"/api/v1/models")
    assert (b"authorization", b"Bearer sk-ours") in request.headers


@pytest.mark.parametrize("bad", [b"a\nb", b"a\rb", b"a\0b"])
def test_field_that_would_split_a_head_goes_up_in_no_form(bad: bytes) -> None:
    """An engine of HTTP/2 does not look at what it sends: the pairs are looked at as the lines are (CVE-2025-57804)."""
    stable = HeadTemplate([(b"x-a", bad)], [(b"x-a", bad)])
    volatile = HeadTemplate([(b"x-a", None)], [(b"x-a", None)])
    for fields, values in ((PlainFields([(b"x-a", bad)]), ()), (stable, ()), (volatile, (bad,))):
        for form in (fields.headers, fields.lines):
            with pytest.raises(ValueError, match="CR, LF or NUL"):
                form(values)
