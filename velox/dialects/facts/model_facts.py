"""What is known of a model, as far as a writer needs it. The table of all models is data (providers/), not here.

Knows: which facts there are. Does not know: any model's name.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.facts.efforts import EFFORTS

__all__ = ["ALWAYS_THINKING", "BY", "REFUSED", "TAKEN", "UNKNOWN_MODEL", "ModelFacts"]

# Of `thinking`: Claude's models that can't be told not to.
ALWAYS_THINKING: Final = ("always", "between_tools")

# Of `beta_fields`.
REFUSED: Final = "refused"
TAKEN: Final = "taken"
BY: Final = "by "


class ModelFacts(msgspec.Struct, frozen=True):
    """Facts of one model at one provider. The defaults are those of a model that nobody knows: a current, capable one.

    max_output: what max_tokens is where the client names none and the dialect needs one. needs_max_tokens: so does the
    model in OpenAI Responses.
    most_output: max_tokens may not be more; 0: not known.
    sampling: it takes temperature, top_p and top_k.
    thinking: how reasoning is asked for: "adaptive" (Anthropic's newer models: effort), "always" (the same, but it
    can't be switched off), "between_tools" (it can, but for notes between calls of tools), "budget" (older ones),
    "level" (Gemini 3), "thinking_budget" (2.5), "effort" (OpenAI's way), "toggle" (the same, and `thinking` of type
    enabled or disabled: DeepSeek, Z.ai), "switch" (an effort of "default" or "none": Qwen at Groq), "none".
    efforts: those that it takes by name; the nearest one is asked for in place of another. For Gemini it is not read.
    forced_choice: a tool may be forced while it reasons.
    cache_marks: it takes them.
    prefill: the last message may be the assistant's.
    max_tokens_name: how Chat Completions calls it there: "max_completion_tokens" or "max_tokens".
    json_schema: structured output by schema; else a JSON object at most.
    json_with_tools: Gemini: an answer in JSON may be asked for beside tools; else the system prompt asks for it.
    images_in_results: tool results may hold pictures.
    schema_keywords: Gemini's `parametersJsonSchema` is taken; else the subset.
    call_ids: "any", "mistral" (nine letters and digits), "bedrock" (up to 64 of a-zA-Z0-9_.:-), "none" (Vertex).
    reasoning_field: how Chat Completions calls the text of reasoning there, when a message of the assistant comes back;
    "thinking": parts of its content are of that type (Mistral); "": it is not sent.
    refused: fields that get a 400 there; "name": of messages.
    renamed: fields of Chat Completions that are called otherwise there. Cache marks are written only where there is a
    name for `prompt_cache_breakpoint`: itself (OpenAI), or `cache_control` (OpenRouter). Of Responses: "text.format"
    where it is called "response_format", and has the form that it has in Chat Completions.
    verbosity: it takes OpenAI's field of that name.
    betas: patterns of names in the header anthropic-beta that Claude takes by Bedrock's invoke and at Vertex: others
    are a 400 there. None: all go up, but to Bedrock.
    beta_fields: fields of Claude's Messages that not every service has (claude_fields.py), each with what the service
    says to it: "refused"; "taken"; the betas of which it wants one there, the first where the client sends none; or
    "by BETA": it has that beta in the field's place. A field that is not named is taken.
    fetches_urls: pictures and documents may be named by their URL.
    added_marks: cache marks for a client of another dialect that sends none: "agents" (only with tools), "always",
    "never".
    family: the name by which a model is known that its own does not tell, as an ARN of an inference profile: the table
    is asked by it, and so are the APIs that it has.
    allowed_tools: Chat Completions' tool_choice of that type is known there; else the other tools are not sent.
    text_parts: a message's content may be a list of texts; else they are joined.
    later_system: there may be several system messages, and later ones; else the first ones are one, and the user says
    others.
    schemas_refuse: what of a tool's schema is a 400 (tool_fit.py): "top.anyOf" and other keywords at its top,
    "properties.keys", "malformed".
    most_stops, most_tools: so many stop strings, and tools, at most; 0: not known.
    image_details: OpenAI's names of details of a picture that it takes.
    web_search: the type of the tool by which the provider itself searches the web; "": it has none.
    user_after_results: the user's message may follow on results of tools; else one of the assistant's goes between.
    keeps_answers: its Responses API does, unless a request says `store: false`; else Velox keeps them.
    tool_types, item_types: of tools, and of items of the input, that its Responses API takes: patterns. A request with
    another one is put into the API that other dialects are translated into, where it has a form that every model knows.
    """

    max_output: int = 4096
    most_output: int = 0
    sampling: bool = True
    thinking: str = "effort"
    efforts: tuple[str, ...] = EFFORTS
    forced_choice: bool = True
    cache_marks: bool = True
    prefill: bool = True
    max_tokens_name: str = "max_completion_tokens"
    json_schema: bool = True
    json_with_tools: bool = True
    images_in_results: bool = True
    schema_keywords: bool = True
    call_ids: str = "any"
    reasoning_field: str = "reasoning_content"
    refused: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    allowed_tools: bool = False
    text_parts: bool = True
    later_system: bool = True
    user_after_results: bool = True
    verbosity: bool = False
    needs_max_tokens: bool = False
    betas: tuple[str, ...] = ()
    keeps_answers: bool = True
    tool_types: tuple[str, ...] = ("*",)
    item_types: tuple[str, ...] = ("*",)
    schemas_refuse: tuple[str, ...] = ()
    most_stops: int = 0
    most_tools: int = 0
    image_details: tuple[str, ...] = ("auto", "low", "high")
    web_search: str = ""
    beta_fields: tuple[tuple[str, str], ...] = ()
    fetches_urls: bool = True
    added_marks: str = "never"
    family: str = ""


UNKNOWN_MODEL: Final = ModelFacts()
