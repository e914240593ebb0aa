"""URLs of PostgreSQL as people have them: of libpq, of hosts such as Neon and Supabase, of Prisma and other clients.

    driver_url()   the same for asyncpg, which takes each parameter that it does not know for a setting of the server

Knows: which parameters mean something here, which mean nothing, and which can't be kept. Does not know: connections.

A parameter that the server refuses would be a database that is away for ever: a gateway would run and record nothing.
So what is not known is refused where the settings are read. What asks for more safety than there is, is not left out.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

__all__ = ["driver_url"]

# Of asyncpg's own.
_OWN: Final = frozenset(
    {
        *("host", "port", "user", "password", "dbname", "database", "passfile", "service", "krbsrvname", "gsslib"),
        *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs"),
    }
)
# Of the server (PostgreSQL's documentation, chapter 20), as far as somebody would set them for a session. Others can be
# said by `options`.
_OF_THE_SERVER: Final = frozenset(
    {
        *("options", "application_name", "search_path", "role", "timezone", "datestyle", "intervalstyle", "jit"),
        *("statement_timeout", "lock_timeout", "transaction_timeout", "idle_in_transaction_session_timeout"),
        *("idle_session_timeout", "synchronous_commit", "work_mem", "temp_buffers", "default_tablespace"),
        *("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"),
        *("client_connection_check_interval", "client_min_messages", "log_statement", "extra_float_digits"),
    }
)
# How other clients hold and make their connections: of these there is one here, with timeouts of its own.
_OF_OTHER_CLIENTS: Final = frozenset(
    {
        # libpq
        *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("sslcompression", "sslsni", "fallback_application_name", "load_balance_hosts", "client_encoding"),
        # Prisma, SQLAlchemy, node-postgres
        *("connection_limit", "pool_timeout", "pool_size", "max_overflow", "pgbouncer", "statement_cache_size"),
        *("prepared_statement_cache_size", "socket_timeout", "max_idle_connection_lifetime"),
        *("max_connection_lifetime", "uselibpqcompat", "supa"),
    }
)
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_ROLES: Final = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
_SYSTEM: Final = "system"


def driver_url(url: str, system_roots: str = "") -> str:
    """Return a URL that asyncpg takes. system_roots: file of the system's certificates.

    `channel_binding=require`, which asyncpg has no way for, asks that nobody stands between: then the server must show
    a certificate that the system trusts, for its name. Raises ValueError, whose text shows no value.
    """
    parts = urlsplit(url)
    kept: dict[str, str] = {}
    schema, binds = "", False
    try:
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError("expected NAME=VALUE for each parameter behind the ?") from None
    for name, value in given:
        name = name.lower()
        if name == "schema":
            schema = value
        elif name == "channel_binding":
            if value not in ("disable", "prefer", "require"):
                raise _wrong(name, "disable, prefer or require")
            binds = value == "require"
        elif name == "gssencmode":
            if value == "require":
                raise ValueError("expected no gssencmode=require: connections are encrypted by TLS here")
        elif name in _OWN or name in _OF_THE_SERVER or "." in name:
            kept[name] = value
        elif name not in _OF_OTHER_CLIENTS:
            raise ValueError(
                f"expected no parameter {_shown(name)}, which nobody knows here; a setting of the server can be given"
                " as options=-c%20NAME%3DVALUE"
            )
    if kept.get("sslmode", _MODES[0]) not in _MODES:
        raise _wrong("sslmode", ", ".join(_MODES))
    if kept.get("target_session_attrs", _ROLES[0]) not in _ROLES:
        raise _wrong("target_session_attrs", ", ".join(_ROLES))
    if binds:
        kept.setdefault("sslrootcert", _SYSTEM)
    if binds or kept.get("sslrootcert") == _SYSTEM:
        if kept.get("sslmode") == "disable":
            raise ValueError("expected another sslmode than disable with channel_binding=require or sslrootcert=system")
        # As libpq has it: with the system's certificates nothing less makes sense.
        kept["sslmode"] = _MODES[-1]
        if kept["sslrootcert"] == _SYSTEM:
            kept["sslrootcert"] = system_roots or _SYSTEM
    if schema:
        name = schema.replace('"', '""')
        kept.setdefault("search_path", f'"{name}"')
    # Spaces as %20: asyncpg decodes either, and `options` has some.
    return parts._replace(query=urlencode(kept, quote_via=quote)).geturl()


def _wrong(name: str, expected: str) -> ValueError:
    return ValueError(f"expected as the parameter {name} one of: {expected}")


def _shown(name: str) -> str:
    """Return a name for a message: what is none may be a piece of a password."""
    return f"`{name}`" if name.isidentifier() and len(name) <= 64 else "of that name"
