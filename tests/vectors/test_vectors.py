"""Every vector against a real gateway, and torn at every byte against its decoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vectors.play import Gateways, behind
from tests.vectors.table import VECTORS, of_http11probe
from tests.vectors.vector import Door, Vector
from velox.errors import VeloxError
from velox.heads import RequestHead
from velox.protocol.http1.request import Http1Limits, RequestDecoder

# What Http11Probe documents in its seven groups (2026).
N_PUBLIC = 215
# Rows that are not a matter of bytes on one connection; each has a test of its own.
ELSEWHERE = {
    "B-28": "tests/e2e/test_bad_destinations.py::test_wrong_keys_take_the_same_time_wherever_they_differ",
    "B-37": "tests/e2e/test_poisoning.py::test_ten_thousand_unknown_models_paths_and_methods_add_no_series",
}
ROOT = Path(__file__).parents[2]
ROWS = {f"B-{number}" for number in range(1, 44)} | {"B-52"}


@pytest.fixture(scope="module")
def gateways() -> Iterator[Gateways]:
    """A gateway for each door."""
    with Gateways() as found:
        yield found


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_vector_gets_its_answer(vector: Vector, gateways: Gateways) -> None:
    """Status, reason, closing, the upstream's bytes, the next connection, the log: all as wanted."""
    assert gateways.play(vector).problems == []


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.answers], ids=str)
def test_vector_behind_a_good_request_gets_its_answer(vector: Vector, gateways: Gateways) -> None:
    """Sent in one segment with a good request before it, which is served, nothing changes."""
    assert gateways.play(behind(vector)).problems == []


def read(pieces: list[bytes], limits: Http1Limits) -> tuple[list[tuple[RequestHead, bytes]], int, str]:
    """Return the requests that a decoder finds, and the status and reason with which it refuses (0: it does not)."""
    decoder = RequestDecoder(limits)
    requests: list[tuple[RequestHead, bytes]] = []
    head: RequestHead | None = None
    body = bytearray()
    try:
        for piece in pieces:
            decoder.feed(piece)
            while head is not None or (head := decoder.read_head()) is not None:
                body += decoder.read_body()
                if not decoder.body_complete:
                    break
                requests.append((head, bytes(body)))
                head = None
                body.clear()
    except VeloxError as error:
        return requests, error.status, error.reason.code
    return requests, 0, ""


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_vector_torn_at_each_byte_is_read_the_same(vector: Vector) -> None:
    """Segments carry no meaning: cut in two anywhere, or byte by byte, the same requests and the same refusal."""
    wire, limits = vector.wire, Http1Limits(body_bytes=1000) if vector.door is Door.TIGHT else Http1Limits()
    whole = read([wire], limits)

    for at in cuts(len(wire)):
        assert read([wire[:at], wire[at:]], limits) == whole, at
    if len(wire) < 40_000:
        assert read([wire[at : at + 1] for at in range(len(wire))], limits) == whole


def cuts(n_bytes: int) -> Iterator[int]:
    """Yield each place of a short wire; of a long one its beginning and end, and some between."""
    near = 1000 if n_bytes < 3000 else 200 if n_bytes < 200_000 else 20
    if n_bytes <= 2 * near:
        yield from range(n_bytes + 1)
    else:
        yield from range(near)
        yield from range(near, n_bytes - near, max(1, n_bytes // 50))
        yield from range(n_bytes - near, n_bytes + 1)


def test_every_bad_input_has_a_vector() -> None:
    """No row of the list is without a vector or a test, and no id stands for two vectors."""
    assert ROWS - {vector.row for vector in VECTORS} == set(ELSEWHERE)
    assert len({vector.id for vector in VECTORS}) == len(VECTORS)
    for test in ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text()


def test_all_public_cases_are_there() -> None:
    """Http11Probe's cases, under its ids."""
    assert sum(map(of_http11probe, VECTORS)) >= N_PUBLIC
