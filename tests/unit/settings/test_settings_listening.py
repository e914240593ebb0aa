"""Where clients connect: PORT, addresses without a port, and the options of `velox serve`."""

from __future__ import annotations

import pytest

from velox.settings import SettingsError, load

_KEYS = {"VELOX_API_KEYS": "key-0a9f8e7d6c5b"}


def _listen(environ: dict[str, str], **options: str) -> str:
    """Return the addresses. options: of the command line."""
    return ",".join(map(str, load({**_KEYS, **environ}, {name.upper(): text for name, text in options.items()}).listen))


@pytest.mark.parametrize(
    ("environ", "options", "listen"),
    [
        ({"PORT": "9000"}, {}, "127.0.0.1:9000"),
        ({"PORT": "9000", "VELOX_LISTEN": "0.0.0.0"}, {}, "0.0.0.0:9000"),
        ({"PORT": "9000", "VELOX_LISTEN": "0.0.0.0, unix:/tmp/v.sock"}, {}, "0.0.0.0:9000,unix:/tmp/v.sock"),
        ({"PORT": "9000", "VELOX_LISTEN": "127.0.0.1:8081"}, {}, "127.0.0.1:8081"),
        ({"PORT": "tcp://10.0.0.1:80"}, {}, "127.0.0.1:8080"),
        ({"PORT": "70000"}, {}, "127.0.0.1:8080"),
        ({"PORT": ""}, {}, "127.0.0.1:8080"),
        ({"VELOX_LISTEN": "[::]"}, {}, "[::]:8080"),
        ({"VELOX_LISTEN": "localhost"}, {}, "127.0.0.1:8080"),
        ({}, {"port": "9000"}, "127.0.0.1:9000"),
        ({"PORT": "7"}, {"port": "9000"}, "127.0.0.1:9000"),
        ({"VELOX_LISTEN": "0.0.0.0:8080"}, {"port": "9000"}, "0.0.0.0:9000"),
        ({"VELOX_LISTEN": "unix:/tmp/v.sock"}, {"port": "9000"}, "127.0.0.1:9000"),
        ({}, {"host": "0.0.0.0"}, "0.0.0.0:8080"),
        ({}, {"host": "::"}, "[::]:8080"),
        ({"PORT": "7"}, {"host": "0.0.0.0"}, "0.0.0.0:7"),
        ({"VELOX_LISTEN": "127.0.0.1:8081"}, {"host": "0.0.0.0"}, "0.0.0.0:8081"),
        ({"VELOX_LISTEN": "127.0.0.1:8081"}, {"host": "0.0.0.0", "port": "9000"}, "0.0.0.0:9000"),
        ({"PORT": "7"}, {"velox_listen": "127.0.0.1:1,127.0.0.1:2"}, "127.0.0.1:1,127.0.0.1:2"),
    ],
)
def test_port_and_host_are_taken_as_people_give_them(
    environ: dict[str, str], options: dict[str, str], listen: str
) -> None:
    """U16: a port of the command line replaces the setting's; PORT is of addresses that have none."""
    assert _listen(environ, **options) == listen


@pytest.mark.parametrize(
    ("environ", "options", "problem"),
    [
        ({}, {"host": "example.com"}, "--host is 'example.com:8080': expected IP:PORT"),
        ({"VELOX_LISTEN": "127.0.0.1:1,127.0.0.1:2"}, {"port": "9000"}, "--port is 9000: expected one address"),
        ({}, {"velox_listen": "nowhere"}, "--listen is 'nowhere': expected"),
    ],
)
def test_problem_has_the_name_of_the_option(environ: dict[str, str], options: dict[str, str], problem: str) -> None:
    """So it is found where it was written."""
    with pytest.raises(SettingsError) as refused:
        _listen(environ, **options)
    assert problem in str(refused.value)


def test_port_of_the_environment_lets_nobody_else_in() -> None:
    """U16: it says a port, not who may connect: without a key, only this machine."""
    settings = load({"PORT": "9000"})

    assert settings.listen[0].is_loopback
    assert any("VELOX_LISTEN=0.0.0.0" in line for line in settings.unused_variables)
