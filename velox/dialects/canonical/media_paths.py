"""Where a picture, a sound or a file stands in a request, for a writer that has put several messages into one.

Looked for only when a part is refused: what is taken costs nothing.

Knows: the canonical request. Does not know: any dialect, or what the client calls that place (own_paths.py).
"""

from __future__ import annotations

from velox.dialects.canonical.model import Audio, Document, Image, Media, Message, ToolResult

__all__ = ["media_path"]


def media_path(messages: list[Message], source: Media) -> str:
    """Return the path of the part with that very source, as Chat Completions calls it: "messages[2].content[0]".

    A part of a tool's result that is all of its message is of the message, as there. "messages": it is in none.
    """
    # From the end: the turns of a writer may share the list of blocks of a message before.
    for n in range(len(messages) - 1, -1, -1):
        blocks = messages[n].blocks
        for k, block in enumerate(blocks):
            if isinstance(block, Image | Audio | Document):
                if block.source is source:
                    return f"messages[{n}].content[{k}]"
            elif isinstance(block, ToolResult):
                for j, part in enumerate(block.parts):
                    if isinstance(part, Image | Document) and part.source is source:
                        inside = f"content[{j}]" if len(blocks) == 1 else f"content[{k}].content[{j}]"
                        return f"messages[{n}].{inside}"
    return "messages"
