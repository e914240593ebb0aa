"""The operations log: one line a message, and nothing that anybody else put into it."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from velox.observe.log_output import LogStream, own_descriptor
from velox.observe.oplog import crash_text, operations_logger

ROOT = Path(__file__).parents[3]
SECRET = "sk-secret-0123456789"


def said(text: str, *values: object) -> dict[str, object]:
    """Log a message; return the one line that it makes."""
    stream = io.StringIO()
    operations_logger(stream).warning(text, *values)
    (line,) = stream.getvalue().splitlines()
    assert line.isascii() and line.isprintable()
    fields: dict[str, object] = json.loads(line)
    return fields


@pytest.mark.parametrize("text", ["a\nb\r\n", "\x00\x1b[31m\x7f", "\u2028\u202e\x85", "\U0001f30d\ud800"], ids=ascii)
def test_message_is_one_printable_line(text: str) -> None:
    """Whatever an upstream's certificate or the system's error said."""
    assert said("no connection: %s", text)["message"] == f"no connection: {text}"


def test_message_is_cut_to_256_characters() -> None:
    """An endless message is not."""
    assert said("%s", "x" * 1000)["message"] == "x" * 256


def test_values_of_a_line_are_fields_too() -> None:
    """So that a collector of logs can ask for one upstream; a terminal shows the sentence alone."""
    stream = io.StringIO()
    logger = operations_logger(stream)
    logger.error(
        "the upstream %(upstream)s fails: %(error)s (%(n)d)", {"upstream": "a", "error": OSError("no" * 400), "n": 3}
    )
    logger.error("the level is %(level)s", {"level": "mine"})

    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"].startswith("the upstream a fails: nono") and len(first["error"]) == 256
    assert (first["upstream"], first["n"]) == ("a", 3)
    assert (second["message"], second["level"]) == ("the level is mine", "error"), (
        "a field hides none of the line's own"
    )


def test_death_of_a_process_is_one_line_with_reason_and_traceback() -> None:
    """As fields, of which an empty one is left out; for a person at a terminal the traceback follows the line."""
    stream = io.StringIO()
    for told in ("File a\nFile b", ""):
        operations_logger(stream).error("it died", extra={"reason": "stuck", "traceback": told})
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["message"], first["reason"], first["traceback"]) == ("it died", "stuck", "File a\nFile b")
    assert second["reason"] == "stuck" and "traceback" not in second

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    operations_logger(terminal).error("it died", extra={"reason": "stuck", "traceback": "File a\nFile b"})
    assert terminal.getvalue().endswith("error   it died\nFile a\nFile b\n")


def test_crash_is_told_without_what_it_was_raised_with() -> None:
    """The kind of error and the lines of code; an error's words may be a client's."""
    try:
        dict[str, str]()[SECRET]
    except KeyError as exc:
        text = crash_text(exc)

    assert text.startswith("bug: KeyError at test_crash_is_told_without_what_it_was_raised_with:")
    assert SECRET not in text


class Broken(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_line_that_cannot_be_written_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """The library would print the record with all its arguments."""
    operations_logger(Broken()).warning("%s", SECRET)

    assert capsys.readouterr() == ("", "")


def test_line_that_nobody_reads_is_dropped_whole() -> None:
    """F-60: the pipe is full, the process goes on, and what the reader finds is lines."""
    reader, writer = os.pipe()
    dropped: list[int] = []
    with LogStream(own_descriptor(writer)) as stream:
        stream.on_dropped = dropped.append
        logger = operations_logger(stream)
        for _ in range(400):
            logger.error("%s", "x" * 256)
    os.close(writer)
    with open(reader) as lines:
        found = [json.loads(line)["message"] for line in lines]
    assert dropped == [1] * (400 - len(found)) and 0 < len(found) < 400
    assert set(found) == {"x" * 256}


# What would reach standard error past the log: each says the secret.
ESCAPES = {
    "asyncio": "import asyncio\nasync def main():\n"
    " asyncio.get_running_loop().call_soon(lambda secret: 1 / 0, SECRET)\n await asyncio.sleep(0.01)\n"
    "asyncio.run(main())",
    "uvloop": "import asyncio, uvloop\nasync def main():\n"
    " asyncio.get_running_loop().call_soon(lambda secret: {}[secret], SECRET)\n await asyncio.sleep(0.01)\n"
    "uvloop.run(main())",
    "a library": "import logging\nlogging.getLogger('velox.admin.server').exception('failed: %s', SECRET)",
    "a warning": "import warnings\nwarnings.warn(SECRET)",
    "a finaliser": "class C:\n def __del__(self): raise ValueError(SECRET)\nC()",
    "a thread": "import threading\ndef f(): raise ValueError(SECRET)\nt = threading.Thread(target=f, name=SECRET)\n"
    "t.start(); t.join()",
    "the end": "raise ValueError(SECRET)",
    "a child": "from velox.runtime.processes.process import spawn\nimport os\n"
    "def work(): raise ValueError(SECRET)\nos.waitpid(spawn(work), 0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("code", ESCAPES.values(), ids=ESCAPES)
def test_what_others_say_is_told_without_their_words(code: str) -> None:
    """Libraries, warnings and ends of threads and processes go through the same log, as one line."""
    before = f"import sys\nfrom velox.observe.oplog import take_over\ntake_over(sys.stderr)\nSECRET = {SECRET!r}\n"

    done = subprocess.run(
        [sys.executable, "-c", before + code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(lines) == 1 and lines[0]["level"] in ("warning", "error", "critical"), done.stderr
    assert SECRET not in done.stderr + done.stdout


def test_library_below_a_warning_says_nothing() -> None:
    """HTTP libraries log each header at debug level; nobody turns that on by accident."""
    code = "import sys, logging\nfrom velox.observe.oplog import take_over\ntake_over(sys.stderr)\n"
    code += "logging.getLogger('hpack').debug('%s', 'x'); logging.getLogger('h2').info('y')"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=30, check=False)

    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)
    assert logging.getLogger("hpack").level == logging.NOTSET
