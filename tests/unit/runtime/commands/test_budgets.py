"""`velox budgets`: what it asks the gateway, what it prints, and what it says when it can't ask."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from velox.cli import main

TOKEN = "token-of-the-admin-0a9f"


def _budget(scope: str, name: str, **changes: object) -> dict[str, Any]:
    window = {"window_start": "2026-11-01T00:00:00Z", "window_end": "2026-12-01T00:00:00Z", "unit": "usd"}
    amounts = {"limit": "20.000000000", "spent": "12.345678901", "held": "0.500000000", "left": "7.154321099"}
    about = {"scope": scope, "id": name, "name": name, "budget": "budgets[0]", "window": "month", "zone": "UTC"}
    return {**about, **window, **amounts, "state": "known", **changes}


class _Admin:
    """An admin listener that has some budgets, two a page."""

    def __init__(self, budgets: list[dict[str, Any]], status: int = 200) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.tokens: list[str | None] = []
        admin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                admin.asked.append(query)
                admin.tokens.append(self.headers["authorization"])
                first = int(query.get("cursor", ["0"])[0])
                more = str(first + 2) if len(budgets) > first + 2 else None
                page: object = {"data": budgets[first : first + 2], "cursor": more}
                if status != 200:
                    page = {"error": {"code": "off", "message": "nothing is recorded here", "field": None}}
                body = json.dumps(page).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def admin() -> Iterator[Callable[..., _Admin]]:
    """Start one."""
    running: list[tuple[_Admin, threading.Thread]] = []

    def start(budgets: list[dict[str, Any]], status: int = 200) -> _Admin:
        made = _Admin(budgets, status)
        thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
        thread.start()
        running.append((made, thread))
        return made

    yield start
    for made, thread in running:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


def test_budgets_are_a_table_for_people(admin: Callable[..., _Admin], capsys: pytest.CaptureFixture[str]) -> None:
    """U14: all pages, with the token; what is left in dollars or tokens, and until when."""
    budgets = [_budget("gateway", ""), _budget("key", "shop"), _budget("team", "web", state="redis_down")]
    tokens = {"unit": "tokens", "limit": 5000, "spent": 3900, "held": 0, "left": 1100, "window_end": None}
    running = admin([*budgets, _budget("user", "ann", **tokens)])

    assert main(["budgets"], {"VELOX_ADMIN_LISTEN": running.address, "VELOX_ADMIN_TOKEN": TOKEN}) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "whose budget limit spent held left per until note",
        "gateway budgets[0] $20.0000 $12.3457 $0.5000 $7.1543 month 2026-12-01T00:00:00Z -",
        "key shop budgets[0] $20.0000 $12.3457 $0.5000 $7.1543 month 2026-12-01T00:00:00Z -",
        "team web budgets[0] $20.0000 $12.3457 $0.5000 $7.1543 month 2026-12-01T00:00:00Z Redis can't be asked",
        "user ann budgets[0] 5,000 3,900 0 1,100 month - -",
    ]
    assert running.tokens == [f"Bearer {TOKEN}"] * 2 and [each.get("cursor") for each in running.asked] == [None, ["2"]]


def test_budgets_are_as_the_api_has_them_for_programs(
    admin: Callable[..., _Admin], capsys: pytest.CaptureFixture[str]
) -> None:
    """U14: amounts as they are counted, to the billionth of a dollar. What is asked for is passed on."""
    budgets = [_budget("key", "shop") for _ in range(3)]
    running = admin(budgets)

    assert main(["budgets", "--json", "--scope", "key", "--name", "shop", "--admin", running.address], {}) == 0

    assert json.loads(capsys.readouterr().out) == budgets
    assert running.asked[0]["scope"] == ["key"] and running.asked[0]["name"] == ["shop"]


def test_no_budget_is_said(admin: Callable[..., _Admin], capsys: pytest.CaptureFixture[str]) -> None:
    """Not an empty output."""
    assert main(["budgets", "--admin", admin([]).address], {}) == 0
    assert capsys.readouterr().out == "no budget was used since the start, or in its window before\n"


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (401, 2, "it asks for a token: set VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE as the gateway has it"),
        (404, 1, "says: nothing is recorded here"),
    ],
)
def test_gateway_that_has_nothing_to_say_is_told_of(
    status: int, code: int, told: str, admin: Callable[..., _Admin], capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, with a code for scripts."""
    assert main(["budgets", "--admin", admin([], status).address], {}) == code
    out, err = capsys.readouterr()
    assert err.startswith("velox budgets: the gateway at ") and told in err and not out


def test_gateway_that_is_not_there_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """With what may be wrong."""
    assert main(["budgets", "--admin", "127.0.0.1:1"], {}) == 2
    assert "can't be reached at 127.0.0.1:1 (Connection refused); if its admin listener" in capsys.readouterr().err
    assert main(["budgets"], {"VELOX_ADMIN_LISTEN": "off"}) == 2
    assert capsys.readouterr().err == "velox budgets: VELOX_ADMIN_LISTEN is off\n"
