"""The keys that clients must present: what may be written, in a variable, in a file of keys, in the YAML file.

Knows: the forms of an entry, and that a key itself is never kept: only its SHA-256. Does not know: requests, or when a
file is read again.

An entry is a key, or `sha256:HEX` of one. In a YAML list it may be a mapping instead, which says more of it:

    - name: team-a
      key: sha256:9f86d0...
      models: [gpt-4o*, text-embedding-3-small]
      endpoints: [inference, files]
      rpm: 600
      budgets: [20 usd/month, 2M tokens/day]
      priority: high
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from velox.policy.api.table import ALL_ENDPOINTS, GROUPS
from velox.policy.budgets.budget import BudgetError, parse_budget_text, same_windows
from velox.policy.spellings import KEY_NAME, MOST_KEY_CHARS, MOST_TAGS, is_endpoint
from velox.settings import parse
from velox.settings.callers.limits import RATE_FIELDS, parse_names, parse_rates
from velox.settings.callers.plain_items import PlainItem, field_pattern, plain_items, scalar_of
from velox.settings.callers.weak import is_weak
from velox.settings.problems import Problem, quoted
from velox.settings.yaml.file import compose, list_items
from velox.settings.yaml.tree import Entry, FileEnd, Tree, fields_of, read_regular_file
from velox.types import Budget, KeyEntry, KeyTerms, Priority

__all__ = [
    "MOST_KEYS",
    "key_file_end",
    "merged",
    "parse_entries",
    "parse_items",
    "parse_key",
    "parse_key_file",
    "parse_plain_items",
    "read_key_file",
    "with_managed",
]

T = TypeVar("T")

_FILE: Final = "VELOX_API_KEYS_FILE"
_VISIBLE: Final = re.compile(r"[!-~]+")
# As a header carries it: RFC 9110 §5.5 allows spaces inside a value. Where keys are not marked off from each other by
# quotes, a space is more often a mistake.
_SPACED: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_DIGEST: Final = re.compile(r"sha256:([0-9A-Fa-f]{64})")
_FILE_BYTES: Final = 64 * 2**20  # half a million keys with limits and names
# All processes share them in memory, some 500 bytes each.
MOST_KEYS: Final = 500_000
_MOST_MODEL_CHARS: Final = 16 * 2**20
# What a YAML parser gets to read: it takes a second for 1,000 keys.
_YAML_BYTES: Final = 2**20
# A file with more problems says so again when these are mended.
_MOST_PROBLEMS: Final = 100
# A "#" inside a word belongs to the key: cutting it off would leave a shorter key that lets people in.
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")
_FIELDS: Final = (
    *("key", "name", "models", "endpoints", "priority", "team", "user", "tags", "expires", "budgets", "timing"),
    *RATE_FIELDS,
)
_PRIORITIES: Final = {priority.name.lower(): priority for priority in Priority}
# What a script makes of a variable that is not set.
_OF_NOTHING: Final = hashlib.sha256(b"").digest()
# What differs from key to key, in a plain item of a file. The rest says the same of many keys.
_OWN: Final = field_pattern("key", "name")
_COMMON: Final = tuple(
    {each.name for each in fields(KeyEntry)} - {"digest", "name", "where", "in_file", "is_managed", "id"}
)


def parse_entries(text: str) -> tuple[KeyEntry, ...]:
    """Parse keys, or sha256:HEX of keys, with commas between them."""
    parse.unquoted(text.strip())  # else only the first key and the last one were others than they seem
    entries = []
    for n, item in enumerate(text.split(","), 1):
        try:
            entries.append(parse_key(item.strip(), "VELOX_API_KEYS"))
        except ValueError as exc:
            raise ValueError(f"in key {n} of those between commas, {exc}") from None
    return tuple(entries)


def parse_key(text: str, where: str = "", *, spaced: bool = False) -> KeyEntry:
    """Parse a key, or sha256:HEX of one. spaced: the key may have spaces inside."""
    return KeyEntry(_digest(text, spaced=spaced), where=where, is_weak=is_weak(text))


def parse_items(items: Sequence[Tree]) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    """Return the keys of a YAML list, and everything that is wrong with it."""
    entries: list[KeyEntry] = []
    problems: list[Problem] = []
    for item in items:
        try:
            entries.append(_entry(item, problems))
        except ValueError as exc:
            problems.append(Problem("a key", "", str(exc), where=item.where))
    return tuple(entries), problems


def read_key_file(path: str) -> bytes:
    """Return the content of a file of keys. Raises OSError, or ValueError when it can't be one."""
    content = read_regular_file(path, _FILE_BYTES)
    if len(content) > _FILE_BYTES:
        raise ValueError(f"it is over {_FILE_BYTES} bytes")
    return content.removeprefix(codecs.BOM_UTF8)  # which editors of Windows write before the first key


def parse_key_file(content: bytes, path: str) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    """Return the keys of a file, and everything that is wrong with it. path: for the problems.

    One key a line, or a YAML list: then the first line that says anything begins with "- ".
    """
    lines = [line.strip(b" \t\r") for line in content.split(b"\n")]
    first = next((line for line in lines if line and not line.startswith(b"#")), b"")
    entries, problems = _list(content, path) if first.startswith(b"- ") else _lines(lines, path)
    if not entries and not problems:
        # An empty file must not mean that no key is needed.
        problems = [Problem(_FILE, quoted(path), "expected at least one key in it")]
    return entries, problems


def key_file_end(content: bytes) -> FileEnd:
    """Return how a file of keys ends. Its mark is a last line `# end`."""
    return FileEnd(content.rstrip().rpartition(b"\n")[2] == b"# end", content.endswith(b"\n"))


def merged(entries: Iterable[KeyEntry]) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    """Return each key once, and those that stand twice with different names, models or limits: which ones count?"""
    by_digest: dict[bytes, KeyEntry] = {}
    problems = []
    for entry in entries:
        known = by_digest.setdefault(entry.digest, entry)
        if known != entry:
            expected = f"expected each key once; it stands at {known.where} too, and says something else of it"
            problems.append(Problem("a key", "", expected, where=entry.where))
    # A managed key that was rotated has a digest for each of its secrets, also for those that are over.
    keys = {entry.id if entry.is_managed else entry.digest: entry for entry in by_digest.values()}
    n_chars = sum(len(model) for entry in keys.values() for model in entry.terms.models)
    if len(keys) > MOST_KEYS or n_chars > _MOST_MODEL_CHARS:
        expected = f"expected at most {MOST_KEYS} keys, and {_MOST_MODEL_CHARS} characters of models"
        problems.append(Problem("the keys", "", expected))
    return tuple(by_digest.values()), problems


def with_managed(
    keys: tuple[KeyEntry, ...], managed: tuple[KeyEntry, ...]
) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    """Return keys of files and settings with those that are managed. What a file says of a key counts first."""
    if not managed:
        return keys, []
    known = {key.digest for key in keys}
    return merged((*keys, *(key for key in managed if key.digest not in known)))


def _lines(lines: Sequence[bytes], path: str) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    entries, problems = [], []
    for n, line in enumerate(lines, 1):
        where = f"{path}:{n}"
        # Beyond ASCII only a comment may be: latin-1 leaves such a character in the key, which is then refused.
        text = _COMMENT.sub("", line.decode("latin-1")).strip(" \t")
        if not text:
            continue
        try:
            entries.append(KeyEntry(_digest(text, spaced=False), where=where, in_file=True, is_weak=is_weak(text)))
        except ValueError as exc:
            problems.append(Problem(_FILE, "", f"{exc}, one key a line", where=where))
            if len(problems) == _MOST_PROBLEMS:
                break
    return tuple(entries), problems


def _list(content: bytes, path: str) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    """Return the keys of a YAML list. A long one must be written plainly."""
    items = plain_items(content)
    if items is not None:
        return parse_plain_items(items, path)
    if len(content) > _YAML_BYTES:
        expected = (
            f"expected keys as in docs/keys.md, without anchors, escapes and texts over several lines, in a file of "
            f"over {_YAML_BYTES} bytes"
        )
        return (), [Problem(_FILE, quoted(path), expected)]
    entries, problems = _yaml(content, path)
    return tuple(replace(entry, in_file=True) for entry in entries), problems


def parse_plain_items(items: Iterable[PlainItem], path: str) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    """Return the keys of items of a file, and everything that is wrong with them."""
    return _PlainList(path).read(items)


class _PlainList:
    """Reads the items of one file. What many keys have in common, a YAML parser reads once."""

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._known: Final[dict[tuple[bytes, ...], dict[str, Any]]] = {}

    def read(self, items: Iterable[PlainItem]) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
        """Return the keys, and everything that is wrong."""
        entries: list[KeyEntry] = []
        problems: list[Problem] = []
        for item in items:
            entry = self._usual(item)
            if entry is None:
                found, wrong = self._unusual(item)
                entries += found
                problems += wrong
                if len(problems) >= _MOST_PROBLEMS:
                    break
            else:
                entries.append(entry)
        return tuple(entries), problems

    def _usual(self, item: PlainItem) -> KeyEntry | None:
        """Return an item's key, if it has one and is valid."""
        if b"#" in item.text:
            return None
        parts = _OWN.split(item.text)
        match parts:
            case [_, b"key", key, _]:
                name = ""
            case [_, b"key", key, _, b"name", called, _] | [_, b"name", called, _, b"key", key, _]:
                name = scalar_of(called) or ""
                if not KEY_NAME.matches(name):
                    return None
            case _:
                return None
        presented = scalar_of(key)
        if presented is None:
            return None
        # What stands around key and name, and in which order these are.
        rest = (*parts[::3], *parts[1::3])
        others = self._known.get(rest)
        if others is None:
            found, problems = self._unusual(item)
            if problems or len(found) != 1:
                return None
            self._known[rest] = {each: getattr(found[0], each) for each in _COMMON}
            return found[0]
        try:
            digest = _digest(presented, spaced=True)
        except ValueError:
            return None
        return KeyEntry(digest=digest, name=name, where=f"{self._path}:{item.line}", in_file=True, **others)

    def _unusual(self, item: PlainItem) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
        """Have an item read as a file of its own."""
        entries, problems = _yaml(item.text, self._path)
        return (
            tuple(replace(entry, where=self._moved(entry.where, item), in_file=True) for entry in entries),
            [replace(problem, where=self._moved(problem.where, item)) for problem in problems],
        )

    def _moved(self, where: str, item: PlainItem) -> str:
        path, _, line = where.rpartition(":")
        return f"{path}:{int(line) + item.line - 1}" if path and line.isdigit() else where


def _yaml(content: bytes, path: str) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
    root, problems = compose(content, path)
    if problems or root is None:
        return (), problems
    items = list_items(path, root)
    if items is None:
        return (), [Problem(_FILE, quoted(path), "expected one key a line, or a YAML list of keys")]
    return parse_items(items)


def _entry(item: Tree, problems: list[Problem]) -> KeyEntry:
    """Return an item's key. Raises ValueError without one that can be used; all else is added to `problems`."""
    if not item.fields:
        return parse_key(item.text or "", item.where, spaced=True)
    given = fields_of(item, "a key", _FIELDS, problems, hidden=True)
    texts = {name: one.value.text for name, one in given.items()}
    name = texts.get("name", "")
    if name is None or ("name" in given and not KEY_NAME.matches(name)):
        problems.append(Problem("name", "", f"expected {KEY_NAME.expected}", where=given["name"].where))
    models = parse_names(given["models"], parse.model_pattern, problems) if "models" in given else ()
    endpoints = parse_names(given["endpoints"], _endpoint, problems) if "endpoints" in given else ()
    rates = parse_rates(given, problems, secret=True)
    priority = _PRIORITIES.get(texts.get("priority") or "")
    if "priority" in given and priority is None:
        problems.append(Problem("priority", "", "expected high, normal or low", where=given["priority"].where))
    tags = parse_names(given["tags"], parse.tag, problems) if "tags" in given else ()
    if len(tags) > MOST_TAGS:
        problems.append(Problem("tags", "", f"expected at most {MOST_TAGS} tags", where=given["tags"].where))
    key = texts.get("key")
    if key is None:
        raise ValueError("expected a key: `key: sha256:HEX`, or the key itself")
    return KeyEntry(
        _digest(key, spaced=True),
        name or "",
        KeyTerms(
            models=models,
            rates=rates,
            priority=priority,
            endpoints=endpoints,
            team=_said(given, "team", parse.owner, problems) or "",
            user=_said(given, "user", parse.owner, problems) or "",
            tags=tags,
            budgets=_budgets(given["budgets"], problems) if "budgets" in given else (),
            timing=_said(given, "timing", parse.switch, problems) is not False,
        ),
        expires_s=_said(given, "expires", parse.moment, problems),
        where=item.where,
        is_weak=is_weak(key),
    )


def _said(given: Mapping[str, Entry], name: str, read: Callable[[str], T], problems: list[Problem]) -> T | None:
    """Return what a field of one text says; None: it is not given, or wrong, which is added to `problems`."""
    if name not in given:
        return None
    text = given[name].value.text
    try:
        if text is None:
            raise ValueError("expected one text, not a list")
        return read(text)
    except ValueError as exc:
        problems.append(Problem(name, "", str(exc), where=given[name].where))
        return None


def _budgets(given: Entry, problems: list[Problem]) -> tuple[Budget, ...]:
    """Return a key's own budgets."""
    texts = [item.text or "" for item in given.value.items or (given.value,)]
    found: list[Budget] = []
    try:
        for text in texts:
            found.append(parse_budget_text(text.strip()))
            if [each for each in found[:-1] if same_windows(each) == same_windows(found[-1])]:
                raise BudgetError("budgets", "expected each window once: the lower of two limits would hold")
    except BudgetError as exc:
        problems.append(Problem("budgets", "", str(exc).removeprefix("budgets: "), where=given.where))
    return tuple(found)


def _endpoint(text: str) -> str:
    """Check the name of a group, or a pattern of paths. Raises ValueError."""
    if not is_endpoint(text):
        groups = ", ".join((ALL_ENDPOINTS, *GROUPS))
        raise ValueError(f"expected groups of endpoints ({groups}), or paths with * for any text, as /v1/files*")
    return text


def _digest(text: str, *, spaced: bool) -> bytes:
    if text.startswith("sha256:"):
        match = _DIGEST.fullmatch(text)
        if match is None:
            raise ValueError("expected 64 hexadecimal digits after sha256:")
        digest = bytes.fromhex(match[1])
        if digest == _OF_NOTHING:
            raise ValueError("expected the digest of a key; this one is of nothing")
        return digest
    if not (_SPACED if spaced else _VISIBLE).fullmatch(text) or len(text) > MOST_KEY_CHARS:
        hint = "; in a YAML list a key may have spaces inside" if _SPACED.fullmatch(text) and " " in text else ""
        raise ValueError(f"expected 1 to {MOST_KEY_CHARS} visible ASCII characters{hint}")
    parse.unquoted(text)
    return hashlib.sha256(text.encode("ascii")).digest()
