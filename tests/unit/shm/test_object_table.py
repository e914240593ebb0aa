"""Which caller made which object: over all processes, bounded, and never another caller's by mistake."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from velox.shm.object_table import UNKNOWN, ObjectMemory, ObjectTable, object_bytes

_WAYS = 16


def tables(rows: int = 1024, blocks: int = 2) -> list[ObjectTable]:
    memory = ObjectMemory(rows, blocks, blocks)
    return [ObjectTable(memory, block) for block in range(blocks)]


def test_object_is_found_by_every_process_and_nothing_else_is() -> None:
    """Each writes its own block, and reads all."""
    first, second = tables()
    a, b = first.number("a"), first.number("b")

    first.remember("file-1", a)
    second.remember("file-2", b)

    for table in (first, second):
        assert (table.owner_of("file-1"), table.owner_of("file-2")) == (a, b)
        assert table.owner_of("file-3") == UNKNOWN


def test_owner_of_an_object_stays_it() -> None:
    """A caller that names another's object in a way that looks like a new one gets nothing by it."""
    first, second = tables()
    first.remember("file-1", 3)

    first.remember("file-1", 5)
    second.remember("file-1", 5)

    assert first.owner_of("file-1") == second.owner_of("file-1") == 3


def test_caller_that_makes_many_objects_drives_out_its_own() -> None:
    """A set has 16 rows; one caller fills it over and over, and the other's few rows stay."""
    (table,) = tables(rows=_WAYS, blocks=1)
    quiet, loud = table.number("quiet"), table.number("loud")
    for n in range(4):
        table.remember(f"file-quiet-{n}", quiet)

    for n in range(1000):
        table.remember(f"file-loud-{n}", loud)

    assert [table.owner_of(f"file-quiet-{n}") for n in range(4)] == [quiet] * 4
    kept = [n for n in range(1000) if table.owner_of(f"file-loud-{n}") == loud]
    assert kept == list(range(1000 - (_WAYS - 4), 1000)), "the newest"


def test_row_that_is_being_changed_has_no_owner() -> None:
    """Who reads meanwhile finds nothing: never the new owner under the old id."""
    memory = ObjectMemory(_WAYS, 1, 1)
    writer, reader = ObjectTable(memory, 0), ObjectTable(memory, 0)
    writer.remember("file-1", 3)
    tag = writer.number("file-1")
    at = next(at for at in range(0, len(memory.cells), 3) if memory.cells[at] == tag)

    memory.cells[at] = 0
    memory.cells[at + 1] = 5

    assert reader.owner_of("file-1") == UNKNOWN


def test_memory_is_what_its_rows_take() -> None:
    memory = ObjectMemory(1024, 2, 2)

    assert memory.cells.nbytes == object_bytes(1024, 2, 2) == 32 * 1024


def test_spare_blocks_take_no_rows_from_the_workers() -> None:
    """As many objects as were asked for are remembered while each worker slot has one process."""
    memory = ObjectMemory(4096, 2, 4)
    tables = [ObjectTable(memory, block) for block in range(2)]

    for n in range(1024):
        tables[n % 2].remember(f"file-{n}", 3)

    assert all(tables[0].owner_of(f"file-{n}") == 3 for n in range(1024))
    assert memory.cells.nbytes == object_bytes(4096, 2, 4) == 2 * 4096 * 32


@settings(max_examples=100, deadline=None)
@given(made=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 4), st.integers(0, 1)), max_size=300))
def test_known_owner_is_who_made_it_first(made: list[tuple[int, int, int]]) -> None:
    """Whatever gives way: an object has its owner, or none that is known; one that gave way may be made anew."""
    both = tables(rows=64)
    owners: dict[str, set[int]] = {}
    for number, owner, block in made:
        object_id = f"file-{number}"
        before = both[0].owner_of(object_id)
        both[block].remember(object_id, owner)
        owners.setdefault(object_id, set()).add(owner)
        assert both[1 - block].owner_of(object_id) == (before or owner)
    for object_id, known in owners.items():
        assert both[0].owner_of(object_id) in known | {UNKNOWN}


def test_place_is_kept_beside_the_owner() -> None:
    """W2: also of an object that is nobody's own; what is known of it stays so."""
    first, second = tables()
    first.remember("file-1", first.number("a"), 7)
    first.remember("file-2", UNKNOWN, 9)
    second.remember("file-2", second.number("b"), 8)

    assert second.find("file-1") == (first.number("a"), 7)
    assert (second.find("file-2"), second.place_of("file-3")) == ((UNKNOWN, 9), UNKNOWN)
