"""The arithmetic of `make bench`: which cells, who is refused, what is left, what two runs have in common."""

from pathlib import Path

import pytest

from bench.compare.agree import compare, report
from bench.compare.cells import CELLS, Cell, chosen, planned_s, refusal
from bench.compare.progress import Progress
from bench.compare.stage import PASSES, Filled, turns
from bench.compare.subjects import subjects
from bench.compare.workers import shares
from bench.cpu import memory_bytes, user_share
from bench.machine import Cores
from bench.measures import split
from bench.open_loop import whole_length
from bench.payloads import chat_body, sse_chunk
from bench.streams import Scanner, Seen, figures

CORES = Cores(0, 1, (0, 1))
HTTP1 = frozenset({"http1"})


def cell(cell_id: str) -> Cell:
    return next(each for each in CELLS if each.id == cell_id)


# -- cells --------------------------------------------------------------------------------------------------------


def test_chosen_each_kind_of_run_holds_the_smaller_one() -> None:
    """A full run measures all that a bench does, and a bench all that a smoke test does."""
    smoke, bench, full = ({each.id for each in chosen(kind)} for kind in ("smoke", "bench", "full"))
    assert smoke < bench < full == {each.id for each in CELLS}


def test_chosen_unknown_cell_is_refused_by_name() -> None:
    """A mistyped cell does not measure nothing in silence."""
    with pytest.raises(ValueError, match="json-750 "):
        chosen("bench", ["json-750 "])


def test_cells_have_names_of_their_own() -> None:
    """Two runs are compared by them."""
    assert len({each.id for each in CELLS}) == len(CELLS)


def test_refusal_names_what_a_gateway_can_do() -> None:
    """At a rate close to its most, a gateway's own queue would be measured."""
    assert "does 5000 requests/s at most" in refusal(cell("latency-4000"), HTTP1, {"slow": 5000.0}, "slow")
    assert refusal(cell("latency-4000"), HTTP1, {"fast": 6000.0}, "fast") == ""
    assert refusal(cell("latency-4000"), HTTP1, {}, "unknown") == ""


def test_refusal_many_connections_before_a_slow_gateway() -> None:
    """2,000 connections at 120 requests a second would wait 17 seconds each; 32 are no hindrance."""
    assert "17 s" in refusal(cell("json-2000-connections"), HTTP1, {"slow": 120.0}, "slow")
    assert refusal(cell("json-750B"), HTTP1, {"slow": 120.0}, "slow") == ""


def test_refusal_upstream_that_a_gateway_does_not_speak_with() -> None:
    """It is told, and comes before any rate."""
    assert "HTTP/2" in refusal(cell("json-http2"), HTTP1, {}, "any")
    assert refusal(cell("json-http2"), frozenset({"http2"}), {}, "any") == ""


def test_planned_s_grows_with_what_is_measured() -> None:
    """A cell with longer measurements is planned longer."""
    assert planned_s(cell("latency-50"), 2.0) == planned_s(cell("latency-50"), 1.0) + 2.0


def test_workload_says_what_the_document_promises() -> None:
    """Kind of load, rate, size, connections, upstream."""
    found = cell("sse-paced").workload()
    assert (found["stream"], found["load"], found["rate"], found["connections"]) == (True, "closed", None, 150)
    assert cell("mixed").workload()["load"] == "open"
    assert cell("json-tls").workload()["upstream"] == "tls"


@pytest.mark.parametrize(
    ("n_rounds", "cell_id"), [(5, "json-750B"), (4, "json-750B"), (1, "sse-burst"), (5, "json-tls")]
)
def test_turns_of_all_passes_are_all_rounds(n_rounds: int, cell_id: str) -> None:
    """Each once, and every pass has about as many; a cell of the full run has three of five."""
    passes = [turns(cell(cell_id), n_rounds, number) for number in range(PASSES)]
    assert sorted(turn for each in passes for turn in each) == list(range(3 if cell_id == "json-tls" else n_rounds))
    assert max(map(len, passes)) - min(map(len, passes)) <= 1


# -- who is measured ----------------------------------------------------------------------------------------------


def test_subjects_unknown_peer_is_refused_by_name() -> None:
    """A mistyped peer does not vanish in silence."""
    with pytest.raises(ValueError, match="ngnix"):
        subjects(CORES, ["ngnix"])


def test_subjects_velox_and_direct_are_always_there() -> None:
    """Only the peers may be chosen; one core has no gateway with a worker for each."""
    assert [each.name for each in subjects(CORES, ["nginx"])] == [
        "direct",
        "nginx",
        "Velox",
        "Velox, HTTP/2 up",
        "Velox, HTTP/2 over TLS up",
        "Velox, all on",
        "Velox, 2 workers",
        "Velox, 2 workers, all on",
    ]
    assert "Velox, 1 workers" not in [each.name for each in subjects(Cores(0, 0, (0,)), ["nginx"])]


def test_subjects_another_tree_is_measured_beside_this_one() -> None:
    """It goes by its folder's name, and runs from there."""
    others = [each for each in subjects(CORES, ["nginx"], Path("/some/earlier")) if each.tree]
    assert [each.name for each in others] == ["Velox in earlier", "Velox in earlier, HTTP/2 up"]
    assert {(each.kind, each.tree) for each in others} == {("velox", Path("/some/earlier"))}


def test_shares_load_gets_what_is_left_or_the_last_core() -> None:
    """Only where every core has a worker is one shared."""
    assert [(len(s.workers), s.rest, s.is_shared) for s in shares((0, 1, 2))] == [
        (1, (1, 2), False),
        (2, (2,), False),
        (3, (2,), True),
    ]
    assert [len(s.workers) for s in shares(range(8))] == [1, 2, 4, 8]
    assert [(s.workers, s.rest) for s in shares((5,))] == [((5,), (5,))]


# -- what comes out -----------------------------------------------------------------------------------------------


def test_filled_refused_subject_has_no_figures() -> None:
    """What a gateway did before it failed is not told as if it had not."""
    filled = Filled(cell("json-750B"), {"a": [{"cpu_us": 1.0}], "b": []}, {"a": [1.0], "b": []})
    filled.refuse("a", "3 of 9 requests failed")
    document = filled.document()
    assert document["rounds"] == {"b": []}
    assert document["latencies_ms"] == {}
    assert document["refused"] == {"a": "3 of 9 requests failed"}


def test_filled_quantiles_are_a_thousand_at_most_and_end_with_the_greatest() -> None:
    """In equal steps: the middle one is the median."""
    filled = Filled(cell("latency-50"), samples={"a": [float(n) for n in range(5000)], "b": [3.0, 1.0]})
    quantiles = filled.document()["latencies_ms"]
    assert isinstance(quantiles, dict)
    assert len(quantiles["a"]) == 1000
    assert (quantiles["a"][0], quantiles["a"][499], quantiles["a"][-1]) == (4.0, 2499.0, 4999.0)
    assert quantiles["b"] == [1.0, 3.0]


def test_split_divides_cpu_time_as_the_ticks_say() -> None:
    """Without a tick nothing is known, and all is the kernel's."""
    assert split(10.0, (3, 1)) == {"cpu_us": 10.0, "cpu_user_us": 7.5, "cpu_system_us": 2.5}
    assert split(10.0, (0, 0))["cpu_us"] == 10.0


def run_of(*values: float, subject: str = "a", key: str = "cpu_us") -> dict[str, object]:
    return {"cells": [{"id": "cell", "rounds": {subject: [{key: value} for value in values]}}]}


@pytest.mark.parametrize(
    ("theirs", "n_different"),
    [((1.0, 2.0, 3.0), 0), ((2.5, 3.5, 9.0), 1), ((0.5, 3.5, 9.0), 0), ((4.0, 5.0, 6.0), 1), ((-1.0, 0.0, 0.5), 1)],
)
def test_compare_differs_when_neither_median_is_in_the_others_range(
    theirs: tuple[float, ...], n_different: int
) -> None:
    """One wide range that holds the other's median is enough to agree: its spread says so."""
    n, found = compare(run_of(1.0, 2.0, 3.0), run_of(*theirs))
    assert (n, len(found)) == (1, n_different)


def test_compare_figures_of_one_run_only_are_not_counted() -> None:
    """Another subject, another figure, another cell."""
    assert compare(run_of(1.0), run_of(1.0, subject="b")) == (0, [])
    assert compare(run_of(1.0), run_of(1.0, key="p50_ms")) == (0, [])
    assert compare(run_of(1.0), {"cells": []}) == (0, [])


def test_report_names_what_differs_and_allows_a_few() -> None:
    """Runs with nothing in common do not agree."""
    _, found = compare(run_of(1.0, 2.0), run_of(3.0, 4.0))
    text, agrees = report(10, found, 0.1)
    assert agrees and text.splitlines()[0] == "cell, a, cpu_us: 1.5 (1-2) and 3.5 (3-4)"
    assert not report(9, found, 0.1)[1]
    assert not report(0, [], 0.1)[1]


def test_progress_says_what_is_left_at_the_pace_so_far() -> None:
    """Half the time per step as planned: half of the rest is left."""
    now = iter((0.0, 0.0, 10.0, 10.0, 11.0))
    said: list[str] = []
    progress = Progress(100.0, said.append, lambda: next(now))
    progress.step("a", 20.0)
    progress.step("b", 20.0)
    progress.skip(20.0)
    progress.step("c", 20.0)
    assert said == ["[1:40 left] a", "[0:40 left] b", "[0:10 left] c"]


# -- streams ------------------------------------------------------------------------------------------------------


def test_scanner_finds_events_wherever_they_are_cut() -> None:
    """Each once, with its stamp, whole answer or byte by byte; and the end of the answer."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in map(sse_chunk, (11, 22, 33)))
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    for size in (1, 7, 100, len(answer)):
        scanner = Scanner()
        found: list[int] = []
        for begin in range(0, len(answer), size):
            assert not scanner.ended
            found += scanner.feed(answer[begin : begin + size])
        assert (found, scanner.status, scanner.ended) == ([11, 22, 33], 200, True)


def test_scanner_answer_with_its_length_ends_with_done() -> None:
    """A gateway that has a short stream whole may send it so; "[DONE]" alone ends no chunked one."""
    event = sse_chunk(11) + b"data: [DONE]\n\n"
    for head, ended in ((b"content-length: %d" % len(event), True), (b"transfer-encoding: chunked", False)):
        scanner = Scanner()
        scanner.feed(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + event)
        assert scanner.ended is ended


def test_scanner_event_written_anew_by_a_gateway_counts() -> None:
    """With spaces, as Python's json writes it."""
    assert Scanner().feed(b'HTTP/1.1 200 OK\r\n\r\ndata: {"delta": {"content": " 4711"}}\n\n') == [4711]


def test_figures_of_streams_without_an_event_are_refused() -> None:
    """There is nothing to divide by."""
    with pytest.raises(ValueError, match="no event"):
        figures(Seen(seconds=1.0, n_failed=2))


def test_whole_length_by_length_and_by_last_chunk() -> None:
    """None until it is known; a reply that ends with its connection is refused."""
    assert whole_length(b"HTTP/1.1 200 OK\r\nContent-Len") is None
    assert whole_length(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n") == 41
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert whole_length(chunked + b"1\r\na\r\n") is None
    assert whole_length(chunked + b"1\r\na\r\n0\r\n\r\n") == len(chunked) + 11
    with pytest.raises(ConnectionError):
        whole_length(b"HTTP/1.1 200 OK\r\n\r\n")


# -- /proc --------------------------------------------------------------------------------------------------------


def test_memory_bytes_counts_shared_memory_once(tmp_path: Path) -> None:
    """Private parts are summed, files and shared memory are those of the greatest."""
    for pid, private, files, shared in ((1, 100, 30, 5), (2, 200, 20, 50)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "smaps_rollup").write_text(f"Rss: 999 kB\nPss_Anon: {private} kB\n")
        (tmp_path / str(pid) / "status").write_text(f"VmRSS:\t9 kB\nRssFile:\t{files} kB\nRssShmem:\t{shared} kB\n")
    assert memory_bytes([1, 2], tmp_path) == (300 + 70) * 1024


def test_user_share_reads_past_a_name_with_spaces(tmp_path: Path) -> None:
    """The 14th and 15th field of stat, counted from the last parenthesis."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 12 34 0 0 20")
    assert user_share([7], tmp_path) == (12, 34)


@pytest.mark.parametrize("size", [750, 3584])
def test_chat_body_has_the_size_that_is_asked_for(size: int) -> None:
    """Cells are named after it."""
    assert len(chat_body(stream=False, size=size)) == size
