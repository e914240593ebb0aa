"""`velox import litellm-db`: dumps as pg_dump makes them, what their rows become, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from velox.accounts.fields import FieldError, view
from velox.accounts.model import Key
from velox.accounts.service import Accounts, Adopted, Adoption
from velox.accounts.sqlite import SqliteAccounts
from velox.cli import main
from velox_migrate.account_fields import take_fields
from velox_migrate.litellm_db import TABLES, Plan, plan, read_tables
from velox_migrate.pg_dump import DumpError, Row, parse_array, read_database, read_dump

DUMPS = Path(__file__).parent / "dumps"
COPY, INSERTS = DUMPS / "copy.sql", DUMPS / "inserts.sql"
END = "-- PostgreSQL database dump complete\n"
NOW_S = 1_795_430_000  # 2026-11-23
SHOP, LAB, MEMBER = "shop-frontend", "lab", "member"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def rows_of(path: Path) -> list[tuple[str, Row]]:
    """Return all rows; INSERTs write truth values as words."""
    words = {"true": "t", "false": "f"}
    return [
        (table, {name: words.get(value, value) if value else value for name, value in row.items()})
        for table, row in read_dump(path, TABLES)
    ]


def planned(text: str | None = None, *, zone: str = "UTC", path: Path = COPY, into: Path | None = None) -> Plan:
    if text is not None and into is not None:
        path = into / "dump.sql"
        path.write_text(text)
    return plan(read_tables(read_dump(path, TABLES)), NOW_S, zone)


def block(name: str, columns: str, *rows: str, inserts: bool = False) -> str:
    """Return the rows of a table as a dump has them; values with commas between, texts in their quotes."""
    title = f'public."LiteLLM_{name}" ({columns})'
    if inserts:
        return "".join(f"INSERT INTO {title} VALUES ({row});\n" for row in rows)
    lines = (row.replace("'", "").replace(", ", "\t").replace("true", "t") + "\n" for row in rows)
    return f"COPY {title} FROM stdin;\n{''.join(lines)}\\.\n"


def account(made: Plan, name: str) -> Adopted:
    return next(each for each in made.accounts if each.fields.get("name") == name)


# -- dumps --------------------------------------------------------------------------------------------


def test_both_forms_of_a_dump_have_the_same_rows() -> None:
    """COPY and INSERT; a prompt in it looks like statements, and a function has an odd apostrophe."""
    rows = rows_of(COPY)

    assert rows == rows_of(INSERTS)
    tokens = [row for table, row in rows if table == "LiteLLM_VerificationToken"]
    assert [row["key_alias"] for row in tokens] == ["shop frontend", "lab", "rotated", "member", "spent", "old", None]
    assert json.loads(tokens[0]["metadata"] or "") == {"tags": ["prod", "web"], "owner": "x\ty"}
    messages = next(row["messages"] for _, row in rows if row.get("request_id") == "r2")
    assert "it's; \nCOPY public" in json.loads(messages or "")["content"]


def test_rows_of_other_tables_are_never_taken_for_a_function(tmp_path: Path) -> None:
    """`$$` begins the body of one; with --rows-per-insert a row stands on a line of its own."""
    priced = "INSERT INTO public.notes VALUES\n\t('a', 'it costs $$'),\n\t('b', 'nothing\n;\nCOPY much $$ more');\n"
    odd = "INSERT INTO public.notes VALUES\n\t('c', 'it costs $$');\n"
    teams = [block("TeamTable", "team_id", f"'{name}'", inserts=True) for name in ("red", "blue")]

    made = planned(odd + teams[0] + priced + odd + teams[1] + END, into=tmp_path)

    assert [each.id for each in made.accounts] == ["red", "blue"]


def test_long_text_of_an_insert_takes_no_memory_beyond_its_own(tmp_path: Path) -> None:
    """A prompt with a picture has megabytes."""
    prompt = "it''s " * 30_000
    dump = tmp_path / "dump.sql"
    dump.write_text(block("SpendLogs", "request_id, messages", f"'r', '{prompt}'", inserts=True) + END)
    tracemalloc.start()
    try:
        rows = list(read_dump(dump, TABLES))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert rows[0][1]["messages"] == prompt.replace("''", "'")
    assert most < 10 * len(prompt)


def test_compressed_dump_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "dump.sql.gz"
    packed.write_bytes(gzip.compress(COPY.read_bytes()))

    assert rows_of(packed) == rows_of(COPY)


@pytest.mark.parametrize("path", [COPY, INSERTS], ids=["copy", "inserts"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_dump_is_read_from_a_pipe(path: Path, pack: Callable[[bytes], bytes]) -> None:
    """`pg_dump | velox import litellm-db /dev/stdin`: nothing of its begin is lost."""
    there, here = os.pipe()
    content = pack(path.read_bytes())
    assert os.write(here, content) == len(content), "a pipe holds so much"
    os.close(here)

    assert rows_of(Path(f"/dev/fd/{there}")) == rows_of(COPY)
    os.close(there)


def test_compressed_dump_that_is_damaged_is_refused_wherever(tmp_path: Path) -> None:
    content, damaged = gzip.compress(COPY.read_bytes()), tmp_path / "dump.sql.gz"
    for at in range(10, len(content), 97):
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :])
        with pytest.raises(DumpError):
            list(read_dump(damaged, TABLES))
    damaged.write_bytes(content[:-400])
    with pytest.raises(DumpError, match="cut off or damaged"):
        list(read_dump(damaged, TABLES))


@pytest.mark.parametrize("path", [COPY, INSERTS], ids=["copy", "inserts"])
def test_dump_that_was_cut_off_is_refused_wherever(path: Path, tmp_path: Path) -> None:
    """A limit could be missing."""
    content = path.read_bytes()
    end = content.rindex(b"-- PostgreSQL database dump complete")
    cut = tmp_path / "cut.sql"
    for at in range(0, end, 397):
        cut.write_bytes(content[:at])
        with pytest.raises(DumpError, match="dump"):
            list(read_dump(cut, TABLES))


def test_other_formats_and_encodings_are_refused(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"PGDMP\x01\x0e")
    with pytest.raises(DumpError, match="pg_restore"):
        list(read_dump(dump, TABLES))
    dump.write_text(COPY.read_text().replace("'UTF8'", "'LATIN1'"))
    with pytest.raises(DumpError, match="encoding=UTF8"):
        list(read_dump(dump, TABLES))
    with pytest.raises(DumpError, match="No such file"):
        list(read_dump(tmp_path / "none", TABLES))


def test_database_is_read_by_pg_dump(tmp_path: Path) -> None:
    """The password is not among its arguments; what it says when it fails is told."""
    program = tmp_path / "pg_dump"
    program.write_text(f'#!/bin/sh\nenv > {tmp_path}/env\necho "$@" > {tmp_path}/arguments\ncat {COPY}\n')
    program.chmod(0o700)
    url = "postgresql://me:p%40ss@db.example:6432/llm?schema=public&connection_limit=5&sslmode=require"

    rows = list(read_database(url, TABLES, program=str(program)))

    assert len(rows) == len(rows_of(COPY))
    environ = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    wanted = {"PGHOST": "db.example", "PGPORT": "6432", "PGUSER": "me", "PGPASSWORD": "p@ss", "PGDATABASE": "llm"}
    assert {name: environ[name] for name in wanted} == wanted and environ["PGSSLMODE"] == "require"
    arguments = (tmp_path / "arguments").read_text()
    assert "p@ss" not in arguments and '--table="LiteLLM_VerificationToken"' in arguments
    program.write_text(f"#!/bin/sh\nhead -c 5000 {COPY}\necho 'server closed the connection' >&2\nexit 1\n")
    with pytest.raises(DumpError, match="server closed the connection"):
        list(read_database(url, TABLES, program=str(program)))
    with pytest.raises(DumpError, match="client programs"):
        list(read_database(url, TABLES, program=str(tmp_path / "none")))
    with pytest.raises(DumpError, match="expected postgresql://"):
        list(read_database("postgresql://me:x@[db/llm", TABLES, program=str(program)))


def test_rest_of_a_database_that_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    program = tmp_path / "pg_dump"
    program.write_text("#!/bin/sh\necho COPY nothing\nhead -c 9000000 /dev/zero\n")
    program.chmod(0o700)
    tracemalloc.start()
    try:
        with pytest.raises(DumpError, match="a COPY of the dump"):
            list(read_database("postgresql://me@db.example/llm", TABLES, program=str(program)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 8_000_000


@pytest.mark.parametrize(
    ("text", "values"),
    [("{}", []), (None, []), ("{a,b}", ["a", "b"]), (r'{"a,b","c\"d\\",NULL,x}', ["a,b", 'c"d\\', "x"])],
)
def test_arrays_are_read(text: str | None, values: list[str]) -> None:
    assert parse_array(text) == values


@pytest.mark.parametrize("text", ["a", "{a", '{"a}', "{a}b}", "{a,,b}"])
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="array"):
        parse_array(text)


# -- what becomes of it -------------------------------------------------------------------------------


def test_accounts_keep_ids_digests_and_limits() -> None:
    made = planned()
    shop = account(made, SHOP)

    assert made.limiting == {}
    assert shop.digests == ((bytes.fromhex(digest("sk-shop-0123456789abcdef")), None),)
    assert shop.hint == "sk-...cdef"
    assert shop.fields == {
        "name": SHOP,
        "team": "shop",
        "user": "auth0-5f7c-662dd0a5",
        "rpm": 600,
        "burst": 600,
        "concurrency": 20,
        "tags": ["prod", "web"],
        "models": ["gpt-4o", "gpt-4o-mini"],
        "budgets": [{"usd": "100.000000000", "window": "month"}],
        "metadata": {
            "owner": "x\ty",
            "litellm": {"aliases": {"fast": "gpt-4o-mini"}, "key_alias": "shop frontend"},
        },
    }
    rotated = account(made, "rotated")
    assert rotated.is_blocked
    assert rotated.digests[1:] == ((bytes.fromhex(digest("sk-before-0123456789abcd")), 1_798_761_600),)
    assert "models" not in rotated.fields  # all of its team's
    # Of the row of budgets it names; its user's models, since it is the user's own.
    assert account(made, LAB).fields == {
        "name": LAB,
        "user": "ada@example.com",
        "rpm": 60,
        "burst": 60,
        "tpm": 50_000,
        "models": ["gpt-4o"],
        "endpoints": ["/v1/chat/completions"],
        "expires": "2096-06-30T12:00:00Z",
        "budgets": [{"usd": "5.000000000", "window": "24h", "soft": [80]}],
        "metadata": {"litellm": {"budget_duration": "24h"}},
    }
    assert account(made, MEMBER).fields["budgets"] == [{"usd": "2.500000000", "window": "week"}]
    assert "models" not in account(made, MEMBER).fields
    assert account(made, "Bob").fields["budgets"] == [
        {"usd": "20.000000000", "window": "10d", "starts": "2026-11-28T00:00:00Z"}
    ]
    assert made.left_out == {
        "keys of sessions of LiteLLM's own pages": [digest("sk-session")[:8]],
        "keys that have expired": ["old"],
    }


def test_spend_is_that_of_the_days_and_what_is_beyond() -> None:
    """Days come first, then single calls of other days, then what LiteLLM's counters have more, in their period."""
    made = planned()
    nano: dict[str, int] = {}
    for row in made.spend:
        nano[row.key.partition(" ")[2] or f"team {row.team}"] = (
            nano.get(row.key.partition(" ")[2] or f"team {row.team}", 0) + row.sums.cost_nano
        )

    assert nano == {
        SHOP: 40_250_000_000,
        LAB: 1_500_000_000,
        "gone": 240,
        "rotated": 500_000_000,
        "spent": 1_250_000_000,
        "old": 125_000_000,
        "team shop": 41_250_000_000 - 40_250_000_000 - 240,
    }
    assert {row.team for row in made.spend if "gone" in row.key} == {"shop"}
    assert sum(row.sums.n for row in made.spend) == 915


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("\t{}\tb-lab\t", '\t{"gpt-4o": 5}\tb-lab\t', "model_max_budget of a key"),
        ('"tags": ["prod", "web"]', '"model_rpm_limit": {"gpt-4o": 1}', "metadata.model_rpm_limit of a key"),
        ('"tags": ["prod", "web"]', '"guardrails": ["pii"]', "metadata.guardrails of a key"),
        ("\t{/chat/completions}\t", "\t{management_routes}\t", "allowed_routes of a key"),
        ("b-org\t\\N\t\\N", "b-org\t1000\t\\N", "limits of an organization"),
    ],
)
def test_limit_that_would_not_hold_is_told(before: str, after: str, told: str, tmp_path: Path) -> None:
    text = COPY.read_text()
    assert before in text

    assert told in planned(text.replace(before, after), into=tmp_path).limiting


def test_members_budget_over_several_keys_is_told(tmp_path: Path) -> None:
    line = next(line for line in COPY.read_text().splitlines() if "\tmember\t" in line)
    text = COPY.read_text().replace(line, f"{line}\n{line.replace(digest('sk-member'), digest('sk-other'))}")

    assert planned(text, into=tmp_path).limiting == {
        "limits of a member of a team, over several keys": ["ada@example.com"]
    }


@pytest.mark.parametrize("inserts", [False, True], ids=["copy", "inserts"])
def test_blocked_end_user_is_told_in_both_forms_of_a_dump(inserts: bool, tmp_path: Path) -> None:
    text = block("EndUserTable", "user_id, blocked", "'bad', true", inserts=inserts) + END

    assert planned(text, into=tmp_path).limiting == {"limits of an end user (customer)": ["bad"]}


def test_members_rates_leave_the_keys_own_budget_its_period(tmp_path: Path) -> None:
    """Ten dollars a month must not become ten a day."""
    text = (
        block("BudgetTable", "budget_id, tpm_limit, budget_duration", "'b', 100, '1d'")
        + block("TeamTable", "team_id", "'red'")
        + block("UserTable", "user_id", "'ada'")
        + block("TeamMembership", "user_id, team_id, budget_id", "'ada', 'red', 'b'")
        + block(
            "VerificationToken",
            "token, key_alias, team_id, user_id, max_budget, budget_duration",
            f"'{digest('x')}', 'x', 'red', 'ada', 10, '30d'",
        )
    )

    fields = account(planned(text + END, into=tmp_path), "x").fields

    assert (fields["tpm"], fields["budgets"]) == (100, [{"usd": "10.000000000", "window": "month"}])


@pytest.mark.parametrize("owner", ["team", "user"])
@pytest.mark.parametrize(
    ("own", "most", "found"),
    [
        ("{gpt-4o,other}", "{gpt-4o,gpt-5}", ["gpt-4o"]),
        ("{gpt-*}", "{gpt-4o,llama}", ["gpt-4o"]),
        ("{gpt-*,llama}", "{gpt-4o,gpt-5-*,ll*}", ["llama", "gpt-4o", "gpt-5-*"]),
        ("{gpt-4o,gpt-*}", "{gpt-4o}", ["gpt-4o"]),
        ("{other}", "{gpt-4o}", ["no-default-models"]),
        ("{other}", "{all-proxy-models}", ["other"]),
        ("{all-proxy-models}", "{gpt-4o}", None),
        ("{*}", "{gpt-4o}", None),
        ("{}", "{gpt-4o}", None),
    ],
)
def test_models_of_a_key_are_those_that_its_owner_may_use_too(
    owner: str, own: str, most: str, found: list[str] | None, tmp_path: Path
) -> None:
    """None: all of its owner's. A team's hold for its keys as they are; a user's are written to the key."""
    columns, values = f"token, key_alias, models, {owner}_id", f"'{digest('x')}', 'x', '{own}', 'red'"
    text = block(f"{owner.title()}Table", f"{owner}_id, models", f"'red', '{most}'")

    made = planned(text + block("VerificationToken", columns, values) + END, into=tmp_path)

    of_owner = None if owner == "team" else ["gpt-4o"]
    assert account(made, "x").fields.get("models") == (of_owner if found is None else found)


# -- fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ({"max_budget": 10}, {"usd": "10.000000000", "window": "total"}),
        ({"max_budget": 0.1, "budget_duration": "1d"}, {"usd": "0.100000000", "window": "day"}),
        ({"max_budget": 1, "budget_duration": "7d"}, {"usd": "1.000000000", "window": "week"}),
        ({"max_budget": 1, "budget_duration": "1mo"}, {"usd": "1.000000000", "window": "month"}),
        ({"max_budget": 1, "budget_duration": "3mo"}, {"usd": "1.000000000", "window": "93d"}),
        ({"max_budget": 1e-10, "budget_duration": "30s"}, {"usd": "0.000000000", "window": "30s"}),
        (
            # An older LiteLLM, which counts thirty days from the last reset.
            {"max_budget": 1, "budget_duration": "30d", "budget_reset_at": "2026-12-05 07:00:00"},
            {"usd": "1.000000000", "window": "30d", "starts": "2026-12-05T07:00:00Z"},
        ),
        (
            {"max_budget": 8, "soft_budget": 2, "budget_duration": "1d"},
            {"usd": "8.000000000", "window": "day", "soft": [25]},
        ),
    ],
)
def test_budgets_have_the_windows_of_litellm(given: dict[str, Any], budget: dict[str, Any]) -> None:
    assert take_fields("key", given, NOW_S).fields["budgets"] == [budget]


def test_soft_budget_is_kept_as_it_was() -> None:
    """Where it is no whole percent, and where no budget is."""
    kept = take_fields("key", {"max_budget": 3, "soft_budget": Decimal(1)}, NOW_S).fields
    assert kept["metadata"] == {"litellm": {"soft_budget": 1.0}}
    assert take_fields("key", {"soft_budget": Decimal(1)}, NOW_S).fields["metadata"] == {
        "litellm": {"soft_budget": 1.0}
    }


def test_budgets_have_the_zone_in_which_litellm_resets() -> None:
    given = {"max_budget": 1, "budget_duration": "1d", "budget_reset_at": "2026-11-23 23:00:00"}

    assert take_fields("key", given, NOW_S, "Europe/Berlin").fields["budgets"] == [
        {"usd": "1.000000000", "window": "day", "zone": "Europe/Berlin"}
    ]
    assert take_fields("key", given, NOW_S).fields["budgets"] == [
        {"usd": "1.000000000", "window": "1d", "starts": "2026-11-23T23:00:00Z"}
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_budget", "much"),
        ("max_budget", -1),
        ("max_budget", float("nan")),
        ("max_budget", True),
        ("rpm_limit", 1.5),
        ("tpm_limit", -1),
        ("duration", "soon"),
        ("metadata", [1]),
        ("allowed_routes", [1]),
    ],
)
def test_wrong_value_names_the_field(field: str, value: object) -> None:
    with pytest.raises(FieldError) as refused:
        take_fields("key", {field: value}, NOW_S)

    assert refused.value.field == field


# -- the command --------------------------------------------------------------------------------------


def run(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str, dump: Path = COPY) -> tuple[int, str]:
    capsys.readouterr()
    environ = {"VELOX_LEDGER": str(folder), "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:1"}
    code = main(["import", "litellm-db", str(dump), *arguments], environ)
    return code, capsys.readouterr().err


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    store = SqliteAccounts(tmp_path / "ledger")
    yield Accounts(store)
    store.close()


def test_second_run_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], accounts: Accounts) -> None:
    """What somebody has changed here since stays; the rest follows LiteLLM."""
    folder = tmp_path / "ledger"
    assert run(folder, capsys)[0] == 0
    number = accounts.number()
    code, told = run(folder, capsys, dump=INSERTS)

    assert (code, accounts.number()) == (0, number)
    assert "teams: 2 the same" in told
    assert "keys: 5 the same" in told
    shop = accounts.key_of("sk-shop-0123456789abcdef")
    assert shop is not None
    accounts.update("key", shop.id, {"rpm": 5}, "ann")
    moved = tmp_path / "later.sql"
    moved.write_text(COPY.read_text().replace("\t50000\t", "\t70000\t").replace("\t600\t", "\t900\t"))

    code, told = run(folder, capsys, dump=moved)

    assert code == 0
    assert "keys: 1 changed, 3 the same, 1 left as changed or deleted here" in told
    lab = accounts.key_of("sk-lab-0123456789abcdefg")
    assert lab is not None
    assert lab.rates.tpm == 70_000
    kept = accounts.get("key", shop.id)
    assert kept.rates.rpm == 5
    assert isinstance(kept, Key)
    assert view(kept)["team"] == "shop"


def test_keys_that_litellm_has_no_longer_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accounts: Accounts
) -> None:
    """Somebody has revoked them there since the first run; a key of Velox's own is none of them."""
    folder, later = tmp_path / "ledger", tmp_path / "later.sql"
    assert "still active" not in run(folder, capsys)[1]
    accounts.create_key({}, "ann")
    lines = COPY.read_text().splitlines(keepends=True)
    later.write_text("".join(line for line in lines if not line.startswith(digest("sk-lab-0123456789abcdefg"))))

    code, told = run(folder, capsys, dump=later)

    lab = accounts.key_of("sk-lab-0123456789abcdefg")
    assert code == 0 and lab is not None
    assert f"delete those here that are not to work: {lab.id}\n" in told
    accounts.block("key", lab.id, "ann")
    assert "still active" not in run(folder, capsys, dump=later)[1]


def test_dump_of_another_database_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an import carries over replaces what one before has: with nothing in it, the spend would be gone."""
    folder, other = tmp_path / "ledger", tmp_path / "other.sql"
    assert run(folder, capsys)[0] == 0
    other.write_text(f"CREATE TABLE public.notes (\n    a text\n);\nCOPY public.notes (a) FROM stdin;\nb\n\\.\n{END}")

    code, told = run(folder, capsys, dump=other)

    assert (code, "LiteLLM_BudgetTable" in told) == (2, True)
    other.write_text(block("TeamTable", "team_id") + END)  # a LiteLLM of which nobody has made use yet
    assert list(read_dump(other, TABLES)) == []


def test_nothing_is_done_on_a_dry_run_or_when_a_limit_would_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accounts: Accounts
) -> None:
    folder = tmp_path / "ledger"
    assert run(folder, capsys, "--dry-run")[0] == 0
    assert accounts.number() == 0
    weaker = tmp_path / "weaker.sql"
    weaker.write_text(COPY.read_text().replace('"tags": ["prod", "web"]', '"guardrails": ["pii"]'))

    code, told = run(folder, capsys, dump=weaker)

    assert code == 1
    assert "metadata.guardrails of a key: shop frontend" in told
    assert accounts.number() == 0
    assert run(folder, capsys, "--allow-weaker", dump=weaker)[0] == 0
    assert accounts.key_of("sk-shop-0123456789abcdef") is not None


def test_report_shows_no_secret_and_no_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run(tmp_path / "ledger", capsys)[1]

    assert "scrypt" not in told
    assert digest("sk-session") not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--zone", "Nowhere"), "--zone"), (("-o", "x"), "--output"), (("none.sql",), "none.sql"), (("env:URL",), "URL")],
)
def test_wrong_argument_is_told(
    arguments: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[0].startswith("-"):
        code, lines = run(tmp_path / "ledger", capsys, *arguments)
    else:
        code, lines = run(tmp_path / "ledger", capsys, dump=Path(arguments[0]))

    assert code == 2
    assert told in lines


def test_deleted_account_is_not_adopted_again(accounts: Accounts) -> None:
    """A key that was taken away because others had it must not come back with the next import; nor its team."""
    team = Adopted("team", "team_one", {"name": "team"})
    adopted = Adopted("key", "key_one", {"name": "one", "team": "team_one"}, digests=((b"x" * 32, None),))
    assert accounts.adopt(team, "import") == Adoption.MADE
    assert accounts.adopt(adopted, "import") == Adoption.MADE
    accounts.delete("key", "key_one", "ann")
    accounts.delete("team", "team_one", "ann")
    assert accounts.adopt(team, "import") == Adoption.KEPT

    assert accounts.adopt(adopted, "import") == Adoption.KEPT
    assert accounts.key_of_digest(b"x" * 32) is None


def test_adopted_key_must_not_have_a_digest_of_another(accounts: Accounts) -> None:
    made, secret = accounts.create_key({"name": "one"}, "ann")
    adopted = Adopted("key", "key_two", {"name": "two"}, digests=((hashlib.sha256(secret.encode()).digest(), None),))

    with pytest.raises(Exception, match="there is such a key already"):
        accounts.adopt(adopted, "import")
    again = adopted._replace(digests=((b"x" * 32, None),))
    assert [accounts.adopt(again, "import") for _ in range(2)] == [Adoption.MADE, Adoption.SAME]
    assert made.id != "key_two"
