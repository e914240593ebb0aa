"""A language model of half a megabyte, the same in every run: a Llama with random weights, as a GGUF file.

Its words are 256 made-up ones, so what it writes is text. It reads any text, byte by byte, and never ends by itself.

Knows: the GGUF format, and which tensors a Llama has. Does not know: the engine that runs it.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["CONTEXT", "make"]

CONTEXT: Final = 32_768
# The last token: how a call begins in the chat template that the engine is given.
_TOOL_CALL: Final = '<tool_call>\n{"name": "'
_WIDTH: Final = 64
_INNER: Final = 128
_LAYERS: Final = 2
_HEADS: Final = 4
_WORDS: Final = 256
# Kinds of tokens: unknown, control, byte, normal, and one that is read and written whole.
_KINDS: Final = [2, 3, 3, *[6] * 256, *[1] * (_WORDS + 1), 4]
_END: Final = 2
_SILENT: Final = 259  # the first tokens: the model reads them, and never writes one
_ALIGNMENT: Final = 32

_U32, _F32, _STRING = 4, 6, 8  # GGUF's types of values
_I32, _ARRAY = 5, 9


def make(path: Path, *, calls: bool = False) -> None:
    """Write the model. calls: one that would rather end than call a tool, and rather call one than write a word."""
    chance = random.Random(7)
    tokens = _tokens(chance)
    fields = [
        _field("general.architecture", _STRING, _string("llama")),
        _field("general.name", _STRING, _string("tiny")),
        _number("llama.context_length", CONTEXT),
        _number("llama.embedding_length", _WIDTH),
        _number("llama.block_count", _LAYERS),
        _number("llama.feed_forward_length", _INNER),
        _number("llama.attention.head_count", _HEADS),
        _field("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _number("llama.rope.dimension_count", _WIDTH // _HEADS),
        _number("llama.vocab_size", len(tokens)),
        _field("tokenizer.ggml.model", _STRING, _string("llama")),
        _list("tokenizer.ggml.tokens", _STRING, [_string(token) for token in tokens]),
        _list("tokenizer.ggml.scores", _F32, [struct.pack("<f", -n) for n in range(len(tokens))]),
        _list("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for kind in _KINDS]),
        _number("tokenizer.ggml.unknown_token_id", 0),
        _number("tokenizer.ggml.bos_token_id", 1),
        _number("tokenizer.ggml.eos_token_id", _END),
    ]
    infos, body = bytearray(), bytearray()
    n_tensors = 0
    for name, shape, values in _tensors(chance, len(tokens), calls):
        infos += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(body))
        body += _padded(values.tobytes())
        n_tensors += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, len(fields)) + b"".join(fields) + infos
    path.write_bytes(_padded(head) + body)


def _tokens(chance: random.Random) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < _WORDS:
        syllables = (chance.choice("bdfgklmnprst") + chance.choice("aeiou") for _ in range(chance.randint(1, 3)))
        words["\u2581" + "".join(syllables)] = None
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "\u2581", _TOOL_CALL]


def _tensors(chance: random.Random, n_tokens: int, calls: bool) -> Iterator[tuple[str, Sequence[int], array[float]]]:
    def noise(n: int, width: float) -> array[float]:
        return array("f", (chance.gauss(0, width) for _ in range(n)))

    ones = array("f", [1.0]) * _WIDTH
    written = noise(_WIDTH * n_tokens, 1.0)
    written[: _WIDTH * _SILENT] = array("f", [0.0]) * (_WIDTH * _SILENT)
    written[-2 * _WIDTH :] = array("f", [0.0]) * (2 * _WIDTH)
    read = noise(_WIDTH * n_tokens, 1.0)
    if calls:  # one dimension is the same for every token, and two tokens are written because of it
        read[::_WIDTH] = array("f", [20.0]) * n_tokens
        written[_WIDTH * _END] = 60.0
        written[-_WIDTH] = 50.0
    yield "token_embd.weight", (_WIDTH, n_tokens), read
    yield "output.weight", (_WIDTH, n_tokens), written
    yield "output_norm.weight", (_WIDTH,), ones
    for layer in range(_LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (_WIDTH,), ones
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{name}.weight", (_WIDTH, _WIDTH), noise(_WIDTH * _WIDTH, 0.25)
        yield f"blk.{layer}.ffn_norm.weight", (_WIDTH,), ones
        for name, shape in (("gate", (_WIDTH, _INNER)), ("up", (_WIDTH, _INNER)), ("down", (_INNER, _WIDTH))):
            yield f"blk.{layer}.ffn_{name}.weight", shape, noise(_WIDTH * _INNER, 0.2)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _field(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _number(name: str, value: int) -> bytes:
    return _field(name, _U32, struct.pack("<I", value))


def _list(name: str, kind: int, items: Sequence[bytes]) -> bytes:
    return _field(name, _ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def _padded(data: bytes | bytearray) -> bytes:
    return bytes(data) + bytes(-len(data) % _ALIGNMENT)
