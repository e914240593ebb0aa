"""Reloads in the supervisor: what starts one, what is taken, what is refused, who is told what."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trustme

from tests.unit.runtime.reload_gateway import ReloadingGateway
from velox.admin.reload import READING_S, ReloadAnswer
from velox.runtime.configuration import assembled
from velox.settings import Settings
from velox.shm.upstream_table import TableFullError

ONE = "upstreams:\n  - {name: a, origin: http://127.0.0.1:9001, keys: [env:KEY_A]}\n"
TWO = ONE + "  - {name: b, origin: http://127.0.0.1:9002}\n"
ADDED = "configuration 2 is in use: upstreams: 1 added; routes: 1 changed"


@pytest.fixture
def gateway(tmp_path: Path) -> ReloadingGateway:
    """A gateway of one upstream."""
    return ReloadingGateway(tmp_path / "velox.yaml", ONE, {"KEY_A": "sk-a"})


def names(gateway: ReloadingGateway) -> list[str]:
    """Return the upstreams that hold."""
    return [upstream.name for upstream in gateway.reload.settings.upstreams]


def told(gateway: ReloadingGateway) -> ReloadAnswer:
    """Return what who asks is told: as a process has it that did not write it."""
    gateway.reload.answers._snapshot._seen = 0
    answer = gateway.reload.answers.read_new()
    assert answer is not None
    return answer


def test_nothing_is_read_without_a_reason(gateway: ReloadingGateway) -> None:
    """Not at the start, not later, not for a file that was touched."""
    gateway.settle()
    os.utime(gateway.file)
    gateway.settle()
    assert (gateway.n_readings, gateway.lines) == (0, [])
    assert (gateway.status.configuration, gateway.status.configuration_is_bad) == (1, False)


def test_file_that_changes_is_read_once_and_taken(gateway: ReloadingGateway) -> None:
    """Its members have their places before anybody sees them; workers find it, new ones begin with it."""
    gateway.file.write_text(TWO)
    gateway.settle()
    gateway.settle()
    assert gateway.n_readings == 1
    assert names(gateway) == ["a", "b"]
    assert gateway.enrolled == [gateway.reload.settings]
    assert gateway.lines == [ADDED]
    assert gateway.status.configuration == gateway.reload.snapshot.number == 2
    assert (gateway.status.reloads(taken=True), gateway.status.reloads(taken=False)) == (1, 0)


def test_who_asks_after_a_change_was_seen_is_told_of_it(gateway: ReloadingGateway) -> None:
    """The file is mostly read before somebody has typed the command."""
    gateway.file.write_text(TWO)
    gateway.settle()
    gateway.now_s += 30.0
    gateway.ask()
    answer = told(gateway)
    assert answer.changes == ("upstream b: added", "route *: changed")
    assert 30.0 <= answer.age_s <= 32.0


def test_signal_reads_again_whatever_the_file_is(gateway: ReloadingGateway) -> None:
    """A file that is as it was changes nothing, and that is said; one that is edited just before is read once."""
    gateway.ask()
    assert gateway.lines == ["configuration 1 is in use: nothing has changed"]
    assert (gateway.n_readings, gateway.status.configuration) == (1, 1)
    gateway.file.write_text(TWO)
    gateway.ask()
    gateway.settle()
    assert gateway.lines[1:] == [ADDED]
    assert gateway.n_readings == 2


def test_bad_file_changes_nothing_and_says_all_of_it(gateway: ReloadingGateway) -> None:
    """One line a problem, with its place; once, for as long as it stays so. A good one is taken again."""
    before = gateway.reload.settings
    gateway.file.write_text("upstreams:\n  - {name: a, orign: http://x}\nroutes:\n  - {name: r, to: c}\nworkerz: 1\n")
    gateway.settle()
    gateway.settle()
    assert gateway.reload.settings is before
    assert gateway.enrolled == []
    head, *lines = gateway.lines
    assert head == "the configuration can't be used, number 1 stays in use: 4 problems"
    assert {line.partition(": ")[0] for line in lines} == {f"{gateway.file}:{n}" for n in (2, 4, 5)}
    assert gateway.status.configuration_is_bad
    assert (gateway.status.reloads(taken=True), gateway.status.reloads(taken=False)) == (0, 1)
    gateway.file.write_text(ONE)
    gateway.settle()
    assert gateway.lines[5:] == ["configuration 1 is in use: nothing has changed"]
    assert not gateway.status.configuration_is_bad


def test_many_problems_are_counted_and_the_first_are_told(gateway: ReloadingGateway) -> None:
    """A log is not for ten thousand lines."""
    gateway.file.write_text("".join(f"field_{chr(97 + n)}: 1\n" for n in range(26)))
    gateway.ask()
    assert len(gateway.lines) == 21
    assert gateway.lines[0].endswith(": 26 problems, here the first 20")


def test_key_file_that_changes_is_a_change_of_its_upstream(gateway: ReloadingGateway, tmp_path: Path) -> None:
    """What it holds is taken; the file that names it is as it was."""
    key = tmp_path / "key"
    key.write_text("sk-first")
    gateway.file.write_text(ONE.replace("env:KEY_A", f"file:{key}"))
    gateway.ask()
    key.write_text("sk-second")
    gateway.settle()
    (upstream,) = gateway.reload.settings.upstreams
    assert upstream.keys[0].secret.reveal() == "sk-second"
    assert gateway.lines[-1] == "configuration 3 is in use: upstreams: 1 changed"
    assert "sk-" not in "".join(gateway.lines)
    key.write_text("sk-second\n\n")
    gateway.settle()
    assert gateway.lines[-1] == "configuration 3 is in use: nothing has changed"


def test_key_that_comes_after_the_file_that_names_it_is_taken(gateway: ReloadingGateway, tmp_path: Path) -> None:
    """Two things that are mounted change in any order: the file is bad until its key is there."""
    key = tmp_path / "keys" / "b"
    gateway.file.write_text(ONE + f"  - {{name: b, origin: http://127.0.0.1:9002, keys: ['file:{key}']}}\n")
    gateway.settle()
    assert gateway.status.configuration_is_bad
    key.parent.mkdir()
    key.write_text("sk-b")
    gateway.settle()
    assert names(gateway) == ["a", "b"]
    assert not gateway.status.configuration_is_bad


@pytest.mark.parametrize("is_named_anew", [False, True])
def test_bad_file_of_prices_is_read_again_when_it_is_good(
    gateway: ReloadingGateway, tmp_path: Path, is_named_anew: bool
) -> None:
    """By itself: the configuration would else be shown as bad until somebody asks for a reload."""
    prices, good = tmp_path / "prices.yaml", "prices:\n  - {model: own, input: 1, output: 2}\n"
    prices.write_text("prices: [" if is_named_anew else good)
    gateway.file.write_text(ONE + f"prices: {prices}\n")
    gateway.settle()
    if not is_named_anew:
        assert gateway.reload.settings.prices == str(prices)
        prices.write_text("prices: [")
        gateway.reload.ask()
        gateway.settle()
    assert gateway.status.configuration_is_bad

    prices.write_text(good)
    gateway.settle()
    assert not gateway.status.configuration_is_bad
    assert len(gateway.reload.settings.own_prices) == 1


@pytest.mark.parametrize("is_listed", [True, False], ids=["upstreams", "variables"])
def test_certificates_of_an_upstream_are_followed(tmp_path: Path, is_listed: bool) -> None:
    """Renewed in place, certificate and key one after the other: in between they fit nothing, and the old ones stay."""
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"

    def authority_issues() -> trustme.LeafCert:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(ca))
        return authority.issue_cert("gateway.test")

    def write_certificate(leaf: trustme.LeafCert) -> None:
        leaf.cert_chain_pems[0].write_to_path(str(cert))

    def write_key(leaf: trustme.LeafCert) -> None:
        leaf.private_key_pem.write_to_path(str(key))

    first = authority_issues()
    write_certificate(first)
    write_key(first)
    listed = (
        "upstreams:\n  - {name: a, origin: https://127.0.0.1:9001,"
        f" ca_file: {ca}, cert_file: {cert}, key_file: {key}}}\n"
    )
    variables = {
        "VELOX_CONFIG": "",
        "VELOX_UPSTREAM_ORIGIN": "https://127.0.0.1:9001",
        "VELOX_UPSTREAM_CA_FILE": str(ca),
        "VELOX_UPSTREAM_CERT_FILE": str(cert),
        "VELOX_UPSTREAM_KEY_FILE": str(key),
    }
    gateway = ReloadingGateway(tmp_path / "velox.yaml", listed if is_listed else "", {} if is_listed else variables)
    (before,) = gateway.reload.settings.upstreams

    second = authority_issues()
    gateway.settle()
    (other_authority,) = gateway.reload.settings.upstreams
    write_certificate(second)
    gateway.settle()
    assert gateway.status.configuration_is_bad
    assert gateway.reload.settings.upstreams == (other_authority,)
    write_key(second)
    gateway.settle()

    (after,) = gateway.reload.settings.upstreams
    assert not gateway.status.configuration_is_bad
    assert len({before, other_authority, after}) == 3
    assert gateway.lines[-1] == "configuration 3 is in use: upstreams: 1 changed"


def test_what_may_be_a_mistake_is_told_once(gateway: ReloadingGateway) -> None:
    """As `velox check` says it, when it is new."""
    gateway.file.write_text(ONE.replace(":9001", ":9001/v1"))
    gateway.settle()
    gateway.file.write_text(TWO.replace(":9001", ":9001/v1"))
    gateway.settle()
    told_of_it = [line for line in gateway.lines if line.startswith("upstream a gets /v1/models as")]
    assert len(gateway.lines) == 3 and len(told_of_it) == 1


def test_fields_that_need_a_restart_are_named_and_nothing_of_them_is_taken(gateway: ReloadingGateway) -> None:
    """In the same line."""
    gateway.file.write_text("workers: 1\nqueue_depth: 77\n" + TWO)
    gateway.ask()
    assert gateway.lines == [f"{ADDED}; needs a restart: workers, queue_depth"]
    assert (gateway.reload.settings.workers, names(gateway)) == (2, ["a", "b"])


@pytest.mark.parametrize(("fewer", "place", "most"), [("", 3, "`workers`"), ("workers: 1\n", 4, "VELOX_WORKERS")])
def test_concurrency_below_the_workers_that_run_is_refused(
    gateway: ReloadingGateway, fewer: str, place: int, most: str
) -> None:
    """One of them would get none of it, which is no limit. Also where the file names fewer: these need a restart."""
    gateway.file.write_text(fewer + ONE + "  - {name: b, origin: http://127.0.0.1:9002, concurrency: 1}\n")
    gateway.ask()
    _, line = gateway.lines
    assert line == f"{gateway.file}:{place}: concurrency is '1': expected at least {most}, 2: each worker gets a share"
    assert gateway.status.configuration_is_bad and names(gateway) == ["a"]


RESTART = "; a reload does not change that, a restart does"


def test_budget_whose_ledger_needs_a_restart_is_refused(gateway: ReloadingGateway, tmp_path: Path) -> None:
    """It would be told as one that is in use, and count nothing."""
    budgets = f"ledger: {tmp_path / 'ledger'}\nbudgets:\n  - {{per: gateway, usd: 5, window: day}}\n"
    gateway.file.write_text(budgets + TWO)
    gateway.ask()
    _, line = gateway.lines
    assert line.startswith(f"{gateway.file}:3: budgets: expected VELOX_LEDGER with it") and line.endswith(RESTART)
    assert gateway.status.configuration_is_bad and names(gateway) == ["a"]
    assert gateway.reload.settings.budgets == ()


@pytest.mark.parametrize(
    ("limit", "place"),
    [("key_rpm: 60\n", "VELOX_KEY_RPM is 60"), ("limits: [{per: key, tpm: 9}]\n", "velox.yaml:2: a limit of keys")],
)
def test_limit_of_keys_that_need_a_restart_is_refused(gateway: ReloadingGateway, limit: str, place: str) -> None:
    """All clients would share what each key is to have, as they are one caller while none has to present one."""
    gateway.file.write_text("api_keys: [{name: team, key: vk-1}]\n" + limit + ONE)
    gateway.ask()
    _, line = gateway.lines
    assert f"{place}: expected VELOX_API_KEYS or VELOX_API_KEYS_FILE with it" in line and line.endswith(RESTART)
    assert (gateway.reload.settings.key_rpm, gateway.reload.settings.limits) == (0, ())


def test_what_workers_find_is_what_the_supervisor_has(gateway: ReloadingGateway) -> None:
    """Piece by piece, with keys; a process that was forked before finds it as news."""
    before = gateway.reload.settings
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(write_fd)
        os.read(read_fd, 1)
        news = gateway.reload.snapshot.read_new()
        found = None if news is None else assembled(news[1], before)
        is_right = found is not None and [key.secret.reveal() for key in found.upstreams[0].keys] == ["sk-a"]
        os._exit(0 if is_right and news is not None and news[0] == 2 and len(found.upstreams) == 2 else 1)
    gateway.file.write_text(TWO)
    gateway.ask()
    os.close(write_fd)
    os.close(read_fd)
    assert os.waitpid(pid, 0)[1] == 0
    assert gateway.reload.snapshot.read_new() is None


def test_keys_of_clients_change_with_the_file(gateway: ReloadingGateway) -> None:
    """Those that workers are told of; here, from no key to some is no change."""
    gateway.file.write_text("api_keys: [{name: team, key: vk-1}]\n" + ONE)
    gateway.ask()
    assert gateway.lines[-1].endswith("needs a restart: api_keys")
    assert gateway.keys.keys == ()


def test_keys_of_clients_are_added_and_removed(tmp_path: Path) -> None:
    """Where there are some before and after. Those of the file of keys stay."""
    file = tmp_path / "keys"
    file.write_text("vk-of-file\n")
    environ = {"KEY_A": "sk-a", "VELOX_API_KEYS_FILE": str(file)}
    gateway = ReloadingGateway(tmp_path / "velox.yaml", "api_keys: [{name: one, key: vk-1}]\n" + ONE, environ)
    gateway.file.write_text("api_keys: [{name: two, key: vk-2}]\n" + ONE)
    gateway.ask()
    assert [key.name for key in gateway.keys.keys] == ["two", ""]
    assert gateway.status.n_keys == 2
    assert gateway.lines == ["configuration 2 is in use: keys: 1 added, 1 removed"]


def test_asked_again_while_it_reads_it_reads_again(gateway: ReloadingGateway) -> None:
    """Who asks after it began may mean a file that is newer than what was read."""
    gateway.status.reloads_asked = 1
    gateway.now_s += 1
    assert gateway.reload.is_due(gateway.now_s)
    pid = gateway.start_reading()
    gateway.status.reloads_asked = 2
    assert not gateway.reload.is_due(gateway.now_s + 1), "one at a time"
    gateway.end_reading(pid)
    gateway.turn()
    gateway.turn()
    assert gateway.n_readings == 2


def test_reading_that_takes_too_long_is_ended(gateway: ReloadingGateway) -> None:
    """A file system that hangs must not end reloads for ever."""
    gateway.hangs = True
    gateway.reload.ask()
    gateway.now_s += 1
    assert gateway.reload.is_due(gateway.now_s)
    pid = gateway.start_reading()
    os.kill(pid, signal.SIGSTOP)
    assert not gateway.reload.is_due(gateway.now_s + READING_S - 1.0)
    assert not gateway.reload.is_due(gateway.now_s + READING_S)
    gateway.end_reading(pid)
    assert gateway.lines[1:] == ["it could not be read within 120 s (status 9)"]
    assert gateway.status.configuration_is_bad
    gateway.hangs = False
    gateway.ask()
    assert not gateway.status.configuration_is_bad


def test_reading_that_dies_changes_nothing(gateway: ReloadingGateway) -> None:
    """Whatever it was killed by."""
    gateway.hangs = True
    gateway.reload.ask()
    gateway.now_s += 1
    assert gateway.reload.is_due(gateway.now_s)
    pid = gateway.start_reading()
    os.kill(pid, signal.SIGKILL)
    gateway.end_reading(pid)
    assert gateway.lines[1:] == ["it could not be read (status 9)"]
    assert not gateway.reload.reaped(pid, "", gateway.now_s, ended_well=True), "it was reaped already"


def test_reading_ends_with_the_gateway(gateway: ReloadingGateway) -> None:
    """Nothing is judged any more."""
    gateway.hangs = True
    gateway.reload.ask()
    gateway.now_s += 1
    assert gateway.reload.is_due(gateway.now_s)
    pid = gateway.start_reading()
    gateway.reload.stop()
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert not gateway.reload.reaped(pid, "SIGKILL", gateway.now_s, ended_well=False)
    assert gateway.lines == []


def test_configuration_without_room_for_its_members_is_refused(gateway: ReloadingGateway) -> None:
    """The memory that all workers share holds so many members, and those that leave are in it a while."""

    def full(_settings: Settings) -> None:
        raise TableFullError("3 members are new, and 2 rows are free")

    gateway.enroll = full
    gateway.file.write_text(TWO)
    gateway.ask()
    assert names(gateway) == ["a"]
    assert gateway.lines[1:] == ["there is no room for its upstreams yet: 3 members are new, and 2 rows are free"]
    assert gateway.reload.snapshot.number == 1


def test_gateway_without_a_file_reads_what_it_has(tmp_path: Path) -> None:
    """A signal is no mistake there."""
    gateway = ReloadingGateway(tmp_path / "velox.yaml", "", {"VELOX_CONFIG": "", "OPENAI_API_KEY": "sk-a"})
    gateway.ask()
    assert gateway.lines == ["configuration 1 is in use: nothing has changed"]


def test_reading_without_a_process_is_refused_and_tried_again(gateway: ReloadingGateway) -> None:
    """Who asked is told at once; what changed is taken as soon as there are processes again, and nobody must ask."""
    gateway.file.write_text(TWO)
    while not gateway.reload.is_due(gateway.now_s):
        gateway.now_s += 0.25
    gateway.reload.started(0, gateway.now_s)
    problem = "no process could be started to read it; it is tried again in 5 s"
    assert told(gateway).problems == (problem,)
    assert gateway.lines[1:] == [problem]
    assert gateway.status.configuration_is_bad
    gateway.now_s += 4
    gateway.turn()
    assert (gateway.n_readings, names(gateway)) == (0, ["a"])
    gateway.settle()
    assert (gateway.n_readings, names(gateway)) == (1, ["a", "b"])
    assert not gateway.status.configuration_is_bad
    gateway.now_s += 60
    gateway.settle()
    assert gateway.n_readings == 1, "it is not asked for any more"
