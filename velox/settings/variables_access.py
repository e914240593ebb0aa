"""The variables of who may come in: the keys of clients, and the admin listener with what it shows.

Knows: as for variables. Does not know: what a client may do once it is in.
"""

from __future__ import annotations

from typing import Final

from velox.settings import parse
from velox.settings.keys import parse_entries, parse_items
from velox.settings.variable import DAY_S, Variable

__all__ = ["ADMIN_VARIABLES", "KEY_VARIABLES"]

KEY_VARIABLES: Final = (
    Variable(
        "VELOX_API_KEYS",
        "api_keys",
        parse_entries,
        "",
        "keys that clients must present, commas between them; `sha256:HEX` keeps a key out of sight",
        plural=True,
        secret=True,
        parse_items=parse_items,
    ),
    Variable(
        "VELOX_API_KEYS_FILE",
        "api_keys_file",
        parse.file_path,
        "",
        "more keys, one a line or a YAML list; read again when it changes: [docs/keys.md](docs/keys.md)",
    ),
    Variable(
        "VELOX_AUTH",
        "auth",
        parse.one_of("keys", "none"),
        "keys",
        "`none` lets every client in without a key, beyond loopback too",
    ),
)

ADMIN_VARIABLES: Final = (
    Variable(
        "VELOX_ADMIN_LISTEN",
        "admin_listen",
        parse.address_or_off,
        "127.0.0.1:6060",
        "address for metrics, health and profiling, `IP:PORT` or `unix:PATH`; or `off`",
    ),
    Variable(
        "VELOX_ADMIN_TOKEN",
        "admin_token",
        parse.secret,
        "",
        "what the admin listener asks for, as a bearer, of all but probes; must be set when it is not on loopback",
        secret=True,
    ),
    Variable(
        "VELOX_ADMIN_TOKEN_FILE",
        "admin_token_file",
        parse.file_path,
        "",
        "file that holds it instead",
    ),
    Variable(
        "VELOX_ADMIN_HOSTS",
        "admin_hosts",
        parse.host_names,
        "",
        "names by which the admin listener may be asked, commas between them, besides IP addresses and `localhost`",
        plural=True,
    ),
    Variable(
        "VELOX_PROFILING",
        "profiling",
        parse.switch,
        "on",
        "`off`: the admin listener takes no profiles, `/debug/pprof/` is 404",
    ),
    Variable(
        "VELOX_PROFILE_INTERVAL",
        "profile_interval_s",
        parse.duration(0.0, DAY_S),
        "",
        "least time between the starts of two profiles; sooner is 429",
        shown_default="60s; on loopback 0s",
    ),
)
