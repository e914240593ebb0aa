"""What a request to Gemini's generateContent asks for, and what Google would refuse in it.

Knows: the fields of its requests. Does not know: how an answer is written.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

import orjson

from velox_sim.apis.wishes import ToolCall, Wish, answer_json, call_of, other_calls
from velox_sim.request import Fields, ModelRequest, read_fields
from velox_sim.shapes import RefusalError

__all__ = ["LIMIT", "PROMPT", "call_signature", "generate_wish", "read_generate"]

# Fields that read_generate() adds, where the routes of other dialects have them.
PROMPT: Final = "prompt"
LIMIT: Final = "maxOutputTokens"
# Documented: stands for a signature that was lost.
_STANDARD: Final = str.maketrans("-_", "+/")
_SKIPPED: Final = "skip_thought_signature_validator"
_SKIPPED_BASE64: Final = base64.b64encode(_SKIPPED.encode()).decode()
# Models whose names have this need a signature on the calls of the current turn.
_STRICT: Final = "gemini-3"
_UNEVEN: Final = (
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn."
)
# What has names of its own below.
_FREE: Final = frozenset(
    {"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema"}
)
_Part = dict[str, object]


def call_signature(name: object, args: object) -> str:
    """Return the signature of a call, by which it is known when it comes back."""
    text = orjson.dumps([name, args], option=orjson.OPT_SORT_KEYS)
    return base64.b64encode(hashlib.sha256(b"velox-sim" + text).digest()).decode()


def read_generate(body: bytes, model: str, *, stream: bool) -> ModelRequest:
    """Read a body. Raises RefusalError (400) for anything that Google would not take for a request."""
    fields = _dict(_camel(read_fields(body)))
    contents = fields.get("contents")
    if not isinstance(contents, list) or not contents:
        raise RefusalError(400, "* GenerateContentRequest.contents: contents is not specified")
    turns = [_parts(content, n) for n, content in enumerate(contents)]
    _check_turns(turns, is_strict=_STRICT in model)
    system = fields.get("systemInstruction")
    texts = [_text(part) for part in _parts(system, -1)] if isinstance(system, dict) else []
    texts += [_text(part) for turn in turns for part in turn]
    limit = _config(fields).get("maxOutputTokens")
    return ModelRequest(model, stream, True, {**fields, "model": model, PROMPT: texts, LIMIT: limit})


def generate_wish(fields: Fields) -> Wish | None:
    """Return what a request asks for; None: nothing special. Raises RefusalError (400)."""
    contents = fields["contents"]
    last = _parts(contents[-1], 0) if isinstance(contents, list) else []
    has_result = any("functionResponse" in part for part in last)
    config = _config(fields)
    choice = _dict(_dict(fields.get("toolConfig")).get("functionCallingConfig"))
    allowed = choice.get("allowedFunctionNames")
    named = {"name": allowed[0]} if isinstance(allowed, list) and allowed else None
    tool: ToolCall | None = None
    others: tuple[ToolCall, ...] = ()
    if not has_result and choice.get("mode") != "NONE":
        functions = _functions(fields.get("tools"))
        tool = call_of(functions, "auto", named)
        others = other_calls(functions, tool, fields)
    text = None
    if tool is None and config.get("responseMimeType") == "application/json":
        schema = config.get("responseJsonSchema") or _lower(config.get("responseSchema"))
        text = answer_json({"type": "json_schema" if schema else "json_object"}, schema)
    thinking = "summarized" if _dict(config.get("thinkingConfig")).get("includeThoughts") is True else None
    wish = Wish(1, tool, text, thinking=thinking, others=others)
    return None if wish == Wish() else wish


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _config(fields: Fields) -> dict[str, object]:
    return _dict(fields.get("generationConfig"))


def _parts(content: object, n: int) -> list[_Part]:
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) and part for part in parts):
        raise RefusalError(400, f"* GenerateContentRequest.contents[{n}].parts: contents.parts must not be empty.")
    return parts


def _text(part: _Part) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else orjson.dumps(part.get("functionResponse")).decode()


def _functions(tools: object) -> list[dict[str, object]]:
    found = []
    for tool in tools if isinstance(tools, list) else ():
        declared = _dict(tool).get("functionDeclarations")
        for each in declared if isinstance(declared, list) else ():
            function = _dict(each)
            schema = function.get("parametersJsonSchema") or _lower(function.get("parameters"))
            found.append({"name": function.get("name"), "parameters": schema})
    return found


def _camel(value: object) -> object:
    """Return a request with its names as Google writes them: it reads max_output_tokens, too."""
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, object] = {}
    for name, each in value.items():
        first, *others = str(name).split("_")
        camel = first + "".join(word.capitalize() for word in others)
        found[camel] = each if camel in _FREE else _camel(each)
    return found


def _lower(schema: object) -> object:
    """Return a schema of OpenAPI's kind with the names of types as JSON Schema has them."""
    if isinstance(schema, list):
        return [_lower(each) for each in schema]
    if isinstance(schema, dict):
        return {
            name: value.lower() if name == "type" and isinstance(value, str) else _lower(value)
            for name, value in schema.items()
        }
    return schema


def _check_turns(turns: list[list[_Part]], *, is_strict: bool) -> None:
    """Check that each turn of calls is followed by as many results, and the signatures of the calls."""
    current = max((n for n, turn in enumerate(turns) if any("text" in part for part in turn)), default=0)
    for n, turn in enumerate(turns):
        calls = [part for part in turn if "functionCall" in part]
        results = sum("functionResponse" in part for part in turns[n + 1]) if n + 1 < len(turns) else 0
        if calls and results != len(calls):
            raise RefusalError(400, _UNEVEN)
        for k, part in enumerate(calls):
            call, signature = _dict(part["functionCall"]), part.get("thoughtSignature")
            if signature is None and is_strict and k == 0 and n > current:
                raise RefusalError(400, f"Function call is missing a thought_signature in functionCall parts: {call}")
            own = call_signature(call.get("name"), call.get("args") or {})
            known = (own, _SKIPPED.translate(_STANDARD), _SKIPPED_BASE64)
            # The SDK writes base64 with "-" and "_".
            if signature is not None and str(signature).translate(_STANDARD) not in known:
                raise RefusalError(400, "Thought signature is not valid.")
