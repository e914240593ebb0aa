"""Addresses in answers: which are the upstream's, what they become, and what lets an upload go on without a key."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.gateway.reply.addresses import NO_PASS, AddressFilter, AddressPass, PublicOrigin, UpstreamAddresses
from velox.heads import Header, ReplyHead, RequestHead
from velox.settings.parse import origin

HERE = b"https://gw.example.org"
API = UpstreamAddresses("a", [origin("http://proxy:8080/x"), origin("https://api.example.com")])
AZURE = UpstreamAddresses("z", [origin("https://res.openai.azure.com")], b"/openai")


@pytest.mark.parametrize(
    ("upstream", "address", "path"),
    [
        (API, b"https://api.example.com/v1/files?after=a", b"/v1/files?after=a"),
        (API, b"HTTPS://API.example.com:443/v1/files", b"/v1/files"),
        (API, b"http://proxy:8080/x/v1/files", b"/v1/files"),
        (API, b"http://proxy:8080/xy/v1/files", b"/xy/v1/files"),
        (API, b"https://user:pw@api.example.com/v1/files", b"/v1/files"),
        (API, b"/x/v1/files", b"/v1/files"),
        (API, b"//api.example.com/v1/files", b"/v1/files"),
        (API, b"https://api.example.com", b"/"),
        (API, b"https://api.example.com.evil.org/v1/files", None),
        (API, b"https://storage.example.org/v1/files", None),
        (API, b"//storage.example.org/v1/files", None),
        (API, b"https://[::1/v1", None),
        (AZURE, b"https://res.openai.azure.com/openai/operations/images/1", b"/operations/images/1"),
        (AZURE, b"https://res.openai.azure.com/other", b"/other"),
    ],
)
def test_address_of_an_upstream_has_a_path_here(
    upstream: UpstreamAddresses, address: bytes, path: bytes | None
) -> None:
    """Below the base of the API, as the gateway's clients ask it; another host's address is none."""
    assert upstream.path_of(address) == path


TEXT = (
    b'{"results_url":"https://api.example.com/v1/messages/batches/b/results",'
    b'"next": "http:\\/\\/proxy:8080\\/x\\/v1\\/files",'
    b'"other":"https://api.example.com.evil.org/x","bare":"https://api.example.com",'
    b'"said":"see https://api.example.com/x",'
    b'"HTTPS://API.EXAMPLE.COM/v1":1}'
)
WANTED = (
    b'{"results_url":"https://gw.example.org/v1/messages/batches/b/results",'
    b'"next": "https://gw.example.org\\/v1\\/files",'
    b'"other":"https://api.example.com.evil.org/x","bare":"https://gw.example.org",'
    b'"said":"see https://api.example.com/x",'
    b'"https://gw.example.org/v1":1}'
)


def changed(pieces: list[bytes], headers: list[Header]) -> tuple[ReplyHead, bytes]:
    """Return what a filter makes of a reply."""
    each = AddressFilter(HERE, reads_texts=True)
    each.upstream = API
    head = each.begin(ReplyHead.of(200, headers, sum(map(len, pieces))), is_sse=False, is_plain=True)
    if not each.reads_body:
        return head, b"".join(pieces)
    return head, b"".join(each.feed(piece, n == len(pieces) - 1) for n, piece in enumerate(pieces))


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_texts_of_json_are_changed_however_they_come(cuts: list[int]) -> None:
    """In one piece or in many: a whole text that begins with an address of the upstream's."""
    places = sorted({0, *cuts, len(TEXT)})
    pieces = [TEXT[at:end] for at, end in pairwise(places)]

    head, body = changed(pieces, [(b"content-type", b"application/json")])

    assert (body, head.content_length) == (WANTED, None)


@pytest.mark.parametrize("media", [b"application/x-jsonl", b"text/plain", b"application/octet-stream", b"image/png"])
def test_content_of_a_file_stays_as_it_is(media: bytes) -> None:
    """It is not the provider's answer about it."""
    head, body = changed([TEXT], [(b"content-type", media)])
    assert (body, head.content_length) == (TEXT, len(TEXT))


def test_field_that_can_not_be_changed_is_left_out() -> None:
    """Where the client named no host: better no address than the upstream's. One of another host passes."""
    each = AddressFilter(b"")
    each.upstream = API
    fields = [
        (b"operation-location", b"https://api.example.com/v1/x"),
        (b"x-goog-upload-url", b"https://api.example.com/upload?upload_id=1"),
        (b"location", b"https://storage.example.org/signed?sig=1"),
        (b"content-type", b"application/json"),
    ]
    head = each.begin(ReplyHead.of(200, fields, 0), is_sse=False, is_plain=True)
    assert [name for name, _ in head.headers] == [b"location", b"content-type"]


def test_client_is_told_the_origin_that_it_used() -> None:
    """Its Host, with the listener's scheme, or what was configured."""
    head = RequestHead.of(b"GET", b"/", host=b"gw:8080")
    assert PublicOrigin().here(head) == b"http://gw:8080"
    assert PublicOrigin(has_tls=True).here(head) == b"https://gw:8080"
    assert PublicOrigin(b"https://ai.example.org/x").here(head) == b"https://ai.example.org/x"
    assert PublicOrigin().here(RequestHead.of(b"GET", b"/")) == b""


def test_pass_opens_for_what_it_was_made_for_and_in_time() -> None:
    """By any process with the same secret; changed in any place, or too late, it is none."""
    now_s = 1_000_000.0

    def wall() -> float:
        return now_s

    digest = bytes(range(32))
    sealed = AddressPass(b"secret", wall).sealed(b"/upload/v1beta/files?upload_id=1", "google", digest)
    opened = AddressPass(b"secret", wall).opened(sealed)
    assert opened is not None
    assert opened == (b"/upload/v1beta/files?upload_id=1", "google", digest)
    assert NO_PASS in sealed
    assert AddressPass(b"other", wall).opened(sealed) is None
    for at in range(len(sealed)):
        for byte in (b"A", b"z", b"&", b"-"):
            other = sealed[:at] + byte + sealed[at + 1 :]
            found = AddressPass(b"secret", wall).opened(other)
            assert other == sealed or found is None or found == opened, "of the last letter two bits say nothing"
    now_s += 48 * 3600 + 1
    assert AddressPass(b"secret", wall).opened(sealed) is None


def test_file_of_googles_is_named_back_only_by_this_gateways_address() -> None:
    """Another host's, which the client chose, stays."""
    body = b'{"fileUri":"https:\\/\\/gw.example.org\\/v1beta\\/files\\/x","b":"https://gw.example.org/v1beta/files/y",'
    body += b'"c":"https://gw.example.org.evil/v1beta/files/y","d":"https://gw.example.org/v1/other"}'
    wanted = body.replace(b"https:\\/\\/gw.example.org\\/v1b", b"https://api.example.com\\/v1b")
    wanted = wanted.replace(b'"https://gw.example.org/v1beta', b'"https://api.example.com/v1beta')
    assert API.taken_back(body, HERE) == wanted
    assert API.taken_back(body, b"") is body
