"""AWS's event stream: the frames in which Bedrock streams."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Final

__all__ = ["FRAMES", "frame", "frames"]

FRAMES: Final = (("content-type", "application/vnd.amazon.eventstream"),)


def frame(kind: str, name: str, payload: bytes) -> bytes:
    """Return one frame as AWS writes it."""
    fields = {":message-type": kind, f":{kind}-type": name, ":content-type": "application/json"}
    headers = b"".join(
        struct.pack(">B", len(key)) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for key, value in fields.items()
    )
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    head = prelude + struct.pack(">I", binascii.crc32(prelude))
    return head + headers + payload + struct.pack(">I", binascii.crc32(head + headers + payload))


def frames(stream: bytes) -> bytes:
    """Return a stream of Messages in the frames of Bedrock's invoke."""
    datas = [line[6:] for line in stream.splitlines() if line.startswith(b"data: ")]
    return b"".join(
        frame("event", "chunk", json.dumps({"bytes": base64.b64encode(data).decode()}).encode()) for data in datas
    )
