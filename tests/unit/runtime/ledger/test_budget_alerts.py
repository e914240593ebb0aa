"""Alerts of budgets: each threshold once in each window, and a webhook that is down, slow, or refuses."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.watching import until
from velox.policy.budgets.alerts import AlertBook
from velox.policy.budgets.budget import BudgetWindow, parse_budget, window_at
from velox.policy.budgets.rules import BudgetLabel, BudgetRule
from velox.runtime.ledger.alerts import AlertWatch
from velox.runtime.ledger.webhook import Webhook, signature
from velox.shm.budget_table import AlertCount, BudgetMemory, BudgetTable, SharedBudget
from velox.types import Secret

NOON = 1_795_435_200.0
DAY = 86_400
SECRET = Secret("s3cret-of-the-webhook")
NO_LIMITS = b'{"told": {"x": [1, null, 50]}, "limits": {"x": [["a", 50]]}, "waiting": []}'


def rule(soft: object = (50, 80, 100), **more: object) -> BudgetRule:
    fields = {"tokens": 1000, "window": "day", "soft": list(soft) if isinstance(soft, tuple) else soft, **more}
    return BudgetRule("budgets[0]", "team", parse_budget(fields))


# -- which ----------------------------------------------------------------------------------------------


def percents(book: AlertBook, spent: int, now_s: float = NOON, limit: int = 1000) -> list[int]:
    of = rule()
    found = book.look(b"n", BudgetLabel.of(of, "blue"), window_at(of.budget, now_s), limit, spent)
    return [each.percent for each in found]


def test_case_23_each_threshold_is_told_once_in_each_window() -> None:
    """However often it is looked, in whichever steps it was reached, and by however little."""
    book = AlertBook()
    assert [percents(book, spent) for spent in (0, 499, 500, 501, 799)] == [[], [], [50], [], []]
    assert percents(book, 1200) == [80, 100] and percents(book, 5000) == []
    assert percents(book, 5000, NOON - DAY) == []  # a clock that was set back
    assert percents(book, 100, NOON + DAY) == [] and percents(book, 900, NOON + DAY) == [50, 80]
    # A limit that is raised and lowered tells of nothing again.
    assert percents(book, 900, NOON + DAY, limit=9000) == [] and percents(book, 900, NOON + DAY) == []


def test_raised_limit_is_told_of_once_more_of_it_is_spent() -> None:
    """Who raises a limit that is used up must hear of the new one: but not at once, of what was told before."""
    book = AlertBook()
    assert percents(book, 1000) == [50, 80, 100]
    assert percents(book, 1100, limit=2000) == [], "half of the new limit was spent before it was raised"
    assert percents(AlertBook(book.told), 1500, limit=2000) == []
    assert percents(book, 1600, limit=2000) == [80] and percents(book, 1600, limit=2000) == []
    assert percents(book, 2000, limit=2000) == [100] and percents(book, 2000, limit=1000) == []
    assert percents(book, 2001, limit=9000) == [] and percents(book, 4500, limit=9000) == [50]
    assert percents(book, 4501, limit=2000) == [] and percents(book, 4502, limit=9000) == []
    assert percents(book, 4800, limit=6000) == [80], "lowered: of 6000 only half was told"
    assert percents(book, 7200, limit=9000) == [80] and len(next(iter(book.told.values())).levels) <= 3


def test_raised_limit_has_an_alert_of_its_own_and_no_refusal_of_before() -> None:
    of = rule((100,))
    label, window, book = BudgetLabel.of(of, "blue"), window_at(of.budget, NOON), AlertBook()

    def told(spent: int, limit: int) -> list[str]:
        return [each.id for each in book.look(b"n", label, window, limit, spent, is_refusing=True)]

    (refusal,) = told(998, 1000)
    (first,) = told(1000, 1000)
    assert told(1001, 2000) == [], "requests were refused by the limit before"
    (second,) = told(2000, 2000)
    assert len({refusal, first, second}) == 3
    assert AlertBook().look(b"n", label, window, 2000, 2000)[0].id == second, "another gateway that shares it"


def test_refusal_by_a_raised_limit_is_told() -> None:
    """Of 100 alone nothing else would be heard: hardly ever just nothing is left."""
    of = rule((100,))
    label, book = BudgetLabel.of(of, "blue"), AlertBook()

    def told(spent: int, limit: int, n_refused: int, at_s: float = NOON) -> list[bool]:
        window = window_at(of.budget, at_s)
        alerts = book.look(b"n", label, window, limit, spent, is_refusing=True, n_refused=n_refused)
        return [each.is_refusing for each in alerts]

    assert told(998, 1000, 1) == [True] and told(998, 1000, 5) == []
    assert told(1000, 1000, 5) == [False]
    assert told(1001, 2000, 7) == [], "by the limit before, as far as anybody knows"
    assert told(1990, 2000, 7) == [] and told(1990, 2000, 8) == [True] and told(1990, 2000, 9) == []
    assert told(1990, 1000, 10) == [] and told(1990, 2000, 11) == [], "it is no other limit"
    assert told(5, 2000, 12, NOON + DAY) == [True]


def test_case_23_restart_tells_nothing_again() -> None:
    book = AlertBook()
    assert percents(book, 600) == [50]
    assert percents(AlertBook(book.told), 700) == [] and percents(AlertBook(book.told), 900) == [80]


def test_case_23_first_refusal_of_a_window_is_told_to_who_wants_to_know_of_the_whole_limit() -> None:
    """Hardly ever just nothing is left. It may be one large request: 100 % is told all the same when it is reached."""
    of = rule()
    label, book = BudgetLabel.of(of, "blue"), AlertBook()

    def told(spent: int, now_s: float = NOON) -> list[tuple[int, bool]]:
        found = book.look(b"n", label, window_at(of.budget, now_s), 1000, spent, is_refusing=True)
        return [(each.percent, each.is_refusing) for each in found]

    assert told(600) == [(50, False), (100, True)] and told(700) == []
    book = AlertBook(book.told)
    assert told(998) == [(80, False)] and told(1001) == [(100, False)] and told(1002) == []
    assert told(0, NOON + DAY) == [(100, True)], "it refuses all there is"
    assert told(1001, NOON + 2 * DAY) == [(50, False), (80, False), (100, False)] and told(1002, NOON + 2 * DAY) == []
    assert AlertBook().look(b"n", BudgetLabel.of(rule((50,)), "blue"), window_at(of.budget, NOON), 1000, 400) == []

    window = window_at(of.budget, NOON)
    (alert,) = AlertBook().look(b"n", BudgetLabel.of(rule((100,)), "blue"), window, 1000, 998, is_refusing=True)
    (whole,) = AlertBook().look(b"n", BudgetLabel.of(rule((100,)), "blue"), window, 1000, 1000)
    text = "budget of team blue refuses requests that may cost more than is left: 998 tokens of 1000 tokens are spent"
    assert alert.text.startswith(text) and alert.id != whole.id


def test_alert_says_whose_how_much_and_until_when() -> None:
    label = BudgetLabel.of(rule(usd="12.5", tokens=None), "blue")
    window = BudgetWindow(int(NOON) - 43_200, int(NOON) + 43_200)
    (alert,) = AlertBook().look(b"n", label, window, 12_500_000_000, 6_250_000_000)
    told = json.loads(json.dumps(alert.fields()))
    assert told["text"].startswith("budget of team blue has reached 50 %: $6.25 of $12.50 are spent")
    assert told["budget"]["window_end"] == "2026-11-24T00:00:00Z" and told["budget"]["spent"] == "6.25"
    (again,) = AlertBook().look(b"n", label, window, 12_500_000_000, 9_000_000_000)
    assert (alert.id == again.id, len(alert.id)) == (True, 30)


def test_old_windows_are_forgotten() -> None:
    book = AlertBook()
    percents(book, 600)
    book.forget(NOON + DAY)
    assert book.told
    book.forget(NOON + 2 * DAY)
    assert not book.told


# -- the webhook ----------------------------------------------------------------------------------------


class Receiver:
    """Answers with the given statuses in turn, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = Secret(f"http://127.0.0.1:{self.server.server_port}/hook?token=t0ken")
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> Receiver:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Watched:
    """A table with one budget of a team, and the watch over it."""

    def __init__(self, folder: Path, hook: Callable[[bytes], str] | None, of: BudgetRule | None = None) -> None:
        self.memory = BudgetMemory(256, 1)
        self.budget: SharedBudget = BudgetTable(self.memory, 0).budget(of or rule(), "blue", "blue", NOON)
        self.lines = io.StringIO()
        logger = logging.Logger("test")
        logger.addHandler(logging.StreamHandler(self.lines))
        self.pauses: list[float] = []
        self.ends = threading.Event()
        self.watch = AlertWatch(self.memory, folder, logger, hook, self.pause)
        self.monotonic_s = 0.0

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return self.ends.is_set()

    def spend(self, tokens: int) -> None:
        hold = self.budget.hold(0, NOON)
        assert hold is not None
        self.budget.spend(hold, tokens)
        self.turn()

    def turn(self) -> None:
        self.monotonic_s += 60
        self.watch.turn(self.monotonic_s, NOON)

    def counts(self) -> list[int]:
        return [self.memory.n_alerts(what) for what in AlertCount]

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        self.watch.close()


def seen(what: Callable[[], bool]) -> None:
    until(what, "the thread did it", 10.0)


def test_case_23_webhook_gets_each_alert_once_and_signed(tmp_path: Path) -> None:
    with Receiver() as receiver, Watched(tmp_path, Webhook(receiver.url, SECRET, lambda: NOON).send) as watched:
        watched.spend(600)
        watched.turn()
        watched.spend(300)
        seen(lambda: watched.counts() == [2, 2, 0, 0])
        bodies = [json.loads(body) for _, body in receiver.got]
        assert [each["threshold_percent"] for each in bodies] == [50, 80]
        headers, body = receiver.got[0]
        assert headers["x-velox-signature"] == signature(SECRET, int(NOON), body)
        assert headers["content-type"] == "application/json"
        assert watched.lines.getvalue().count("has reached") == 2
        seen(lambda: json.loads((tmp_path / "alerts.json").read_bytes())["waiting"] == [])
    with Receiver() as receiver, Watched(tmp_path, Webhook(receiver.url, None).send) as again:
        again.spend(950)
        assert again.counts()[0] == 0 and receiver.got == []
        again.spend(60)
        seen(lambda: again.counts() == [1, 1, 0, 0])
        assert "x-velox-signature" not in receiver.got[0][0]


def test_case_23_refusal_is_told_once_also_after_a_restart(tmp_path: Path) -> None:
    for counts in ([1, 0, 0, 0], [0, 0, 0, 0]):
        with Watched(tmp_path, None, rule((100,))) as watched:
            watched.spend(998)
            assert watched.counts() == [0, 0, 0, 0]
            watched.budget.count_refusal(NOON)
            watched.turn()
            watched.turn()
            assert watched.counts() == counts
            assert ("refuses requests" in watched.lines.getvalue()) == bool(counts[0])
    written = json.loads((tmp_path / "alerts.json").read_bytes())
    (name,) = written["refusing"]
    assert written["told"][name][2:] == [0], "as an earlier Velox reads it, with what waits"


def test_raised_limit_is_known_after_a_restart(tmp_path: Path) -> None:
    for limit, spent, n_told in ((1000, (1000,), 3), (2000, (1100, 500), 1), (2000, (1700,), 0), (1000, (1700,), 0)):
        with Watched(tmp_path, None, rule(tokens=limit)) as watched:
            for each in spent:
                watched.spend(each)
            assert watched.counts()[0] == n_told, (limit, spent)


def test_file_of_an_earlier_velox_tells_of_no_limit_again(tmp_path: Path) -> None:
    with Watched(tmp_path, None) as watched:
        watched.spend(1000)
    written = json.loads((tmp_path / "alerts.json").read_bytes())
    del written["limits"]
    (tmp_path / "alerts.json").write_text(json.dumps(written))
    with Watched(tmp_path, None) as watched:
        watched.spend(1500)
        assert watched.counts()[0] == 0


def test_webhook_that_fails_is_asked_again_with_pauses_that_grow(tmp_path: Path) -> None:
    with Receiver(503, 429, 500) as receiver, Watched(tmp_path, Webhook(receiver.url, None).send) as watched:
        watched.spend(600)
        seen(lambda: watched.counts() == [1, 1, 0, 0])
        assert len({body for _, body in receiver.got}) == 1 and len(receiver.got) == 4
        assert [0.5 <= pause / 2**n <= 1 for n, pause in enumerate(watched.pauses)] == [True] * 3


@pytest.mark.parametrize("status", [400, 404, 301])
def test_webhook_that_refuses_is_not_asked_again(tmp_path: Path, status: int) -> None:
    with Receiver(status) as receiver, Watched(tmp_path, Webhook(receiver.url, SECRET).send) as watched:
        watched.spend(600)
        seen(lambda: watched.counts() == [1, 0, 1, 0])
        assert f"refused with status {status}" in watched.lines.getvalue()
        assert len(receiver.got) == 1
        assert "t0ken" not in watched.lines.getvalue() and SECRET.reveal() not in watched.lines.getvalue()


def test_webhook_that_is_away_fails_without_its_url_in_the_log(tmp_path: Path) -> None:
    with Watched(tmp_path, Webhook(Secret("http://127.0.0.1:1/t0ken"), None).send) as watched:
        watched.spend(600)
        seen(lambda: watched.counts() == [1, 0, 1, 0])
        assert (
            len(watched.pauses) == 5
            and "no answer (it could not be reached: Connection refused)" in watched.lines.getvalue()
        )
        assert "t0ken" not in watched.lines.getvalue()


def test_webhook_that_answers_byte_by_byte_is_given_up() -> None:
    """Each byte comes in time, and the answer never."""
    left, is_through = threading.Event(), threading.Event()

    def drip() -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(b"HTTP/1.1 ")
            for _ in range(500):
                if left.wait(0.02):
                    return
                client.sendall(b"x")
            is_through.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        url = Secret(f"http://127.0.0.1:{listener.getsockname()[1]}/t0ken")
        assert Webhook(url, None, timeout_s=0.5).send(b"{}").startswith("no answer")
        left.set()
        thread.join()
        assert not is_through.is_set()


def test_alert_that_was_not_sent_is_sent_after_a_restart(tmp_path: Path) -> None:
    with Receiver(*[503] * 2) as receiver, Watched(tmp_path, Webhook(receiver.url, None).send) as watched:
        watched.ends.set()  # it ends in the first pause
        watched.spend(600)
        seen(lambda: len(receiver.got) == 1 and bool(watched.pauses))
    with Receiver() as later, Watched(tmp_path, Webhook(later.url, None).send) as again:
        seen(lambda: again.counts() == [0, 1, 0, 0])
        assert json.loads(later.got[0][1])["id"] == json.loads(receiver.got[0][1])["id"]


@pytest.mark.slow
def test_too_many_alerts_are_dropped_and_counted(tmp_path: Path) -> None:
    started, gate = threading.Event(), threading.Event()

    def stuck(_body: bytes) -> str:
        started.set()
        gate.wait(10)
        return ""

    with Watched(tmp_path, stuck) as watched:
        table = BudgetTable(watched.memory, 0)
        for n in range(120):
            budget = table.budget(rule(), str(n), str(n), NOON)
            hold = budget.hold(0, NOON)
            assert hold is not None
            budget.spend(hold, 5000)
        watched.turn()
        reached, _, _, dropped = watched.counts()
        assert reached > 256 and dropped == reached - 256
        gate.set()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"told": 5}', b'{"told": {"x": ["a"]}, "waiting": []}', NO_LIMITS]
)
def test_file_that_is_no_file_of_alerts_is_told_and_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "alerts.json").write_bytes(content)
    with Watched(tmp_path, None) as watched:
        assert "budget alerts of open windows may be sent again" in watched.lines.getvalue()
        watched.spend(600)
        assert json.loads((tmp_path / "alerts.json").read_bytes())["told"]
