"""What a new reading of the settings changes, what needs a restart, and how both are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import fields

from velox.settings import Settings, load
from velox.settings.live import LIVE, Changes, changes, taken
from velox.settings.model import VARIABLES

TWO = """\
upstreams:
  - {name: a, origin: http://127.0.0.1:9001, keys: [env:KEY_A]}
  - {name: b, origin: http://127.0.0.1:9002}
routes:
  - {name: chat, match: {models: [gpt-*]}, to: a}
  - {name: rest, to: [a, b]}
"""


def settings(folder: Path, text: str, **environ: str) -> Settings:
    """Read a file of this text."""
    file = folder / "velox.yaml"
    file.write_text(text)
    return load({"VELOX_CONFIG": str(file), "KEY_A": "sk-a", **environ}, cores=2, memory_bytes=2**32)


def told(folder: Path, before: str, now: str, **environ: str) -> Changes:
    """Return what is told of a file that was changed."""
    return changes(settings(folder, before, **environ), settings(folder, now, **environ))


def test_same_file_changes_nothing(tmp_path: Path) -> None:
    """Secrets included, of which each reading makes its own; where an entry stands in the file says nothing."""
    secrets = "admin_token: token-token-token\nredis_url: redis://127.0.0.1\napi_keys: [vk-a]\n"
    assert told(tmp_path, secrets + TWO, secrets + "# a comment\n" + TWO) == Changes((), "", ())


def test_upstreams_and_routes_are_told_by_name(tmp_path: Path) -> None:
    """Added, changed and removed; a fallback is a change of its route alone."""
    now = """\
upstreams:
  - {name: b, origin: http://127.0.0.1:9002, weight: 3}
  - {name: c, origin: http://127.0.0.1:9003}
routes:
  - {name: rest, to: [b, c]}
  - {name: new, match: {models: [x]}, to: c}
"""
    # The route that takes everything comes last, or what follows is never reached: here `new` would not be.
    now = now.replace("  - {name: rest, to: [b, c]}\n", "") + "  - {name: rest, to: [b, c]}\n"

    found = told(tmp_path, TWO, now)

    assert found.live == (
        "upstream c: added",
        "upstream b: changed",
        "upstream a: removed",
        "route new: added",
        "route rest: changed",
        "route chat: removed",
    )
    assert found.summary == "upstreams: 1 added, 1 changed, 1 removed; routes: 1 added, 1 changed, 1 removed"
    assert found.restart == ()


def test_another_order_of_routes_is_a_change(tmp_path: Path) -> None:
    """The first one that is for a request takes it."""
    lines = ["  - {name: one, match: {models: [m*]}, to: a}\n", "  - {name: two, match: {models: ['*m']}, to: b}\n"]
    upstreams = TWO.partition("routes:")[0] + "routes:\n"
    found = told(tmp_path, upstreams + lines[0] + lines[1], upstreams + lines[1] + lines[0])
    assert found.live == ("routes: another order",)


def test_key_of_an_upstream_that_changes_is_a_change_of_it(tmp_path: Path) -> None:
    """The reference is the same, what it leads to is not; nothing of the key is told."""
    before, now = settings(tmp_path, TWO), settings(tmp_path, TWO, KEY_A="sk-other")
    found = changes(before, now)
    assert found.live == ("upstream a: changed",)
    assert "sk-" not in repr(found)
    assert taken(before, now).upstreams[0].keys[0].secret.reveal() == "sk-other"


@pytest.mark.parametrize(
    ("line", "name"),
    [("upstream_first_byte_timeout: 5s", "a"), ("egress_pool_connections: 9", "b"), ("upstream_http2: off", "b")],
)
def test_variable_that_upstreams_take_shows_in_them(tmp_path: Path, line: str, name: str) -> None:
    """It is no field that needs a restart."""
    found = told(tmp_path, TWO, f"{line}\n{TWO}")
    assert f"upstream {name}: changed" in found.live
    assert found.restart == ()


def test_upstream_of_the_variables_can_change_too(tmp_path: Path) -> None:
    """Without the lists, the one upstream is what the file's variables say."""
    one, other = ("upstream_origin: http://127.0.0.1:1\n", "upstream_origin: http://127.0.0.1:2\n")
    assert told(tmp_path, one, other) == Changes(("upstream default: changed",), "upstreams: 1 changed", ())


def test_fields_that_need_a_restart_are_named_and_stay(tmp_path: Path) -> None:
    """As the file calls them, in the order of the table; nothing of their values."""
    lines = "workers: 1\nadmin_token: a-token-of-the-admin\nqueue_depth: 100\n"
    before, now = settings(tmp_path, TWO), settings(tmp_path, lines + TWO)
    found = changes(before, now)
    assert (found.live, set(found.restart)) == ((), {"workers", "admin_token", "queue_depth"})
    assert taken(before, now) == before


def test_what_was_not_taken_is_told_again(tmp_path: Path) -> None:
    """Until the restart: what holds is what runs, and not what was read last."""
    before, now = settings(tmp_path, TWO), settings(tmp_path, "queue_depth: 100\naccess_log: all\n" + TWO)
    assert changes(before, now) == Changes(("access_log: all",), "access_log", ("queue_depth",))
    assert changes(taken(before, now), now) == Changes((), "", ("queue_depth",))


def test_limits_are_told_as_messages_call_them(tmp_path: Path) -> None:
    """The gateway's, the one for every key, and those of the list by their places."""
    before = "api_keys: [vk-1]\nlimits:\n  - {per: key, rpm: 60}\n"
    now = before.replace("60", "90") + "  - {per: model, rpm: 5}\nrate_limit_rpm: 77\nkey_concurrency: 3\n"
    found = told(tmp_path, before, now)
    assert found.live == (
        "limit limits[1]: added",
        "limit VELOX_RATE_LIMIT: changed",
        "limit VELOX_KEY: changed",
        "limit limits[0]: changed",
    )
    assert found.restart == ()


def test_keys_of_clients_come_and_go(tmp_path: Path) -> None:
    """By their names, or the start of their digests."""
    before = "api_keys: [{name: a, key: vk-1}, {name: b, key: vk-2, models: x}]\n"
    now = "api_keys: [{name: b, key: vk-2}, vk-3]\n"
    found = told(tmp_path, before, now)
    assert found.live[1:] == ("key b: changed", "key a: removed")
    assert found.live[0].endswith(": added") and "vk" not in found.live[0]
    assert found.summary == "keys: 1 added, 1 changed, 1 removed"


@pytest.mark.parametrize(
    ("before", "now"), [("workers: 2\n", "api_keys: [vk-1]\n"), ("api_keys: [vk-1]\n", "workers: 2\n")]
)
def test_door_is_neither_opened_nor_shut_by_a_reload(tmp_path: Path, before: str, now: str) -> None:
    """From no key to some, and the other way round: who may come in at all is told at the start."""
    running, found = settings(tmp_path, before), settings(tmp_path, now)
    assert changes(running, found) == Changes((), "", ("api_keys",))
    assert taken(running, found).api_keys == running.api_keys


def test_keys_of_the_file_of_keys_are_no_change(tmp_path: Path) -> None:
    """They are looked after by themselves; while there are some, the last fixed one may go."""
    file = tmp_path / "keys"
    file.write_text("vk-1\nvk-2\n")
    before = settings(tmp_path, "api_keys: [vk-0]\n", VELOX_API_KEYS_FILE=str(file))
    file.write_text("vk-1\n")
    now = settings(tmp_path, "workers: 2\n", VELOX_API_KEYS_FILE=str(file))
    (line,) = changes(before, now).live
    assert line.endswith(": removed")


def test_rules_of_the_access_log_are_named_each(tmp_path: Path) -> None:
    """As the file calls them, with their values."""
    before = settings(tmp_path, TWO)
    now = settings(tmp_path, "access_log_slow: 2s\naccess_log_sample: 0.5%\n" + TWO)
    live = ("access_log_sample: 0.5", "access_log_slow: 2")
    assert changes(before, now) == Changes(live, "access_log_sample; access_log_slow", ())


def test_every_field_is_live_or_has_a_name_for_the_restart() -> None:
    """A field that is added later is one or the other."""
    known = (
        LIVE
        | {variable.field for variable in VARIABLES}
        | {
            "origins",
            "proxies",  # of the environment, which stays as it is while the gateway runs
            "traces",  # as are these
            "file_end",
            "key_file_end",
            "unusable_variables",
            "missing_keys",
            "unused_variables",
            "empty_variables",
        }
    )
    assert {each.name for each in fields(Settings)} <= known
    assert {each.name for each in fields(Settings)} >= LIVE
