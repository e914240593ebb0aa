"""The arguments of a call that come in parts: `partialArgs` of Vertex, put together to one object.

    {"jsonPath": "$.city", "stringValue": "Ber", "willContinue": true}, {"jsonPath": "$.city", "stringValue": "lin"}

Knows: the paths that Vertex writes (names and numbers, RFC 9535 without filters). Does not know: streams.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import JsonValue
from velox.dialects.generate.wire import PartialArg
from velox.dialects.streams.in_turn import MOST_WAITING_BYTES

__all__ = ["PartialArgs"]

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['((?:[^'\\]++|\\.)*+)'\]|\[\"((?:[^\"\\]++|\\.)*+)\"\]")
_MOST_INDEX: Final = 10_000
_MOST_STEPS: Final = 64
_ESCAPED: Final = re.compile(r"\\(.)")


class PartialArgs:
    """Of one call."""

    __slots__ = ("_n_bytes", "_open", "_root", "_texts")

    def __init__(self) -> None:
        self._root: Final[dict[str, Any]] = {}
        self._open: str | None = None  # the path of a text that is not whole
        self._texts: list[str] = []
        self._n_bytes = 0

    def add(self, part: PartialArg) -> None:
        """Take a part. Raises BrokenReplyError: its path can't be read, or the arguments are over a bound."""
        path = part.json_path or self._open or ""
        text = part.string_value
        self._n_bytes += len(path) + len(text or "") + 8
        if self._n_bytes > MOST_WAITING_BYTES:
            raise BrokenReplyError(f"the arguments of a call are over {MOST_WAITING_BYTES} bytes")
        if path != self._open:
            self._open, self._texts = path, []
        value: object = None
        if text is not None:
            self._texts.append(text)
            if part.will_continue:
                return
            value = "".join(self._texts)
        elif self._texts:
            value = "".join(self._texts)  # the last part of a text may have none of it
        elif part.number_value is not None:
            number = part.number_value
            value = int(number) if number.is_integer() else number
        elif part.bool_value is not None:
            value = part.bool_value
        self._open, self._texts = None, []
        self._put(path, value)

    def whole(self) -> JsonValue:
        """Return the arguments."""
        if self._open is not None and self._texts:
            self._put(self._open, "".join(self._texts))
        try:
            return msgspec.json.encode(self._root)
        except UnicodeEncodeError:  # half a character
            return json.dumps(self._root).encode("ascii")

    def _put(self, path: str, value: object) -> None:
        steps = _steps(path)
        at: Any = self._root
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            missing: Any = value if following is None else {} if isinstance(following, str) else []
            if isinstance(at, list) and isinstance(step, int):
                at.extend([None] * (step + 1 - len(at)))
                if following is None or at[step] is None:
                    at[step] = missing
            elif isinstance(at, dict) and isinstance(step, str):
                if following is None or step not in at:
                    at[step] = missing
            else:
                raise BrokenReplyError("the arguments of a call contradict each other")
            at = at[step]


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None or len(steps) == _MOST_STEPS:
            break
        name, index, *quoted = found.groups()
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name if name is not None else _ESCAPED.sub(r"\1", quoted[0] or quoted[1] or ""))
        at = found.end()
    if not path.startswith("$") or at < len(path) or not steps or any(n > _MOST_INDEX for n in steps if type(n) is int):
        raise BrokenReplyError("the path of a call's argument can't be read")
    return steps
