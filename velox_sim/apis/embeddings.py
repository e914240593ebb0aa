"""The answers of /v1/embeddings.

Knows: the embedding object and both encodings. Does not know: HTTP, pace.
"""

from __future__ import annotations

import base64
import random
import struct
import zlib
from typing import Final

import orjson

from velox_sim.request import ModelRequest, count_prompt_tokens
from velox_sim.shapes import RefusalError

__all__ = ["EmbeddingWriter"]

_DIMENSIONS: Final = 1536  # text-embedding-3-small
_MAX_DIMENSIONS: Final = 3072  # text-embedding-3-large
_MAX_INPUTS: Final = 2048  # OpenAI's own limit


class EmbeddingWriter:
    """Writes unit vectors that depend on the input only: the same text has the same vector in every run."""

    def __init__(self) -> None:
        signs = random.Random(0)
        self._signs: Final = tuple(signs.choice((-1.0, 1.0)) for _ in range(_MAX_DIMENSIONS))

    def whole(self, request: ModelRequest) -> bytes:
        """Return the list of embeddings. Raises RefusalError (400) for a field that OpenAI would refuse."""
        inputs = _read_inputs(request.fields.get("input"))
        n_dimensions = _read_dimensions(request.fields.get("dimensions"))
        encoding = request.fields.get("encoding_format")
        if encoding not in (None, "float", "base64"):
            raise RefusalError(400, "encoding_format is float or base64", param="encoding_format")
        items: list[dict[str, object]] = []
        for index, item in enumerate(inputs):
            vector = self._vector(item, n_dimensions)
            # Little-endian 32-bit floats, whatever machine this runs on: the SDK reads them so.
            packed = base64.b64encode(struct.pack(f"<{n_dimensions}f", *vector)).decode()
            items.append(
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": packed if encoding == "base64" else vector,
                }
            )
        n_prompt = count_prompt_tokens(inputs)
        counts = {"prompt_tokens": n_prompt, "total_tokens": n_prompt}
        return orjson.dumps({"object": "list", "data": items, "model": request.model, "usage": counts})

    def _vector(self, item: object, n_dimensions: int) -> list[float]:
        """Return a vector of length 1: the fixed signs, rotated by a checksum of the input."""
        start = zlib.crc32(repr(item).encode()) % _MAX_DIMENSIONS
        signs = (self._signs[start:] + self._signs[:start])[:n_dimensions]
        scale: float = n_dimensions**-0.5
        return [sign * scale for sign in signs]


def _read_inputs(value: object) -> list[object]:
    """Return the inputs: a text, a list of texts, a list of token ids, or a list of such lists."""
    match value:
        case str() if value:
            return [value]
        case [int(), *_] if _is_input(value):
            return [value]
        case list() if 0 < len(value) <= _MAX_INPUTS and all(_is_input(item) for item in value):
            return value
        case _:
            raise RefusalError(400, f"input is a text or a list of 1 to {_MAX_INPUTS} inputs", param="input")


def _is_input(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, list) and all(isinstance(token, int) for token in item))


def _read_dimensions(value: object) -> int:
    if value is None:
        return _DIMENSIONS
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_DIMENSIONS:
        raise RefusalError(400, f"dimensions is a whole number from 1 to {_MAX_DIMENSIONS}", param="dimensions")
    return value
