"""What a request asks for beside a plain text: a tool's call, an answer in JSON, several answers, log probabilities.

Knows: the fields of chat completions and of responses that ask for it. Does not know: how an answer is written.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from velox_sim.apis.schema import sample
from velox_sim.request import Fields
from velox_sim.shapes import RefusalError

__all__ = [
    "THOUGHT",
    "THOUGHT_PIECES",
    "ToolCall",
    "Wish",
    "answer_json",
    "call_of",
    "chat_wish",
    "other_calls",
    "response_wish",
    "signature_of",
    "token_logprobs",
]

# The reasoning of all answers.
THOUGHT_PIECES: Final = ("The request is read. ", "The answer is made up ", "as it always is.")
THOUGHT: Final = "".join(THOUGHT_PIECES)

_MOST_CHOICES: Final = 128
_MOST_ALTERNATIVES: Final = 20
_RESULTS: Final = frozenset({"tool", "function"})
_PIECE: Final = re.compile(r".{1,8}", re.DOTALL)
_LOGPROB: Final = -0.0625  # of every token; exact in binary
# In the name of a model: how many calls are made at once.
_SEVERAL: Final = re.compile(r"sim-tools-([1-9])")
_IN_RESPONSES: Final = "message.output_text.logprobs"
_SEALED: Final = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. arguments: JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Wish:
    """n: answers. tool: the call that is the answer. text: the answer; None: the usual one.

    logprobs: how many alternatives each token tells; None: no log probabilities. thinking: how reasoning is shown,
    "summarized" or "omitted"; None: there is none. is_sealed: the reasoning comes with what it may be sent back with.
    cache: the lifetime of the prompt's cache marks, "5m" or "1h". others: more calls beside the tool's.
    """

    n: int = 1
    tool: ToolCall | None = None
    text: str | None = None
    logprobs: int | None = None
    thinking: str | None = None
    cache: str | None = None
    others: tuple[ToolCall, ...] = ()
    is_sealed: bool = False

    @property
    def n_thoughts(self) -> int:
        """Return how many tokens its reasoning takes, shown or not."""
        return 0 if self.thinking is None else len(THOUGHT.split())

    def pieces(self, usual: Sequence[str]) -> Sequence[str]:
        """Return the tokens of the answer."""
        text = self.tool.arguments if self.tool is not None else self.text
        return usual if text is None else _PIECE.findall(text)


def chat_wish(fields: Fields) -> Wish | None:
    """Return what a chat completion asks for; None: nothing special. Raises RefusalError (400)."""
    n = _count(fields, "n", 1, _MOST_CHOICES)
    messages, tools = fields.get("messages"), fields.get("tools")
    last = messages[-1] if isinstance(messages, list) and messages else None
    has_result = isinstance(last, dict) and last.get("role") in _RESULTS
    functions = [function for each in _functions(tools) if isinstance(function := each.get("function"), dict)]
    choice = fields.get("tool_choice")
    named = choice.get("function") if isinstance(choice, dict) else None
    tool = None if has_result else call_of(functions, choice, named)
    wanted = fields.get("response_format")
    form = wanted.get("json_schema") if isinstance(wanted, dict) else None
    text = None if tool is not None else answer_json(wanted, form.get("schema") if isinstance(form, dict) else None)
    logprobs = None
    if fields.get("logprobs") is True:
        logprobs = _count(fields, "top_logprobs", 0, _MOST_ALTERNATIVES)
    others = other_calls(functions, tool, fields) if fields.get("parallel_tool_calls") is not False else ()
    thinking = "summarized" if fields.get("reasoning_effort") not in (None, "none") else None
    wish = Wish(n, tool, text, logprobs, others=others, thinking=thinking)
    return None if wish == Wish() else wish


def response_wish(fields: Fields) -> Wish | None:
    """Return what a response asks for; None: nothing special. Raises RefusalError (400)."""
    given, include = fields.get("input"), fields.get("include")
    last = given[-1] if isinstance(given, list) and given else None
    has_result = isinstance(last, dict) and last.get("type") == "function_call_output"
    choice = fields.get("tool_choice")
    functions = _functions(fields.get("tools"))
    tool = None if has_result else call_of(functions, choice, choice)
    form = fields.get("text")
    wanted = form.get("format") if isinstance(form, dict) else None
    text = None if tool is not None else answer_json(wanted, wanted.get("schema") if isinstance(wanted, dict) else None)
    logprobs = None
    if isinstance(include, list) and _IN_RESPONSES in include:
        logprobs = _count(fields, "top_logprobs", 0, _MOST_ALTERNATIVES)
    others = other_calls(functions, tool, fields) if fields.get("parallel_tool_calls") is not False else ()
    sealed = isinstance(include, list) and _SEALED in include
    thinking = _reasoning(fields, given)
    wish = Wish(1, tool, text, logprobs, others=others, thinking=thinking, is_sealed=sealed and thinking is not None)
    return None if wish == Wish() else wish


def signature_of(text: str) -> str:
    """Return the signature of a reasoning, by which it is known when it comes back. text: it, or its id."""
    digest = hashlib.sha256(b"velox-sim" + text.encode("utf-8", "replace")).digest()
    return base64.b64encode(digest).decode()


def _reasoning(fields: Fields, given: object) -> str | None:
    """Return how the reasoning of a response is shown; None: there is none. Raises RefusalError (400)."""
    for n, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") == "reasoning":
            sealed, key = item.get("encrypted_content"), str(item.get("id"))
            if sealed is not None and sealed != signature_of(key):
                message = f"The encrypted content for item {key} could not be verified."
                raise RefusalError(400, message, param=f"input[{n}]", code="invalid_encrypted_content")
    asked = fields.get("reasoning")
    if not isinstance(asked, dict) or asked.get("effort") == "none" or not any(asked.values()):
        return None
    return "summarized" if asked.get("summary") else "omitted"


def token_logprobs(piece: str, n_alternatives: int) -> dict[str, object]:
    """Return the log probabilities of one token."""
    entry: dict[str, object] = {"token": piece, "logprob": _LOGPROB, "bytes": list(piece.encode())}
    others = [{**entry, "logprob": _LOGPROB - n} for n in range(n_alternatives)]
    return {**entry, "top_logprobs": others}


def _functions(tools: object) -> list[dict[str, object]]:
    given = tools if isinstance(tools, list) else []
    return [each for each in given if isinstance(each, dict) and each.get("type") == "function"]


def call_of(functions: Sequence[dict[str, object]], choice: object, named: object) -> ToolCall | None:
    """Return the call of the function that is named, else of the first one; None where none may be called."""
    if choice == "none" or not functions:
        return None
    name = named.get("name") if isinstance(named, dict) else None
    chosen = next((each for each in functions if each.get("name") == name), None) if name else functions[0]
    if chosen is None:
        raise RefusalError(400, "tool_choice names a function that is not among the tools", param="tool_choice")
    return _made(chosen)


def _made(function: dict[str, object]) -> ToolCall:
    schema = function.get("parameters")
    arguments = sample(schema) if isinstance(schema, dict) else {}
    return ToolCall(str(function.get("name")), orjson.dumps(arguments).decode())


def other_calls(functions: Sequence[dict[str, object]], tool: ToolCall | None, fields: Fields) -> tuple[ToolCall, ...]:
    """Return the calls beside the first that the name of the model asks for: of the functions in turn."""
    several = _SEVERAL.search(str(fields.get("model"))) if tool is not None else None
    if several is None:
        return ()
    return tuple(_made(functions[n % len(functions)]) for n in range(1, int(several[1])))


def answer_json(wanted: object, schema: object) -> str | None:
    """Return the answer that a format asks for; None where it is plain text."""
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_schema":
        return orjson.dumps(sample(schema)).decode()
    return orjson.dumps({"answer": "simulated"}).decode() if kind == "json_object" else None


def _count(fields: Fields, name: str, least: int, most: int) -> int:
    value = fields.get(name)
    if value is None:
        return least
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        message = f"{name} is a whole number from {least} to {most}"
        raise RefusalError(400, message, param=name, code="invalid_value")
    return value
