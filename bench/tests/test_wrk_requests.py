"""What wrk sends: whole requests, with marks where something is new in each."""

import re
from pathlib import Path

from bench.traffic import KEYS
from bench.wrk_requests import EACH_KEY, EACH_MODEL, write_requests


def written(path: Path) -> list[bytes]:
    """Return the requests of a file, as bench/wrk.lua reads it: each after its length."""
    rest, found = path.read_bytes(), []
    while rest:
        size, _, rest = rest.partition(b"\n")
        found.append(rest[: int(size)])
        rest = rest[int(size) :]
    return found


def sent(request: bytes) -> bytes:
    """Return a request with values of the width that wrk puts in."""
    return request.replace(b"\1I", b"0" * 12).replace(b"\1M", b"000001").replace(b"\1K", b"1")


def test_write_requests_are_whole_with_ids_left_out(tmp_path: Path) -> None:
    """Each has the length that it says, and three marks: in traceparent two, in x-request-id one."""
    found = written(write_requests(tmp_path / "requests"))
    assert len(set(found)) == len(found) == 512
    for each in found:
        head, _, body = sent(each).partition(b"\r\n\r\n")
        assert int(re.findall(rb"Content-Length: (\d+)", head)[0]) == len(body)
        assert re.search(rb"\r\ntraceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-01\r\n", head)
        assert each.count(b"\1I") == 3
        assert re.findall(rb"Bearer (\S+)", head)[0].decode() in KEYS


def test_write_requests_hostile_has_names_left_out(tmp_path: Path) -> None:
    """Eight fields whose name and value wrk makes anew."""
    assert {each.count(b"\1I") for each in written(write_requests(tmp_path / "a", heads="hostile"))} == {3 + 16}


def test_write_requests_numbered_keys_and_models_keep_the_length(tmp_path: Path) -> None:
    """A model's number stands in the body, whose length is told before."""
    for each in written(write_requests(tmp_path / "a", keys=[EACH_KEY], models=[EACH_MODEL])):
        head, _, body = sent(each).partition(b"\r\n\r\n")
        assert (each.count(b"\1K"), each.count(b"\1M")) == (1, 1)
        assert int(re.findall(rb"Content-Length: (\d+)", head)[0]) == len(body)


def test_write_requests_equal_is_one(tmp_path: Path) -> None:
    """One request without marks: what load generators send."""
    (only,) = written(write_requests(tmp_path / "a", heads="equal"))
    assert b"\1" not in only


def test_write_requests_large_bodies_are_few(tmp_path: Path) -> None:
    """The file is read into memory by wrk."""
    assert len(written(write_requests(tmp_path / "a", body=b"{}" * 1_000_000))) == 8
