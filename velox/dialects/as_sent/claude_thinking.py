"""Writes what a client of Messages asks of one Claude as another one takes it, which the route has chosen.

Newer models adapt how much they think and refuse a budget; older ones know only budgets, and the oldest do not think.
Newer ones take no sampling. Each answers 400 to the other's way, and a client such as Claude Code goes by the name that
it knows. So where the model is the route's choice, thinking is asked for as that model has it (as in a translation:
messages/write_request.py). What can't be asked for comes off, and is named.

Sources: Anthropic's pages "Extended thinking", "Adaptive thinking", and "What's new" of each model since 4.6.

Knows: how both are said. Does not know: which model takes which (ModelFacts).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Reasoning
from velox.dialects.facts.efforts import budget_of
from velox.dialects.facts.model_facts import ALWAYS_THINKING, ModelFacts

__all__ = ["MOST_DIGITS", "fit_thinking"]

MOST_DIGITS: Final = 12  # of a limit: what is longer is for the provider to refuse

_Fields: TypeAlias = dict[str, Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_OBJECTS: Final = msgspec.json.Decoder(list[_Fields])
_NO_RAW: Final = Raw(b"")
_SAMPLING: Final = ("temperature", "top_p", "top_k")
_USUAL: Final = (b"1", b"1.0", b"null")  # what it is anyway
_LEAST_BUDGET: Final = 1024
_LEAST_ANSWER: Final = 1024
_THINKING: Final = (b'"thinking"', b'"redacted_thinking"')


def fit_thinking(fields: _Fields, facts: ModelFacts, dropped: DroppedFields) -> bool:
    """Change the fields of a request to what the model takes; return whether any is another one now."""
    is_changed = _fit_sampling(fields, facts, dropped)
    raw = bytes(fields.get("thinking", _NO_RAW))
    if raw[:1] != b"{":
        return is_changed
    thinking = _FIELDS.decode(raw)
    kind = bytes(thinking.get("type", _NO_RAW)).strip(b'"').decode("ascii", "replace")
    made = _thinking(kind, thinking, fields, facts)
    if made is thinking:
        return is_changed
    if made is None:
        del fields["thinking"]
        if kind != "disabled" or facts.thinking in ALWAYS_THINKING:
            dropped.drop("thinking")
    else:
        fields["thinking"] = Raw(msgspec.json.encode(made))
    return True


def _thinking(kind: str, asked: _Fields, fields: _Fields, facts: ModelFacts) -> _Fields | None:
    """Return thinking as the model has it: the same, another one, or None for none."""
    way = facts.thinking
    kept = {name: value for name, value in asked.items() if name not in ("type", "budget_tokens")}
    if way == "none":
        return None
    if way == "budget":
        if kind == "between_tools":
            return {"type": Raw(b'"disabled"')}
        if kind != "adaptive":
            return asked
        budget = _budget(fields)
        if budget is None:
            return None
        return {**kept, "type": Raw(b'"enabled"'), "budget_tokens": Raw(b"%d" % budget)}
    if way == "adaptive" or way in ALWAYS_THINKING:
        if kind == "enabled":
            return {**kept, "type": Raw(b'"adaptive"')}
        if kind == "between_tools" and way != "between_tools":
            return {"type": Raw(b'"disabled"')} if way == "adaptive" else None
        if kind == "disabled" and way == "always":
            return None
        if kind == "disabled" and way == "between_tools":
            return {"type": Raw(b'"between_tools"')}
    return asked


def _budget(fields: _Fields) -> int | None:
    """Return the tokens to think with, which leave room for an answer; None: it can't think."""
    config = bytes(fields.get("output_config", _NO_RAW))
    effort = bytes(_FIELDS.decode(config).get("effort", _NO_RAW)) if config[:1] == b"{" else b""
    budget = budget_of(Reasoning(effort=effort.strip(b'"').decode("ascii", "replace") or None))
    raw = bytes(fields.get("max_tokens", _NO_RAW))
    most = int(raw) if raw.isdigit() and len(raw) <= MOST_DIGITS else 0  # a request to count has none
    if (raw and most <= _LEAST_BUDGET) or _lacks_thinking(fields) or _is_forced(fields):
        return None
    if most and budget >= most:
        budget = most - _LEAST_ANSWER
    return max(_LEAST_BUDGET, budget)


def _lacks_thinking(fields: _Fields) -> bool:
    """True where calls that are answered now stand without the thinking before them: a 400 with a budget."""
    raw = bytes(fields.get("messages", _NO_RAW))
    if b'"tool_result"' not in raw:
        return False
    messages = _OBJECTS.decode(raw)
    for message in reversed(messages):
        content = bytes(message.get("content", _NO_RAW))
        blocks = _OBJECTS.decode(content) if content[:1] == b"[" else []
        kind = bytes(blocks[0].get("type", _NO_RAW)) if blocks else b""
        if bytes(message.get("role", _NO_RAW)) == b'"assistant"':
            return kind not in _THINKING
        if kind != b'"tool_result"':
            return False
    return False


def _is_forced(fields: _Fields) -> bool:
    """True where a tool has to be called: no model with a budget thinks then."""
    choice = bytes(fields.get("tool_choice", _NO_RAW))
    return b'"any"' in choice or b'"tool"' in choice


def _fit_sampling(fields: _Fields, facts: ModelFacts, dropped: DroppedFields) -> bool:
    if facts.sampling:
        return False
    found = [name for name in _SAMPLING if name in fields]
    for name in found:
        if bytes(fields.pop(name)) not in _USUAL:
            dropped.drop(name)
    return bool(found)
