"""Fuzz: settings, from the environment and from the YAML file.

Input: lines NAME=TEXT for the environment, then a line with "---", then the file; after a line with "===", a file of
keys. A NAME without its VELOX_ will do; 0x01 in the value of a variable that is secret stands for a secret. Whatever
they are: they are settings, or a list of problems; each problem, and each row of `velox check`, is one line that can be
printed; no secret is in either.

Every upstream that a route names is there, and every route can be reached. Upstreams have keys from the variable
FUZZ_KEY, which holds the secret.

Variables that name files are left out: what lies on the machine is not the input.
"""

from __future__ import annotations

import os

from velox.policy.routes.match import RouteTable
from velox.settings import Settings, SettingsError, load
from velox.settings.callers.keys import parse_key_file
from velox.settings.model import VARIABLES
from velox.settings.show import effective, limit_lines, route_lines, upstream_lines

__all__ = ["run"]

_SECRET = b"sk-secret-0123456789"
_KNOWN = {variable.name for variable in VARIABLES}
# What `env:FUZZ_KEY` in a list of keys leads to.
_KEY = "fuzz-key-9876543210"
_SECRETS = {variable.name for variable in VARIABLES if variable.secret}
_FILES = {
    variable.name
    for variable in VARIABLES
    if variable.name not in _SECRETS and variable.name.endswith(("_FILE", "_CERT", "_KEY", "_CA", "_CONFIG"))
}
_FILE_KEYS = (*(name.removeprefix("VELOX_").lower().encode() for name in _FILES), b"_file", b"file:")
_SECRET_LINES = tuple(name.removeprefix("VELOX_").lower().encode() + b":" for name in _SECRETS)
# What could carry a value from one field of a YAML file to another, or make one line look like another.
_YAML_TRICKS = b"&*|>'\"{["


def run(data: bytes) -> None:
    """Load settings. Raises AssertionError, or what a bug raises."""
    data, has_keys, keys = data.partition(b"\n===\n")
    if has_keys:
        _check_keys(keys.replace(b"\x01", _SECRET))
    top, _, file = data.partition(b"\n---\n")
    environ = {**_environment(top), "FUZZ_KEY": _KEY}
    descriptor = os.memfd_create("settings")
    try:
        if file:
            os.write(descriptor, _file(file))
            environ["VELOX_CONFIG"] = f"/proc/self/fd/{descriptor}"
        _check(environ)
    finally:
        os.close(descriptor)


def _environment(text: bytes) -> dict[str, str]:
    environ: dict[str, str] = {}
    for line in text.split(b"\n"):
        name, has_text, value = line.partition(b"=")
        # An environment has neither.
        if not name or not has_text or b"\0" in line:
            continue
        known = name.decode("utf-8", "surrogateescape")
        known = known if known in _KNOWN or known.startswith("VELOX_") else f"VELOX_{known}"
        if known not in _FILES:
            value = value.replace(b"\x01", _SECRET) if known in _SECRETS else value
            environ[known] = value.decode("utf-8", "surrogateescape")
    return environ


def _file(text: bytes) -> bytes:
    """Put the secret where a secret belongs, and leave out lines that would name a file."""
    lines, is_secret = [], False
    for line in text.split(b"\n"):
        if any(key in line.lower() for key in _FILE_KEYS):
            continue
        if not line.startswith((b"-", b" ")):
            is_secret = line.startswith(_SECRET_LINES)
        lines.append(line.replace(b"\x01", _SECRET) if is_secret else line)
    filled = b"\n".join(lines)
    return filled if not set(filled) & set(_YAML_TRICKS) else filled.replace(_SECRET, b"")


def _check_keys(content: bytes) -> None:
    """Read a file of keys. Whatever stands in it may be one, so nothing of it may be shown."""
    entries, problems = parse_key_file(content, "/keys")
    for problem in problems:
        assert str(problem).isprintable(), f"a problem that is not one printable line: {problem!r}"
        assert _SECRET.decode() not in str(problem), "a key is shown"
    for entry in entries:
        assert _SECRET.decode() not in entry.name or b"name" in content, "a key became a name"
        assert len(entry.digest) == 32 and entry.in_file


def _check(environ: dict[str, str]) -> None:
    secret = _SECRET.decode()
    try:
        settings = load(environ, cores=2)
    except SettingsError as error:
        assert error.problems, "refused without a problem"
        for problem in error.problems:
            assert str(problem).isprintable(), f"a problem that is not one printable line: {problem!r}"
            assert secret not in str(problem) and _KEY not in str(problem), "a secret is shown"
        return
    for line in limit_lines(settings):
        assert line.isprintable(), f"a limit that is not one printable line: {line!r}"
        named = any(secret in key.name for key in settings.api_keys)
        assert named or secret not in line, f"a secret is shown: {line}"
    _check_routing(settings)
    for rule in settings.limit_rules:
        assert bool(rule.rates.rpm) == bool(rule.rates.burst) and bool(rule.rates.tpm) == bool(rule.rates.tpm_burst)
    rows = effective(settings)
    assert {name for name, _, _ in rows} == _KNOWN
    for name, shown, origin in rows:
        assert shown.isprintable(), f"a row that is not one printable line: {name} {shown!r}"
        assert origin in ("default", "environment", "file", "command line")
        assert secret not in shown, f"a secret is shown: {name}"


def _check_routing(settings: Settings) -> None:
    """Hold upstreams and routes to what all else relies on."""
    names = [upstream.name for upstream in settings.upstreams]
    assert names and len(set(names)) == len(names) and settings.routes
    assert all(upstream.origins and upstream.weight > 0 for upstream in settings.upstreams)
    assert all(target.upstream in names for route in settings.routes for target in route.targets)
    assert all(route.to and not set(route.to) & set(route.fallback) for route in settings.routes)
    for line in (*upstream_lines(settings), *route_lines(settings)):
        assert line.isprintable(), f"a line that is not printable: {line!r}"
        assert _KEY not in line, f"a key is shown: {line}"
    table = RouteTable(settings.routes)
    for route in settings.routes:
        # A request that is just what a route asks for is taken by it, or by one before.
        match = route.match
        headers = [(name.encode(), value.encode()) for name, value in match.headers]
        headers += [(b"x-velox-tag", match.tags[0].encode())] if match.tags else []
        path = (match.paths or ("/",))[0].encode()
        found = table.match((match.models or (None,))[0], path, headers, (match.keys or ("",))[0])
        assert found is not None and settings.routes.index(found) <= settings.routes.index(route)
