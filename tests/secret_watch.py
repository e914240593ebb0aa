"""The watch over the whole suite: all that gateways wrote, searched at its end for every secret that was used in it.

Knows: secrets as they are registered, what was written, how a secret could look in it. Does not know: gateways; the
harness brings both. No key, header or body is in a log, a metric, a profile or an error of our own.

The harness registers by itself: the keys, tokens and private keys in the settings of a gateway, the credentials and
longer headers of requests, the ends of their bodies, their queries. It keeps what the gateway wrote: standard output
and error, pages of the admin listener, profiles, Velox's own errors. A secret that is in any of them fails the run, by
a line that says which, in what, on which line, and in which test; the text itself stays in the folder it names.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import pytest
import yaml

__all__ = [
    "WATCH",
    "SecretWatch",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

# Shorter ones ("k", "secret") are words that stand in anything.
_SHORTEST: Final = 8
_SHORTEST_HEADER: Final = 12
_BODY_BYTES: Final = 28
# A piece of a body says something only if it is not "xxxxxxxx", which is in the names of models too.
_DISTINCT_BYTES: Final = 10
# Of all requests; what the others say is like it. So many are searched for in a second.
_MOST_TEXTS: Final = 300
# What may well be said of a request: its framing, and what it is about.
_OPEN_HEADERS: Final = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
        "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
        # Their values are a method and the names of headers, which errors name too.
        "access-control-request-method", "access-control-request-headers",
        # They go back to their client.
        "origin", "x-request-id",
        # Where a client is, and its session: the access log has them.
        "x-forwarded-for", "session-id", "session_id", "x-session-id", "x-session-affinity", "x-opencode-session",
        "x-amp-thread-id", "x-claude-code-session-id", "conversation_id",
    }
)  # fmt: skip
_SECRET_FIELDS: Final = frozenset({"api_keys", "openai_api_key", "admin_token"})
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_FOUND: Final = "secrets found"
_MOST_FINDINGS: Final = 50  # that are shown; one mistake may be on every line of a log
_GZIP: Final = b"\x1f\x8b"
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", re.DOTALL)


class SecretWatch:
    """Secrets, and files of what was written. Nothing is made on disk before there is something to keep.

    is_on: keep what is written. Off where nobody looks at it in the end: the same harness runs outside of pytest too.
    home: where the folder is made; None: with the other temporary files.
    """

    def __init__(self, *, is_on: bool = True, home: Path | None = None) -> None:
        self.is_on = is_on
        self._home: Final = home
        self._secrets: dict[bytes, str] = {}
        self._folder: Path | None = None
        self._n_files = self._n_texts = 0
        self._seen: set[int] = set()
        self.found: list[str] = []

    # -- secrets ------------------------------------------------------------------------------------

    def secret(self, value: str | bytes, what: str) -> None:
        """Register a secret. what: as a finding calls it."""
        text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        if len(text) >= _SHORTEST:
            self._secrets.setdefault(text, what)

    def settings(self, env: Mapping[str, str]) -> None:
        """Register the secrets in a gateway's settings, and in the files that they name."""
        for name, value in env.items():
            if name in ("VELOX_API_KEYS", "OPENAI_API_KEY") or name.endswith("_TOKEN"):
                self._keys(value.split(","), name)
            elif name.endswith(("_KEYS_FILE", "_TOKEN_FILE")):
                self._keys((_COMMENT.sub("", line) for line in _text(value).splitlines()), name)
            elif name.endswith(("_KEY", "_CERT", "_KEY_FILE", "_CERT_FILE")):
                for block in _PRIVATE_KEY.findall(_text(value)):
                    for line in block.split():
                        self.secret(line, f"the private key of {name}")
            elif name == "VELOX_CONFIG":
                with contextlib.suppress(yaml.YAMLError):
                    self._fields(yaml.safe_load(_text(value)))

    def request(self, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Register what is nobody's business in a request: longer headers, the query, the end of the body."""
        if self._n_texts > _MOST_TEXTS:
            return
        self._n_texts += 1
        for name, value in headers.items():
            if name.lower() not in _OPEN_HEADERS and len(value) >= _SHORTEST_HEADER:
                self.secret(value.removeprefix("Bearer "), f"the request header {name}")
        self._text(target.partition("?")[2].encode("latin-1", "replace"), "the query of a request")
        self._text((body or b"").rstrip()[-_BODY_BYTES:], "the body of a request")

    def _text(self, text: bytes, what: str) -> None:
        if len(set(text)) >= _DISTINCT_BYTES:
            self.secret(text, what)

    def _keys(self, keys: Iterable[str], what: str) -> None:
        for key in keys:
            if not key.strip().startswith("sha256:"):
                self.secret(key.strip(), what)

    def _fields(self, document: object) -> None:
        if not isinstance(document, dict):
            return
        for name in _SECRET_FIELDS & document.keys():
            entries = document[name] if isinstance(document[name], list) else str(document[name]).split(",")
            keys = [str(entry.get("key", "")) if isinstance(entry, dict) else str(entry) for entry in entries]
            self._keys(keys, f"{name} of VELOX_CONFIG")

    # -- what was written ---------------------------------------------------------------------------

    def open(self, what: str) -> IO[bytes]:
        """Return a file to write to; whoever asked for it closes it."""
        if not self.is_on:
            return Path(os.devnull).open("wb")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="velox-wrote-", dir=self._home))
        self._n_files += 1
        test = os.environ.get("PYTEST_CURRENT_TEST", "no test").rpartition(" ")[0]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{test}-{what}")[-120:]
        return (self._folder / f"{self._n_files:06}-{name}").open("wb")

    def note(self, what: str, *texts: bytes) -> None:
        """Keep what was written as a whole, such as a page; one that differs in figures only is kept once."""
        known = hash((what, *(text.translate(None, b"0123456789") for text in texts)))
        if known in self._seen:
            return
        self._seen.add(known)
        with self.open(what) as file:
            for text in texts:
                file.write(gzip.decompress(text) if text.startswith(_GZIP) else text)  # a profile

    # -- the search ---------------------------------------------------------------------------------

    def search(self) -> list[str]:
        """Return a line for each secret in each file: which, where, and the text around it without the secret."""
        if self._folder is None:
            return self.found
        forms = {form: what for secret, what in self._secrets.items() for form in _forms(secret)}
        for place, line in itertools.islice(_grep(forms, self._folder), _MOST_FINDINGS):
            form = max((form for form in forms if form in line), key=len)
            at = line.index(form)
            around = line[max(0, at - 60) : at] + b"<HERE>" + line[at + len(form) : at + len(form) + 40]
            self.found.append(f"{place}: {forms[form]} was written: {around!r}")
        return self.found

    def close(self) -> None:
        """Remove the files, unless something was found in them."""
        if self._folder is not None and not self.found:
            shutil.rmtree(self._folder)
        self._folder = None


def _forms(secret: bytes) -> set[bytes]:
    """Return a secret as it stands on a line, and as JSON writes it inside a string."""
    longest_line = max(secret.split(b"\n"), key=len)
    return {form for form in (longest_line, json.dumps(secret.decode("latin-1"))[1:-1].encode()) if form}


def _grep(texts: Iterable[bytes], folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield ("FILE:LINE", the line) for each line with one of the texts. Grep: 30 MB and 300 texts take no time."""
    with tempfile.NamedTemporaryFile() as patterns:
        patterns.write(b"".join(text + b"\n" for text in texts))
        patterns.flush()
        command = ["grep", "--recursive", "--fixed-strings", "--line-number", "--text", "--null"]
        done = subprocess.run(
            [*command, f"--file={patterns.name}", str(folder)], env={"LC_ALL": "C"}, capture_output=True, check=False
        )
    assert done.returncode in (0, 1), done.stderr
    for found in done.stdout.splitlines():
        path, _, rest = found.partition(b"\0")
        number, _, line = rest.partition(b":")
        yield f"{path.decode()}:{number.decode()}", line


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""  # the gateway says so itself


# One for the whole run: the harness writes to it, the hooks below read it at the end.
WATCH: Final = SecretWatch(is_on=False)


def pytest_configure() -> None:
    """A run begins, whose end will be searched."""
    WATCH.is_on = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Search; a finding makes the run fail. One of several processes of a run (pytest-xdist) tells the first."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_FOUND] = WATCH.search()
    elif WATCH.search() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    WATCH.close()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what another process of this run has found."""
    WATCH.found += getattr(node, "workeroutput", {}).get(_FOUND, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was found."""
    if WATCH.found:
        terminalreporter.section("SECRETS IN WHAT VELOX WROTE", sep="=", red=True)
        for line in WATCH.found:
            terminalreporter.write_line(line)
