"""What the service takes and gives, by botocore's model of it: required members, types, enums, patterns, lengths."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import botocore

_FOLDER = Path(botocore.__file__).parent / "data" / "bedrock-runtime"


def _shapes() -> dict[str, Any]:
    path = next(_FOLDER.glob("*/service-2.json*"))
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shapes: dict[str, Any] = json.loads(content)["shapes"]
    return shapes


SHAPES = _shapes()


def faults(value: Any, shape_name: str, path: str = "$") -> list[str]:
    """Return what is wrong with a JSON value of a shape: empty for nothing. Unknown members of requests are wrong."""
    shape = SHAPES[shape_name]
    kind = shape["type"]
    if shape_name == "Document":
        return []
    if kind == "structure":
        return _structure(value, shape, path)
    if kind == "list":
        found = [] if isinstance(value, list) else [f"{path}: no list"]
        found += _range(len(value), shape, path)
        return found + [
            fault for n, each in enumerate(value) for fault in faults(each, shape["member"]["shape"], f"{path}[{n}]")
        ]
    if kind == "map":
        return [
            fault for name, each in value.items() for fault in faults(each, shape["value"]["shape"], f"{path}.{name}")
        ]
    if kind in ("integer", "long", "float", "double"):
        is_number = isinstance(value, (int, float) if kind in ("float", "double") else int)
        return _range(value, shape, path) if is_number and not isinstance(value, bool) else [f"{path}: no {kind}"]
    if kind == "boolean":
        return [] if isinstance(value, bool) else [f"{path}: no boolean"]
    if not isinstance(value, str):
        return [f"{path}: no string"]
    if kind == "blob":
        return _range(len(base64.b64decode(value, validate=True)), shape, path)
    found = _range(len(value), shape, path)
    if "enum" in shape and value not in shape["enum"]:
        found.append(f"{path}: {value!r} is none of {shape['enum']}")
    if "pattern" in shape and re.fullmatch(shape["pattern"], value) is None:
        found.append(f"{path}: {value!r} is not {shape['pattern']}")
    return found


def _structure(value: Any, shape: dict[str, Any], path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: no object"]
    found = [f"{path}: {name} is missing" for name in shape.get("required", []) if name not in value]
    if shape.get("union") and len(value) != 1:
        found.append(f"{path}: one of them, not {sorted(value)}")
    for name, each in value.items():
        member = shape["members"].get(name)
        found += [f"{path}: {name} is unknown"] if member is None else faults(each, member["shape"], f"{path}.{name}")
    return found


def _range(n: float, shape: dict[str, Any], path: str) -> list[str]:
    is_right = shape.get("min", n) <= n <= shape.get("max", n)
    return [] if is_right else [f"{path}: {n} is not within {shape.get('min')} and {shape.get('max')}"]


def request_faults(body: bytes, *, is_claude: bool = False) -> list[str]:
    """Return what is wrong with a request's body, also what the shapes don't say."""
    request = json.loads(body)
    found = faults({"modelId": "m", **request}, "ConverseRequest")
    roles = [message["role"] for message in request["messages"]]
    if roles[:1] != ["user"] and not is_claude:
        found.append("the user does not begin")
    found += [f"two of {a}" for a, b in itertools.pairwise(roles) if a == b]
    calls: list[str] = []
    for message in request["messages"]:
        content = message["content"]
        if any(not block["text"].strip() for block in content if "text" in block) or not content:
            found.append("blank text")
        if any("document" in block for block in content) and not any("text" in block for block in content):
            found.append("a document without text")
        results = [block["toolResult"]["toolUseId"] for block in content if "toolResult" in block]
        if sorted(results) != sorted(calls):
            found.append(f"results {results} of calls {calls}")
        calls = [block["toolUse"]["toolUseId"] for block in content if "toolUse" in block]
    if any("toolUse" in block for message in request["messages"] for block in message["content"]):
        found += [] if "toolConfig" in request else ["no toolConfig"]
    names = re.findall(r'"document": ?{"format": ?"\w+", ?"name": ?"([^"]*)"', body.decode())
    if len(names) != len(set(names)):
        found.append(f"names of documents are not unique: {names}")
    found += [f"name {name!r}" for name in names if re.fullmatch(r"(?!.*\s\s)[a-zA-Z0-9\s\-()\[\]]+", name) is None]
    return found
