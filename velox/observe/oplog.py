"""The log of the gateway itself: starts, deaths, warm-up failures, bugs.

Knows: where it goes and its form: JSON lines (R-LOG-1), or plain lines for a person at a terminal. Does not know: what
is worth saying. Nothing of a request is logged here.
"""

from __future__ import annotations

import json
import logging
from typing import Final, TextIO

__all__ = ["operations_logger"]

_MAX_TEXT: Final = 256


def operations_logger(stream: TextIO) -> logging.Logger:
    """Return the logger that writes to `stream`."""
    logger = logging.Logger("velox", logging.INFO)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_PlainFormatter() if stream.isatty() else _JsonFormatter())
    logger.addHandler(handler)
    return logger


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "pid": record.process,
            "message": record.getMessage()[:_MAX_TEXT],
        }
        return json.dumps(line)


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()[:_MAX_TEXT]
        printable = "".join(char if char.isprintable() else "?" for char in text)
        return f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {printable}"
