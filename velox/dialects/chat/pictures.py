"""A picture in an answer of Chat Completions: `images` of the message, as OpenRouter has it, and others after it.

    {"type":"image_url","image_url":{"url":"data:image/png;base64,..."},"index":0}

OpenAI's own API has no place for one. LiteLLM and the clients that show pictures read this
(https://openrouter.ai/docs/features/multimodal/image-generation, BerriAI/litellm#14160).

Knows: the JSON. Does not know: streams.
"""

from __future__ import annotations

from velox.dialects.canonical.model import Image
from velox.dialects.json_text.text import quoted

__all__ = ["picture"]


def picture(image: Image, index: int) -> bytes:
    """Write a picture, which is data. index: its number in the answer."""
    source = image.source
    form = b'{"type":"image_url","image_url":{"url":%b},"index":%d}'
    return form % (quoted(f"data:{source.type or 'image/png'};base64,{source.value}"), index)
