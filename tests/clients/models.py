"""Models that play a plan, each in the API of its vendor and as strict as the vendor is (tests/vendors).

    ChatModel         OpenAI's Chat Completions
    ResponsesModel    OpenAI's Responses, which keeps what it has answered
    MessagesModel     Anthropic's Messages, with signed reasoning where it is asked for
    GeminiModel       Google's generateContent: a Gemini 3, which demands the signatures of its calls
    ConverseModel     Bedrock's Converse, with a model that is not Claude

refuse() says what the vendor refuses; read() finds in a request what was called, and what came back; write() puts an
answer of the plan into the vendor's form, streamed where the request asks for that.

Knows: the bodies of five APIs. Does not know: servers (farm.py), clients, Velox.
"""

from __future__ import annotations

import abc
import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from tests.clients.plan import Answer, Asked, Call, Done
from tests.e2e.bedrock_frames import FRAMES, frame
from tests.vendors import anthropic, bedrock, claude, converse, gemini, openai, reasoning
from tests.vendors.vendor import SSE, Reply, VendorRequest

__all__ = ["MODELS", "ChatModel", "ConverseModel", "GeminiModel", "MessagesModel", "Model", "ResponsesModel"]

# What begins each signature of a maker: another one's is refused.
_SEALED: Final = "openai-sealed-"
_SIGNED: Final = "anthropic-signed-"
# What @langchain/google-genai writes at calls that have no signature.
_LANGCHAINS: Final = "ErYCCrMCAdHtim9kOoOkrPiCNVsmlpMIKd7ZMxgi"
_PIECE: Final = 7  # characters of a streamed text or of arguments


class Model(abc.ABC):
    """One model. kind: the name of its API. name: how requests name it. entry: of the gateway's file, less its origin.

    path: what the paths of its requests have. Others (lists of models) are answered 404.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    entry: ClassVar[dict[str, Any]]
    path: ClassVar[re.Pattern[str]]

    @abc.abstractmethod
    def refuse(self, request: VendorRequest) -> Reply | None:
        """Return the vendor's refusal; None: it answers."""

    @abc.abstractmethod
    def read(self, request: VendorRequest) -> Asked:
        """Return what a request has of tools. Calls of earlier questions, which a text of the user follows, count."""

    @abc.abstractmethod
    def write(self, request: VendorRequest, answer: Answer) -> Reply:
        """Return an answer in the vendor's form."""

    @abc.abstractmethod
    def error(self, message: str) -> Reply:
        """Return a refusal in the vendor's form."""


class ChatModel(Model):
    """A model of OpenAI that does not reason, by Chat Completions."""

    kind = "chat"
    name = "gpt-4.1"
    entry: ClassVar[dict[str, Any]] = {"name": "chat", "provider": "openai", "key": "env:MODEL_KEY", "apis": ["chat"]}
    path = re.compile(r"/v1/chat/completions")

    def refuse(self, request: VendorRequest) -> Reply | None:
        """Return OpenAI's refusal, also of fields that a model which does not reason has not."""
        body = request.json
        if "reasoning_effort" in body:
            return self.error("Unrecognized request argument supplied: reasoning_effort")
        return openai.refuse(request)

    def read(self, request: VendorRequest) -> Asked:
        """Return the functions, and the calls with the results of their ids."""
        body = request.json
        tools = tuple(tool["function"]["name"] for tool in body.get("tools") or () if tool["type"] == "function")
        messages = body["messages"]
        results = {each["tool_call_id"]: _text(each["content"]) for each in messages if each["role"] == "tool"}
        done = tuple(
            Done(call["function"]["name"], _loaded(call["function"]["arguments"]), results.get(call["id"]))
            for message in messages
            for call in message.get("tool_calls") or ()
        )
        return Asked(tools, done)

    def write(self, request: VendorRequest, answer: Answer) -> Reply:
        """Return a completion, or its chunks."""
        body = request.json
        calls = [
            {
                "id": f"call_Pl4nOfTheTests000000{call.at:03}",
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
            }
            for call in answer.calls
        ]
        usage = {"prompt_tokens": 90, "completion_tokens": 30, "total_tokens": 120}
        usage |= {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}
        said: dict[str, Any] = {
            "id": f"chatcmpl-{answer.number}",
            "created": 1_790_000_000,
            "model": f"{self.name}-2025-04-14",
        }
        stop = "tool_calls" if calls else "stop"
        if not body.get("stream"):
            message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
            if calls:
                message["tool_calls"] = calls
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": stop}
            said |= {"object": "chat.completion", "choices": [choice], "usage": usage}
            return _json(said)
        said["object"] = "chat.completion.chunk"

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return {**said, "choices": [choice]}

        chunks = [chunk({"role": "assistant", "content": "", "refusal": None})]
        chunks += [chunk({"content": piece}) for piece in _pieces(answer.text)]
        for index, call in enumerate(calls):
            function = call["function"]
            begun = {**call, "index": index, "function": {**function, "arguments": ""}}  # type: ignore[dict-item]
            chunks.append(chunk({"tool_calls": [begun]}))
            chunks += [
                chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                for piece in _pieces(function["arguments"])  # type: ignore[index]
            ]
        chunks.append(chunk({}, stop))
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**said, "choices": [], "usage": usage})
        return _sse([*map(json.dumps, chunks), "[DONE]"])

    def error(self, message: str) -> Reply:
        """Return an error of OpenAI's."""
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return Reply(400, json.dumps({"error": error}).encode())


class ResponsesModel(ChatModel):
    """A model of OpenAI that reasons, by Responses. It keeps its answers unless a request says that it must not."""

    kind = "responses"
    name = "gpt-6.2-sol"
    entry: ClassVar[dict[str, Any]] = {
        "name": "responses",
        "provider": "openai",
        "key": "env:MODEL_KEY",
        "apis": ["responses"],
    }
    path = re.compile(r"/v1/responses")

    def __init__(self) -> None:
        self._kept: Final[dict[str, dict[str, Any]]] = {}  # items by id
        self._inputs: Final[dict[str, list[dict[str, Any]]]] = {}  # by the id of a response: all up to its output
        self._n_responses = 0

    def refuse(self, request: VendorRequest) -> Reply | None:
        """Return OpenAI's refusal: also of reasoning that another has encrypted, and of items that are not kept."""
        body = request.json
        items = body.get("input") if isinstance(body.get("input"), list) else []
        for item in items:
            if item.get("type") == "item_reference" and item["id"] not in self._kept:
                return self.error(f"Item with id '{item['id']}' not found.")
            if body.get("store") is False and item.get("type") == "reasoning" and not item.get("encrypted_content"):
                # openai/openai-agents-python#2063: items are not kept where `store` is false.
                return self.error(
                    f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false."
                )
        before = body.get("previous_response_id")
        if before is not None and before not in self._inputs:
            return self.error(f"Previous response with id '{before}' not found.")
        found = next(openai.unpaired(self._whole(body)), None)
        if found is not None:
            return self.error(found[1])
        # OpenAI takes the ids of reasoning that comes with its content, as the AI SDK writes them; Azure does not
        # (vercel/ai#12687).
        rest = [
            {name: value for name, value in item.items() if name != "id"} if item.get("encrypted_content") else item
            for item in items
        ]
        whole = request._replace(body=json.dumps({**body, "input": rest}).encode()) if items else request
        return openai.refuse(whole) or reasoning.refuse_encrypted(request, _SEALED)

    def read(self, request: VendorRequest) -> Asked:
        """Return the functions and custom tools, and the calls with the results of their ids, kept ones too."""
        body = request.json
        items = self._whole(body)
        results = {
            each["call_id"]: _text(each["output"]) for each in items if str(each.get("type")).endswith("_call_output")
        }
        done = []
        for item in items:
            if item.get("type") == "function_call":
                done.append(Done(item["name"], _loaded(item["arguments"]), results.get(item["call_id"])))
            elif item.get("type") == "custom_tool_call":
                done.append(Done(item["name"], {"input": item["input"]}, results.get(item["call_id"])))
        return Asked(tuple(self._tools(body)), tuple(done))

    def write(self, request: VendorRequest, answer: Answer) -> Reply:
        """Return a response, or its events."""
        body = request.json
        self._n_responses += 1
        unique = f"{self._n_responses:06}"
        output: list[dict[str, Any]] = [
            {
                "id": f"rs_{unique}",
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": answer.thought}],
                "encrypted_content": f"{_SEALED}{unique}",
            },
            {
                "id": f"msg_{unique}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}],
            },
        ]
        if "reasoning.encrypted_content" not in (body.get("include") or ()):
            output[0]["encrypted_content"] = None
        kinds = self._tools(body)
        output += [self._call_item(call, unique, kinds[call.tool]) for call in answer.calls]
        response: dict[str, Any] = {
            "id": f"resp_{unique}",
            "object": "response",
            "created_at": 1_790_000_000,
            "status": "completed",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "model": self.name,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": body.get("previous_response_id"),
            "reasoning": {"effort": "medium", "summary": None},
            "store": body.get("store", True),
            "temperature": 1.0,
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto",
            "tools": body.get("tools") or [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": {
                "input_tokens": 90,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 30,
                "output_tokens_details": {"reasoning_tokens": 10},
                "total_tokens": 120,
            },
            "metadata": {},
        }
        if body.get("store", True):
            self._kept.update((item["id"], item) for item in output)
            self._inputs[response["id"]] = [*self._whole(body), *output]
        if not body.get("stream"):
            return _json(response)
        return _sse_events(_numbered(_response_events(response)))

    def _whole(self, body: Any) -> list[dict[str, Any]]:
        """Return all items that a request stands for: those of the response before, and those that ids name."""
        given = body.get("input")
        items = given if isinstance(given, list) else []
        before = self._inputs.get(body.get("previous_response_id") or "", [])
        return [
            *before,
            *(
                self._kept.get(item.get("id", ""), item) if item.get("type") == "item_reference" else item
                for item in items
            ),
        ]

    @staticmethod
    def _tools(body: Any) -> dict[str, tuple[str, str]]:
        """Return the types of tools and their namespaces by their names. Codex declares some in its input."""
        items = body["input"] if isinstance(body.get("input"), list) else []
        declared = [*(body.get("tools") or ())]
        declared += [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
        found = {}
        for tool in declared:
            inner = tool["tools"] if tool["type"] == "namespace" else [tool]
            for each in inner:
                if each["type"] in ("function", "custom"):
                    found[each["name"]] = (each["type"], tool["name"] if tool["type"] == "namespace" else "")
        return found

    @staticmethod
    def _call_item(call: Call, unique: str, declared: tuple[str, str]) -> dict[str, Any]:
        kind, namespace = declared
        item = {"status": "completed", "call_id": f"call_R3sp0nses00000000000{call.at:03}", "name": call.tool}
        if namespace:
            item["namespace"] = namespace
        if kind == "custom":
            return {
                "id": f"ctc_{unique}_{call.at}",
                "type": "custom_tool_call",
                **item,
                "input": call.arguments["input"],
            }
        return {
            "id": f"fc_{unique}_{call.at}",
            "type": "function_call",
            **item,
            "arguments": json.dumps(call.arguments),
        }


def _response_events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        where = {"item_id": item["id"], "output_index": index}
        if item["type"] == "reasoning":
            yield {"type": "response.output_item.added", "output_index": index, "item": {**item, "summary": []}}
            (part,) = item["summary"]
            where |= {"summary_index": 0}
            yield {"type": "response.reasoning_summary_part.added", **where, "part": {**part, "text": ""}}
            for piece in _pieces(part["text"]):
                yield {"type": "response.reasoning_summary_text.delta", **where, "delta": piece}
            yield {"type": "response.reasoning_summary_text.done", **where, "text": part["text"]}
            yield {"type": "response.reasoning_summary_part.done", **where, "part": part}
        elif item["type"] == "message":
            yield {
                "type": "response.output_item.added",
                "output_index": index,
                "item": {**item, "status": "in_progress", "content": []},
            }
            (part,) = item["content"]
            where |= {"content_index": 0}
            yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
            for piece in _pieces(part["text"]):
                yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **where, "part": part}
        else:
            field = "arguments" if item["type"] == "function_call" else "input"
            event = "function_call_arguments" if item["type"] == "function_call" else "custom_tool_call_input"
            yield {
                "type": "response.output_item.added",
                "output_index": index,
                "item": {**item, "status": "in_progress", field: ""},
            }
            for piece in _pieces(item[field]):
                yield {"type": f"response.{event}.delta", **where, "delta": piece}
            yield {"type": f"response.{event}.done", **where, field: item[field]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


def _numbered(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


class MessagesModel(Model):
    """A Claude with a budget of reasoning, by Messages. It keeps the threads that its answers begin or go on with."""

    kind = "messages"
    name = "claude-sonnet-4-5"
    entry: ClassVar[dict[str, Any]] = {"name": "messages", "provider": "anthropic", "key": "env:MODEL_KEY"}
    path = re.compile(r"/v1/messages(/count_tokens)?")

    def __init__(self) -> None:
        self._threads: Final[dict[str, dict[str, Any]]] = {}  # whole bodies with their answers, by the answers' ids

    def refuse(self, request: VendorRequest) -> Reply | None:
        """Return Anthropic's refusal, also of reasoning that it has not signed, and of threads that it has not."""
        before = (request.json.get("thread") or {}).get("previous_message_id")
        if before is not None and before not in self._threads:
            return claude.error(f"thread: no message {before}", 404, "not_found_error")
        whole = request._replace(body=json.dumps(self._whole(request)).encode())
        return anthropic.refuse(whole) or reasoning.refuse_signature(whole, _SIGNED)

    def read(self, request: VendorRequest) -> Asked:
        """Return the tools of the client, and the calls with the results of their ids."""
        body = self._whole(request)
        tools = tuple(tool["name"] for tool in body.get("tools") or () if "name" in tool)
        blocks = [
            block
            for message in body["messages"]
            for block in (message["content"] if isinstance(message["content"], list) else ())
        ]
        results = {
            block["tool_use_id"]: _text(block.get("content")) for block in blocks if block["type"] == "tool_result"
        }
        done = tuple(
            Done(block["name"], block["input"], results.get(block["id"]))
            for block in blocks
            if block["type"] == "tool_use"
        )
        return Asked(tools, done)

    def write(self, request: VendorRequest, answer: Answer) -> Reply:
        """Return a message, its events, or a count."""
        if request.path.endswith("/count_tokens"):
            return _json({"input_tokens": 90})
        body = request.json
        blocks: list[dict[str, Any]] = []
        if (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
            blocks.append({"type": "thinking", "thinking": answer.thought, "signature": f"{_SIGNED}{answer.number}"})
        blocks.append({"type": "text", "text": answer.text})
        blocks += [
            {
                "type": "tool_use",
                "id": f"toolu_01Pl4nOfTheTests0000{call.at:03}",
                "name": call.tool,
                "input": call.arguments,
            }
            for call in answer.calls
        ]
        usage = {"input_tokens": 90, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        message: dict[str, Any] = {
            "id": f"msg_01Pl4n{answer.number:03}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5-20250929",
            "content": blocks,
            "stop_reason": "tool_use" if answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 30, "service_tier": "standard"},
        }
        if "thread" in body:
            whole = self._whole(request)
            self._threads[message["id"]] = {
                **whole,
                "messages": [*whole["messages"], {"role": "assistant", "content": blocks}],
            }
        if not body.get("stream"):
            return _json(message)
        return _sse_events(_message_events(message))

    def _whole(self, request: VendorRequest) -> dict[str, Any]:
        """Return what a request stands for, with the thread before it, which says what its tools and model are."""
        body: dict[str, Any] = request.json
        thread = body.pop("thread", None) or {}
        before = self._threads.get(thread.get("previous_message_id", ""))
        return body if before is None else {**before, **body, "messages": [*before["messages"], *body["messages"]]}

    def error(self, message: str) -> Reply:
        """Return an error of Anthropic's."""
        return claude.error(message)


def _message_events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield {"type": "message_start", "message": begun}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        if block["type"] == "thinking":
            start: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        else:
            start = {**block, "input": {}}
            written = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *_pieces(written))]
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": message["usage"]}
    yield {"type": "message_stop"}


class GeminiModel(Model):
    """A Gemini 3, which signs the first call of each answer, and the end of a text."""

    kind = "gemini"
    name = "gemini-3.1-pro-preview"
    entry: ClassVar[dict[str, Any]] = {"name": "gemini", "provider": "gemini", "key": "env:MODEL_KEY"}
    path = re.compile(r"/v1beta/models/[^/:]+:(generateContent|streamGenerateContent|countTokens)")

    def refuse(self, request: VendorRequest) -> Reply | None:
        """Return Google's refusal, also of signatures that are not its own."""
        refused = gemini.refuse(request)
        if refused is not None or request.path.endswith(":countTokens"):
            return refused
        for content in request.json["contents"]:
            for part in content["parts"]:
                signature = _either(part, "thoughtSignature")
                if signature and not self._is_own(signature):
                    return self.error("Thought signature is not valid.")
        return None

    @staticmethod
    def _is_own(signature: str) -> bool:
        if signature in gemini.SKIPPED or signature.startswith(_LANGCHAINS):
            return True
        standard = signature.replace("-", "+").replace("_", "/")
        try:
            plain = base64.b64decode(standard, validate=True).decode()
        except ValueError:
            return False
        return plain.startswith("google-signed-") or plain in gemini.SKIPPED

    def read(self, request: VendorRequest) -> Asked:
        """Return the functions, and the calls with the results that follow them."""
        body = request.json
        tools = tuple(
            declared["name"]
            for tool in body.get("tools") or ()
            for declared in _either(tool, "functionDeclarations") or ()
        )
        done = []
        contents = gemini.turns(body["contents"])
        for at, content in enumerate(contents):
            calls = [_either(part, "functionCall") for part in content["parts"] if _either(part, "functionCall")]
            following = contents[at + 1]["parts"] if at + 1 < len(contents) else []
            results = [found for part in following if (found := _either(part, "functionResponse"))]
            for n, call in enumerate(calls):
                by_id = [each for each in results if each.get("id") and each["id"] == call.get("id")]
                result = (by_id or results[n : n + 1] or [None])[0]
                done.append(
                    Done(
                        call["name"],
                        call.get("args") or {},
                        result and json.dumps(result["response"], ensure_ascii=False),
                    )
                )
        return Asked(tools, tuple(done))

    def write(self, request: VendorRequest, answer: Answer) -> Reply:
        """Return an answer, its chunks, or a count."""
        if request.path.endswith(":countTokens"):
            return _json({"totalTokens": 90})
        signature = base64.b64encode(f"google-signed-{answer.number}".encode()).decode()
        config = _either(request.json, "generationConfig") or {}
        parts: list[dict[str, Any]] = []
        if _either(_either(config, "thinkingConfig") or {}, "includeThoughts"):
            parts.append({"text": answer.thought, "thought": True})
        parts += [{"text": piece} for piece in (answer.text[:5], answer.text[5:])]
        parts += [
            {"functionCall": {"id": f"call{call.at:03}", "name": call.tool, "args": call.arguments}}
            for call in answer.calls
        ]
        if answer.calls:
            parts[-len(answer.calls)]["thoughtSignature"] = signature
        else:
            parts.append({"text": "", "thoughtSignature": signature})  # vercel/ai#12402
        usage = {"promptTokenCount": 90, "candidatesTokenCount": 20, "thoughtsTokenCount": 10, "totalTokenCount": 120}
        ending = {"modelVersion": self.name, "responseId": f"plan-{answer.number}"}

        def said(some: list[dict[str, Any]], *, is_last: bool) -> dict[str, Any]:
            candidate: dict[str, Any] = {"content": {"parts": some, "role": "model"}, "index": 0}
            if is_last:
                candidate["finishReason"] = "STOP"
            return {"candidates": [candidate], "usageMetadata": usage, **ending}

        if not request.path.endswith(":streamGenerateContent"):
            return _json(said(parts, is_last=True))
        chunks = [said([part], is_last=n == len(parts) - 1) for n, part in enumerate(parts)]
        if "alt=sse" in request.query:
            return _sse(json.dumps(chunk) for chunk in chunks)
        return _json(chunks)

    def error(self, message: str) -> Reply:
        """Return an error of Google's."""
        return gemini.error(message)


class ConverseModel(Model):
    """A Nova, by Converse: it does not reason."""

    kind = "converse"
    name = "us.amazon.nova-pro-v1:0"
    entry: ClassVar[dict[str, Any]] = {"name": "converse", "provider": "bedrock", "region": "eu-central-1"}
    path = converse.PATH

    def refuse(self, request: VendorRequest) -> Reply | None:
        """Return AWS's refusal."""
        return converse.refuse(request)

    def read(self, request: VendorRequest) -> Asked:
        """Return the tools, and the calls with the results of their ids."""
        body = request.json
        tools = tuple(
            tool["toolSpec"]["name"] for tool in (body.get("toolConfig") or {}).get("tools", ()) if "toolSpec" in tool
        )
        blocks = [block for message in body["messages"] for block in message["content"]]
        results = {
            block["toolResult"]["toolUseId"]: "".join(
                each.get("text") or json.dumps(each.get("json")) for each in block["toolResult"]["content"]
            )
            for block in blocks
            if "toolResult" in block
        }
        uses = [block["toolUse"] for block in blocks if "toolUse" in block]
        return Asked(tools, tuple(Done(use["name"], use["input"], results.get(use["toolUseId"])) for use in uses))

    def write(self, request: VendorRequest, answer: Answer) -> Reply:
        """Return an answer, or its frames."""
        uses = [
            {"toolUseId": f"tooluse_Pl4nOfTheTests{call.at:03}", "name": call.tool, "input": call.arguments}
            for call in answer.calls
        ]
        stop = "tool_use" if uses else "end_turn"
        usage = {"inputTokens": 90, "outputTokens": 30, "totalTokens": 120}
        if not request.path.endswith("-stream"):
            content = [{"text": answer.text}, *({"toolUse": use} for use in uses)]
            said = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": stop}
            return _json({**said, "usage": usage, "metrics": {"latencyMs": 1}})
        events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
        events += [
            ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in _pieces(answer.text)
        ]
        events.append(("contentBlockStop", {"contentBlockIndex": 0}))
        for n, use in enumerate(uses, 1):
            start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            events.append(("contentBlockStart", {"contentBlockIndex": n, "start": start}))
            events += [
                ("contentBlockDelta", {"contentBlockIndex": n, "delta": {"toolUse": {"input": piece}}})
                for piece in _pieces(json.dumps(use["input"]))
            ]
            events.append(("contentBlockStop", {"contentBlockIndex": n}))
        events.append(("messageStop", {"stopReason": stop}))
        events.append(("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}))
        return Reply(200, b"".join(frame("event", name, json.dumps(each).encode()) for name, each in events), FRAMES)

    def error(self, message: str) -> Reply:
        """Return an error of AWS's."""
        return bedrock.validation(message)


MODELS: Final[tuple[type[Model], ...]] = (ChatModel, ResponsesModel, MessagesModel, GeminiModel, ConverseModel)


def _pieces(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def _either(fields: Any, name: str) -> Any:
    """Return a field by its name in Google's spelling, or in that of its protocol buffers."""
    return fields.get(name) or fields.get(re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name))


def _text(content: Any) -> str:
    """Return the text of a result, which is one, or parts of one."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return "" if content is None else str(content)


def _loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _json(said: Any) -> Reply:
    return Reply(200, json.dumps(said).encode())


def _sse(datas: Iterable[str]) -> Reply:
    return Reply(200, b"".join(f"data: {data}\n\n".encode() for data in datas), SSE)


def _sse_events(events: Iterable[dict[str, Any]]) -> Reply:
    written = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)
    return Reply(200, b"".join(written), SSE)
