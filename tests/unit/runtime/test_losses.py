"""A configuration that lost its contents: what is refused, what only unless forced, and that half a file sends nothing
to a place that no whole file named."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.runtime.reload_gateway import ReloadingGateway

UPSTREAMS = """\
upstreams:
  - name: private
    origin: http://10.0.0.123:8000
    keys: [env:KEY_A]
  - name: spare
    origin: http://10.0.0.124:8000
"""
ROUTES = """\
routes:
  - {name: chat, match: {models: [gpt*]}, to: private}
  - {name: rest, to: spare}
"""
WHOLE = UPSTREAMS + ROUTES
OTHER = "upstreams:\n  - {name: other, origin: http://10.0.0.125:8000}\n"
ENVIRON = {"KEY_A": "sk-a"}
FORCE = "; `velox reload --force` takes it all the same"


def gateway_of(folder: Path, text: str = WHOLE, **environ: str) -> ReloadingGateway:
    """Return a gateway with this file, whose upstreams all had requests."""
    gateway = ReloadingGateway(folder / "velox.yaml", text, {**ENVIRON, **environ})
    gateway.used = frozenset(each.name for each in gateway.reload.settings.upstreams)
    return gateway


def origins(gateway: ReloadingGateway) -> set[str]:
    """Return where requests may go."""
    return {str(origin) for each in gateway.reload.settings.upstreams for origin in each.origins}


LOST = [
    (
        "access_log: all\n",
        "it names no upstream, and requests would go to the default, https://api.openai.com; expected"
        " `upstreams`, or `upstream_origin: https://api.openai.com` if that is meant",
        False,
    ),
    (OTHER, "every upstream that had requests would be gone: private, spare" + FORCE, True),
    (
        "upstream_origin: http://10.0.0.126\n",
        "every upstream that had requests would be gone: private, spare" + FORCE,
        True,
    ),
    (UPSTREAMS, "`routes` is gone: all requests would go to any of the upstreams" + FORCE, True),
    (
        UPSTREAMS + "routes:\n  - {name: new, match: {paths: [/x]}, to: [private, spare]}\n",
        "every route whose upstreams had requests would be gone: chat, rest" + FORCE,
        True,
    ),
    (WHOLE.rstrip("\n"), "its last line has no end, unlike the active file: it looks cut off" + FORCE, True),
]


@pytest.mark.parametrize(("text", "why", "may_be_forced"), LOST)
def test_file_that_lost_its_contents_is_refused(tmp_path: Path, text: str, why: str, may_be_forced: bool) -> None:
    """As any bad file; forced, it is taken, but never where requests would go to the default upstream."""
    gateway = gateway_of(tmp_path)
    before = gateway.reload.settings
    gateway.file.write_text(text)
    gateway.settle()
    assert f"{gateway.file}: {why}" in gateway.lines
    assert gateway.reload.settings == before
    assert gateway.status.configuration_is_bad
    gateway.force()
    assert gateway.status.configuration_is_bad is not may_be_forced
    assert (gateway.reload.settings == before) is not may_be_forced
    assert "https://api.openai.com" not in origins(gateway)


def test_force_is_for_one_reload(tmp_path: Path) -> None:
    """The next one is judged as ever."""
    gateway = gateway_of(tmp_path)
    gateway.file.write_text(OTHER)
    gateway.force()
    assert origins(gateway) == {"http://10.0.0.125:8000"}
    gateway.used = frozenset({"other"})
    gateway.file.write_text(WHOLE)
    gateway.settle()
    assert gateway.lines[-1].endswith(f"every upstream that had requests would be gone: other{FORCE}")


@pytest.mark.parametrize("text", ["", "# velox\n", "upstreams:\n"])
def test_emptied_file_is_refused(tmp_path: Path, text: str) -> None:
    """`: > velox.yaml`, by the watcher and by force."""
    gateway = gateway_of(tmp_path)
    gateway.file.write_text(text)
    gateway.settle()
    gateway.force()
    assert gateway.status.reloads(taken=False) == 2
    assert origins(gateway) == {"http://10.0.0.123:8000", "http://10.0.0.124:8000"}


def test_origin_of_a_variable_in_the_file_is_not_lost_either(tmp_path: Path) -> None:
    """One upstream, without a list."""
    gateway = gateway_of(tmp_path, "upstream_origin: http://10.0.0.9\naccess_log: all\n")
    gateway.file.write_text("access_log: all\n")
    gateway.force()
    assert origins(gateway) == {"http://10.0.0.9"}
    assert "it names no upstream" in gateway.lines[-1]


def test_keys_of_an_upstream_are_not_lost(tmp_path: Path) -> None:
    """Those of clients would go up in their place."""
    gateway = gateway_of(tmp_path)
    gateway.file.write_text(WHOLE.replace("    keys: [env:KEY_A]\n", ""))
    gateway.settle()
    wanted = "the upstream private has no keys any more: the credentials of clients would go up instead"
    assert gateway.lines[-1] == f"{gateway.file}:2: {wanted}{FORCE}"


@pytest.mark.parametrize(
    "text",
    [
        WHOLE.replace("private", "public"),
        WHOLE.replace("10.0.0.123", "10.0.0.1"),
        UPSTREAMS + "routes:\n  - {name: rest, to: [private, spare]}\n",
        UPSTREAMS + ROUTES.replace("name: chat", "name: talk").replace("name: rest", "name: others"),
        OTHER.rstrip("\n") + WHOLE.removeprefix("upstreams:"),
    ],
    ids=["renamed", "moved", "one-route-less", "routes-renamed", "one-more"],
)
def test_change_that_leaves_something_is_taken(tmp_path: Path, text: str) -> None:
    """Of what had requests a part is still there, under its name or at its place."""
    gateway = gateway_of(tmp_path)
    gateway.file.write_text(text)
    gateway.settle()
    assert not gateway.status.configuration_is_bad, gateway.lines


def test_what_had_no_requests_may_go(tmp_path: Path) -> None:
    """Nothing is lost by it."""
    gateway = gateway_of(tmp_path)
    gateway.used = frozenset()
    gateway.file.write_text(OTHER + "routes:\n  - {name: all, to: other}\n")
    gateway.settle()
    assert origins(gateway) == {"http://10.0.0.125:8000"}


def test_end_mark_is_asked_for_once_it_was_there(tmp_path: Path) -> None:
    """Cut off between two lines, the rest is good; only the mark tells."""
    gateway = gateway_of(tmp_path, WHOLE)
    gateway.file.write_text(WHOLE + "end: true\n")
    gateway.settle()
    assert gateway.lines[-1].endswith("nothing has changed")
    gateway.file.write_text(WHOLE.removesuffix("  - {name: rest, to: spare}\n"))
    gateway.settle()
    wanted = "its last field `end: true` is gone, which the active file has: it looks cut off"
    assert gateway.lines[-1] == f"{gateway.file}: {wanted}{FORCE}"
    gateway.file.write_text(WHOLE.replace("{name: rest, to: spare}", "{name: rest, to: private}") + "end: true\n")
    gateway.settle()
    assert not gateway.status.configuration_is_bad


@pytest.mark.parametrize("mark", ["", "end: true\n"])
@pytest.mark.more
def test_file_that_is_cut_off_anywhere_sends_nothing_to_an_unnamed_place(tmp_path: Path, mark: str) -> None:
    """150 files, each cut off at a byte by chance: every active origin is one of a whole file.

    With the mark nothing of them is ever taken. Each second reload is asked for, the others are seen by the watcher.
    """
    chance = random.Random(7)
    texts = [
        WHOLE.replace("10.0.0.123", f"10.0.1.{n}") + "limits:\n  - {per: gateway, rpm: 600}\n" + mark
        for n in (100, 101, 102)
    ]
    named = {f"http://10.0.1.{n}:8000" for n in (100, 101, 102)} | {"http://10.0.0.124:8000"}
    gateway = gateway_of(tmp_path, texts[0])
    before = gateway.reload.settings
    for n in range(150):
        text = chance.choice(texts)
        gateway.file.write_text(text[: chance.randrange(len(text))])
        if n % 2:
            gateway.ask()
        else:
            gateway.settle()
        assert origins(gateway) <= named
        assert "https://api.openai.com" not in origins(gateway)
        if mark:
            assert gateway.reload.settings == before
    gateway.file.write_text(texts[1])
    gateway.settle()
    assert "http://10.0.1.101:8000" in origins(gateway)


# -- while a file is written ------------------------------------------------------------------------------------


def test_file_that_is_being_written_is_not_read_on_demand(tmp_path: Path) -> None:
    """A reload that is asked for waits until the file has looked the same twice."""
    gateway = gateway_of(tmp_path)
    gateway.reload.ask()
    for n in range(1, 9):
        gateway.file.write_text(WHOLE[: n * 20])
        gateway.turn()
        assert gateway.n_readings == 0
    gateway.file.write_text(WHOLE.replace("spare", "other"))
    gateway.wait_read()
    assert gateway.reload.settings.upstreams[1].name == "other"


def test_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """What was found is not taken; who asked waits for the next reading."""
    gateway = gateway_of(tmp_path)
    gateway.file.write_text(WHOLE.replace("spare", "other"))
    gateway.status.reloads_asked = 1
    while not gateway.reload.is_due(gateway.now_s):
        gateway.now_s += 0.25
    pid = gateway.start_reading()
    gateway.file.write_text(WHOLE.replace("spare", "third"))
    gateway.end_reading(pid)
    assert gateway.reload.settings.upstreams[1].name == "spare"
    assert gateway.lines == []
    gateway.wait_read()
    assert gateway.reload.settings.upstreams[1].name == "third"
    answer = gateway.reload.answers.read_new()
    assert answer is None or answer.upto == 1


@pytest.mark.slow
def test_file_that_changes_at_each_reading_is_refused(tmp_path: Path) -> None:
    """Some day who asks must be told."""
    gateway = gateway_of(tmp_path)
    gateway.reload.ask()
    for n in range(5):
        while not gateway.reload.is_due(gateway.now_s):
            gateway.now_s += 0.25
        pid = gateway.start_reading()
        gateway.file.write_text(WHOLE + f"# {n}\n")
        gateway.end_reading(pid)
    assert gateway.lines[-1] == "its files changed each of the 5 times that they were read"
