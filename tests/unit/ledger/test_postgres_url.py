"""URLs of PostgreSQL: what hosts and other clients write into them means the same here, nothing, or is refused."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

import pytest

from velox.ledger.postgres_url import driver_url
from velox.settings import parse

BASE = "postgresql://velox:pw%40word@ep-cool-1.neon.tech:5432/velox"
ROOTS = "/etc/roots.pem"
VERIFIED = {"sslmode": "verify-full", "sslrootcert": ROOTS}


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("", {}),
        # C31: what Neon, Supabase and Prisma show their users.
        ("sslmode=require&channel_binding=require", VERIFIED),
        ("channel_binding=require", VERIFIED),
        ("sslmode=require&channel_binding=prefer", {"sslmode": "require"}),
        ("pgbouncer=true&connection_limit=1&pool_timeout=10&statement_cache_size=0", {}),
        ("schema=public", {"search_path": '"public"'}),
        ('schema=a"b', {"search_path": '"a""b"'}),
        ("schema=public&search_path=own", {"search_path": "own"}),
        ("connect_timeout=10&gssencmode=prefer&keepalives=1&sslcompression=0", {}),
        # Of libpq, and of the server.
        ("sslrootcert=system", VERIFIED),
        ("sslmode=verify-ca&sslrootcert=/ca.pem", {"sslmode": "verify-ca", "sslrootcert": "/ca.pem"}),
        ("channel_binding=require&sslrootcert=/ca.pem", {"sslmode": "verify-full", "sslrootcert": "/ca.pem"}),
        ("sslrootcert=/ca.pem&sslmode=verify-ca&channel_binding=require", {**VERIFIED, "sslrootcert": "/ca.pem"}),
        (
            "target_session_attrs=primary&application_name=x",
            {"target_session_attrs": "primary", "application_name": "x"},
        ),
        ("options=-c%20work_mem%3D8MB&my.setting=1", {"options": "-c work_mem=8MB", "my.setting": "1"}),
        ("host=/var/run/postgresql&SSLMODE=disable", {"host": "/var/run/postgresql", "sslmode": "disable"}),
    ],
)
def test_parameters_mean_the_same_or_nothing(query: str, kept: dict[str, str]) -> None:
    """C31: the rest of the URL stays as it is."""
    url = f"{BASE}?{query}" if query else BASE
    parts = urlsplit(driver_url(url, ROOTS))
    assert dict(parse_qsl(parts.query)) == kept
    assert "+" not in parts.query
    assert parts._replace(query="").geturl() == BASE
    assert parse.database_url(url.replace('"', "%22")).reveal()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("nonsense=secret", "`nonsense`"),
        ("pool_mode=secret", "options=-c"),
        ("sslmode=no-verify", "sslmode one of: disable"),
        ("sslmode=secret", "sslmode one of"),
        ("target_session_attrs=secret", "one of: any"),
        ("channel_binding=secret", "one of: disable"),
        ("gssencmode=require", "gssencmode=require"),
        ("sslmode=disable&channel_binding=require", "another sslmode"),
        ("secret", "NAME=VALUE"),
        ("se%20cret=1", "no parameter of that name"),
    ],
)
def test_what_can_not_be_kept_is_refused_with_its_name(query: str, expected: str) -> None:
    """C31: where the settings are read, and not by a server that then seems to be away; no value is shown."""
    with pytest.raises(ValueError, match=re.escape(expected)) as refused:
        parse.database_url(f"{BASE}?{query}")
    assert "secret" not in str(refused.value)
