"""Keys as they may be written: in a variable, one a line, as a YAML list; and what is refused, without being shown."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.settings import SettingsError, load
from velox.settings.callers import keys as settings_keys
from velox.settings.callers.keys import merged, parse_entries, parse_key_file, with_managed
from velox.types import KeyEntry, KeyTerms, Priority, Rates

KEY = "sk-very-secret"
HEX = hashlib.sha256(KEY.encode()).hexdigest()


PIECES = [
    *("- ", "key: ", "name: ", "models: ", "rpm: 1", "a", "b*", "\n", "\n  ", "\n- ", ",", "[", "]", "{", "}", ": "),
    *("sha256:", HEX, "&x ", "*x", "<<: ", "? ", "| ", "> ", "'", '"', "#", "!!str ", "---\n", "...\n", "\t", "%"),
]


def digest(key: str) -> bytes:
    """Return what a key is known by."""
    return hashlib.sha256(key.encode()).digest()


def entries(content: str) -> tuple[KeyEntry, ...]:
    """Return the keys of a file that is right."""
    found, problems = parse_key_file(content.encode(), "keys")
    assert problems == []
    return found


def problems(content: str | bytes) -> list[str]:
    """Return what is wrong with a file; no key of it may be shown."""
    found = parse_key_file(content.encode() if isinstance(content, str) else content, "keys")[1]
    told = [str(problem) for problem in found]
    assert "secret" not in "".join(told)
    assert all("\n" not in line for line in told)
    return told


def test_keys_are_kept_as_digests_only() -> None:
    """A key and its sha256: form are the same; neither is in what is kept, as a log would show it."""
    (plain,), (hashed,) = parse_entries(KEY), parse_entries(f"sha256:{HEX.upper()}")

    assert plain == hashed == KeyEntry(digest(KEY))
    assert KEY not in repr(plain) and HEX not in repr(plain)
    assert [entry.digest for entry in parse_entries("sk-one, sk-two")] == [digest("sk-one"), digest("sk-two")]


@pytest.mark.parametrize(
    "text",
    [
        *("a,,b", "a,", "a b", "a\tb", "ké", "x" * 513, "sha256:" + "0" * 63, "sha256:" + "g" * 64, "sha256:"),
        f"sha256:{hashlib.sha256(b'').hexdigest()}",
    ],
)
def test_key_that_no_header_can_carry_is_refused_without_being_shown(text: str) -> None:
    """The refusal says which key by number. The digest of nothing is what a script makes of a variable not set."""
    with pytest.raises(ValueError, match=r"key \d") as raised:
        parse_entries(text)
    assert "x" * 10 not in str(raised.value)


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("name", ["VELOX_API_KEYS", "VELOX_ADMIN_TOKEN", "OPENAI_API_KEY", "FIRST_KEY"])
def test_quotes_around_a_secret_are_no_part_of_it(tmp_path: Path, name: str, quote: str) -> None:
    """A file of `docker run --env-file` that was written for a shell: no client would have such a key."""
    file = tmp_path / "velox.yaml"
    file.write_text("upstreams: [{name: a, origin: 'http://127.0.0.1:1', keys: [env:FIRST_KEY]}]\n")
    for value in (KEY, f"sha256:{HEX}", *([f"{KEY},{KEY}2"] if name == "VELOX_API_KEYS" else [])):
        with pytest.raises(SettingsError, match="expected no quotes around it") as raised:
            load({"FIRST_KEY": KEY, "VELOX_CONFIG": str(file), name: f"{quote}{value}{quote}"})
        assert value not in str(raised.value)


def test_lines_are_keys_and_comments() -> None:
    """A `#` begins a comment at the start of a line or after a space; inside a word it belongs to the key."""
    content = f"# ours\r\n\n{KEY}  # alice\n\twith#hash\t# bob\nwith=equals\nsha256:{HEX[::-1]}"

    found = entries(content)

    assert [entry.digest for entry in found] == [
        digest(KEY),
        digest("with#hash"),
        digest("with=equals"),
        bytes.fromhex(HEX[::-1]),
    ]
    assert [entry.where for entry in found] == ["keys:3", "keys:4", "keys:5", "keys:6"]
    assert all(entry.in_file for entry in found)


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r", " ", "\0"])
def test_line_ends_at_a_line_feed_only(separator: str) -> None:
    """What some call a line end would make two shorter keys of one."""
    assert [line.partition(": ")[0] for line in problems(f"good\nsecret{separator}rest\n")] == ["keys:2"]


def test_key_of_a_yaml_list_may_have_spaces_inside() -> None:
    """RFC 9110 §5.5: a header can carry it. It counts as it is, however many spaces; those around it do not.

    Where no quotes mark a key off, a space is more often a mistake: the refusal says where it may be.
    """
    key = "my  secret key"

    assert [entry.digest for entry in entries(f"- key: {key}\n- '{key} 2'\n")] == [digest(key), digest(f"{key} 2")]
    assert problems("- key: 'a\tb'\n- ' a'\n- 'a\n\n  b'\n") != []
    assert "in a YAML list" in problems("two words\n")[0]
    with pytest.raises(ValueError, match="in a YAML list"):
        parse_entries(key)
    assert problems(f"- sha256:{HEX} alice\n") != []


def test_yaml_list_says_more_of_a_key() -> None:
    """A name and models for who has them; a plain item is a key without. Two keys of one name: rotation."""
    found = entries(
        f"# teams\n- name: team-a\n  key: sha256:{HEX}\n  models: [gpt-4o*, o1]\n"
        f"- {{name: team-a, key: next-one}}\n- plain\n- key: k2\n  models: gpt-4o\n"
    )

    assert found == (
        KeyEntry(digest(KEY), "team-a", KeyTerms(models=("gpt-4o*", "o1"))),
        KeyEntry(digest("next-one"), "team-a"),
        KeyEntry(digest("plain")),
        KeyEntry(digest("k2"), terms=KeyTerms(models=("gpt-4o",))),
    )
    assert [entry.where for entry in found] == ["keys:2", "keys:5", "keys:6", "keys:7"]


def test_key_belongs_to_a_team_and_a_user_has_tags_and_an_end() -> None:
    """Each is checked; a date begins at midnight UTC."""
    content = b"- {key: one, team: red, user: ann@example.com, tags: [batch, eu], expires: 2027-01-31}\n- two\n"
    (one, two), problems = parse_key_file(content, "keys")
    assert not problems and two.expires_s is None
    assert (one.terms.team, one.terms.user, one.terms.tags, one.expires_s) == (
        "red",
        "ann@example.com",
        ("batch", "eu"),
        1_801_353_600,
    )

    (exact,), _ = parse_key_file(b"- {key: one, expires: '2027-01-31T18:00:00.5+01:00'}\n", "keys")
    assert exact.expires_s == 1_801_353_600 + 17 * 3600 + 1
    for wrong in ("team: ''", "user: [a, b]", "tags: ['a b']", "expires: soon", "expires: 2027-02-30", "team: a b"):
        _, problems = parse_key_file(b"- {key: one, %b}\n" % wrong.encode(), "keys")
        assert [problem.name for problem in problems] == [wrong.partition(":")[0]], (wrong, problems)


def test_key_has_limits_and_a_class_of_its_own() -> None:
    """Thousands and millions may be written as k and M; bursts that are not given follow from their rates."""
    found = entries(
        "- {key: a, rpm: 600, tpm: 200k, concurrency: 20, priority: high}\n"
        "- {key: b, rpm: 6, burst: 9, tpm: 2M, tpm_burst: 300k}\n"
        "- {key: c, rpm: 6}\n- {key: d, rpm: 30, priority: low}\n- e\n"
    )

    assert [(each.terms.rates, each.terms.priority) for each in found] == [
        (Rates(600, 100, 200_000, 200_000, 20), Priority.HIGH),
        (Rates(6, 9, 2_000_000, 300_000), None),
        (Rates(6, 6), None),
        (Rates(30, 10), Priority.LOW),
        (Rates(), None),
    ]


BAD_FILES = {
    "": ["VELOX_API_KEYS_FILE is 'keys': expected at least one key in it"],
    "# none yet\n": ["VELOX_API_KEYS_FILE is 'keys': expected at least one key in it"],
    "secret one\nok\nsécret\n": ["keys:1: VELOX_API_KEYS_FILE", "keys:3: VELOX_API_KEYS_FILE"],
    "- name: a\n": ["keys:1: a key: expected a key: `key: sha256:HEX`, or the key itself"],
    "- key: sha256:12\n": ["keys:1: a key: expected 64 hexadecimal digits after sha256:"],
    "- key: [secret]\n": ["keys:1: a key: expected a key"],
    "- key:\n": ["keys:1: a key: expected 1 to 512 visible"],
    "- null\n- key: ~\n- ~\n": [f"keys:{n}: a key: expected 1 to 512 visible" for n in (1, 2, 3)],
    "- key: secret\n  models: [null]\n": ["keys:2: models: expected"],
    "- key: secret\n  key: secret2\n": ["keys:2: key: expected each field once"],
    "- key: secret\n  nmae: x\n": ["keys:2: nmae: there is no such field of a key; did you mean name?"],
    "- key: secret\n  Secret-1: x\n": ["keys:2: a key: there is no such field of a key"],
    "- secret: team-a\n": ["keys:1: a key: there is no such field of a key", "keys:1: a key: expected a key"],
    '- key: a\n  "x\\ny": b\n': ["keys:2: a key: there is no such field of a key"],
    "- key: secret\n  name: a b\n": ["keys:2: name: expected 1 to 64 letters"],
    "- key: secret\n  name: [a]\n": ["keys:2: name: expected 1 to 64 letters"],
    f"- key: secret\n  name: {'n' * 65}\n": ["keys:2: name: expected 1 to 64 letters"],
    "- key: secret\n  models: []\n": ["keys:2: models: expected names of models"],
    "- key: secret\n  models:\n": ["keys:2: models: expected names of models"],
    f"- key: secret\n  models: [{'m' * 257}]\n": ["keys:2: models: expected names of models"],
    "- key: secret\n  rpm: 0\n  tpm: secret\n  concurrency: 1.5\n  priority: secret\n": [
        *(f"keys:{n}: {field}: expected a whole number from 1" for n, field in ((2, "rpm"), (3, "tpm"))),
        "keys:4: concurrency: expected a whole number from 1",
        "keys:5: priority: expected high, normal or low",
    ],
    "- key: secret\n  burst: 5\n": ["keys:2: burst: expected rpm with it"],
    "- key: secret\n  tpm_burst: 5\n  rpm: [6]\n": [
        "keys:3: rpm: expected one number",
        "keys:2: tpm_burst: expected tpm",
    ],
    "- key: secret\n  name: a b\n- key: sé\n": ["keys:2: name", "keys:3: a key"],
    "- [secret]\n": ["VELOX_API_KEYS_FILE is 'keys': expected one key a line, or a YAML list of keys"],
    "- key: {secret: 1}\n": ["VELOX_API_KEYS_FILE is 'keys': expected one key a line"],
    "- secret\n\t}\n": ["keys:2:1: the file: expected spaces before a field, not a tab"],
    "- &a [*a]\n": ["VELOX_API_KEYS_FILE is 'keys': expected one key a line"],
    "- &a {key: secret, models: [*a]}\n": ["VELOX_API_KEYS_FILE is 'keys': expected one key a line"],
    "- !!python/object/apply:os.system [secret]\n": ["VELOX_API_KEYS_FILE is 'keys': expected one key a line"],
}


@pytest.mark.parametrize("content", BAD_FILES, ids=range(len(BAD_FILES)))
def test_file_that_is_wrong_says_where_and_never_what(content: str) -> None:
    """B-53: every problem at once, each with its line, on one line, without the text of a key."""
    found = problems(content)

    assert len(found) == len(BAD_FILES[content]), found
    for told, expected in zip(found, BAD_FILES[content], strict=True):
        assert told.startswith(expected)


@pytest.mark.parametrize("text", ["one\n", "# keys\none\n", "- key: one\n"])
def test_file_may_begin_with_a_mark_of_its_encoding(text: str, tmp_path: Path) -> None:
    """As editors of Windows write it. It is in no key."""
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    environ = {"VELOX_API_KEYS_FILE": str(file)}
    assert [key.digest for key in load(environ).api_keys] == [digest("one")]
    file.write_bytes(b"\xef\xbb\xbfone\r\n")
    config = tmp_path / "velox.yaml"
    upstream = f"{{name: a, origin: 'http://a', keys: ['file:{file}']}}"
    config.write_text(f"upstreams: [{upstream}]\nadmin_token_file: {file}\n")
    made = load({"VELOX_CONFIG": str(config)})
    assert made.upstreams[0].keys[0].digest == digest("one")
    assert made.admin_token is not None and made.admin_token.reveal() == "one"


def test_file_that_is_not_text_is_refused() -> None:
    """Whatever bytes it holds, each line is named and none is shown."""
    assert problems(b"\xff\xfesecret\n") == [
        "keys:1: VELOX_API_KEYS_FILE: expected 1 to 512 visible ASCII characters, one key a line"
    ]


def test_same_key_twice_counts_once_unless_the_two_differ() -> None:
    """In the variable and in the file, say. With two names or two limits, nobody could say which holds."""
    one, other = KeyEntry(digest("a"), where="keys:1"), KeyEntry(digest("a"), "team", where="keys:2")
    limited = KeyEntry(digest("a"), terms=KeyTerms(rates=Rates(rpm=1, burst=1)), where="keys:2")

    assert merged([one, KeyEntry(digest("b")), one]) == ((one, KeyEntry(digest("b"))), [])
    for second in (other, limited):
        _, (problem,) = merged([one, second])
    assert str(problem) == (
        "keys:2: a key: expected each key once; it stands at keys:1 too, and says something else of it"
    )


@given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=25).map("".join).map(str.encode)))
def test_any_file_is_taken_or_told_of_and_never_a_crash(content: bytes) -> None:
    """Bytes, and YAML put together badly: keys without a problem, or problems of one line each; not neither."""
    found, told = parse_key_file(content, "keys")

    assert found or told
    assert all(len(entry.digest) == 32 for entry in found)
    assert all("\n" not in str(problem) for problem in told)


@pytest.mark.more
def test_number_of_keys_is_bounded() -> None:
    """All processes hold them: at the limit they pass, one more is told."""
    keys = [KeyEntry(n.to_bytes(32, "big")) for n in range(500_001)]

    assert merged(keys[:-1])[1] == []
    assert "at most 500000 keys" in str(merged(keys)[1][0])
    assert "characters of models" in str(merged([KeyEntry(b"", terms=KeyTerms(models=("m" * 2**24, "m")))])[1][0])


def test_managed_key_that_was_rotated_is_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digests before are known beside the last one: by the number of keys, and of characters of models."""
    monkeypatch.setattr(settings_keys, "MOST_KEYS", 3)
    monkeypatch.setattr(settings_keys, "_MOST_MODEL_CHARS", 12)
    fixed = KeyEntry(digest("fixed"), terms=KeyTerms(models=("mini",)))
    keys = [
        KeyEntry(digest(f"{n} {secret}"), f"key-{n}", terms=KeyTerms(models=("mini",)), is_managed=True, id=bytes([n]))
        for n in range(3)
        for secret in range(5)
    ]

    found, told = with_managed((fixed,), tuple(keys[:10]))
    assert (len(found), told) == (11, [])
    assert "at most 3 keys" in str(with_managed((fixed,), tuple(keys))[1][0])


def test_config_file_holds_keys_with_names_and_models(tmp_path: Path) -> None:
    """The same mappings as in a file of keys; api_keys is the only field that may hold any."""
    file = tmp_path / "velox.yaml"
    file.write_text("workers: 2\napi_keys:\n  - name: team-a\n    key: one\n    models: [o1, gpt-*]\n  - two\n")

    settings = load({"VELOX_CONFIG": str(file)}, cores=2)

    assert settings.api_keys == (
        KeyEntry(digest("one"), "team-a", KeyTerms(models=("o1", "gpt-*"))),
        KeyEntry(digest("two")),
    )
    assert settings.origins["VELOX_API_KEYS"] == "file"
    file.write_text("paths:\n  - name: team-a\napi_keys:\n  - {name: a b, key: secret}\n")
    with pytest.raises(SettingsError) as raised:
        load({"VELOX_CONFIG": str(file)}, cores=2)
    assert [str(problem).removeprefix(f"{file}:") for problem in raised.value.problems] == [
        "1: paths: expected a list of values without commas",
        "4: name: expected 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
    ]


def test_key_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe would hold up whoever reads it, and a device never ends."""
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    for path, why in (
        (pipe, "no regular file"),
        ("/dev/zero", "no regular file"),
        (tmp_path, "no regular file"),
        (large, "over 67108864 bytes"),
        (tmp_path / "absent", "No such file"),
    ):
        with pytest.raises(SettingsError, match=why) as raised:
            load({"VELOX_API_KEYS_FILE": str(path), "VELOX_LISTEN": "0.0.0.0:80"}, cores=2)
        assert len(raised.value.problems) == 1, "the open door is not another problem"
    for name in ("VELOX_ADMIN_TOKEN_FILE", "VELOX_UPSTREAM_CA_FILE"):
        with pytest.raises(SettingsError, match=f"{name}.*no regular file"):
            load({name: str(pipe)}, cores=2)
