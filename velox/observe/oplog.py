"""The log of the gateway itself: starts, deaths, warm-up failures, bugs.

Knows: where it goes and its form: JSON lines, or plain lines for a person at a terminal. Does not know: what
is worth saying, or what happens to a line that nobody reads (log_output.py). Nothing of a request is logged here.

Libraries log through the same handler once `take_over` was called. What they say may hold anything (asyncio prints a
callback with its arguments, and with them a client's bytes), so of theirs only the kind of error and the lines of code
are logged, as of a bug of our own.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Final, TextIO

from velox.observe.log_time import log_time

__all__ = ["crash_text", "operations_logger", "take_over"]

_NAME: Final = "velox"
_MAX_TEXT: Final = 256
_MORE: Final = ("reason", "traceback")
_FRAMES: Final = 4


def operations_logger(stream: TextIO) -> logging.Logger:
    """Return the logger that writes to `stream`."""
    logger = logging.Logger(_NAME, logging.INFO)
    logger.addHandler(_handler(stream))
    return logger


def take_over(stream: TextIO) -> None:
    """Let everything that would reach `stream` some other way go through here: libraries' logs, and a process's end.

    For a process of the gateway, at its start. Children that are forked have it too.
    """
    handler = _handler(stream)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    logger = operations_logger(stream)

    def tell(exc: BaseException | None) -> None:
        if exc is not None:
            logger.critical("%s", crash_text(exc))

    sys.excepthook = lambda _kind, exc, _frames: tell(exc)
    sys.unraisablehook = lambda caught: tell(caught.exc_value)
    threading.excepthook = lambda caught: tell(caught.exc_value)


def crash_text(exc: BaseException) -> str:
    """Return what is logged of a bug: the kind of error and where it was raised, never what it was raised with."""
    frames = traceback.extract_tb(exc.__traceback__)[-_FRAMES:]
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"bug: {type(exc).__name__} at {where}"


def _handler(stream: TextIO) -> logging.Handler:
    handler = _Handler(stream)
    handler.setFormatter(_PlainFormatter() if stream.isatty() else _JsonFormatter())
    return handler


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines; what can't be written is lost, because there is nobody to tell."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Do nothing: the library would print the record with its arguments."""


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": log_time(record.created),
            "level": record.levelname.lower(),
            "pid": record.process,
            "message": _text(record),
        }
        if record.name == _NAME:
            # Of a process that died: why, and where it stood, as runtime/processes/crashes.py lets it be said.
            line |= {name: vars(record)[name] for name in _MORE if vars(record).get(name)}
            # What stands in the message by name: logger.error("... %(upstream)s ...", {"upstream": name}).
            if isinstance(record.args, Mapping):
                line |= {name: _field(value) for name, value in record.args.items() if name not in line}
        return json.dumps(line).replace("\x7f", "\\u007f")


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        printable = "".join(char if char.isprintable() else "?" for char in _text(record))
        more = vars(record).get("traceback") if record.name == _NAME else None
        told = f"\n{more}" if more else ""
        return f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {printable}{told}"


def _field(value: object) -> object:
    return value if isinstance(value, int | float) else str(value)[:_MAX_TEXT]


def _text(record: logging.LogRecord) -> str:
    """Return what is said; of a library, no more than where it was said and what was raised."""
    if record.name == _NAME:
        text = record.getMessage()
    else:
        text = f"{record.name} at {record.funcName}:{record.lineno}"
        if record.exc_info is not None and record.exc_info[1] is not None:
            text = f"{crash_text(record.exc_info[1])}, logged by {text}"
    return text[:_MAX_TEXT]
