"""What a request to /v1/messages asks for, and what Anthropic would refuse in it.

Knows: the fields of messages, and the rules for blocks. Does not know: how an answer is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from velox_sim.apis.wishes import ToolCall, Wish, answer_json, call_of, other_calls
from velox_sim.request import Fields
from velox_sim.shapes import RefusalError

__all__ = ["message_wish"]

_LEAST_BUDGET: Final = 1024
_MARKED: Final = ("system", "tools", "messages")
_Block = dict[str, object]


def message_wish(fields: Fields, signature_of: Callable[[str], str]) -> Wish | None:
    """Return what a request asks for; None: nothing special.

    signature_of: the signature that a thinking block must come back with. Raises RefusalError (400).
    """
    _check(fields)
    last = _check_messages(fields.get("messages"), signature_of)
    has_result = any(block.get("type") == "tool_result" for block in last)
    choice = fields.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else None
    tool: ToolCall | None = None
    others: tuple[ToolCall, ...] = ()
    if not has_result and kind != "none":
        functions = _tools(fields.get("tools"))
        tool = call_of(functions, "auto", choice if kind == "tool" else None)
        if not (isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True):
            others = other_calls(functions, tool, fields)
    config = fields.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    text = None if tool is not None else answer_json(wanted, schema)
    wish = Wish(1, tool, text, thinking=_thinking(fields), cache=_cache(fields), others=others)
    return None if wish == Wish() else wish


def _refuse(message: str) -> RefusalError:
    return RefusalError(400, message)


def _check(fields: Fields) -> None:
    if fields.get("max_tokens") is None:
        raise _refuse("max_tokens: Field required")
    temperature = fields.get("temperature")
    if isinstance(temperature, int | float) and not 0 <= temperature <= 1:
        raise _refuse("temperature: range: 0..1")
    stops = fields.get("stop_sequences")
    if isinstance(stops, list) and any(isinstance(each, str) and not each.strip() for each in stops):
        raise _refuse("stop_sequences: each stop sequence must contain non-whitespace")


def _thinking(fields: Fields) -> str | None:
    """Return how the thinking is shown, "summarized" or "omitted"; None: there is none."""
    thinking = fields.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(thinking, dict) or kind not in ("enabled", "adaptive"):
        return None
    if kind == "enabled":
        budget, most = thinking.get("budget_tokens"), fields.get("max_tokens")
        if not isinstance(budget, int) or budget < _LEAST_BUDGET:
            raise _refuse(f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_LEAST_BUDGET}")
        if isinstance(most, int) and budget >= most:
            raise _refuse("`max_tokens` must be greater than `thinking.budget_tokens`.")
    return "omitted" if thinking.get("display") == "omitted" else "summarized"


def _tools(tools: object) -> list[dict[str, object]]:
    """Return the tools that a client runs, as functions."""
    given = tools if isinstance(tools, list) else []
    return [
        {"name": each.get("name"), "parameters": each.get("input_schema")}
        for each in given
        if isinstance(each, dict) and each.get("type") in (None, "custom")
    ]


def _cache(fields: Fields) -> str | None:
    """Return the lifetime of the cache marks, "5m" or "1h"; None: there are none."""
    rest: list[object] = [fields.get(name) for name in _MARKED]
    found = fields.get("cache_control")
    while rest and not isinstance(found, dict):
        match rest.pop():
            case list() as items:
                rest.extend(items)
            case dict() as block:
                found = block.get("cache_control")
                rest.append(block.get("content"))
            case _:
                pass
    if not isinstance(found, dict):
        return None
    return "1h" if found.get("ttl") == "1h" else "5m"


# -- messages ---------------------------------------------------------------------------------------


def _check_messages(messages: object, signature_of: Callable[[str], str]) -> list[_Block]:
    """Check the messages; return the blocks of the last turn: messages of one role that follow each other are one."""
    if not isinstance(messages, list) or not messages:
        raise _refuse("messages: at least one message is required")
    turns: list[tuple[int, object, list[_Block]]] = []
    for n, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise _refuse(f"messages.{n}.role: Input should be 'user', 'assistant' or 'system'")
        blocks = list(_blocks(message.get("content"), n))
        for k, block in enumerate(blocks):
            _check_block(block, f"messages.{n}.content.{k}", signature_of)
        if turns and turns[-1][1] == role:
            turns[-1][2].extend(blocks)
        elif role != "system":
            turns.append((n, role, blocks))
    called: set[object] = set()
    for n, _, blocks in turns:
        _check_results(called, blocks, n)
        called = {block.get("id") for block in blocks if block.get("type") == "tool_use"}
    _check_results(called, [], len(messages))
    return turns[-1][2] if turns else []


def _check_results(called: set[object], blocks: list[_Block], n: int) -> None:
    """Check that the calls of a turn and the results of the next one are the same."""
    results = {block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"}
    if called - results:
        missing = ", ".join(sorted(map(str, called - results)))
        raise _refuse(
            f"messages.{n - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}"
        )
    if results - called:
        unknown = ", ".join(sorted(map(str, results - called)))
        raise _refuse(f"messages.{n}.content: unexpected `tool_use_id` found in `tool_result` blocks: {unknown}")


def _blocks(content: object, n: int) -> Iterator[_Block]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
        return
    if not isinstance(content, list):
        raise _refuse(f"messages.{n}.content: Input should be a valid string or list")
    for block in content:
        if not isinstance(block, dict):
            raise _refuse(f"messages.{n}.content: Input should be a list of objects")
        yield block


def _check_block(block: _Block, path: str, signature_of: Callable[[str], str]) -> None:
    kind = block.get("type")
    if kind == "text" and not block.get("text"):
        raise _refuse(f"{path}: text content blocks must be non-empty")
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        raise _refuse(f"{path}.tool_use.input: Input should be a valid dictionary")
    if kind == "thinking":
        text = block.get("thinking")
        if not isinstance(text, str) or block.get("signature") != signature_of(text):
            raise _refuse(f"{path}: Invalid `signature` in `thinking` block")
