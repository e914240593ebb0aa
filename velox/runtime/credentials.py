"""The keys and the certificate of the gateway: the supervisor watches their files, each worker follows.

Knows: when a file has changed, and that a file which can't be used changes nothing. Does not know: how a key or a
certificate is written (settings/), or what connections do with it.

Files may be written over, replaced, or reached through a symbolic link that is swapped (Kubernetes, certbot): what
counts is what the path leads to, once it has settled (policy/settled.py). Keys are compared by content. Certificate and
key are two files that change one after the other, so a pair must not fit for a while before an error is logged.
"""

from __future__ import annotations

import hashlib
import logging
import math
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from velox.accounts.snapshot import MOST_SNAPSHOT_BYTES, SnapshotReader, snapshot_path
from velox.gateway.auth import Authenticator
from velox.net.client.tls import TlsIngress
from velox.net.client.tls_context import ServerCertificate, renewed_context, server_context
from velox.policy.settled import Settled
from velox.settings import Settings
from velox.settings.certificates import CertificateError, read_certificate
from velox.settings.key_file import KeyFile
from velox.settings.keys import key_file_end, merged, read_key_file, with_managed
from velox.settings.problems import Problem
from velox.settings.tree import FileEnd, read_regular_file
from velox.shm.snapshot import SharedSnapshot
from velox.shm.status import GatewayStatus
from velox.types import KeyEntry

__all__ = [
    "CLOCK_NS",
    "Certificates",
    "FileState",
    "KeyChange",
    "KeyWatch",
    "LostKeysError",
    "file_state",
    "gone_of",
    "some_of",
]

_MANAGED_S: Final = 0.25
_KEYS_BYTES: Final = 256 * 2**20  # more than settings/keys.py lets through; untouched pages take no memory
# The file system's clock may be this much behind the system's.
CLOCK_NS: Final = 20_000_000


FileState: TypeAlias = tuple[int, ...] | str


def file_state(path: str) -> FileState:
    """Return what differs when a file has changed; the last is the later of its two times, in nanoseconds."""
    try:
        found = Path(path).stat()
    except OSError as exc:
        return exc.strerror or "gone"
    # The time of the last change of the inode can't be set back, unlike that of the content.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class KeyChange(NamedTuple):
    """A change of the keys. gone: digests, one after the other. come: entries that are new or other, pickled in parts.

    They pass through the gateway's own memory only.
    """

    number: int
    gone: bytes
    come: tuple[bytes, ...]

    @property
    def n_bytes(self) -> int:
        """How much it is."""
        return len(self.gone) + sum(map(len, self.come))


class LostKeysError(Exception):
    """A worker was not there for so many changes that it can't know which keys hold."""


def gone_of(digests: bytes) -> list[bytes]:
    """Return the digests of a change."""
    return [digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)]


def some_of(chunk: bytes) -> list[KeyEntry]:
    """Return the entries of one part of a change."""
    entries: list[KeyEntry] = pickle.loads(chunk)  # noqa: S301 - it was never outside of the gateway's own memory
    return entries


_DIGEST_BYTES: Final = 32
_PROTOCOL: Final = pickle.HIGHEST_PROTOCOL
# Entries that a worker takes over in one step: some 2 ms.
_CHUNK: Final = 250
# Workers look four times a second, the file is read twice a second: none misses so many.
_MOST_CHANGES: Final = 64
_LOG_BYTES: Final = 16 * 2**20


class KeyWatch:
    """Of one gateway; a worker has the copy that it was forked with.

    keys: those that hold, in the supervisor; in a worker those of its start. auth: who has which of them.
    wall: Unix time in seconds, by which keys expire.
    """

    def __init__(
        self, settings: Settings, status: GatewayStatus, logger: logging.Logger, wall: Callable[[], float] = time.time
    ) -> None:
        self._wall: Final = wall
        self._all = settings.api_keys  # also those that have expired
        self._managed: Final = (
            ManagedKeys(settings.ledger, logger) if settings.managed_keys and settings.ledger is not None else None
        )
        self.keys = _in_force(self._all, wall())
        self._expires_s = _next_expiry(self.keys)
        # Made once: processes that are forked share it until they change it.
        self.auth: Final = Authenticator(self.keys, asks=settings.asks_for_keys)
        self._number = 0  # of changes that this process knows of
        self._log: list[KeyChange] = []
        self._snapshot: Final[SharedSnapshot[tuple[KeyChange, ...]]] = SharedSnapshot(_KEYS_BYTES)
        self._path: Final = settings.api_keys_file
        self._file: Final = KeyFile(self._path or "")
        self._end = settings.key_file_end
        self._status: Final = status
        self._logger: Final = logger
        self._content: Final = Settled(b"")  # by its hash; what the settings were read from is looked at once more
        # What the file was when its content had this hash; None: it is read again. A file of 100,000 keys has 12 MB.
        self._hashed: tuple[FileState, bytes] | None = None
        status.n_keys = len(self.keys)

    def __repr__(self) -> str:
        return f"<KeyWatch {self._path} keys={len(self.keys)}>"

    def look(self, now_s: float) -> None:
        """Look at the file if it is time. For the supervisor, four times a second. now_s: monotonic."""
        if self._wall() >= self._expires_s:
            n_before = len(self.keys)
            self._publish(_in_force(self._all, self._wall()))
            self._logger.info("keys that have expired: %d", n_before - len(self.keys))
        if self._managed is not None:
            self._look_at_managed(self._managed, now_s)
        if self._path is None or not self._content.is_due(now_s):
            return
        state, now_ns = file_state(self._path), time.time_ns()
        if self._hashed is not None and self._hashed[0] == state and not self._content.see(self._hashed[1], now_s):
            return
        content, why = _read(self._path)
        mark = hashlib.sha256(content if why is None else why.encode()).digest()
        is_still = not isinstance(state, str) and state[-1] < now_ns - CLOCK_NS
        self._hashed = (state, mark) if is_still else None
        if self._content.see(mark, now_s):
            self._content.take(mark)
            self._judge(content, why)

    def replace_fixed(self, entries: Iterable[KeyEntry]) -> None:
        """Let these take the place of the keys that are not of the file. Of `entries`, those of the file don't count.

        For the supervisor, when the configuration has changed.
        """
        of_files = [key for key in self._all if key.in_file]
        others, _ = merged((*(key for key in entries if key.is_fixed), *of_files))
        self._all, _ = with_managed(others, self._of_managed)
        keys = _in_force(self._all, self._wall())
        if keys != self.keys:
            self._publish(keys)

    @property
    def _of_managed(self) -> tuple[KeyEntry, ...]:
        return () if self._managed is None else self._managed.keys

    def _look_at_managed(self, managed: ManagedKeys, now_s: float) -> None:
        found = managed.look(now_s)
        if found is None:
            return
        keys, problems = with_managed(tuple(key for key in self._all if not key.is_managed), found)
        if problems:
            self._logger.error("managed keys can't be used, the keys stay as they were: %s", problems[0])
            return
        self._all = keys
        in_force = _in_force(keys, self._wall())
        if in_force != self.keys:
            self._publish(in_force)

    def take_over(self) -> Sequence[KeyChange]:
        """Return the changes that the supervisor has found since the last time. For a worker. Raises LostKeysError."""
        log = self._snapshot.read_new() or ()
        new = [change for change in log if change.number > self._number]
        if new and new[0].number > self._number + 1:
            raise LostKeysError
        self._number += len(new)
        return new

    def _judge(self, content: bytes, why: str | None) -> None:
        problems: list[Problem] = []
        keys: tuple[KeyEntry, ...] = ()
        end = key_file_end(content)
        if why is None:
            why = _looks_cut_off(self._end, end)
        if why is None:
            found, problems = self._file.read(content)
            keys, doubtful = merged((*(key for key in self._all if key.is_fixed), *found))
            keys, too_many = with_managed(keys, self._of_managed)
            problems = problems or doubtful or too_many
            why = str(problems[0]) if problems else None
        if why is None:
            self._end, self._all = end, keys
            self._take(_in_force(keys, self._wall()))
            return
        self._status.key_file_is_bad = True
        self._status.count_key_file(taken=False)
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        self._logger.error("VELOX_API_KEYS_FILE can't be used, the keys stay as they were: %s%s", why, more)

    def _take(self, keys: tuple[KeyEntry, ...]) -> None:
        was_bad, self._status.key_file_is_bad = self._status.key_file_is_bad, False
        before, now = ({key.digest for key in self.keys}, {key.digest for key in keys})
        if keys == self.keys:
            if was_bad:
                self._logger.info("VELOX_API_KEYS_FILE can be used again, and holds the same keys")
            return
        self._publish(keys)
        self._status.count_key_file(taken=True)
        self._logger.info(
            "VELOX_API_KEYS_FILE changed: %d keys more, %d fewer; clients must present one of %d",
            *(len(now - before), len(before - now), len(keys)),
        )

    def _publish(self, keys: tuple[KeyEntry, ...]) -> None:
        before = {key.digest: key for key in self.keys}
        gone = before.keys() - {key.digest for key in keys}
        come = [key for key in keys if (known := before.get(key.digest)) is not key and known != key]
        self.keys = keys
        self._expires_s = _next_expiry(keys)
        self.auth.change(gone, come)
        self._number += 1
        chunks = tuple(pickle.dumps(come[at : at + _CHUNK], _PROTOCOL) for at in range(0, len(come), _CHUNK))
        self._log.append(KeyChange(self._number, b"".join(gone), chunks))
        while len(self._log) > _MOST_CHANGES or (
            len(self._log) > 1 and sum(change.n_bytes for change in self._log) > _LOG_BYTES
        ):
            del self._log[0]
        self._snapshot.publish(tuple(self._log))
        self._status.n_keys = len(keys)


class ManagedKeys:
    """The keys that are made while the gateway runs, as the ledger's process writes them down. keys: the last ones."""

    def __init__(self, folder: str, logger: logging.Logger) -> None:
        self._path: Final = snapshot_path(folder)
        self._logger: Final = logger
        self._reader: Final = SnapshotReader()
        self._state: FileState | None = None
        self._due_s = 0.0
        self._problem = ""
        self.keys: tuple[KeyEntry, ...] = ()

    def __repr__(self) -> str:
        return f"<ManagedKeys {self._path} {len(self.keys)}>"

    def look(self, now_s: float) -> tuple[KeyEntry, ...] | None:
        """Return the keys if there are others now. The file is replaced as a whole: it need not settle."""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + _MANAGED_S
        state = file_state(self._path)
        if state == self._state:
            return None
        try:
            found = self._reader.read(read_regular_file(self._path, MOST_SNAPSHOT_BYTES))
        except FileNotFoundError:
            return None  # none was ever made: it is written in a moment
        except (OSError, ValueError) as exc:
            if str(exc) != self._problem:
                self._problem = str(exc)
                self._logger.error("managed keys can't be read, they stay as they were: %s: %s", self._path, exc)
            return None
        self._state, self._problem, self.keys = state, "", found
        return found


def _in_force(keys: tuple[KeyEntry, ...], now_s: float) -> tuple[KeyEntry, ...]:
    """Return the keys that have not expired."""
    if all(key.expires_s is None or key.expires_s > now_s for key in keys):
        return keys
    return tuple(key for key in keys if key.expires_s is None or key.expires_s > now_s)


def _next_expiry(keys: Iterable[KeyEntry]) -> float:
    return min((key.expires_s for key in keys if key.expires_s is not None), default=math.inf)


def _looks_cut_off(before: FileEnd, now: FileEnd) -> str | None:
    """Return why a file of keys is not taken to be whole. Half a key would be a key, and a short one lets people in."""
    if before.has_mark and not now.has_mark:
        return "its last line `# end` is gone, which the file in force has: it looks cut off"
    if before.is_line and not now.is_line:
        return "its last line has no end, unlike the file in force: it looks cut off"
    return None


def _read(path: str) -> tuple[bytes, str | None]:
    """Return the file's content, or why it has none."""
    try:
        return read_key_file(path), None
    except OSError as exc:
        return b"", f"it can't be read ({exc.strerror})"
    except ValueError as exc:
        return b"", str(exc)


_BAD_FOR_S: Final = 2.0
_CERTIFICATE_BYTES: Final = 8 * 2**20  # three files of 1 MiB, as text
_Mark: TypeAlias = tuple[FileState, ...]


class Certificates:
    """Of one gateway; a worker has the copy that it was forked with. Raises CertificateError."""

    def __init__(
        self,
        files: tuple[str, str, str | None],
        protocols: tuple[str, ...],
        status: GatewayStatus,
        logger: logging.Logger,
    ) -> None:
        self._files: Final = files  # certificate, key, authorities of clients
        self._protocols: Final = protocols
        self._status: Final = status
        self._logger: Final = logger
        self._snapshot: Final[SharedSnapshot[ServerCertificate]] = SharedSnapshot(_CERTIFICATE_BYTES)
        # Before the files are read: what changes while they are is a change.
        self._files_seen: Final = Settled(self._mark())
        self._now = read_certificate(*files)
        self.context = server_context(self._now, protocols)
        status.tls_not_after_s = self._now.not_after_s
        self._warn_if_expired()

    def __repr__(self) -> str:
        return f"<Certificates {self._files[0]} until {self._now.not_after}>"

    @classmethod
    def of(cls, settings: Settings, status: GatewayStatus, logger: logging.Logger) -> Certificates | None:
        """Return what the settings ask for; None: no TLS. Raises CertificateError."""
        if settings.tls_cert_file is None or settings.tls_key_file is None:
            return None
        files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
        protocols = ("h2", "http/1.1") if settings.listen_http2 else ("http/1.1",)
        return cls(files, protocols, status, logger)

    # -- the supervisor -------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """Look at the files if it is time. now_s: monotonic."""
        if not self._files_seen.is_due(now_s):
            return
        mark = self._mark()
        if self._files_seen.see(mark, now_s):
            self._judge(mark, now_s)

    def _judge(self, mark: _Mark, now_s: float) -> None:
        try:
            found = read_certificate(*self._files)
            context = renewed_context(self.context, self._now, found, self._protocols)
        except (CertificateError, OSError) as exc:
            if self._files_seen.doubtful_s(now_s) >= _BAD_FOR_S:
                self._files_seen.take(mark)
                self._status.count_tls_reload(taken=False)
                self._logger.error("the new certificate can't be used, the one before stays: %s", exc)
            return
        self._files_seen.take(mark)
        if found == self._now:
            return
        self._now, self.context = found, context
        self._snapshot.publish(found)
        self._status.tls_not_after_s = found.not_after_s
        self._status.count_tls_reload(taken=True)
        self._logger.info("the new TLS files are in use; the certificate is valid until %s", found.not_after)
        self._warn_if_expired()

    def _warn_if_expired(self) -> None:
        if self._now.is_expired:
            self._logger.warning("the certificate in VELOX_TLS_CERT has expired on %s", self._now.not_after)

    def _mark(self) -> _Mark:
        """Return what differs when one of the files has changed."""
        return tuple(file_state(path) for path in self._files if path is not None)

    # -- a worker -------------------------------------------------------------------------------------

    def follow(self, tls: TlsIngress) -> None:
        """Use the certificate that came since the last call, if one did, for the handshakes from now on."""
        found = self._snapshot.read_new()
        if found is None:
            return
        try:
            self.context = renewed_context(self.context, self._now, found, self._protocols)
        except OSError as exc:
            # It was good a moment ago, in the supervisor: this is about memory or descriptors.
            self._logger.error("the new certificate could not be taken over: %s", exc.strerror)
            return
        self._now = found
        tls.context = self.context
