"""A gateway whose configuration changes while it runs: what is taken, what is refused, and that no request feels it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import RawReply, VeloxProcess, until
from tests.e2e.recording import SSE, Call, RecordingUpstream, healthy
from tests.e2e.tools import CHAT, CHAT_STREAM, Client, free_port, run_velox, wait_warm
from tests.e2e.upstreams import chat_chunk
from tests.secret_watch import WATCH

OK = 'velox_config_reloads_total{result="ok"}'
BAD = 'velox_config_reloads_total{result="bad"}'


@pytest.fixture(scope="module")
def first() -> Iterator[RecordingUpstream]:
    """An upstream; healthy."""
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def second() -> Iterator[RecordingUpstream]:
    """Another one."""
    with RecordingUpstream() as running:
        yield running


def text(*upstreams: tuple[str, RecordingUpstream], keys: str = "", more: str = "") -> str:
    """Return a configuration of these upstreams, all with the same keys."""
    lines = [f"  - {{name: {name}, origin: {each.upstream.url}{keys}}}" for name, each in upstreams]
    return "\n".join(["upstreams:", *lines, more, ""])


@contextlib.contextmanager
def gateway(file: Path, content: str, **env: str) -> Iterator[VeloxProcess]:
    """Run a gateway of two workers with this file."""
    file.write_text(content)
    with VeloxProcess({"VELOX_CONFIG": str(file), "VELOX_WORKERS": "2", **env}) as velox:
        yield velox


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the configuration stands."""
    return tmp_path / "velox.yaml"


def reload(velox: VeloxProcess, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `velox reload`."""
    return run_velox(env, "reload", "--admin", velox.admin_url.removeprefix("http://"), *options)


def changed(velox: VeloxProcess) -> list[str]:
    """Return what the command says has changed; the change of the file may have been seen before."""
    done = reload(velox)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()[1:]]


def chat(velox: VeloxProcess, **headers: str) -> RawReply:
    """Ask for a chat completion, on a connection of its own."""
    return velox.request("POST", "/v1/chat/completions", CHAT, {"authorization": "Bearer sk-client", **headers})


def asked(velox: VeloxProcess) -> set[str | None]:
    """Return whom a few requests went to."""
    replies = [chat(velox) for _ in range(8)]
    assert {reply.status for reply in replies} == {200}
    return {reply.header("x-velox-upstream") for reply in replies}


def wait_configuration(velox: VeloxProcess, number: int) -> None:
    """Wait until all workers work with a configuration."""
    for worker in range(2):
        velox.wait_metric(f'velox_worker_configuration{{worker="{worker}"}}', lambda value: value == number)
    assert velox.metric("velox_config_generation") == number


# -- the three ways ---------------------------------------------------------------------------------------------


def test_file_that_changes_is_taken(first: RecordingUpstream, second: RecordingUpstream, file: Path) -> None:
    """Nobody has to say anything."""
    with gateway(file, text(("a", first), ("b", second))) as velox:
        until(lambda: asked(velox) == {"a", "b"}, "both are asked")
        third = text(("b", second), ("c", second))
        file.write_text(third)
        wait_configuration(velox, 2)
        assert asked(velox) <= {"b", "c"}
        velox.wait_log(lambda line: "configuration 2 is in use: upstreams: 1 added, 1 removed" in line)
        assert (velox.metric(OK), velox.metric(BAD), velox.metric("velox_config_bad")) == (1, 0, 0)


def test_signal_reads_again(first: RecordingUpstream, second: RecordingUpstream, file: Path) -> None:
    """A file that is the same, too; its number stays."""
    with gateway(file, text(("a", first))) as velox:
        velox.signal(signal.SIGHUP)
        velox.wait_log(lambda line: "configuration 1 is in use: nothing has changed" in line)
        file.write_text(text(("a", first), ("b", second)))
        velox.signal(signal.SIGHUP)
        wait_configuration(velox, 2)
        # One that has just come gets its whole share little by little.
        until(lambda: asked(velox) == {"a", "b"}, "both are asked")


def test_command_waits_and_prints_what_has_changed(
    first: RecordingUpstream, second: RecordingUpstream, file: Path
) -> None:
    """When it has printed, every worker works with it. What needs a restart is named, and stays as it was."""
    with gateway(file, text(("a", first))) as velox:
        done = reload(velox)
        assert (done.returncode, done.stdout) == (0, "configuration 1 is in use: nothing has changed\n")

        file.write_text("queue_depth: 50\n" + text(("b", second), more="routes: [{name: all, to: b}]"))
        done = reload(velox)

        assert (done.returncode, done.stderr) == (0, "")
        head, *lines = done.stdout.splitlines()
        assert head.startswith("configuration 2 is in use") and head.endswith(":")
        assert lines == [
            "  upstream b: added",
            "  upstream a: removed",
            "  route all: added",
            "  route *: removed",
            "needs a restart, or `velox upgrade`, which refuses nothing: queue_depth",
        ]
        assert asked(velox) == {"b"}
        assert len(velox.worker_pids()) == 2
        velox.wait_log(lambda line: line.endswith('needs a restart: queue_depth"}'))


def test_command_finds_the_gateway_by_the_settings(first: RecordingUpstream, file: Path, tmp_path: Path) -> None:
    """As the gateway has them: address and token, from environment or file. Without the token nothing is asked."""
    WATCH.secret("a-token-of-the-admin", "the admin's token")
    (tmp_path / "token").write_text("a-token-of-the-admin\n")
    here = f"admin_listen: 127.0.0.1:{free_port()}\nadmin_token_file: {tmp_path / 'token'}\n"
    with gateway(file, here + text(("a", first)), VELOX_ADMIN_LISTEN="") as velox:
        env = {"VELOX_CONFIG": str(file), "VELOX_ADMIN_LISTEN": ""}
        done = run_velox(env, "reload")
        assert (done.returncode, done.stdout) == (0, "configuration 1 is in use: nothing has changed\n")
        done = run_velox({"VELOX_ADMIN_LISTEN": ""}, "reload", "--config", str(file))
        assert done.returncode == 0
        done = reload(velox)
        assert done.returncode == 2
        assert "asks for a token" in done.stderr


# -- bad files ----------------------------------------------------------------------------------------------------


def test_bad_file_keeps_the_one_before_and_says_why(first: RecordingUpstream, file: Path) -> None:
    """Every problem with its place, in the log and for who asks; traffic goes on, and nobody is sent away."""
    with gateway(file, text(("a", first))) as velox:
        bad = text(("b", first), more="routes:\n  - {name: r, to: c}").replace("origin", "orign")
        file.write_text(bad)
        velox.wait_metric(BAD, lambda value: value == 1)
        velox.wait_log(lambda line: f"{file}:2: orign: there is no such field of an upstream" in line)
        velox.wait_log(lambda line: f"{file}:4: to is 'c': there is no such upstream" in line)

        done = reload(velox)

        assert (done.returncode, done.stdout) == (1, "")
        head, *lines = done.stderr.splitlines()
        assert head == "3 problems in the configuration, number 1 stays in use:"
        assert {line.strip().partition(": ")[0] for line in lines} == {f"{file}:2", f"{file}:4"}
        assert velox.metric("velox_config_bad") == 1
        ready = json.loads(velox.admin("/readyz").body)
        assert ready["ready"] and "the configuration can't be used, the one before it holds" in ready["reasons"]
        assert asked(velox) == {"a"}

        file.write_text("not: [yaml")
        velox.wait_metric(BAD, lambda value: value == 3)
        file.unlink()
        velox.wait_metric(BAD, lambda value: value == 4)
        assert asked(velox) == {"a"}
        file.write_text(text(("b", first)))
        wait_configuration(velox, 2)
        assert velox.metric("velox_config_bad") == 0


def test_emptied_file_takes_nothing_away(first: RecordingUpstream, second: RecordingUpstream, file: Path) -> None:
    """`: > velox.yaml`: requests go where they went, and who looks is told why; forced, a whole file is taken."""
    with gateway(file, text(("private", first)), OPENAI_API_KEY="") as velox:
        assert asked(velox) == {"private"}
        file.write_text("")
        velox.wait_metric(BAD, lambda n: n == 1)
        assert asked(velox) == {"private"}
        assert "configuration" in str(json.loads(velox.admin("/readyz").body)["reasons"])
        file.write_text("access_log: all\n")
        refused = reload(velox, "--force")
        assert refused.returncode == 1
        assert "it names no upstream, and requests would go to the default, https://api.openai.com" in refused.stderr
        file.write_text(text(("other", second)))
        refused = reload(velox)
        assert refused.returncode == 1
        assert "every upstream that had requests would be gone: private; `velox reload --force`" in refused.stderr
        assert asked(velox) == {"private"}
        assert reload(velox, "--force").returncode == 0
        assert asked(velox) == {"other"}


def test_worker_that_starts_while_the_file_is_bad_has_the_last_good_one(first: RecordingUpstream, file: Path) -> None:
    """It is forked from the supervisor, which reads no file for it."""
    with gateway(file, text(("a", first))) as velox:
        file.write_text(text(("b", first)))
        wait_configuration(velox, 2)
        file.write_text("upstreams: nonsense\n")
        velox.wait_metric(BAD, lambda value: value == 1)
        _replace_workers(velox)
        wait_configuration(velox, 2)
        assert asked(velox) == {"b"}


def test_simulator_stays_the_upstream(first: RecordingUpstream, file: Path) -> None:
    """`--sim` and upstreams of a file name two, at a reload as at the start."""
    file.write_text("access_log: off\n")
    with VeloxProcess({"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        file.write_text(text(("a", first)))
        done = reload(velox)
        assert done.returncode == 1 and "expected none beside --sim" in done.stderr
        file.write_text("access_log: all\nupstream_first_byte_timeout: 7s\n")
        assert changed(velox) == ["upstream default: changed", "access_log: all"]
        assert chat(velox).status == 200
        velox.wait_access(lambda line: line["status"] == 200)


# -- keys ---------------------------------------------------------------------------------------------------------


def test_key_file_that_is_replaced_is_used(first: RecordingUpstream, file: Path, tmp_path: Path) -> None:
    """As Kubernetes changes a mounted secret: a link is swapped. The upstream sees the new key; no log shows either."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(f"sk-upstream-{name}\n")
        WATCH.secret(f"sk-upstream-{name}", "a key of an upstream")
    (tmp_path / "data").symlink_to("old")
    content = text(("a", first), keys=f", keys: ['file:{tmp_path / 'data' / 'key'}']")
    with gateway(file, content) as velox, first.playing(healthy):
        assert chat(velox).status == 200
        assert first.calls[-1].header("authorization") == "Bearer sk-upstream-old"
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").replace(tmp_path / "data")
        wait_configuration(velox, 2)
        first.forget()
        assert asked(velox) == {"a"}
        assert {call.header("authorization") for call in first.calls} == {"Bearer sk-upstream-new"}


def test_clients_key_comes_with_its_route(first: RecordingUpstream, second: RecordingUpstream, file: Path) -> None:
    """A tenant that is added by one change of one file, and taken away by another."""
    usual = "api_keys:\n  - {name: usual, key: vk-usual}\n"
    team = "  - {name: team, key: vk-team}\n"
    routes = "routes:\n  - {name: rest, to: a}\n"
    own = "routes:\n  - {name: team, match: {keys: [team]}, to: b}\n  - {name: rest, to: a}\n"
    both = (("a", first), ("b", second))

    def ask(velox: VeloxProcess, key: str) -> tuple[int, str | None]:
        reply = chat(velox, authorization=f"Bearer {key}")
        return reply.status, reply.header("x-velox-upstream")

    with gateway(file, usual + text(*both, more=routes)) as velox:
        assert (ask(velox, "vk-usual"), ask(velox, "vk-team")[0]) == ((200, "a"), 401)
        file.write_text(usual + team + text(*both, more=own))
        assert "key team: added" in changed(velox)
        assert (ask(velox, "vk-usual"), ask(velox, "vk-team")) == ((200, "a"), (200, "b"))
        assert velox.metric("velox_keys") == 2
        file.write_text(usual + text(*both, more=routes))
        assert reload(velox).returncode == 0
        assert (ask(velox, "vk-usual"), ask(velox, "vk-team")[0]) == ((200, "a"), 401)


def test_limit_that_is_changed_counts_at_once(first: RecordingUpstream, file: Path) -> None:
    """A request more than the old one let through; and less than the new one would."""
    limits = "rate_limit_rpm: 1\nrate_limit_burst: 2\nrate_limit_max_wait: 0s\n"
    with gateway(file, limits + text(("a", first))) as velox:
        assert [chat(velox).status for _ in range(3)] == [200, 200, 429]
        file.write_text(limits.replace("burst: 2", "burst: 4") + text(("a", first)))
        assert changed(velox) == ["limit VELOX_RATE_LIMIT: changed"]
        assert [chat(velox).status for _ in range(3)] == [200, 200, 429]


# -- what runs ----------------------------------------------------------------------------------------------------


def test_stream_goes_on_when_its_upstream_is_removed(
    first: RecordingUpstream, second: RecordingUpstream, file: Path
) -> None:
    """It ends whole on the old tables; the next request on its connection goes to the new upstream."""

    async def script(call: Call) -> None:
        if "chat" not in call.target:
            await healthy(call)
            return
        await call.head(200, SSE)
        await call.data(chat_chunk("before"))
        await call.step()
        await call.data(chat_chunk("after") + b"data: [DONE]\n\n")
        await call.end()

    with gateway(file, text(("a", first))) as velox, first.playing(script), Client(velox) as client:
        client.send_chat(CHAT_STREAM)
        client.read_until(b"before")
        file.write_text(text(("b", second)))
        assert reload(velox, "--force").returncode == 0
        assert asked(velox) == {"b"}
        first.step()
        assert b"after" in client.read_until(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert client.ask("POST", "/v1/chat/completions", CHAT).header("x-velox-upstream") == "b"
        first.wait(lambda: first.n_open == 0, "connections to the upstream that is gone are closed")


def test_connections_of_an_unchanged_upstream_stay(
    first: RecordingUpstream, second: RecordingUpstream, file: Path
) -> None:
    """No new one is made by a reload; of one that was changed, all are."""
    with gateway(file, text(("a", first))) as velox:
        wait_warm(velox)
        asked(velox)
        before = first.n_connections
        file.write_text(text(("a", first), ("b", second)))
        assert reload(velox).returncode == 0
        # One that has just come gets its whole share little by little.
        until(lambda: asked(velox) == {"a", "b"}, "both are asked")
        assert first.n_connections == before
        file.write_text(text(("a", first), ("b", second)).replace("}", ", weight: 2}", 1))
        assert changed(velox) == ["upstream a: changed"]
        first.wait(lambda: first.n_connections > before, "there are connections of the changed one")


def test_worker_that_dies_is_followed_by_one_with_the_new_configuration(
    first: RecordingUpstream, second: RecordingUpstream, file: Path
) -> None:
    """It begins with it: no request goes where the old one led."""
    with gateway(file, text(("a", first))) as velox:
        file.write_text(text(("b", second)))
        wait_configuration(velox, 2)
        with first.playing(healthy):
            _replace_workers(velox)
            assert asked(velox) == {"b"}
            assert first.calls == []
        assert velox.metric('velox_worker_configuration{worker="0"}') == 2


@pytest.mark.more
def test_no_request_fails_while_good_and_bad_files_follow_each_other(
    first: RecordingUpstream, second: RecordingUpstream, file: Path
) -> None:
    """Clients that never pause, on connections that stay open."""
    contents = [
        text(("a", first), ("b", second)),
        "upstreams: nonsense\n",
        text(("b", second)),
        text(("a", first), more="routes: [{name: r, to: a, balance: least_inflight}]"),
        text(("a", first), ("b", second), more="routes: [{name: r, to: [b], fallback: [a]}]"),
        text(("a", first), more="routes: [{name: r, to: nobody}]"),
    ]
    failures: list[str] = []
    counts = [0] * 4
    is_over = threading.Event()

    def load(number: int) -> None:
        with Client(velox) as client:
            while not is_over.is_set():
                reply = client.ask("POST", "/v1/chat/completions", CHAT if number % 2 else CHAT_STREAM)
                counts[number] += 1
                if reply.status != 200 or not reply.body.endswith((b"}", b"[DONE]\n\n")):
                    failures.append(f"{reply.status} {reply.body!r}")

    with gateway(file, text(("a", first))) as velox:
        threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        codes = []
        for content in contents * 2:
            file.write_text(content)
            codes.append(reload(velox, "--force").returncode)
        is_over.set()
        for thread in threads:
            thread.join(10.0)
        assert failures == []
        assert min(counts) > 10
        assert codes == [0, 1, 0, 0, 0, 1] * 2
        assert velox.metric("velox_config_generation") == 9


def test_file_that_never_ends_is_refused(first: RecordingUpstream, file: Path) -> None:
    """The gateway still replaces workers that die, and stops at SIGTERM."""
    with gateway(file, text(("a", first))) as velox:
        file.unlink()
        os.mkfifo(file)
        velox.signal(signal.SIGHUP)
        velox.wait_log(lambda line: "no regular file" in line)
        _replace_workers(velox)
        assert asked(velox) == {"a"}
        assert velox.metric("velox_config_generation") == 1
        assert velox.stop(10.0) == 0


def test_gateway_that_leaves_reads_nothing_any_more(first: RecordingUpstream, file: Path) -> None:
    """And says so."""

    async def script(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(chat_chunk("before"))
        await call.step()
        await call.end()

    with gateway(file, text(("a", first))) as velox, first.playing(script), Client(velox) as client:
        client.send_chat(CHAT_STREAM)
        client.read_until(b"before")
        velox.signal(signal.SIGTERM)
        velox.wait_log(lambda line: "draining" in line)
        velox.signal(signal.SIGHUP)
        done = reload(velox)
        assert done.returncode == 1 and "draining" in done.stderr
        first.step()
        assert velox.wait() == 0
        assert not any("configuration" in line for line in velox.stderr.lines)


def _replace_workers(velox: VeloxProcess) -> None:
    """Kill all workers, and wait for their successors."""
    killed = velox.worker_pids()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(set(velox.worker_pids()) - set(killed)) == 2, "there are two new workers")
    wait_warm(velox)
