"""The ring of records: what is written is read once, whole, whenever its writer dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from velox.shm.record_ring import BODY_BYTES, RECORD_BYTES, RecordRing, RingError

_OPEN_AT = 4096
_RING_AT = _OPEN_AT + 4096 * RECORD_BYTES


def _body(n: int) -> bytes:
    return b"\x02" + n.to_bytes(8, "little").ljust(BODY_BYTES - 1, b".")


def _writer(path: Path, n_records: int = 8) -> RecordRing:
    ring = RecordRing(path, n_records)
    ring.begin()
    return ring


def _read(ring: RecordRing) -> list[bytes | None]:
    return ring.read(ring.tail, 5000)


@pytest.mark.parametrize("n_bytes", [64, 4096])
@pytest.mark.parametrize(("n", "first"), [(3, 0), (8, 0), (21, 13)])
def test_records_whose_head_is_lost_are_found_again(tmp_path: Path, n_bytes: int, n: int, first: int) -> None:
    """As a page that was not written before a power failure: under another name, for the reader to compare."""
    path = tmp_path / "0.ring"
    writer = _writer(path)
    for number in range(n):
        assert writer.put(_body(number))
        writer.free(number)
    name = writer.name
    with path.open("r+b") as file:
        file.write(bytes(n_bytes))
    ring = RecordRing(path, 1)
    assert (ring.n_records, ring.head, ring.take_found(), ring.take_found()) == (8, n, n - first, 0)
    assert ring.name != name and _read(ring) == [_body(number) for number in range(first, n)]


@pytest.mark.parametrize("content", [b"\x02" * 128, b"x"])
def test_file_whose_head_is_lost_and_that_has_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    """Nobody knows what it was: it is no new ring, and stays as it is."""
    path = tmp_path / "0.ring"
    path.write_bytes(bytes(_RING_AT) + content.ljust(8 * RECORD_BYTES, b"\0"))
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(RingError, match="its head is lost"):
            RecordRing(path, 8)
    assert path.read_bytes() == before


def test_file_that_was_only_just_made_is_a_new_ring(tmp_path: Path) -> None:
    """Its maker was killed before it wrote the head: nothing can be in it."""
    path = tmp_path / "0.ring"
    path.write_bytes(bytes(_RING_AT + 8 * RECORD_BYTES))
    writer = _writer(path)
    assert writer.put(_body(1)) and _read(writer) == [_body(1)]


def test_records_are_read_in_order(tmp_path: Path) -> None:
    """By another mapping of the file, as the reader's process has it; over the end of the ring, too."""
    writer, reader = _writer(tmp_path / "0.ring"), RecordRing(tmp_path / "0.ring", 1)
    for first in range(0, 40, 5):
        assert all(writer.put(_body(n)) for n in range(first, first + 5))
        assert reader.read(reader.tail, 100) == [_body(n) for n in range(first, first + 5)]
        reader.free(reader.tail + 5)

    assert (reader.head, reader.tail, reader.n_dropped) == (40, 40, 0)
    assert reader.name == writer.name


def test_full_ring_drops_and_counts(tmp_path: Path) -> None:
    """What the reader still needs is never written over; with room again records pass again."""
    ring = _writer(tmp_path / "0.ring", 4)
    taken = [ring.put(_body(n)) for n in range(6)]
    ring.add_dropped((2, 30, 0, 5))

    assert taken == [True] * 4 + [False] * 2
    assert ring.is_full
    assert (ring.n_dropped, ring.dropped[:4]) == (2, (2, 30, 0, 5))
    ring.free(1)
    assert not ring.is_full
    assert ring.put(_body(9))
    assert _read(ring) == [_body(1), _body(2), _body(3), _body(9)]


def test_sums_of_what_was_dropped_do_not_overflow(tmp_path: Path) -> None:
    """Whatever a call's tokens and cost are: its request goes on."""
    ring = _writer(tmp_path / "0.ring", 4)
    for _ in range(2):
        ring.add_dropped((1, 2**70, 2**62, -5))

    assert ring.dropped[:4] == (2, 2**63 - 1, 2**63 - 1, 0)


def _write_and_die(path: Path) -> None:
    ring = RecordRing(path, 2000)
    ring.begin()
    done = ring.open(_body(5000))
    ring.open(_body(6000))
    for n in range(1000):
        ring.put(_body(n))
    ring.close(done)
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_writer_leaves_all_that_it_had_put(tmp_path: Path) -> None:
    """SIGKILL right after the last put: all are there, and its open call is found once."""
    path = tmp_path / "0.ring"
    RecordRing(path, 2000)
    pid = os.fork()
    if not pid:
        _write_and_die(path)
    os.waitpid(pid, 0)
    ring = RecordRing(path, 2000)

    assert ring.recover() == 1
    assert _read(ring) == [_body(n) for n in (*range(1000), 6000)]
    assert ring.recover() == 0


def test_record_without_its_count_is_kept(tmp_path: Path) -> None:
    """Killed between the record and the count of it: the next writer goes on behind it."""
    path = tmp_path / "0.ring"
    ring = _writer(path)
    ring.put(_body(1))
    ring.put(_body(2))
    data = bytearray(path.read_bytes())
    data[16:24] = (1).to_bytes(8, "little")  # the count is one behind
    path.write_bytes(data)

    _writer(path).put(_body(3))

    assert _read(RecordRing(path, 8)) == [_body(1), _body(2), _body(3)]


def _older_header(path: Path, header: bytes) -> None:
    """Be a power failure before which the kernel had written all pages but the first one."""
    with path.open("r+b") as file:
        file.write(header)


@pytest.mark.parametrize("n_records", [150, 256])
@pytest.mark.parametrize("n_before", [0, 100])
def test_records_that_an_older_header_does_not_count_are_found(tmp_path: Path, n_records: int, n_before: int) -> None:
    """Also behind a page that was not written, and over the end of the ring. Twice finds no more."""
    path = tmp_path / "0.ring"
    ring = _writer(path, n_records)
    for n in range(n_before):
        ring.put(_body(n))
    ring.free(n_before)
    header = path.read_bytes()[:4096]
    for n in range(n_before, n_before + 130):
        ring.put(_body(n))
    _older_header(path, header)
    page = (n_before + 32) // 32
    lost = [n for n in range(n_before, n_before + 130) if n % n_records // 32 == page]
    with path.open("r+b") as file:
        file.seek(_RING_AT + lost[0] % n_records * RECORD_BYTES)
        file.write(bytes(len(lost) * RECORD_BYTES))

    for _ in range(2):
        ring = RecordRing(path, 1)
        ring.start()
        ring.recover()
        assert (ring.head, ring.left) == (n_before + 130, n_before + 130)
        expected = [None if n in lost else _body(n) for n in range(n_before, n_before + 130)]
        assert _read(ring) == expected


def test_records_of_the_round_before_are_not_found(tmp_path: Path) -> None:
    """They lie where the next ones will."""
    path = tmp_path / "0.ring"
    ring = _writer(path, 64)
    for n in range(100):
        ring.put(_body(n))
        ring.free(n + 1)
    ring = RecordRing(path, 1)
    ring.start()

    assert (ring.head, ring.left) == (100, 100)


def test_what_was_left_is_known_until_a_reader_has_compared_it(tmp_path: Path) -> None:
    """Without a store it stays what it was at the first start, however much comes behind it."""
    path = tmp_path / "0.ring"
    _writer(path).put(_body(1))
    for n in range(2, 5):
        ring = RecordRing(path, 1)
        ring.start()
        ring.begin()
        ring.put(_body(n))
        assert ring.left == 1
    RecordRing(path, 1).compared()
    assert ring.left is None

    ring = RecordRing(path, 1)
    ring.start()
    assert ring.left == 4


def test_ring_with_another_identity_has_another_name(tmp_path: Path) -> None:
    """In all processes that have it; its records stay."""
    path = tmp_path / "0.ring"
    writer = _writer(path)
    writer.start()
    writer.put(_body(1))
    reader = RecordRing(path, 1)
    before = reader.name
    reader.rename(7)

    assert before != reader.name == reader.name_with(7) == writer.name == "0-0000000000000007"
    assert writer.left is None and _read(writer) == [_body(1)]


@pytest.mark.parametrize("at", range(RECORD_BYTES))
def test_torn_record_is_not_taken(tmp_path: Path, at: int) -> None:
    """Any byte of it that is not what was written."""
    path = tmp_path / "0.ring"
    _writer(path).put(_body(1))
    data = bytearray(path.read_bytes())
    data[_RING_AT + at] ^= 1
    path.write_bytes(data)

    assert _read(RecordRing(path, 8)) == [None]


def test_torn_open_call_is_not_recovered(tmp_path: Path) -> None:
    """Nor one that was closed."""
    path = tmp_path / "0.ring"
    ring = _writer(path)
    ring.close(ring.open(_body(1)))
    ring.open(_body(2))
    data = bytearray(path.read_bytes())
    found = data.index(_body(2))
    data[found + 3] ^= 1
    path.write_bytes(data)

    assert RecordRing(path, 8).recover() == 0


def test_older_record_at_the_same_place_is_not_taken(tmp_path: Path) -> None:
    """Its CRC begins with its number."""
    path = tmp_path / "0.ring"
    ring = _writer(path, 2)
    for n in range(2):
        ring.put(_body(n))
    data = bytearray(path.read_bytes())
    data[16:24] = (3).to_bytes(8, "little")  # a count before its record
    path.write_bytes(data)

    assert RecordRing(path, 2).read(2, 10) == [None]


def test_recovery_without_room_goes_on_later(tmp_path: Path) -> None:
    """What was open stays open until the reader has made room."""
    path = tmp_path / "0.ring"
    ring = _writer(path, 2)
    for n in range(3):
        ring.open(_body(n))
    ring = RecordRing(path, 2)
    assert ring.recover() == 2
    ring.free(2)
    assert ring.recover() == 1
    assert len(set(RecordRing(path, 2).read(1, 10))) == 2


def test_calls_that_recovery_had_no_room_for_outlive_the_next_writer(tmp_path: Path) -> None:
    """Its own calls are noted at other places; all are put at the next recovery that has room."""
    path = tmp_path / "0.ring"
    ring = _writer(path, 10)
    for n in range(3):
        ring.open(_body(n))
    for n in range(10):
        ring.put(_body(100 + n))
    assert RecordRing(path, 10).recover() == 0
    ring = _writer(path)
    places = [ring.open(_body(200 + n)) for n in range(4093)]
    assert len(set(places)) == 4093 and ring.open(_body(1)) == -1, "three are not its own"
    for place in places[1:]:
        ring.close(place)

    ring.free(10)
    assert RecordRing(path, 10).recover() == 4
    assert {*_read(ring)} == {_body(n) for n in (0, 1, 2, 200)}
    assert _writer(path).open(_body(1)) >= 0 and RecordRing(path, 10).recover() == 1


def test_recovery_leaves_all_places_to_its_writer(tmp_path: Path) -> None:
    """A ring that recovers and goes on as the writer has as many as a new one."""
    path = tmp_path / "0.ring"
    ring = _writer(path)
    for n in range(4):
        ring.open(_body(n))
    ring = RecordRing(path, 8)
    assert ring.recover() == 4
    assert len({ring.open(_body(n)) for n in range(4096)}) == 4096 and ring.n_unprotected == 0


def test_too_many_open_calls_are_counted(tmp_path: Path) -> None:
    """The call goes on without protection."""
    ring = _writer(tmp_path / "0.ring")
    places = [ring.open(_body(n)) for n in range(4097)]

    assert places[-1] == -1
    assert ring.n_unprotected == 1
    ring.close(places[-1])
    ring.close(places[0])
    assert ring.open(_body(1)) == places[0]


def test_names_get_numbers_that_no_other_has(tmp_path: Path) -> None:
    """Nor one of another process before it."""
    first = [_writer(tmp_path / "0.ring").next_name() for _ in range(3)]
    assert first == [1, 2, 3]


def test_rings_of_one_place_have_names_of_their_own(tmp_path: Path) -> None:
    """A file that was removed and made again is another ring: its numbers begin anew."""
    path = tmp_path / "0.ring"
    before = RecordRing(path, 8).name
    path.unlink()

    assert RecordRing(path, 8).name != before


@pytest.mark.parametrize("content", [b"x", b"\0" * 5000, b"SQLite format 3\0" * 1000])
def test_file_that_is_no_ring_is_refused(tmp_path: Path, content: bytes) -> None:
    """And stays as it was."""
    path = tmp_path / "0.ring"
    path.write_bytes(content)

    with pytest.raises(RingError, match=r"0\.ring.*move it away|0\.ring"):
        RecordRing(path, 8)
    assert path.read_bytes() == content


def test_ring_that_has_no_disk_says_so(tmp_path: Path) -> None:
    """No worker may find out later: it would be killed."""
    with pytest.raises(RingError, match=r"0\.ring: .*bytes are needed"):
        RecordRing(tmp_path / "0.ring", 1 << 50)
    assert not (tmp_path / "0.ring").exists()
    with pytest.raises(RingError, match="No such file"):
        RecordRing(tmp_path / "nowhere" / "0.ring", 8)
