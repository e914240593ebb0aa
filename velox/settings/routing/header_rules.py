"""Header fields that the settings name: those that are added, set or removed, and those that a route asks for.

Knows: what a field's name and value may be, and which are not the settings' to touch: those of one hop (RFC 9110
§7.6.1), those that frame a message, those that carry a credential, Velox's own. Does not know: requests and replies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from velox.heads import Header
from velox.policy.routes.entries import NO_RULES, HeaderRules
from velox.settings.parse import header_name, header_value
from velox.settings.routing.references import is_reference
from velox.settings.yaml.tree import Section

__all__ = ["CREDENTIALS", "NEVER_SET", "header_rules", "own_query", "plain_headers"]

_MOST_RULES: Final = 64  # each costs every request of its route
# Of one hop, of a message's frame, or of what its body is: whoever changed one would break the message.
NEVER_SET: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "http2-settings", "host", "content-length", "content-encoding", "expect"),
        *("sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol", "sec-websocket-extensions"),
        "sec-websocket-accept",
    }
)
# Each belongs to one upstream or one caller.
CREDENTIALS: Final = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"})
_OWN: Final = "x-velox-"
_PARAMETER: Final = re.compile(r"[A-Za-z0-9._$\[\]-]{1,128}")


def header_rules(section: Section, name: str) -> HeaderRules:
    """Return the rules in a route's field `name`: request_headers or response_headers."""
    inner = section.section(name, ("set", "remove"), "set: {x-team: a}, remove: [user-agent]")
    if inner is None:
        return NO_RULES
    added = plain_headers(inner, "set", CREDENTIALS if name == "request_headers" else ())
    removed = tuple(each.encode("ascii") for each in inner.many("remove", _removable))
    both = {key for key, _ in added} & set(removed)
    if both:
        inner.refuse("remove", "expected other names than in `set`, which takes the place of what was there")
    if "set" not in inner and "remove" not in inner:
        inner.lacks("expected `set` or `remove`")
    if len(removed) > _MOST_RULES:
        inner.refuse("remove", f"expected at most {_MOST_RULES} names")
    return HeaderRules(added, removed)


def plain_headers(
    section: Section,
    name: str,
    refused: Collection[str] = CREDENTIALS,
    read_reference: Callable[[str], str] | None = None,
) -> tuple[Header, ...]:
    """Return the fields that stand in a field `name`. No value is ever shown: it may be a secret all the same.

    refused: names besides those that are never set, unless the value is a reference. read_reference: returns what
    `env:NAME` or `file:PATH` stands for, raises ValueError; None: these stand for nothing here.
    """
    found: dict[str, str] = {}
    for key, text, where in section.pairs(name, "x-team: a"):
        try:
            is_read = read_reference is not None and is_reference(text)
            lower = _settable(key, () if is_read else refused)
            if lower in found:
                raise ValueError("expected each name once; upper and lower case are the same")
            found[lower] = header_value(_value(text, read_reference))
        except ValueError as exc:
            section.refuse(name, str(exc), where=where)
    if len(found) > _MOST_RULES:
        section.refuse(name, f"expected at most {_MOST_RULES} headers")
    return tuple((key.encode("ascii"), value.encode("ascii")) for key, value in found.items())


def own_query(section: Section, name: str, read_reference: Callable[[str], str]) -> tuple[tuple[str, str], ...]:
    """Return the parameters of a query that stand in a field `name`. No value is ever shown."""
    found: dict[str, str] = {}
    for key, text, where in section.pairs(name, "api-version: 2024-10-21"):
        try:
            if not _PARAMETER.fullmatch(key):
                raise ValueError("expected the name of a parameter: letters, digits, `.`, `_`, `-`, `$`, `[` and `]`")
            if key.lower() in {each.lower() for each in found}:
                raise ValueError("expected each name once; upper and lower case are the same")
            found[key] = header_value(read_reference(text) if is_reference(text) else text)
        except ValueError as exc:
            section.refuse(name, str(exc), where=where)
    if len(found) > _MOST_RULES:
        section.refuse(name, f"expected at most {_MOST_RULES} parameters")
    return tuple(found.items())


def _value(text: str, read_reference: Callable[[str], str] | None) -> str:
    """Return the value that a text stands for. As a text of its own, a reference would go up in place of a secret."""
    if not is_reference(text):
        return text
    if read_reference is None:
        raise ValueError("expected a text; in `headers` of an upstream also env:NAME and file:PATH")
    return read_reference(text)


def _settable(text: str, refused: Collection[str]) -> str:
    lower = _removable(text)
    if lower in refused:
        raise ValueError(f"expected no {lower}: a key is given in `keys` of its upstream, by reference")
    return lower


def _removable(text: str) -> str:
    lower = header_name(text)
    if lower in NEVER_SET or lower.startswith(_OWN):
        raise ValueError(f"expected no {lower if lower in NEVER_SET else 'x-velox-...'}: Velox itself takes care of it")
    return lower
