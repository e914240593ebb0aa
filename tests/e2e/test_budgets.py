"""Budgets: what several workers let pass, what the SDKs are told, and what a restart and a killed worker leave."""

from __future__ import annotations

import hmac
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import openai
import pytest

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.priced import COST_NANO, Priced, ask, ask_in_vain
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import covers
from tests.fake_smtp import FakeSmtp
from velox.cli import main


@pytest.fixture
def priced(tmp_path: Path) -> Priced:
    return Priced(tmp_path)


@covers("VELOX_BUDGETS")
@pytest.mark.parametrize("workers", [1, 3])
def test_case_01_spent_stays_below_the_budget_and_the_bound(priced: Priced, workers: int) -> None:
    """Parallel requests over several workers: what is above the limit is at most what those that run cost above their
    holds, which is here less than 0.001 $ each."""
    budget = {"per": "gateway", "usd": "0.05", "window": "day"}
    with priced.running([budget], workers) as velox, ThreadPoolExecutor(16) as clients:
        statuses = list(clients.map(lambda _: ask(velox), range(80)))
        assert set(statuses) == {200, 429}
        # Each holds about 0.00103 $, and costs 0.002 $: until the limit is reached 25 may be answered, and 16 more run.
        n_limit = 50_000_000 // COST_NANO
        assert n_limit - 1 <= statuses.count(200) == priced.n_calls <= n_limit + 16
        assert ask(velox) == 429


def test_case_22_no_sdk_repeats_a_refusal(priced: Priced) -> None:
    """OpenAI's and Anthropic's SDKs retry a 429 by themselves; not this one, of which they show the code."""
    with priced.running([{"per": "gateway", "usd": "0.002", "window": "month", "zone": "Europe/Berlin"}]) as velox:
        assert ask(velox) == 200
        sdk = velox.openai(max_retries=5)
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.chat.completions.create(model="own", messages=[], max_tokens=100)
        assert caught.value.code == "insufficient_quota"
        assert caught.value.response.headers["x-velox-budget-reset"].endswith(":00:00Z")
        with (
            anthropic.Anthropic(base_url=velox.base_url, api_key=KEY, max_retries=5) as claude,
            pytest.raises(anthropic.RateLimitError) as refused,
        ):
            claude.messages.create(model="own", messages=[], max_tokens=100)
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert "next window begins at" in str(refused.value)
        assert priced.n_calls == 1
        until(lambda: n_refused(velox) == 2, "both are counted")


def n_refused(velox: VeloxProcess) -> float:
    return sum(n for name, n in velox.metrics().items() if "insufficient_quota" in name and "_total" in name)


def test_spent_survives_a_restart_and_a_kill(priced: Priced) -> None:
    """What was spent is read from the ledger before the first request: of a gateway that stopped, and one killed."""
    budget = {"per": "key", "usd": "0.007", "window": "month"}
    with priced.running([budget]) as velox:
        assert [ask(velox) for _ in range(2)] == [200, 200]
    with priced.running([budget], access_log="all") as velox:
        assert ask(velox) == 200
        velox.wait_access(lambda line: line["status"] == 200)  # until then the record may not be whole
        velox.kill()
    with priced.running([budget], workers=2) as velox:
        assert [ask(velox) for _ in range(2)] == [429, 429]
        assert priced.n_calls == 3
    # Another window, another unit: from the same records.
    with priced.running([{"per": "key", "tokens": 4000, "window": "30d"}]) as velox:
        assert [ask(velox) for _ in range(2)] == [200, 429]


def test_case_09_changed_period_counts_what_was_spent_in_it(priced: Priced) -> None:
    """A reload that makes a day's budget a month's: calls before it are in the month, too, each once."""
    with priced.running([{"per": "key", "usd": "1", "window": "day"}]) as velox:
        assert [ask(velox) for _ in range(3)] == [200] * 3
        path = Path(velox.env["VELOX_CONFIG"])
        path.write_text(path.read_text().replace("window: day", "window: month").replace("usd: '1'", "usd: '0.009'"))
        velox.signal(signal.SIGHUP)
        velox.wait_log(lambda line: "restored from the ledger" in line)
        assert [ask(velox) for _ in range(3)] == [200, 429, 429]


def test_case_07_killed_worker_holds_nothing(priced: Priced) -> None:
    """Its calls that were sent count as they were held; the rest of the budget is free again."""
    budget = {"per": "gateway", "tokens": 2500, "window": "day"}
    with priced.running([budget]) as velox:
        priced.is_silent = True
        with ThreadPoolExecutor(1) as client:
            asked = client.submit(ask_in_vain, velox)
            until(lambda: priced.n_calls == 1, "it is at the upstream")
            (pid,) = velox.worker_pids()
            os.kill(pid, signal.SIGKILL)
            asked.result()
        priced.is_silent = False
        until(lambda: velox.worker_pids() not in ([], [pid]), "there is another worker")
        # Held were some 120 tokens, which are spent now; each of these takes 1,100.
        assert [ask(velox) for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize("unit", ["usd", "tokens"])
def test_case_11_no_path_at_which_a_model_works_passes_a_budget_that_is_used_up(priced: Priced, unit: str) -> None:
    """Pictures and videos of Google's are made at paths of models."""
    with priced.running([{"per": "gateway", unit: 0, "window": "month"}]) as velox:
        for path in ("/v1beta/models/imagen-4:predict", "/v1beta/models/veo-3:predictLongRunning", "/v1/rerank"):
            reply = velox.request("POST", path, b'{"instances":[{"prompt":"a cat"}]}')
            assert reply.status == (403 if unit == "usd" else 429), path
        assert priced.n_calls == 0


def test_form_takes_nothing_of_a_budget_of_tokens_for_the_bytes_of_its_picture(priced: Priced) -> None:
    """Where its reply tells nothing, neither: of its tokens nothing is known."""
    form = b"--x\r\ncontent-disposition: form-data; name=image; filename=a.png\r\n\r\n%b\r\n--x--\r\n" % bytes(40_000)
    with priced.running([{"per": "gateway", "tokens": 20_000, "window": "day"}]) as velox:
        priced.tells_usage = False
        for path in ("/v1/images/edits", "/v1/audio/transcriptions"):
            reply = velox.request("POST", path, form, {"content-type": "multipart/form-data; boundary=x"})
            assert reply.status == 200
        until(lambda: priced_left(velox) == [("gateway", 20_000 - 2)], "they are settled")


@pytest.mark.parametrize("allows", [False, True])
def test_form_takes_no_dollars_for_the_bytes_of_its_picture(priced: Priced, allows: bool) -> None:
    """C45: it holds what a picture may cost, and counts that where its reply tells nothing: $0.0628, and $0.0002 in.

    A sound of a model without a price for sound has no known cost.
    """
    form = b"--x\r\ncontent-disposition: form-data; name=image; filename=a.png\r\n\r\n%b\r\n--x--\r\n" % bytes(40_000)
    budget = {"per": "gateway", "usd": 1, "window": "day", **({"unpriced": "allow"} if allows else {})}
    routes = [{"name": "all", "to": [{"upstream": "one", "model": "own"}]}]
    with priced.running([budget], routes=routes) as velox:
        priced.tells_usage = False
        for path in ("/v1/images/edits", "/v1/audio/transcriptions"):
            reply = velox.request("POST", path, form, {"content-type": "multipart/form-data; boundary=x"})
            assert reply.status == (200 if allows or "images" in path else 403), path
        assert priced.n_calls == (2 if allows else 1)
        until(lambda: priced_left(velox) == [("gateway", 1 - 0.0626)], "they are settled")


@pytest.mark.parametrize(
    ("limits", "is_refused"),
    [
        ({"maxOutputTokens": 60_000}, True),
        ({"maxOutputTokens": 10_000, "candidateCount": 6}, True),
        ({"max_output_tokens": "10000"}, False),
        ({}, False),
    ],
)
def test_strict_budget_holds_what_a_client_of_gemini_asks_for(
    priced: Priced, limits: dict[str, object], is_refused: bool
) -> None:
    """Its body has other names for it, in an object of their own."""
    body = json.dumps({"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": limits}).encode()
    budget = {"per": "gateway", "tokens": 50_000, "window": "month", "strict": True}
    with priced.running([budget]) as velox:
        status = velox.request("POST", "/v1beta/models/own:generateContent", body).status
        assert (status == 429) == is_refused == (not priced.n_calls)


@covers("VELOX_BUDGET_METRICS")
def test_metrics_tell_what_is_left_of_budgets_that_were_asked_for(priced: Priced) -> None:
    budgets = [{"per": "gateway", "usd": 1, "window": "day"}, {"per": "key", "tokens": 5000, "window": "month"}]
    with priced.running(budgets) as velox:
        assert ask(velox) == 200
        until(lambda: priced_left(velox) == [("gateway", 0.998)], "it is settled")
    with priced.running(budgets, budget_metrics="key") as velox:
        until(lambda: priced_left(velox) == [("key", 3900.0)], "what was spent before is known")


def priced_left(velox: VeloxProcess) -> list[tuple[str, float]]:
    found = velox.metrics().items()
    return [(name.split('scope="')[1].split('"')[0], n) for name, n in found if name.startswith("velox_budget_left")]


def test_threshold_is_told_by_mail(priced: Priced) -> None:
    """The ledger's process sends it, and only that loads what mail needs."""
    budget = {"per": "gateway", "usd": "0.01", "window": "month", "soft": [20]}
    with FakeSmtp() as server:
        url = f"smtp://127.0.0.1:{server.port}/?to=ops@example.com"
        with priced.running([budget], alert_webhook=url) as velox:
            assert [ask(velox) for _ in range(3)] == [200] * 3
            until(lambda: velox.metrics().get('velox_alert_webhooks_total{result="sent"}') == 1, "it was sent")
    (taken,) = server.taken
    assert taken.to == ("ops@example.com",) and b"has reached 20 %" in taken.content


@covers("VELOX_ALERT_WEBHOOK", "VELOX_ALERT_SECRET")
def test_case_23_threshold_is_told_once_by_log_metric_and_webhook(priced: Priced) -> None:
    """With two workers, and after a restart. The secret is nowhere, and the webhook can check the signature."""
    budget = {"per": "gateway", "usd": "0.01", "window": "month", "soft": [20, 90]}
    secret = "s3cret-of-the-webhook"
    with RecordingUpstream() as receiver:
        more = {"alert_webhook": f"{receiver.upstream.url}/hook?t0ken=1", "alert_secret": secret}
        with priced.running([budget], workers=2, **more) as velox:
            assert [ask(velox) for _ in range(3)] == [200] * 3
            told = velox.wait_log(lambda line: "has reached 20 %" in line)
            until(lambda: velox.metrics().get('velox_alert_webhooks_total{result="sent"}') == 1, "it was sent")
            assert velox.metric("velox_budget_alerts_total") == 1
            (call,) = receiver.calls
            assert call.target == "/hook?t0ken=1"
            sent = json.loads(call.body)
            assert (sent["threshold_percent"], sent["budget"]["unit"]) == (20, "usd") and sent["text"] in told
            at_s, digest = (call.header("x-velox-signature") or "").removeprefix("t=").split(",v1=")
            expected = hmac.new(secret.encode(), f"{at_s}.".encode() + call.body, "sha256")
            assert digest == expected.hexdigest()
            logged = "".join(velox.stderr.lines)
            assert secret not in logged and "t0ken" not in logged
        with priced.running([budget], **more) as velox:
            assert [ask(velox) for _ in range(2)] == [200] * 2
            until(lambda: len(receiver.calls) == 2, "the next threshold is told")
            assert json.loads(receiver.calls[1].body)["threshold_percent"] == 90


def test_budgets_need_a_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    environ = {"VELOX_BUDGETS": "[{per: gateway, usd: 5, window: day}]"}
    assert main(["check"], environ) == 2
    assert "expected VELOX_LEDGER with it" in capsys.readouterr().err
    assert main(["check"], {**environ, "VELOX_LEDGER": str(tmp_path)}) == 0
    assert "budget: budgets[0]  per gateway" in capsys.readouterr().out
