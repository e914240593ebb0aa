"""Where clients connect: several addresses, and who may use a unix socket."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from velox.settings import SettingsError, load
from velox.settings.show import effective
from velox.types import Address, SocketOwner

UNIX = "unix:/run/velox/velox.sock"


def problem(environ: dict[str, str]) -> str:
    """Return the one thing that load() finds wrong."""
    with pytest.raises(SettingsError) as raised:
        load(environ, cores=2)
    (found,) = raised.value.problems
    return str(found)


def shown(environ: dict[str, str], name: str) -> str:
    return next(value for variable, value, _ in effective(load(environ, cores=2)) if variable == name)


def test_several_addresses_in_their_order() -> None:
    """A sidecar's application may use either."""
    settings = load({"VELOX_LISTEN": f"127.0.0.1:8080, [::1]:8080,{UNIX}"}, cores=2)

    assert settings.listen == (
        Address("tcp", "127.0.0.1", 8080),
        Address("tcp", "::1", 8080),
        Address("unix", path="/run/velox/velox.sock"),
    )
    assert shown({"VELOX_LISTEN": f"127.0.0.1:0,{UNIX}"}, "VELOX_LISTEN") == f"127.0.0.1:0,{UNIX}"


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1:1,127.0.0.1:1", f"{UNIX},{UNIX}", "127.0.0.1:1,", ",".join(["[::1]:0"] * 17)),
        *("0.0.0.0:1,127.0.0.1:1", "127.0.0.1:1,127.0.0.2:1,0.0.0.0:1", "[::]:1,[::1]:1"),
    ],
)
def test_addresses_that_can_not_all_be_bound_are_refused(text: str) -> None:
    assert problem({"VELOX_LISTEN": text, "VELOX_AUTH": "none"}).startswith("VELOX_LISTEN")


@pytest.mark.parametrize("text", ["[::]:1,0.0.0.0:1", "0.0.0.0:1,127.0.0.1:2", "127.0.0.1:1,127.0.0.2:1,[::]:1"])
def test_every_address_of_one_version_may_stand_beside_the_other(text: str) -> None:
    assert len(load({"VELOX_LISTEN": text, "VELOX_AUTH": "none"}, cores=2).listen) > 1


def test_port_that_the_kernel_chooses_may_stand_twice() -> None:
    assert len(load({"VELOX_LISTEN": "127.0.0.1:0,127.0.0.1:0"}, cores=2).listen) == 2


def test_one_address_beyond_loopback_needs_keys_whatever_the_others_are() -> None:
    """The widest door counts."""
    assert "VELOX_API_KEYS" in problem({"VELOX_LISTEN": f"{UNIX},0.0.0.0:8080"})


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        *(("127.0.0.1:1,127.0.0.1:2", "127.0.0.1:2"), ("0.0.0.0:6060", ""), ("[::]:2", "127.0.0.1:2")),
        *(("127.0.0.1:2", "0.0.0.0:2"), (UNIX, UNIX)),
    ],
)
def test_admin_listener_must_be_none_of_them(listen: str, admin: str) -> None:
    """Nor one that takes another one's connections: the second of them could not be bound."""
    environ = {
        "VELOX_LISTEN": listen,
        "VELOX_ADMIN_LISTEN": admin,
        "VELOX_AUTH": "none",
        "VELOX_ADMIN_TOKEN": "token-0a9f8e7d",
    }

    assert problem(environ).startswith("VELOX_ADMIN_LISTEN is ")


@pytest.mark.parametrize(("text", "mode"), [("0660", 0o660), ("777", 0o777), ("0600", 0o600)])
def test_mode_is_octal(text: str, mode: int) -> None:
    environ = {"VELOX_LISTEN": UNIX, "VELOX_LISTEN_MODE": text}

    assert load(environ, cores=2).listen_mode == mode
    assert shown(environ, "VELOX_LISTEN_MODE") == f"{mode:04o}"


@pytest.mark.parametrize("text", ["660 ", "u=rw", "1777", "0o660", "66", "0980", "-660"])
def test_mode_that_is_none_is_refused(text: str) -> None:
    assert "octal" in problem({"VELOX_LISTEN": UNIX, "VELOX_LISTEN_MODE": text})


def test_socket_is_its_owners_only_unless_told_otherwise() -> None:
    """Whoever can connect needs no key: the default must not be wide."""
    assert load({"VELOX_LISTEN": UNIX}, cores=2).listen_mode == 0o600


def test_owner_by_name_and_by_number() -> None:
    """As chown takes it; what is not named stays what it is."""
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    cases = {
        f"{user}:{group}": (os.getuid(), os.getgid()),
        user: (os.getuid(), None),
        f":{group}": (None, os.getgid()),
        "10001:10002": (10001, 10002),
        f"{user}:7": (os.getuid(), 7),
    }
    for text, (uid, gid) in cases.items():
        environ = {"VELOX_LISTEN": UNIX, "VELOX_LISTEN_OWNER": text}
        assert load(environ, cores=2).listen_owner == SocketOwner(text, uid, gid)
        assert shown(environ, "VELOX_LISTEN_OWNER") == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nobody-of-that-name", "a user that this machine knows"),
        (":nobody-of-that-name", "a group that this machine knows"),
        (":", "USER, USER:GROUP or :GROUP"),
        ("a:b:c", "USER, USER:GROUP or :GROUP"),
        ("4294967295", "whole number"),
    ],
)
def test_owner_that_is_none_is_refused(text: str, words: str) -> None:
    assert words in problem({"VELOX_LISTEN": UNIX, "VELOX_LISTEN_OWNER": text})


@pytest.mark.parametrize(("name", "text"), [("VELOX_LISTEN_MODE", "0660"), ("VELOX_LISTEN_OWNER", "0:0")])
def test_mode_and_owner_without_a_unix_socket_are_refused(name: str, text: str) -> None:
    """Somebody believes that a port is guarded."""
    found = problem({name: text})

    assert found.startswith(name) and "unix:PATH" in found
