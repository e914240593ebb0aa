"""Google's generateContent with Gemini 3, as strict as it is with names, turns of calls, and signatures.

Sources: Google's reference "Generating content" (fields), its pages "Function calling" and "Thought signatures", and
the issues named at each rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tests.vendors import schemas
from tests.vendors.vendor import SSE, Reply, Vendor, VendorRequest

__all__ = ["SKIPPED", "VENDOR", "error", "problems", "refuse", "turns"]

_PATH: Final = re.compile(r"/v1beta/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)")
# "Thought signatures", FAQ 1: what stands for a signature that another model's call has not.
SKIPPED: Final = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
_REQUEST: Final = frozenset(
    {
        *("contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "generationConfig"),
        *("cachedContent", "serviceTier", "store", "model"),
    }
)
_PART: Final = frozenset(
    {
        *("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "toolCall"),
        *("codeExecutionResult", "thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"),
        *("toolResponse",),
    }
)
_CALL: Final = frozenset({"id", "name", "args"})
_RESULT: Final = frozenset({"id", "name", "response", "parts", "willContinue", "scheduling"})
_DECLARATION: Final = frozenset(
    {"name", "description", "behavior", "parameters", "parametersJsonSchema", "response", "responseJsonSchema"}
)
_CONFIG: Final = frozenset(
    {
        *("candidateCount", "enableEnhancedCivicAnswers", "frequencyPenalty", "imageConfig", "logprobs"),
        *("maxOutputTokens", "mediaResolution", "presencePenalty", "responseJsonSchema", "responseLogprobs"),
        *("responseMimeType", "responseModalities", "responseSchema", "seed", "speechConfig", "stopSequences"),
        *("temperature", "thinkingConfig", "topK", "topP"),
    }
)
# Of `parameters`: "Schema" in the reference, a subset of OpenAPI's.
_SCHEMA: Final = frozenset(
    {
        *("anyOf", "default", "description", "enum", "example", "format", "items", "maxItems", "maxLength"),
        *("maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "nullable", "pattern"),
        *("properties", "propertyOrdering", "required", "title", "type"),
    }
)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


def _unknown(fields: Mapping[str, Any], known: frozenset[str], where: str) -> Iterator[str]:
    for name in fields:
        if _camel(name) not in known:
            at = f" at '{where}'" if where else ""
            # flyun/chatAir#108, gera2ld/ai.nvim#13.
            yield f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'


def _get(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field in either spelling."""
    return next((value for key, value in fields.items() if _camel(key) == name), None)


def problems(body: Mapping[str, Any], *, is_strict: bool = True) -> Iterator[str]:
    """Yield what Google says of a request. is_strict: the model is a Gemini 3, which demands signatures."""
    yield from _unknown(body, _REQUEST, "")
    yield from _unknown(_get(body, "generationConfig") or {}, _CONFIG, "generation_config")
    for at, tool in enumerate(body.get("tools") or ()):
        for n, declared in enumerate(_get(tool, "functionDeclarations") or ()):
            where = f"tools[{at}].function_declarations[{n}]"
            yield from _unknown(declared, _DECLARATION, where)
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}", declared.get("name", "")):
                # The reference of FunctionDeclaration; the words are modelled.
                yield (
                    f"GenerateContentRequest.{where}.name: Invalid function name. Must start with a letter or an "
                    "underscore. Must be alphanumeric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or "
                    "dashes (-), with a maximum length of 128."
                )
            schema = _get(declared, "parametersJsonSchema")
            if schema is not None and (wrong := schemas.google_problem(schema)):
                yield f"{where}.parameters_json_schema: {wrong}"
            yield from _schema_problems(declared.get("parameters"), f"{where}.parameters")
    yield from _turn_problems(body.get("contents") or (), is_strict=is_strict)


def _schema_problems(schema: Any, where: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    yield from _unknown(schema, _SCHEMA, where)
    for name, inner in (schema.get("properties") or {}).items():
        yield from _schema_problems(inner, f"{where}.properties[{name}]")
    for inner in (schema.get("items"), *(_get(schema, "anyOf") or ())):
        yield from _schema_problems(inner, f"{where}.items")


def turns(contents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return contents of one role that follow each other as one: LangChain sends each result of a turn in one."""
    found: list[dict[str, Any]] = []
    for content in contents:
        parts = list(content.get("parts") or ())
        if found and parts and found[-1]["parts"] and found[-1]["role"] == content.get("role", "user"):
            found[-1]["parts"] += parts
        else:
            found.append({"role": content.get("role", "user"), "parts": parts})
    return found


def _turn_problems(contents: Any, *, is_strict: bool) -> Iterator[str]:
    """Yield what is wrong with the turns: "Function calling" and "Thought signatures"."""
    if not contents:
        yield "GenerateContentRequest.contents: contents is not specified"
    contents = turns(contents)
    # The current turn begins behind the last text of the user.
    current = max(
        (n for n, each in enumerate(contents) if any(part.get("text") for part in each.get("parts") or ())
         and each.get("role", "user") == "user"),
        default=-1,
    )  # fmt: skip
    for at, content in enumerate(contents):
        if content.get("role", "user") not in ("user", "model"):
            yield "Please use a valid role: user, model."
        parts = content.get("parts") or ()
        if not parts:
            # livekit/agents#1397.
            yield f"GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty."
        for n, part in enumerate(parts):
            yield from _unknown(part, _PART, f"contents[{at}].parts[{n}]")
            if not (part.keys() - {"thought", "thoughtSignature", "thought_signature"}):
                # router-for-me/CLIProxyAPI#1292.
                yield (
                    f"* GenerateContentRequest.contents[{at}].parts[{n}].data: required oneof field 'data' must have "
                    "one initialized field"
                )
            yield from _unknown(_get(part, "functionCall") or {}, _CALL, f"contents[{at}].parts[{n}].function_call")
            yield from _unknown(
                _get(part, "functionResponse") or {}, _RESULT, f"contents[{at}].parts[{n}].function_response"
            )
        calls = [part for part in parts if _get(part, "functionCall")]
        results = [_get(part, "functionResponse") for part in parts if _get(part, "functionResponse")]
        before = contents[at - 1] if at else {}
        asked = [_get(part, "functionCall") for part in before.get("parts") or () if _get(part, "functionCall")]
        if len(results) != len(asked):
            # google-gemini/gemini-cli#3814.
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        elif sorted(each["name"] for each in asked) != sorted(each["name"] for each in results):
            yield "Please ensure that function response parts have the names of their calls."  # modelled
        elif any(each.get("id") for each in results) and {each.get("id") for each in asked} != {
            each.get("id") for each in results
        }:
            yield "Please ensure that function response parts have the ids of their calls."  # modelled
        if calls and at == len(contents) - 1:
            yield "Please ensure that function response turn comes immediately after a function call turn."
        if calls and not at:
            # Quoted by many beside the one above.
            yield (
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        if is_strict and calls and at > current and not _get(calls[0], "thoughtSignature"):
            called = _get(calls[0], "functionCall")
            # "Thought signatures": the first call of each step of the current turn.
            yield (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                f"work correctly. Additional data, function call `default_api:{called['name']}`, position {at + 1}."
            )


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    path = _PATH.fullmatch(request.path)
    if path is None:
        return error("Not Found", 404, "NOT_FOUND")
    if "x-goog-api-key" not in request.headers and "key=" not in request.query:
        return error("Method doesn't allow unregistered callers.", 403, "PERMISSION_DENIED")
    body = request.json
    if path[2] == "countTokens":
        return None
    found = next(problems(body, is_strict="gemini-3" in path[1]), None)
    return None if found is None else error(found)


def error(message: str, status: int = 400, kind: str = "INVALID_ARGUMENT") -> Reply:
    """Return an error as Google writes it."""
    return Reply(status, json.dumps({"error": {"code": status, "message": message, "status": kind}}).encode())


def _answer(request: VendorRequest) -> Reply:
    if request.path.endswith(":countTokens"):
        return Reply(200, b'{"totalTokens":9}')
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 3, "totalTokenCount": 12}
    candidate = {"content": {"role": "model", "parts": [{"text": "Hello!"}]}, "finishReason": "STOP", "index": 0}
    said = json.dumps({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3"}).encode()
    if request.path.endswith(":streamGenerateContent"):
        return Reply(200, b"data: " + said + b"\r\n\r\n", SSE)
    return Reply(200, said)


VENDOR: Final = Vendor("gemini", refuse, _answer)
