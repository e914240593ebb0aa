"""A screen that is drawn again and again on a terminal, until somebody presses q or Ctrl-C.

Knows: the terminal's modes, and how they are given back. Does not know: what is drawn.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

__all__ = ["Terminal"]

# Of ECMA-48, as xterm has them: another screen, no cursor; home, and to clear what is left of a line and of the screen.
_BEGIN: Final = "\x1b[?1049h\x1b[?25l"
_END: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"
_QUIT: Final = (b"q", b"Q", b"\x03", b"")
_INPUT: Final = 0


class Terminal:
    """A terminal, and the keys that are pressed on standard input. out: writes to it."""

    def __init__(self, out: TextIO) -> None:
        self._out: Final = out

    def __repr__(self) -> str:
        return "<Terminal>"

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = os.get_terminal_size(self._out.fileno())
        return found.columns or 80, found.lines or 24

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Take the screen, and give it back as it was, whatever happens."""
        modes = termios.tcgetattr(_INPUT) if os.isatty(_INPUT) else None
        try:
            if modes is not None:
                tty.setcbreak(_INPUT)
            self._write(_BEGIN)
            yield
        finally:
            self._write(_END)
            if modes is not None:
                termios.tcsetattr(_INPUT, termios.TCSADRAIN, modes)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, and nothing else."""
        text = "\r\n".join(f"{line}{_REST_OF_LINE}" for line in lines)
        self._write(f"{_HOME}{text}{_REST_OF_SCREEN}")

    def wait(self, timeout_s: float) -> bool:
        """Wait for so long; return True if somebody wants to leave."""
        if not os.isatty(_INPUT):
            select.select([], [], [], timeout_s)
            return False
        ready, _, _ = select.select([_INPUT], [], [], timeout_s)
        return bool(ready) and os.read(_INPUT, 1) in _QUIT

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
