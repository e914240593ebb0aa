"""Each alert of deploy/ that can be staged is seen firing, in a real Prometheus that scrapes the gateway it is about.

Alerts fire at once here, without their `for`; their expressions are those of deploy/. Four more are staged together, in
test_prometheus.py. The one that is not, and why, is in NOT_STAGED.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.priced import Priced
from tests.e2e.prometheus_server import NEEDS_PROMETHEUS, PATIENCE_S, Prometheus
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream, Script
from tests.e2e.redis_server import redis_server
from tests.e2e.routed import named, nobody, routed
from tests.e2e.test_budget_restarts import STRICT, break_ledger
from tests.e2e.test_credentials import Cloud, serving
from tests.e2e.test_ledger import nearly_full, recording
from tests.e2e.test_prometheus import STAGED_TOGETHER
from tests.e2e.watching import until
from tests.unit.deploy.test_monitoring_files import rules
from velox.accounts.service import Accounts
from velox.accounts.sqlite import SqliteAccounts
from velox.ledger.record import name_bodies
from velox.shm.record_ring import RECORD_BYTES, RecordRing

pytestmark = [pytest.mark.more, NEEDS_PROMETHEUS]

# By alert: why nobody sees it here.
NOT_STAGED: Final = {"VeloxBudgetOverflows": "takes more than 32,768 budgets"}
_CHAT: Final = b'{"model": "m", "messages": [], "max_tokens": 1}'
_STREAM: Final = b'{"model": "m", "messages": [], "max_tokens": 1000, "stream": true}'


@dataclass
class Staged:
    """A gateway that is well when it is scraped first. admin: where. go_wrong: called then."""

    admin: str
    go_wrong: Callable[[], object] = lambda: None
    tls: bool = False


Stage = Callable[[Path], AbstractContextManager[Staged]]


def post(velox: VeloxProcess, body: bytes = _CHAT) -> None:
    """Ask, whatever comes of it."""
    with contextlib.suppress(OSError, AssertionError, ValueError, IndexError):
        velox.request("POST", "/v1/chat/completions", body)


@contextlib.contextmanager
def answered(script: Script, **settings: str) -> Iterator[VeloxProcess]:
    """Run a gateway whose upstream answers so."""
    with RecordingUpstream() as upstream, upstream.playing(script):
        entry = {"name": "one", "origin": upstream.upstream.url, "provider": "openai", "key": "env:MODEL_KEY"}
        with routed({"upstreams": [entry]}, MODEL_KEY="sk-model-0123456789", **settings) as velox:
            yield velox


@contextlib.contextmanager
def down(_folder: Path) -> Iterator[Staged]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        yield Staged(f"http://127.0.0.1:{taken.getsockname()[1]}")


@contextlib.contextmanager
def draining(_folder: Path) -> Iterator[Staged]:
    """Its worker takes nothing new while it waits for a stream to end."""
    with named("sim", sim="--ttft 1ms --token-rate 1") as sims, routed({"upstreams": [sims["sim"]]}) as velox:
        stream = threading.Thread(target=post, args=(velox, _STREAM))
        stream.start()
        until(lambda: velox.metric("velox_inflight_requests") == 1, "a stream runs")
        try:
            yield Staged(velox.admin_url, lambda: velox.signal(signal.SIGTERM))
        finally:
            velox.kill()
            stream.join()


@contextlib.contextmanager
def unreachable(_folder: Path) -> Iterator[Staged]:
    with nobody() as origin, routed({"upstreams": [{"name": "one", "origin": origin}]}) as velox:
        yield Staged(velox.admin_url)


async def refuse_key(call: Call) -> None:
    await call.reply(401, JSON, b'{"error": {"message": "no"}}')


@contextlib.contextmanager
def key_refused(_folder: Path) -> Iterator[Staged]:
    with answered(refuse_key) as velox:
        yield Staged(velox.admin_url, lambda: post(velox))


@contextlib.contextmanager
def without_credentials(folder: Path) -> Iterator[Staged]:
    cloud = Cloud()
    cloud.gives = False
    with RecordingUpstream(script=cloud.answer) as upstream:
        file, variables = serving(upstream, "bedrock", folder)
        with routed(file, **variables) as velox:
            yield Staged(velox.admin_url)


async def silent(call: Call) -> None:
    await call.left.wait()


@contextlib.contextmanager
def overloaded(_folder: Path) -> Iterator[Staged]:
    with answered(silent, max_inflight="1", queue_depth="1") as velox:
        crowd = [threading.Thread(target=post, args=(velox,)) for _ in range(8)]

        def come() -> None:
            for each in crowd:
                each.start()

        try:
            yield Staged(velox.admin_url, come)
        finally:
            velox.kill()
            for each in crowd:
                each.join()


@contextlib.contextmanager
def killed(_folder: Path) -> Iterator[Staged]:
    with named("sim") as sims, routed({"upstreams": [sims["sim"]]}) as velox:
        yield Staged(velox.admin_url, lambda: os.kill(velox.worker_pids()[0], signal.SIGKILL))


async def cut(call: Call) -> None:
    await call.head(200, SSE)
    await call.data(b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}}]}\n\n')
    call.cut()


@contextlib.contextmanager
def breaking(_folder: Path) -> Iterator[Staged]:
    with answered(cut) as velox:
        yield Staged(velox.admin_url, lambda: post(velox, _STREAM))


@contextlib.contextmanager
def misconfigured(_folder: Path) -> Iterator[Staged]:
    with named("sim") as sims, routed({"upstreams": [sims["sim"]]}) as velox:

        def change() -> None:
            Path(velox.env["VELOX_CONFIG"]).write_text("upstreams: nonsense\n")
            velox.signal(signal.SIGHUP)

        yield Staged(velox.admin_url, change)


@contextlib.contextmanager
def bad_keys(folder: Path) -> Iterator[Staged]:
    keys = folder / "keys"
    keys.write_text(f"{KEY}\n")
    with named("sim") as sims, routed({"upstreams": [sims["sim"]]}, api_keys_file=str(keys)) as velox:
        yield Staged(velox.admin_url, lambda: keys.write_text("vk-a vk-a\n"))


@contextlib.contextmanager
def changed_by_hand(folder: Path) -> Iterator[Staged]:
    with recording(folder / "ledger", managed_keys="on", api_keys="") as velox:
        store = SqliteAccounts(folder / "ledger")
        Accounts(store).create_key({"id": "shop", "name": "shop"}, "tests")
        store.close()
        until(lambda: velox.metric("velox_keys") == 1, "it is known")

        def delete() -> None:
            with contextlib.closing(sqlite3.connect(folder / "ledger" / "accounts.db")) as db, db:
                db.execute("DELETE FROM account WHERE kind = 'key'")
                db.execute("DELETE FROM digest")

        yield Staged(velox.admin_url, delete)


@contextlib.contextmanager
def without_redis(_folder: Path) -> Iterator[Staged]:
    with redis_server() as redis, named("sim") as sims:
        more = {"redis_url": redis.url, "rate_limit_rpm": "1000"}
        with routed({"upstreams": [sims["sim"]]}, **more) as velox:
            velox.wait_metric("velox_redis_up", lambda up: up == 1)
            yield Staged(velox.admin_url, redis.process.kill)


@contextlib.contextmanager
def lagging(folder: Path) -> Iterator[Staged]:
    """Its ring has 10,001 records of before, and its database can't be used."""
    ledger = folder / "ledger"
    ledger.mkdir()
    (ledger / "ledger.db").write_bytes(b"this is no database" * 1000)
    ring = RecordRing(ledger / "0.ring", (16 << 20) // RECORD_BYTES)
    ring.begin()
    for _ in range(10_001):
        (body,) = name_bodies(ring.next_name(), "waits")
        ring.put(body)
    with recording(ledger) as velox:
        yield Staged(velox.admin_url)


@contextlib.contextmanager
def ring_full(folder: Path) -> Iterator[Staged]:
    nearly_full(folder / "ledger", 20)
    with recording(folder / "ledger", ledger_ring="1MiB") as velox:
        velox.wait_log(lambda line: "records can't be stored" in line)

        def ask() -> None:
            for _ in range(40):
                post(velox)

        yield Staged(velox.admin_url, ask)


@contextlib.contextmanager
def damaged(folder: Path) -> Iterator[Staged]:
    """A record that waited is damaged while the gateway is down; it comes back on the same port."""
    ledger = folder / "ledger"
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(recording(ledger, admin_listen=address))
        for _ in range(3):
            post(first)

        def damage() -> None:
            first.stop()
            heads = {path: int.from_bytes(path.read_bytes()[16:24], "little") for path in ledger.glob("*.ring")}
            ((ring, head),) = ((path, head) for path, head in heads.items() if head)
            data = bytearray(ring.read_bytes())
            data[4096 + 4096 * RECORD_BYTES + (head - 2) * RECORD_BYTES + 20] ^= 1
            data[24:32] = (head - 3).to_bytes(8, "little")
            ring.write_bytes(data)
            for path in ledger.glob("*.db*"):
                path.unlink()
            stack.enter_context(recording(ledger, admin_listen=address))

        yield Staged(f"http://{address}", damage)


@contextlib.contextmanager
def unread(folder: Path) -> Iterator[Staged]:
    priced = Priced(folder)
    with priced.running([STRICT]) as velox:
        post(velox)
    for lost in (*(folder / "ledger").glob("*.ring"), *(folder / "ledger").glob("budgets.*")):
        lost.unlink()
    break_ledger(folder / "ledger")
    with priced.running([STRICT]) as velox:
        yield Staged(velox.admin_url)


@contextlib.contextmanager
def webhook_away(folder: Path) -> Iterator[Staged]:
    budget = {"per": "gateway", "usd": "0.01", "window": "month", "soft": [20]}
    body = b'{"model": "own-model", "messages": [], "max_tokens": 1}'
    with nobody() as origin, Priced(folder).running([budget], alert_webhook=f"{origin}/hook") as velox:

        def spend() -> None:
            for _ in range(3):
                post(velox, body)

        yield Staged(velox.admin_url, spend)


@contextlib.contextmanager
def expiring(folder: Path, *, of_admin: bool = False) -> Iterator[Staged]:
    """Its certificate has ten days left."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=10)
    issued = trustme.CA().issue_cert("127.0.0.1", not_after=end)
    chain, key = folder / "cert.pem", folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(chain))
    issued.private_key_pem.write_to_path(str(key))
    which = "admin_tls" if of_admin else "tls"
    files = {f"{which}_cert": str(chain), f"{which}_key": str(key)}
    with named("sim") as sims, routed({"upstreams": [sims["sim"]]}, **files) as velox:
        yield Staged(velox.admin_url, tls=of_admin)


def admin_expiring(folder: Path) -> AbstractContextManager[Staged]:
    """So has that of the admin listener, by which it is scraped."""
    return expiring(folder, of_admin=True)


STAGES: Final[dict[str, Stage]] = {
    "VeloxDown": down,
    "VeloxNoWorker": draining,
    "VeloxUpstreamsUnreachable": unreachable,
    "VeloxUpstreamKeyRefused": key_refused,
    "VeloxCredentialsFail": without_credentials,
    "VeloxOverloaded": overloaded,
    "VeloxWorkerRestarts": killed,
    "VeloxStreamsBreak": breaking,
    "VeloxConfigurationInvalid": misconfigured,
    "VeloxKeyFileInvalid": bad_keys,
    "VeloxKeysCorrected": changed_by_hand,
    "VeloxRedisDown": without_redis,
    "VeloxLedgerLags": lagging,
    "VeloxLedgerCallsDropped": ring_full,
    "VeloxLedgerRecordsLost": damaged,
    "VeloxBudgetsUnread": unread,
    "VeloxBudgetAlertsFail": webhook_away,
    "VeloxCertificateExpires": expiring,
    "VeloxAdminCertificateExpires": admin_expiring,
}


def test_every_alert_is_staged_or_said_not_to_be() -> None:
    assert {*STAGES, *STAGED_TOGETHER, *NOT_STAGED} == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("alert", STAGES)
def test_alert_fires_once_it_has_a_reason(alert: str, tmp_path: Path) -> None:
    with STAGES[alert](tmp_path) as staged:
        folder = tmp_path / "prometheus"
        folder.mkdir()
        prometheus = Prometheus(folder, [staged.admin.partition("://")[2]], tls=staged.tls)
        with prometheus.running():
            until(lambda: prometheus.has('count_over_time(up{job="velox"}[1m]) >= 2'), "it was scraped", PATIENCE_S)
            staged.go_wrong()
            until(lambda: alert in prometheus.firing(), f"{alert} fires", PATIENCE_S)
