"""One target under atheris, in a process of its own: `python -m tests.fuzz.child TARGET FOLDER... [libFuzzer options]`.

Knows: how atheris is told what to measure. Does not know: how long, or what becomes of the result: libFuzzer prints it,
and ends the process.
"""

from __future__ import annotations

import sys

import atheris

from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["velox"]):
        check = TARGETS[name].load()
    atheris.Setup([sys.argv[0], *options], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
