"""Who may come in: the keys and the token that files hold, and which doors may not stand open without them.

Knows: R-AUTH-1 for the data listener, R-ADM-1 for the admin listener. Does not know: how a key is written (keys.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from velox.settings import parse
from velox.settings.keys import merged, parse_key_file, read_key_file
from velox.settings.problems import Problem, quoted

__all__ = ["add_key_file", "add_token_file", "open_doors"]

_TOKEN_BYTES: Final = 16 * 1024


def add_key_file(values: dict[str, object]) -> list[Problem]:
    """Add the keys of VELOX_API_KEYS_FILE to those of VELOX_API_KEYS; return what is wrong with them."""
    path, entries = values.get("api_keys_file"), values.get("api_keys")
    if not isinstance(entries, tuple):
        return []
    problems: list[Problem] = []
    if isinstance(path, str):
        try:
            found, problems = parse_key_file(read_key_file(path), path)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            return [Problem("VELOX_API_KEYS_FILE", quoted(path), f"expected a file that can be read ({why})")]
        entries += found
    values["api_keys"], doubtful = merged(entries)
    return problems + doubtful


def add_token_file(values: dict[str, object]) -> list[Problem]:
    """Take the admin listener's token from VELOX_ADMIN_TOKEN_FILE; return what is wrong with it."""
    path, name = values.get("admin_token_file"), "VELOX_ADMIN_TOKEN_FILE"
    if not isinstance(path, str):
        return []
    if values.get("admin_token") is not None:
        return [Problem(name, quoted(path), "expected this or VELOX_ADMIN_TOKEN, not both")]
    try:
        with Path(path).open("rb") as file:
            text = file.read(_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as exc:
        return [Problem(name, quoted(path), f"expected a file that can be read ({exc.strerror})")]
    try:
        values["admin_token"] = parse.secret(text)
    except ValueError as exc:
        return [Problem(name, quoted(path), f"in it, {exc}")]
    return []


def open_doors(values: Mapping[str, Any]) -> Iterable[Problem]:
    """Say which listener others can reach without a key. `values` lacks the wrong ones."""
    yield from _data_door(values)
    listen = values.get("admin_listen")
    if listen is None or listen.is_loopback or not {"admin_token", "admin_token_file"} <= values.keys():
        return
    if values["admin_token"] is None and values["admin_token_file"] is None:
        expected = "expected VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE when other machines can connect"
        yield Problem("VELOX_ADMIN_LISTEN", quoted(str(listen)), expected)


def _data_door(values: Mapping[str, Any]) -> Iterable[Problem]:
    """R-AUTH-1: beyond this machine nobody gets in without a key, unless that was said in so many words."""
    if not {"listen", "auth", "api_keys", "api_keys_file"} <= values.keys():
        return
    has_keys = bool(values["api_keys"]) or values["api_keys_file"] is not None
    if values["auth"] == "none":
        if has_keys:
            yield Problem("VELOX_AUTH", "'none'", "expected keys, or no VELOX_API_KEYS and VELOX_API_KEYS_FILE")
    elif not has_keys and not all(address.is_loopback for address in values["listen"]):
        expected = (
            "expected VELOX_API_KEYS or VELOX_API_KEYS_FILE when clients can come from other machines"
            " (VELOX_AUTH=none lets everyone in)"
        )
        yield Problem("VELOX_LISTEN", quoted(",".join(map(str, values["listen"]))), expected)
