"""Bodies pass byte for byte, both ways, whatever their size and framing; and through the SDK's own file calls."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import random
import zlib
from collections.abc import Iterator

import brotli
import httpx
import pytest
from backports import zstd

from tests.e2e.conftest import Wall
from tests.e2e.harness import VeloxProcess, read_reply
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.upstreams import Certificates, start_nghttpd

OCTETS = (("content-type", "application/octet-stream"),)
# Around the sizes where something begins: a frame, a slice, a window, a write buffer; and 10 MB.
SIZES = [0, 1, 16_384, 16_385, 65_536, 262_145, 1_048_577, 10_000_000]
FILE = b'{"id":"file-1","object":"file","bytes":3,"created_at":1,"filename":"f","purpose":"batch","status":"processed"}'


def octets(n_bytes: int, seed: int = 1) -> bytes:
    """Return random bytes, the same for the same seed."""
    return random.Random(seed).randbytes(n_bytes)


def digest(data: bytes) -> tuple[int, str]:
    """Return what is compared: a failure prints this, not megabytes."""
    return len(data), hashlib.sha256(data).hexdigest()


async def accept(call: Call) -> None:
    """Answer an upload."""
    await call.reply(200, JSON, FILE)


@pytest.mark.parametrize("n_bytes", SIZES)
def test_request_body_with_length_goes_up_unchanged(wall: Wall, n_bytes: int) -> None:
    """A binary body with a Content-Length arrives as it was sent, with its length."""
    body = octets(n_bytes)

    with wall.upstream.playing(accept):
        reply = wall.velox.request("POST", "/v1/files", body, dict(OCTETS))
        call = wall.upstream.wait_call()

    assert reply.status == 200
    assert digest(call.body) == digest(body)
    assert call.header("content-length") == str(n_bytes)


def test_compressed_request_goes_up_as_what_it_is() -> None:
    """C16: zstd as of Codex, gzip, deflate, br: in one write and large, over HTTP/1.1 and HTTP/2; not so coded."""
    small = b'{"model":"gpt-4o","messages":[{"role":"user","content":"Hi"}]}'
    words = " ".join(f"word {n * n}" for n in range(60_000))
    large = b'{"model":"gpt-4o","messages":[{"role":"user","content":"%b"}]}' % words.encode()
    base = {"content-type": "application/json"}
    codings = {"zstd": zstd.compress, "gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}
    with (
        RecordingUpstream(script=accept) as upstream,
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1", "VELOX_LISTEN_HTTP2": "on"}) as velox,
    ):
        for is_http2 in (False, True):
            with httpx.Client(http1=not is_http2, http2=is_http2, trust_env=False, base_url=velox.base_url) as client:
                for (coding, pack), body in itertools.product(codings.items(), (small, large)):
                    upstream.forget()
                    headers = {**base, "content-encoding": coding}
                    reply = client.post("/v1/chat/completions", content=pack(body), headers=headers)
                    (call,) = upstream.calls
                    assert (reply.status_code, digest(call.body)) == (200, digest(body))
                    assert (call.header("content-length"), call.header("content-encoding")) == (str(len(body)), None)
                refused = client.post("/v1/files", content=small, headers={**base, "content-encoding": "compress"})
                assert (refused.status_code, refused.headers["accept-encoding"]) == (415, "zstd, gzip, deflate, br")
                empty = client.post("/v1/files", content=small, headers={**base, "content-encoding": ""})
                assert empty.status_code == 200  # N6


@pytest.mark.parametrize("n_bytes", SIZES)
def test_request_body_in_chunks_goes_up_unchanged(wall: Wall, n_bytes: int) -> None:
    """A chunked body arrives as it was sent; its length is known by then and is stated."""
    body = octets(n_bytes)
    sizes = random.Random(n_bytes)
    head = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n"

    with wall.upstream.playing(accept), wall.velox.connect() as sock:
        sock.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        at = 0
        while at < n_bytes:
            piece = body[at : at + sizes.randint(1, 200_000)]
            sock.sendall(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
            at += len(piece)
        sock.sendall(b"0\r\nx-trailer: dropped\r\n\r\n")
        reply = read_reply(sock)
        call = wall.upstream.wait_call()

    assert reply.status == 200
    assert digest(call.body) == digest(body)
    assert call.header("content-length") == str(n_bytes)
    assert call.header("x-trailer") is None


def test_json_body_goes_up_byte_for_byte(wall: Wall) -> None:
    """A body that Velox reads is passed on with its spaces, escapes, order and numbers as they came."""
    body = '\ufeff{ "stream" : false,\t"model":"\\u006d",\r\n"n":1e400,"x":"\\ud83d","é":-0.0,"z":{"a":[]}} '.encode()

    with wall.upstream.playing(accept):
        assert wall.velox.request("POST", "/v1/chat/completions", body).status == 200
        assert wall.upstream.wait_call().body == body


@pytest.mark.parametrize("framing", ["length", "unknown", "dripping"])
@pytest.mark.parametrize("n_bytes", SIZES)
def test_reply_body_comes_down_unchanged(wall: Wall, n_bytes: int, framing: str) -> None:
    """A binary reply arrives as it was sent, with its length where the upstream stated one."""
    body = octets(n_bytes, seed=2)

    async def answer(call: Call) -> None:
        if framing == "length":
            await call.reply(200, OCTETS, body)
            return
        await call.head(200, OCTETS)
        pieces = [body] if framing == "unknown" else [body[at : at + 70_001] for at in range(0, n_bytes, 70_001)]
        for piece in filter(None, pieces):
            await call.data(piece)
        await call.end()

    with wall.upstream.playing(answer):
        reply = wall.velox.request("GET", "/v1/files/file-1/content")

    assert reply.status == 200
    assert digest(reply.body) == digest(body)
    if framing == "length":
        assert reply.header("content-length") == str(n_bytes)


def test_reply_by_single_bytes_comes_down_unchanged(wall: Wall) -> None:
    """One byte a TCP segment or DATA frame is the same reply (F-15)."""
    body = octets(300, seed=3)

    async def drip(call: Call) -> None:
        await call.head(200, OCTETS)
        for byte in body:
            await call.data(bytes((byte,)))
        await call.end()

    with wall.upstream.playing(drip):
        assert wall.velox.request("GET", "/v1/files/file-1/content").body == body


def test_sdk_uploads_a_file(wall: Wall) -> None:
    """The SDK's multipart upload arrives whole, unread and unchanged; the reply is decoded by the SDK."""
    content = octets(3_000_000, seed=4)

    with wall.upstream.playing(accept):
        uploaded = wall.sdk.files.create(file=("data.bin", io.BytesIO(content)), purpose="batch")
        call = wall.upstream.wait_call()

    boundary = (call.header("content-type") or "").partition("boundary=")[2]
    assert uploaded.id == "file-1"
    assert (call.method, call.target) == ("POST", "/v1/files")
    assert content in call.body and call.body.startswith(f"--{boundary}\r\n".encode())
    assert call.body.endswith(f"--{boundary}--\r\n".encode())


def test_sdk_sends_a_picture_to_a_path_that_names_a_model(wall: Wall) -> None:
    """A multipart body of a model path passes unread: only JSON is looked into."""
    picture = octets(50_000, seed=5)

    async def answer(call: Call) -> None:
        await call.reply(200, JSON, b'{"created":1,"data":[{"b64_json":"eA=="}]}')

    with wall.upstream.playing(answer):
        edited = wall.sdk.images.edit(image=("a.png", picture, "image/png"), prompt="brighter", model="gpt-image-1")

    assert edited.data and edited.data[0].b64_json == "eA=="
    assert picture in wall.upstream.wait_call().body


def test_sdk_downloads_a_file(wall: Wall) -> None:
    """The SDK's binary download is the file."""
    content = octets(3_000_000, seed=6)

    async def answer(call: Call) -> None:
        await call.reply(200, OCTETS, content)

    with wall.upstream.playing(answer):
        assert digest(wall.sdk.files.content("file-1").read()) == digest(content)


@pytest.fixture(scope="module", params=["ngh2", "h2"])
def echo(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[VeloxProcess]:
    """A gateway before an nghttpd that sends every upload back."""
    with start_nghttpd(certificates, "--echo-upload", files={"v1/files/big": octets(10_000_000)}) as nghttpd:
        env = {**nghttpd.env(), "VELOX_HTTP2_ENGINE": str(request.param), "VELOX_WORKERS": "1"}
        with VeloxProcess(env) as velox:
            yield velox


@pytest.mark.parametrize("n_bytes", SIZES[1:])
def test_nghttpd_echoes_what_was_sent(echo: VeloxProcess, n_bytes: int) -> None:
    """Up and down through a foreign HTTP/2 server whose windows are smaller than the body."""
    body = octets(n_bytes, seed=7)

    reply = echo.request("POST", "/v1/files", body, dict(OCTETS))

    assert reply.status == 200
    assert digest(reply.body) == digest(body)


def test_nghttpd_download_is_the_file(echo: VeloxProcess) -> None:
    """10 MB come down through a foreign HTTP/2 server."""
    reply = echo.request("GET", "/v1/files/big")

    assert digest(reply.body) == digest(octets(10_000_000))
