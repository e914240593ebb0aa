"""Names the place of a fault that the writer for a model has found, in the words of the client's own request.

Writers know the canonical request only, and name its fields as Chat Completions does: "stop", "messages[2].content[0]".
A client of another API has other names, and other numbers: its system messages stand elsewhere. What can't be said
for sure is left off: "contents" in place of "contents[3].parts[1]".

Knows: the names of fields that a writer may refuse. Does not know: how any request is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["GENERATE_NAMES", "MESSAGES_NAMES", "RESPONSES_NAMES", "own_path"]

_CONFIG: Final = "generationConfig"
_PATH: Final = re.compile(r"([a-z_]+)(?:\[(\d+)\])?")

MESSAGES_NAMES: Final[Mapping[str, str]] = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning": "thinking",
    "reasoning_effort": "output_config.effort",
    "user": "metadata.user_id",
    "tier": "service_tier",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
RESPONSES_NAMES: Final[Mapping[str, str]] = {
    "messages": "input",
    "system": "instructions",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "tier": "service_tier",
    "max_tokens": "max_output_tokens",
}
GENERATE_NAMES: Final[Mapping[str, str]] = {
    "messages": "contents",
    "system": "systemInstruction",
    "tool_choice": "toolConfig.functionCallingConfig",
    "tier": "serviceTier",
    "service_tier": "serviceTier",
    "stop": f"{_CONFIG}.stopSequences",
    "response_format": f"{_CONFIG}.responseSchema",
    "reasoning": f"{_CONFIG}.thinkingConfig",
    "reasoning_effort": f"{_CONFIG}.thinkingConfig",
    "max_tokens": f"{_CONFIG}.maxOutputTokens",
    "temperature": f"{_CONFIG}.temperature",
    "top_p": f"{_CONFIG}.topP",
    "top_k": f"{_CONFIG}.topK",
    "seed": f"{_CONFIG}.seed",
    "presence_penalty": f"{_CONFIG}.presencePenalty",
    "frequency_penalty": f"{_CONFIG}.frequencyPenalty",
}


def own_path(path: str, names: Mapping[str, str], n_system: int | None = None) -> str:
    """Return a path as a client writes it. names: its own names of fields, where they differ.

    n_system: how many canonical messages come before those of its list, of which the others are in their order; None:
    they are not.
    """
    found = _PATH.match(path)
    if found is None:
        return path
    name, number = found[1], found[2]
    own = names.get(name, name)
    if name != "messages" or number is None or n_system is None:
        return own
    if int(number) < n_system:
        return names.get("system", "system")
    return f"{own}[{int(number) - n_system}]"
