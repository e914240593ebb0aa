"""Lists of models, as `GET /v1/models` answers with them: read from an upstream, and written for a client.

Knows: OpenAI's shape, and what other servers add to it or leave out. Does not know: who may use which model.

    {"object": "list", "data": [{"id": "gpt-4o", "object": "model", "created": 1715367049, "owned_by": "system"}, ...]}

An upstream's own object of a model passes with all its fields: vLLM tells `max_model_len` and `root`, others prices.
What is missing of OpenAI's fields, as in Anthropic's lists, is added: its SDKs expect them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import Final

import orjson

__all__ = ["is_model_object", "list_of", "model_object", "reading_models"]

# Gateways to all there is list about 500. More of one upstream are left out.
_MOST_MODELS: Final = 4096
# As in a request (body.py).
_NAME_CHARS: Final = 256
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_KIND: Final = "model"
_PER_STEP: Final = 128  # of them, with 1 KB each: 0.5 ms


def reading_models(body: bytes, owner: str) -> Generator[None, None, dict[str, bytes]]:
    """Return the models of a list by name, each as an object of JSON; yields between steps of the work.

    owner: where one names none. Raises ValueError for what is no list. What in it is no model, or has a name that no
    request may have, is left out. The first step takes 5 ms for each MB.
    """
    document = orjson.loads(body)
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list `data`")
    found: dict[str, bytes] = {}
    for n, entry in enumerate(entries):
        if n % _PER_STEP == 0:
            yield
        name = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(name, str) and 1 <= len(name) <= _NAME_CHARS and not _UNFIT.search(name):
            found[name] = orjson.dumps({**entry, **_missing(entry, owner)})
            if len(found) == _MOST_MODELS:
                break
    return found


def _missing(entry: dict[str, object], owner: str) -> dict[str, object]:
    fields: dict[str, object] = {"object": _KIND, "created": 0, "owned_by": owner}
    return {name: value for name, value in fields.items() if name not in entry}


def model_object(name: str, owner: str, own: bytes | None = None) -> bytes:
    """Return the object of a model. own: an upstream's, of the model that `name` stands for; else little is known."""
    entry: dict[str, object] = {"id": name} if own is None else orjson.loads(own)
    entry["id"] = name
    return orjson.dumps({**entry, **_missing(entry, owner)})


def is_model_object(body: bytes) -> bool:
    """Say whether an answer is the object of a model."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and isinstance(document.get("id"), str)


def list_of(objects: Iterable[bytes]) -> bytes:
    """Return a list of objects of JSON."""
    return b'{"object":"list","data":[%b]}' % b",".join(objects)
