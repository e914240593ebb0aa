"""Tools that Anthropic defines and the client runs, as functions: a request has their type, without a schema.

    bash_DATE           a shell that stays open
    text_editor_DATE    files; since April 2025 without undo_edit, and `insert` has its text in insert_text
    memory_DATE         files under /memories

computer_DATE is none: Claude alone is trained to find what is on a screen.

Source: Anthropic's pages on these tools; the commands of the memory tool in its SDK.

Knows: their arguments. Does not know: how they are run.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from velox.dialects.canonical.model import JsonText, JsonValue
from velox.dialects.json_text.text import quoted

__all__ = ["client_tool"]

_TYPE: Final = re.compile(r"(bash|text_editor|memory)_(\d{8})")
_NEW_EDITOR: Final = "20250429"
_TEXT: Final = {"type": "string"}
_LINE: Final = {"type": "integer", "description": "The line to insert after; 0: at the begin of the file."}
_INSERTED: Final = {"type": "string", "description": "The new text of insert."}
_RANGE: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "The first and the last line to view, from 1; -1: the end of the file.",
}


def _schema(*required: str, **properties: Any) -> JsonValue:
    schema = {"type": "object", "properties": properties}
    return json.dumps({**schema, "required": required} if required else schema).encode()


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": names}


_BASH: Final = _schema(command=_TEXT, restart={"type": "boolean", "description": "Start the shell anew; no command."})
_EDITS: Final = {"path": _TEXT, "view_range": _RANGE, "file_text": _TEXT, "old_str": _TEXT, "insert_line": _LINE}
_OLD_EDITOR: Final = _schema(
    "command",
    "path",
    command=_commands("view", "create", "str_replace", "insert", "undo_edit"),
    **_EDITS,
    new_str={"type": "string", "description": "The new text of str_replace and insert."},
)
_EDITOR: Final = _schema(
    "command",
    "path",
    command=_commands("view", "create", "str_replace", "insert"),
    **_EDITS,
    new_str=_TEXT,
    insert_text=_INSERTED,
)
_MEMORY: Final = _schema(
    "command",
    command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
    **_EDITS,
    new_str=_TEXT,
    insert_text=_INSERTED,
    old_path=_TEXT,
    new_path=_TEXT,
)
_BASH_TEXT: Final = quoted("Runs a command in a shell that stays open, and returns its output.")
_EDITOR_TEXT: Final = quoted(
    "Views, creates and edits text files. view: path, view_range; of a directory: its files. create: path, file_text."
    " str_replace: path, old_str (which occurs once), new_str. insert: path, insert_line and the text."
)
_MEMORY_TEXT: Final = quoted(
    "Keeps files under /memories from one conversation to the next. View that directory before you begin. view: path,"
    " view_range. create: path, file_text. str_replace: path, old_str, new_str. insert: path, insert_line, insert_text."
    " delete: path. rename: old_path, new_path."
)


def client_tool(kind: str) -> tuple[JsonText, JsonValue] | None:
    """Return the description and the schema of a tool that the client runs; None: it is none of them.

    kind: its type, as "bash_20250124".
    """
    found = _TYPE.fullmatch(kind)
    if found is None:
        return None
    match found[1]:
        case "bash":
            return _BASH_TEXT, _BASH
        case "memory":
            return _MEMORY_TEXT, _MEMORY
        case _:
            return _EDITOR_TEXT, _EDITOR if found[2] >= _NEW_EDITOR else _OLD_EDITOR
