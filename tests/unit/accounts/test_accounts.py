"""Keys, teams and users: made, changed, deleted; what is refused; what is active then. The clock is the test's."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.postgres_server import PostgresServer
from tests.unit.accounts.entries import entries_in_force
from velox.accounts.active import _within, caller_id
from velox.accounts.fields import FIELDS, view
from velox.accounts.model import KINDS, Key
from velox.accounts.postgres import PostgresAccounts
from velox.accounts.service import Accounts, AccountsError
from velox.accounts.sqlite import SqliteAccounts
from velox.accounts.store import AccountStore
from velox.types import KeyEntry, KeyTerms, Priority, Rates

ME = "ann"


def _nested(n: int) -> object:
    """Return an object that holds n more, one in the other: what one list more around it makes too deep to show."""
    return {"a": _nested(n - 1)} if n else {}


class House:
    """A service on a store of its own, and its time."""

    def __init__(self, store: AccountStore) -> None:
        self.now_s = 1_800_000_000.0
        self.store = store
        self.accounts = Accounts(self.store, lambda: self.now_s)

    def entries(self) -> tuple[KeyEntry, ...]:
        _, documents, digests = self.store.everything()
        return entries_in_force(documents, digests, self.now_s)

    def refused(self, call: str, *arguments: Any) -> AccountsError:
        """Make a call that must be refused and change nothing."""
        before = self.store.everything()
        with pytest.raises(AccountsError) as caught:
            getattr(self.accounts, call)(*arguments)
        assert self.store.everything() == before
        return caught.value


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AccountStore]:
    """An empty store of each kind."""
    if request.param == "sqlite":
        found: AccountStore = SqliteAccounts(tmp_path / "ledger")
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        found = PostgresAccounts(server.database())
    yield found
    found.close()


@pytest.fixture
def house(store: AccountStore) -> House:
    """A house without accounts."""
    return House(store)


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def test_key_is_shown_once_and_kept_as_a_digest(house: House, tmp_path: Path) -> None:
    """Nothing on the disk holds it; it is found by what the client presents."""
    key, secret = house.accounts.create_key({"name": "web", "rpm": 600, "priority": "high"}, ME)

    assert secret.startswith("sk-") and len(secret) == 46 and key.hint == f"sk-...{secret[-4:]}"
    assert all(secret.encode() not in path.read_bytes() for path in tmp_path.rglob("*.db*"))
    assert secret not in repr((house.store.everything(), house.accounts.changes().items))
    assert house.accounts.key_of(secret) == key == house.accounts.get("key", key.id)
    assert house.accounts.key_of(secret[:-1]) is None
    (entry,) = house.entries()
    rates = Rates(rpm=600, burst=100)
    assert entry == KeyEntry(
        digest(secret), "web", terms=KeyTerms(rates=rates, priority=Priority.HIGH), id=caller_id(key), account=key.id
    )
    rotated = house.accounts.rotate_key(key.id, 0, ME)
    assert [each.id for each in house.entries()] == [entry.id], "limits and records go on"
    assert rotated.key.id == key.id


def test_key_may_be_brought_along(house: House) -> None:
    """As what clients present already, or as its digest alone; and by an id that another system knows it by."""
    own = house.accounts.create_key({"key": "sk-0123456789abcdef", "id": "old-7"}, ME)
    hashed = house.accounts.create_key({"digest": digest("sk-other").hex()}, ME)

    assert (own.secret, own.key.id, hashed.secret) == ("sk-0123456789abcdef", "old-7", "")
    assert {each.digest for each in house.entries()} == {digest("sk-0123456789abcdef"), digest("sk-other")}
    for again in ({"key": "sk-other"}, {"key": "sk-0123456789abcdef"}, {"digest": digest("sk-other").hex()}):
        error = house.refused("create_key", again, ME)
        assert error.field in ("key", "") or error.code == "conflict"
    assert house.refused("create_key", {"id": "old-7"}, ME).code == "conflict"


WRONG: dict[str, tuple[Any, ...]] = {
    "name": ("", 5, "a b", "x" * 65, ["a"]),
    "models": ("gpt-4o", [1], ["a b"], [""], {"a": 1}, ["x" * 257]),
    "endpoints": ("all", ["chats"], ["v1/files"], [5]),
    "tags": ("a", ["a,b"], [""], [f"t{n}" for n in range(9)]),
    "priority": ("urgent", 1, True),
    "rpm": (0, -1, 1.5, "600", True, 10**12, float("nan")),
    "tpm": (-5, "2M", 10**30),
    "concurrency": (0, False, []),
    "burst": (5,),
    "tpm_burst": (5,),
    "expires": ("soon", 5, "2027-02-30", "2027-01-01T00:00:00", "9999-12-31", "1969-01-01"),
    "budgets": ({}, [5], "20 usd/month"),
    "metadata": ([], "x", 5, {"a": "x" * 20_000}, _nested(32), _nested(250)),
    "team": ("nobody", 5, "a b"),
    "user": ("nobody", ["u"]),
    "max_budget": (5,),
    "key": ("short", 5, "with space in the middle", "x" * 600),
    "digest": ("00", 5, "zz" * 32, hashlib.sha256(b"").hexdigest()),
    "id": (5, "a b", "", "x" * 200),
}


@pytest.mark.parametrize("field", WRONG)
def test_case_25_mistyped_field_makes_no_key(house: House, field: str) -> None:
    """It is refused by its name, its value is not shown, and neither key nor record of a change is there."""
    for value in WRONG[field]:
        if field == "name" and value == "":
            continue  # not set
        error = house.refused("create_key", {"name": "web", field: value}, ME)
        assert (error.code, error.field) == ("invalid", field), (value, error.message)
        assert not isinstance(value, str) or len(value) < 10 or value not in error.message
    assert house.entries() == () and house.store.number() == 0


@pytest.mark.parametrize(
    ("budget", "field"),
    [
        ({"usd": -1, "window": "month"}, "budgets.usd"),
        ({"usd": float("inf"), "window": "month"}, "budgets.usd"),
        ({"usd": 5, "window": "fortnight"}, "budgets.window"),
        ({"usd": 5, "duration": "month"}, "budgets.duration"),
        ({"window": "month"}, "budgets.usd"),
    ],
)
def test_case_25_budget_that_would_not_hold_makes_no_key(house: House, budget: dict[str, Any], field: str) -> None:
    """A key without the limit that was asked for would be worse than none."""
    assert house.refused("create_key", {"budgets": [budget]}, ME).field == field


def test_what_is_shown_can_be_given_again(house: House) -> None:
    """Every field of a view that may be changed makes the same account."""
    fields: dict[str, Any] = {
        "name": "web",
        "models": ["gpt-4o*"],
        "endpoints": ["inference", "/v1/files*"],
        "tags": ["eu"],
        "rpm": 60,
        "tpm": 1000,
        "tpm_burst": 500,
        "concurrency": 2,
        "priority": "low",
        "expires": "2030-01-01",
        "metadata": {"a": [1, {"b": None}]},
        "budgets": [
            {"usd": "12.5", "window": "month", "zone": "Europe/Berlin", "soft": [80, 100]},
            {"tokens": 5, "window": "30d", "starts": "2026-01-01"},
            {"usd": 0, "window": "total", "strict": True, "unpriced": "allow"},
        ],
    }
    one = house.accounts.create_key(fields, ME).key
    shown = view(one)
    again = {name: value for name, value in shown.items() if name in FIELDS["key"]}
    other = house.accounts.create_key(orjson.loads(orjson.dumps(again)), ME).key

    assert {**view(other), "id": 0, "hint": 0} == {**shown, "id": 0, "hint": 0}
    assert other.budgets == one.budgets and other.rates == one.rates


def test_change_takes_what_is_given_and_null_takes_away(house: House) -> None:
    """A new rate has a new burst; each change is told with what was before."""
    key = house.accounts.create_key({"name": "web", "rpm": 600, "tpm": 1000, "tags": ["a"]}, ME).key
    house.now_s += 60
    changed = house.accounts.update("key", key.id, {"rpm": 60, "tpm": None, "tags": ["b"]}, "ben")

    assert (changed.rates, changed.tags, changed.name, changed.version) == (Rates(rpm=60, burst=10), ("b",), "web", 2)
    assert house.refused("update", "key", key.id, {"burst": 5, "rpm": None}, ME).field == "burst"
    assert house.refused("update", "key", "key_none", {"rpm": 5}, ME).code == "not_found"
    last, first = house.accounts.changes().items
    assert (first.action, first.actor, first.before, first.after["rpm"]) == ("create", ME, None, 600)
    assert (last.action, last.actor, last.before["rpm"], last.after["rpm"]) == ("update", "ben", 600, 60)
    assert last.time_s - first.time_s == 60
    assert digest("x").hex() not in str(first) and "sk-" not in str(first).replace(key.hint, "")


def test_blocked_keys_and_owners_are_not_in_force(house: House) -> None:
    """Until they are unblocked. Other keys are."""
    house.accounts.create_team({"id": "red"}, ME)
    house.accounts.create_user({"id": "u1", "email": "ann@example.com"}, ME)
    of_both = house.accounts.create_key({"team": "red", "user": "u1", "name": "both"}, ME).key
    house.accounts.create_key({"name": "free"}, ME)
    for kind, id_ in (("team", "red"), ("user", "u1"), ("key", of_both.id)):
        house.accounts.block(kind, id_, ME)  # type: ignore[arg-type]
        assert [entry.name for entry in house.entries()] == ["free"], kind
        house.accounts.unblock(kind, id_, ME)  # type: ignore[arg-type]
        assert len(house.entries()) == 2


def test_key_ends_and_its_entry_says_when(house: House) -> None:
    """Who has the entry can end it in time by itself."""
    house.accounts.create_key({"expires": "2027-01-15T08:01:00Z"}, ME)
    (entry,) = house.entries()
    assert entry.expires_s == house.now_s + 60
    house.now_s += 60
    assert house.entries() == ()


def test_rotated_key_holds_for_its_grace(house: House) -> None:
    """The key stays what it was; of three secrets the oldest ends first; without grace at once."""
    key, first = house.accounts.create_key({"name": "web"}, ME)
    made, second = house.accounts.rotate_key(key.id, 100, ME)
    assert made.id == key.id and made.hint.endswith(second[-4:]) and first != second
    by_digest = {entry.digest: entry for entry in house.entries()}
    assert by_digest[digest(first)].expires_s == house.now_s + 100
    assert by_digest[digest(second)].expires_s is None and len(by_digest) == 2

    house.now_s += 60
    third = house.accounts.rotate_key(key.id, 100, ME).secret
    assert {entry.digest: entry.expires_s for entry in house.entries()} == {
        digest(first): house.now_s + 40,
        digest(second): house.now_s + 100,
        digest(third): None,
    }
    last = house.accounts.rotate_key(key.id, 0, ME).secret
    assert [entry.digest for entry in house.entries()] == [digest(last)]
    assert house.accounts.key_of(first) is None and house.accounts.key_of(last) is not None
    for wrong in (-1, True, "1d", 10**9):
        assert house.refused("rotate_key", key.id, wrong, ME).field == "grace"


def test_secrets_of_a_key_are_bounded(house: House) -> None:
    """Who may rotate one key fills no worker with its former secrets; what was promised to clients still holds."""
    key, first = house.accounts.create_key({}, ME)
    for _ in range(19):
        house.accounts.rotate_key(key.id, 100, ME)
    assert len(house.entries()) == 20
    error = house.refused("rotate_key", key.id, 100, ME)
    assert error.code == "conflict" and "without a grace" in error.message
    assert house.accounts.key_in_force(first) is not None
    house.now_s += 100
    house.accounts.rotate_key(key.id, 100, ME)
    assert len(house.entries()) == 2


def test_bound_on_secrets_never_stops_a_rotation_without_a_grace(house: House) -> None:
    """That is how a key that leaked is revoked."""
    key = house.accounts.create_key({}, ME).key
    for _ in range(19):
        house.accounts.rotate_key(key.id, 100, ME)
    last = house.accounts.rotate_key(key.id, 0, ME).secret
    assert [entry.digest for entry in house.entries()] == [digest(last)]


def test_team_bounds_its_keys(house: House) -> None:
    """Models, endpoints, class: what a key has besides is refused, and not active when the team shrinks."""
    house.accounts.create_team({"id": "red", "models": ["gpt-*", "o1"], "priority": "normal", "rpm": 60}, ME)
    plain = house.accounts.create_key({"team": "red", "priority": "high", "tags": ["k"], "name": "plain"}, ME).key
    some = house.accounts.create_key({"team": "red", "models": ["gpt-4*", "o1"], "name": "some"}, ME).key
    assert house.refused("create_key", {"team": "red", "models": ["gpt-4*", "claude*"]}, ME).field == "models"
    assert house.refused("update", "key", plain.id, {"models": ["*"]}, ME).field == "models"
    assert house.refused("create_key", {"team": "blue"}, ME).field == "team"

    by_name = {entry.name: entry for entry in house.entries()}
    assert by_name["plain"].terms.models == ("gpt-*", "o1") and by_name["some"].terms.models == ("gpt-4*", "o1")
    assert by_name["plain"].terms.priority is Priority.NORMAL and by_name["plain"].terms.team_rates == Rates(
        rpm=60, burst=10
    )
    house.accounts.update("team", "red", {"models": ["o1"], "tags": ["t"]}, ME)
    assert {entry.name: entry.terms.models for entry in house.entries()} == {"plain": ("o1",), "some": ("o1",)}
    assert {entry.terms.tags for entry in house.entries()} == {("t", "k"), ("t",)}
    house.accounts.update("team", "red", {"models": ["o3"]}, ME)
    assert [entry.name for entry in house.entries()] == ["plain"], "none of its models is left: not all of them"
    assert some.models == ("gpt-4*", "o1")


@pytest.mark.parametrize(
    ("name", "own", "most", "left"),
    [
        ("models", ["gpt-4*", "claude-3"], ["gpt-4o", "claude-*"], {"claude-3", "gpt-4o"}),
        ("models", ["gpt-*"], ["gpt-4o", "gpt-4*"], {"gpt-4o", "gpt-4*"}),
        ("models", ["inference"], ["all"], None),
        ("endpoints", ["inference", "organization"], ["all"], {"inference"}),
        ("endpoints", ["all"], ["files", "organization"], {"files"}),
        ("endpoints", ["/v1/*"], ["/v1/files*", "inference"], {"/v1/files*"}),
        ("endpoints", ["/v1/organization*"], ["all"], None),
    ],
)
def test_key_of_a_team_that_shrinks_keeps_what_both_may(
    house: House, name: str, own: list[str], most: list[str], left: set[str] | None
) -> None:
    """Whichever of the two says more: a key that may still use something is not refused as unknown."""
    house.accounts.create_team({"id": "red"}, ME)
    house.accounts.create_key({"team": "red", name: own}, ME)
    house.accounts.update("team", "red", {name: most}, ME)
    assert [set(getattr(entry.terms, name)) for entry in house.entries()] == ([left] if left else [])


def test_names_that_a_key_and_its_team_both_have_are_not_compared() -> None:
    """Each with each, 1,000 models would take half a second a key."""
    names = tuple(f"m{n}" for n in range(1000))

    def holds(_wide: str, narrow: str) -> bool:
        assert narrow not in names
        return False

    assert _within((*names, "own"), (*names, "most"), holds) == names


def test_key_may_be_given_groups_of_a_team_with_all_endpoints(house: House) -> None:
    """But not the organization's, which has to be named."""
    house.accounts.create_team({"id": "red", "endpoints": ["all"]}, ME)
    house.accounts.create_key({"team": "red", "endpoints": ["inference", "files"]}, ME)
    assert [entry.terms.endpoints for entry in house.entries()] == [("inference", "files")]
    assert house.refused("create_key", {"team": "red", "endpoints": ["organization"]}, ME).field == "endpoints"


def test_tags_of_a_key_push_out_none_of_its_owners(house: House) -> None:
    """A budget of the team's tag holds, however many tags the key has."""
    house.accounts.create_team({"id": "red", "tags": ["prod"]}, ME)
    house.accounts.create_user({"id": "ann", "tags": ["staff"]}, ME)
    own = [f"own{n}" for n in range(8)]
    house.accounts.create_key({"team": "red", "user": "ann", "tags": own}, ME)
    assert [entry.terms.tags for entry in house.entries()] == [("prod", "staff", *own[:6])]


def test_key_that_could_use_nothing_is_not_made(house: House) -> None:
    """What its user bounds is taken off it; if nothing is left, its client would get 401 from the first day on."""
    house.accounts.create_team({"id": "red", "models": ["gpt-*"]}, ME)
    house.accounts.create_user({"id": "ann", "models": ["gpt-4o", "o1"]}, ME)
    house.accounts.create_user({"id": "ben", "models": ["claude-*"], "endpoints": ["files"]}, ME)
    house.accounts.block("user", "ann", ME)
    house.accounts.create_key({"user": "ann", "models": ["gpt-4o", "o3"]}, ME)
    key = house.accounts.create_key({"team": "red", "user": "ann"}, ME).key
    house.accounts.unblock("user", "ann", ME)
    assert [entry.terms.models for entry in house.entries()] == [("gpt-4o",)] * 2
    for wrong in ({"models": ["o3"], "user": "ann"}, {"team": "red", "user": "ben"}):
        assert house.refused("create_key", wrong, ME).field == "user"
    assert house.refused("create_key", {"user": "ben", "endpoints": ["inference"]}, ME).field == "user"
    assert house.refused("update", "key", key.id, {"user": "ben"}, ME).field == "user"


def test_key_whose_owners_were_narrowed_since_can_be_changed(house: House) -> None:
    """Its limits can be lowered without a change of its models first, by whoever manages it."""
    house.accounts.create_team({"id": "red"}, ME)
    house.accounts.create_user({"id": "ann"}, ME)
    key = house.accounts.create_key({"team": "red", "user": "ann", "models": ["o3"]}, ME).key
    house.accounts.update("user", "ann", {"models": ["gpt-4o"]}, ME)
    house.accounts.update("key", key.id, {"rpm": 1}, ME)
    house.accounts.update("team", "red", {"models": ["gpt-4o"]}, ME)
    changed = house.accounts.update("key", key.id, {"rpm": 2, "models": ["o3"], "team": "red"}, ME)
    assert isinstance(changed, Key) and changed.rates.rpm == 2 and house.entries() == ()
    assert house.refused("update", "key", key.id, {"models": ["o1"]}, ME).field == "models"
    assert house.refused("update", "key", key.id, {"models": None, "team": "blue"}, ME).field == "team"


def test_owner_with_keys_is_not_deleted(house: House) -> None:
    """The keys go first; then nothing is left of it but the record."""
    house.accounts.create_team({"id": "red"}, ME)
    key = house.accounts.create_key({"team": "red"}, ME).key
    assert house.refused("delete", "team", "red", ME).code == "conflict"
    house.accounts.delete("key", key.id, ME)
    house.accounts.delete("team", "red", ME)

    assert house.entries() == () and house.store.everything()[1] == {kind: [] for kind in KINDS}
    assert [change.action for change in house.accounts.changes().items] == ["delete", "delete", "create", "create"]
    assert house.refused("delete", "team", "red", ME).code == "not_found"


def test_pages_show_all_of_them_once(house: House) -> None:
    """In the order in which they were made; also changes; a filter is a parameter, whatever is in it."""
    for n in range(7):
        house.now_s += 1
        house.accounts.create_key({"name": f"k{n}"}, ME)
    names, cursor = [], ""
    while True:
        page = house.accounts.page("key", cursor, 3)
        names += [key.name for key in page.items]
        cursor = page.cursor
        if not cursor:
            break
    assert names == [f"k{n}" for n in range(7)]
    first = house.accounts.changes(limit=4)
    rest = house.accounts.changes(first.cursor, 4)
    assert [len(first.items), len(rest.items), rest.cursor] == [4, 3, ""]
    assert [key.name for key in house.accounts.page("key", where={"name": "k3"}).items] == ["k3"]
    assert not house.accounts.page("key", where={"name": "k3' OR 1=1 --"}).items
    assert not house.accounts.changes(where={"actor": "'; DROP TABLE change; --"}).items
    for wrong in (0, -1, 5000, True):
        assert house.refused("page", "key", "", wrong).field == "limit"
    assert house.refused("changes", "x").field == "cursor"


def test_changes_at_the_same_time_are_all_made(house: House) -> None:
    """Two people who change two fields of one key at the same time both get what they asked for."""
    key = house.accounts.create_key({}, ME).key
    start = threading.Barrier(2)

    def change(field: str) -> None:
        start.wait()
        for n in range(1, 11):
            house.accounts.update("key", key.id, {field: n}, field)

    threads = [threading.Thread(target=change, args=(field,)) for field in ("rpm", "concurrency")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = house.accounts.get("key", key.id)
    assert (found.rates.rpm, found.rates.concurrency, found.version, house.store.number()) == (10, 10, 21, 21)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["red", "gpt-*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from([*FIELDS["key"], "id", "key", "digest"]) | st.text(max_size=6), VALUES, max_size=4
    )
)
@pytest.mark.slow
def test_whatever_is_given_makes_a_key_or_names_the_field(
    tmp_path_factory: pytest.TempPathFactory, fields: Mapping[str, object]
) -> None:
    """Never an error of another kind; what is made can be shown and is active as it was asked for."""
    house = House(SqliteAccounts(tmp_path_factory.mktemp("accounts")))
    try:
        made = house.accounts.create_key(fields, ME)
    except AccountsError as exc:
        assert exc.code == "invalid" and (exc.field or "" in fields) and house.store.number() == 0
        return
    finally:
        entries = house.entries()
        house.store.close()
    assert isinstance(made.key, Key) and orjson.dumps(view(made.key))
    assert len(entries) <= 1 and all(entry.terms.models == made.key.models for entry in entries)


def test_what_changed_is_told_in_its_order(house: House) -> None:
    """Also of what is gone; so many at a time."""
    assert house.store.touched(0, 9) == [] and house.store.number() == 0
    house.accounts.create_team({"id": "red"}, ME)
    house.accounts.create_key({"id": "a", "team": "red"}, ME)
    house.accounts.rotate_key("a", 60, ME)
    house.accounts.delete("key", "a", ME)
    told = house.store.touched(0, 9)
    assert [each[1:] for each in told] == [("team", "red"), ("key", "a"), ("key", "a"), ("key", "a")]
    numbers = [each.number for each in told]
    assert numbers == sorted(set(numbers)) and numbers[-1] == house.store.number()
    assert house.store.touched(numbers[0], 2) == told[1:3] and house.store.touched(numbers[-1], 9) == []


def test_keys_of_an_owner_are_found_with_their_digests(house: House) -> None:
    """A page at a time; of a key itself, too. Another kind's of the same id are nobody's."""
    house.accounts.create_team({"id": "red"}, ME)
    house.accounts.create_user({"id": "red"}, ME)
    secrets = {}
    for id_ in ("c", "a", "b"):
        secrets[id_] = house.accounts.create_key({"id": id_, "team": "red"}, ME).secret
    house.accounts.create_key({"id": "d", "user": "red"}, ME)
    new = house.accounts.rotate_key("b", 60, ME).secret

    def found(*asked: Any) -> tuple[list[str], set[tuple[str, bytes]]]:
        documents, digests = house.store.keys_of(*asked)
        return [orjson.loads(each)["id"] for each in documents], {(each.key, each.digest) for each in digests}

    of_b = {("b", digest(secrets["b"])), ("b", digest(new))}
    assert found("team", "red", "", 2) == (["a", "b"], {("a", digest(secrets["a"])), *of_b})
    assert found("team", "red", "b", 2) == (["c"], {("c", digest(secrets["c"]))})
    assert found("team", "red", "c", 2) == ([], set())
    assert found("user", "red", "", 9)[0] == ["d"]
    assert found("key", "b", "", 9) == (["b"], of_b)
    assert found("key", "none", "", 9) == found("team", "none\0", "", 9) == ([], set())


@pytest.mark.slow
def test_changes_wait_for_one_another_whatever_isolation_the_database_has_set(postgres: PostgresServer) -> None:
    """A snapshot from before the wait would check a change against what is no longer so, or fail."""
    url = postgres.database()
    name = url.rpartition("/")[2]
    postgres.sql(url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    stores = [PostgresAccounts(url) for _ in range(2)]
    houses = [House(store) for store in stores]
    houses[0].accounts.create_team({"id": "t", "name": "0"}, ME)

    def change(house: House) -> None:
        for n in range(30):
            house.accounts.update("team", "t", {"name": str(n)}, ME)

    threads = [threading.Thread(target=change, args=(house,)) for house in houses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert houses[0].accounts.get("team", "t").version == 61
    for store in stores:
        store.close()
