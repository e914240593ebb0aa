"""Series by route, upstream and model: which of them a request counts in, and what the page shows."""

from __future__ import annotations

import re

import pytest

from velox.admin.metrics_page import render
from velox.observe import genai, series
from velox.observe.call_series import OTHER, ROW_CELLS, series_table
from velox.observe.metrics import CallRow, CallSeries, WorkerMetrics
from velox.shm.segment import Segment
from velox.shm.series_table import SeriesTable
from velox.types import ANYONE, Caller, Endpoint, KeyTerms

S = 1_000_000_000


def named(_upstream: str, model: str) -> str:
    """Know the models that begin with m, by their plain names."""
    return model.partition("-")[0] if model.startswith("m") else ""


class Page:
    """What a gateway of two workers counts, and its page."""

    def __init__(self, most_models: int = 200, **labels: bool) -> None:
        self.segment = Segment(2, series.CELLS)
        self.table: SeriesTable = series_table(2)
        self.workers = [CallSeries(self.table.block(n), named, most_models, **labels) for n in range(2)]

    def record_reply(self, row: CallRow, total_ns: int, first_ns: int) -> None:
        """Record a good reply in a series."""
        WorkerMetrics(self.segment.metrics(0)).record_reply(row, Endpoint.CHAT, 200, None, total_ns, first_ns, 0)

    def shown(self, name: str) -> dict[str, float]:
        """Return the samples of a name, by their labels in the order of the page."""
        page = render(self.segment, calls=self.table).decode()
        found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE)
        return {labels: float(value) for labels, value in found}


def labels_of(endpoint: str, is_stream: bool, route: str, upstream: str, model: str) -> str:
    """Return the labels of a series as the page has them: by name."""
    stream = "yes" if is_stream else "no"

    return f'model="{model}",route="{endpoint}",route_name="{route}",stream="{stream}",upstream="{upstream}"'


def test_streams_and_plain_replies_of_each_model_have_series_of_their_own() -> None:
    """In both workers, and beside what was sent to no upstream."""
    page = Page()
    for worker in page.workers:
        page.record_reply(worker.row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=True), 3 * S, 2 * S)
        page.record_reply(worker.row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=False), 5 * S, 5 * S)
        worker.row(Endpoint.CHAT, ("r", "two", "m2"), ANYONE, is_stream=False).failed(1)
    WorkerMetrics(page.segment.metrics(1)).duration[Endpoint.CHAT].observe(S)

    stream, plain = (labels_of("chat", is_stream, "r", "one", "m") for is_stream in (True, False))
    assert page.shown(f"{genai.TTFT}_sum") == {stream: 4.0, plain: 10.0}
    failed = labels_of("chat", False, "r", "two", "m2")
    assert page.shown(f"{genai.DURATION}_count") == {stream: 2, plain: 2, failed: 2, 'route="chat"': 1}


@pytest.mark.parametrize("ns", [0, 10**7, 10**7 + 1, 1800 * S, 1800 * S + 1])
def test_buckets_are_those_of_the_conventions_and_go_on_to_half_an_hour(ns: int) -> None:
    """Each bound belongs to its bucket."""
    page = Page()
    page.record_reply(page.workers[0].row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=False), ns, ns)

    shown = page.shown(f"{genai.DURATION}_bucket")
    counts = {float(re.findall(r'le="(.*?)"', labels)[0]): n for labels, n in shown.items()}
    assert counts == {le: float(ns / S <= le) for le in counts} and max(counts) == float("inf")
    assert sorted(counts)[:2] == [0.01, 0.02] and {81.92, 163.84, 1800.0} <= counts.keys()
    assert [bound / S for bound in genai.TPOT_NS][:3] == [0.01, 0.025, 0.05]
    assert genai.TOKEN_BOUNDS[-1] == 67_108_864 and re.fullmatch(r"1\.\d+\.\d+", genai.VERSION)


def test_tokens_cost_and_time_of_each_token_are_counted() -> None:
    """A stream of one token tells no time of each; a price that is not known is no price of 0."""
    page = Page()
    row = page.workers[0].row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=True)
    row.used((10, 3, 4, None, 2))
    row.streamed(S, 3)
    row.cost(1_500_000_000)
    row.used((None, 0, None, None, None))
    row.streamed(S, 1)
    row.streamed(S, 0)
    row.cost(None)

    of = labels_of("chat", True, "r", "one", "m")
    kinds = {labels.partition(",")[0]: n for labels, n in page.shown("velox_model_tokens_total").items()}
    assert kinds == {'kind="input"': 10, 'kind="output"': 3, 'kind="cached"': 4, 'kind="reasoning"': 2}
    assert page.shown("velox_model_cost_usd_total") == {of: 1.5}
    assert page.shown("velox_model_unpriced_requests_total") == {of: 1}
    assert page.shown(f"{genai.TPOT}_sum") == {of: 0.5} and page.shown(f"{genai.TPOT}_count") == {of: 1}
    counts = page.shown(f"{genai.TOKENS}_count")
    assert {re.findall(r'gen_ai_token_type="(.*?)"', labels)[0]: n for labels, n in counts.items()} == {
        "input": 1,
        "output": 2,
    }


def test_what_clients_write_is_no_label_and_models_are_bounded_over_all_workers() -> None:
    """An unknown model is `other`, and so is one beyond the bound; a known one keeps its name in every worker."""
    page = Page(most_models=2)
    one, other = page.workers
    for worker, models in (
        (one, ["m1", "evil\n", "x" * 9999]),
        (other, ["m2", "m3", "m1-2026"]),
        (one, ["m2", "m3", ""]),
    ):
        for model in models:
            worker.row(Endpoint.CHAT, ("r", "one", model), ANYONE, is_stream=False).failed(1)

    counts = {re.findall(r'model="(.*?)"', labels)[:1][0] if "model=" in labels else "": n
              for labels, n in page.shown(f"{genai.DURATION}_count").items()}  # fmt: skip
    assert counts == {"m1": 2, "m2": 2, OTHER: 4, "": 1}
    assert page.table.n_used(0) + page.table.n_used(1) == 9


def test_thousands_of_names_leave_the_series_and_what_is_remembered_bounded() -> None:
    """Those that find no room count in a series of their own."""
    page = Page(most_models=0)
    worker = page.workers[0]
    for n in range(5000):
        worker.row(Endpoint.CHAT, ("r", f"u{n}", "m"), ANYONE, is_stream=False).failed(1)
    for n in range(5000):
        worker.row(Endpoint.CHAT, ("r", "u0", f"m{n}"), ANYONE, is_stream=False).failed(1)

    assert page.table.n_used(0) == page.table.n_rows
    assert sum(numbers[0] for numbers in page.table.totals().values()) == 10_000
    rest = page.table.totals()[(OTHER,) * 5]
    assert rest[0] == 5000 - (page.table.n_rows - 1)
    assert all(len(kinds) <= 4096 for kinds in worker._kinds) and len(rest) == ROW_CELLS


def test_labels_of_the_caller_are_there_when_they_are_asked_for() -> None:
    """By its key's name and team, each for itself."""
    caller = Caller("app", KeyTerms(team="red"), b"12345678")
    for by_team, by_key, shown in ((True, False, 'team="red"'), (False, True, 'key="app"'), (False, False, "")):
        page = Page(by_team=by_team, by_key=by_key)
        page.workers[0].row(Endpoint.CHAT, ("r", "one", "m"), caller, is_stream=False).failed(1)
        page.workers[0].row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=False).failed(1)
        found = list(page.shown(f"{genai.DURATION}_count"))
        assert [labels for labels in found if shown and shown in labels] == ([*found[1:]] if shown else [])
        assert len(found) == (2 if shown else 1)
        assert not any(name in "".join(found) for name in ("team=", "key=") if name not in shown)


def test_reload_names_models_anew_and_counts_on() -> None:
    """What was counted under the name before stays there."""
    page = Page()
    worker = page.workers[0]
    worker.row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=False).failed(1)
    worker.name_by(lambda _upstream, _model: "renamed")
    worker.row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=False).failed(1)
    worker.name_by(named)
    worker.row(Endpoint.CHAT, ("r", "one", "m"), ANYONE, is_stream=False).failed(1)

    counts = page.shown(f"{genai.DURATION}_count")
    assert counts == {labels_of("chat", False, "r", "one", name): n for name, n in (("m", 2), ("renamed", 1))}
