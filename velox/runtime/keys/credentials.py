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
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from velox.gateway.auth import Authenticator
from velox.net.client.tls import TlsIngress
from velox.net.client.tls_context import ServerCertificate, renewed_context, server_context
from velox.observe.metrics import WorkerMetrics
from velox.outcomes import KeyHolder
from velox.policy.settled import Settled
from velox.policy.web_origins import WebOrigins
from velox.runtime.file_state import FileState, file_state
from velox.runtime.keys.comparison import KeyComparison
from velox.runtime.keys.corrections import KeyCorrections
from velox.runtime.keys.frames import publish_all, publish_update
from velox.runtime.keys.managed_keys import ChangedKey, ManagedKeys
from velox.settings import Settings
from velox.settings.callers.key_file import KeyFile
from velox.settings.callers.keys import MOST_KEYS, key_file_end, merged, read_key_file, with_managed
from velox.settings.checks.certificates import CertificateError, read_certificate
from velox.settings.checks.contradictions import unkept_budgets
from velox.settings.problems import Problem
from velox.settings.yaml.tree import FileEnd
from velox.shm.change_log import ChangeLog
from velox.shm.snapshot import SharedSnapshot
from velox.shm.status import GatewayStatus
from velox.types import KeyEntry, KeyUpdate

__all__ = [
    "CLOCK_NS",
    "Certificates",
    "KeyWatch",
]

_KEYS_BYTES: Final = 256 * 2**20  # more than settings/callers/keys.py lets through; untouched pages take no memory
# The file system's clock may be this much behind the system's.
CLOCK_NS: Final = 20_000_000


# Workers look four times a second, and one that stands still for 10 s is killed: after this nobody reads old changes.
_FORGET_S: Final = 60.0
_FORGET_BYTES: Final = 2**20


class KeyWatch:
    """Of one gateway; a worker has the copy that it was forked with.

    auth: who has which of the keys.
    log: of changes, for workers. wall: Unix time in seconds, by which keys expire.
    """

    def __init__(
        self,
        settings: Settings,
        status: GatewayStatus,
        metrics: WorkerMetrics,
        logger: logging.Logger,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall: Final = wall
        # Those that are not managed, also the expired ones.
        self._others = tuple(key for key in settings.api_keys if not key.is_managed)
        self._digests = frozenset(key.digest for key in self._others)
        self._managed: Final = _managed(settings, logger)
        wall_s = wall()
        active = _active(settings.api_keys, wall_s)
        self._by_digest = {key.digest: key for key in active}
        self._keys: tuple[KeyEntry, ...] | None = active
        self._expires_s = _next_expiry(active)
        self._expired_s = _last_expiry(settings.api_keys, wall_s)
        self._is_full = False
        # Made once: processes that are forked share it until they change it.
        self.auth: Final = Authenticator(
            active,
            requires_keys=settings.requires_keys,
            hosts=settings.hosts,
            pages=WebOrigins(settings.cors_origins),
            secret=_shared_secret(settings),
        )
        self.log: Final = ChangeLog(_KEYS_BYTES)
        self._forget_s = 0.0  # when what is before `_forget_end` may be forgotten, monotonic
        self._forget_end = 0
        self._corrections: Final = KeyCorrections(KeyHolder.SUPERVISOR, metrics, logger)
        self._comparison: Final = KeyComparison(self.auth, self.log)
        self._touched: dict[bytes, None] = {}  # digests that have changed since take_changes()
        self._path: Final = settings.api_keys_file
        self._ledger: Final = settings.ledger
        self._file: Final = KeyFile(self._path or "")
        self._end = settings.key_file_end
        self._status: Final = status
        self._logger: Final = logger
        self._content: Final = Settled(b"")  # by its hash; what the settings were read from is looked at once more
        # What the file was when its content had this hash; None: it is read again. A file of 100,000 keys has 12 MB.
        self._hashed: tuple[FileState, bytes] | None = None
        status.n_keys = len(active)

    def __repr__(self) -> str:
        return f"<KeyWatch {self._path} keys={len(self._by_digest)}>"

    @property
    def keys(self) -> tuple[KeyEntry, ...]:
        """Return the keys that hold, in the supervisor; in a worker those of its start. The same until they change."""
        if self._keys is None:
            self._keys = tuple(self._by_digest.values())
        return self._keys

    @property
    def is_busy(self) -> bool:
        """True while there is more to look at: then look() wants to be called soon."""
        return self._managed is not None and self._managed.is_busy

    def look(self, now_s: float) -> None:
        """Look at the file if it is time. For the supervisor, four times a second. now_s: monotonic."""
        wall_s = self._wall()
        if not self._expired_s <= wall_s < self._expires_s:
            self._expire(wall_s)
        if self._managed is not None and (changed := self._managed.look(now_s)):
            self._change(changed, wall_s)
        self._compare(now_s, wall_s)
        if now_s >= self._forget_s:
            if self.log.n_bytes > _FORGET_BYTES:
                self.log.forget(self._forget_end)
            self._forget_s, self._forget_end = now_s + _FORGET_S, self.log.end
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

    def publish_all(self) -> None:
        """Tell workers all keys: one of them accepts others than it should."""
        publish_all(self.log, self.keys)

    def _compare(self, now_s: float, wall_s: float) -> None:
        """Compare what is accepted with what was read, and what was read with the files, a part at a time."""
        if self._managed is not None and (changed := self._managed.compare(now_s)):
            self._change(changed, wall_s, corrects=True)
        if self._comparison.is_due(now_s):
            self._publish(wall_s, corrects=not self._is_full)  # one that had no place until now is no mistake
        if wrong := self._comparison.look(self._by_digest, now_s):
            self._tell(dict.fromkeys(wrong), corrects=True)

    def _expire(self, wall_s: float) -> None:
        """Take away the keys that have expired; bring back those that have not after all: the clock was set back."""
        before = self._by_digest.keys()
        self._publish(wall_s)
        n_gone, n_back = len(before - self._by_digest.keys()), len(self._by_digest.keys() - before)
        if n_gone:
            self._logger.info("client keys have expired: %(keys)d", {"keys": n_gone})
        if n_back:
            self._logger.info(
                "the clock was set back, expired client keys are active again: %(keys)d", {"keys": n_back}
            )

    def take_changes(self) -> KeyUpdate:
        """Return what the keys that have changed since the last time are now."""
        touched, self._touched = self._touched, {}
        return self._update_of(touched)

    def _update_of(self, digests: Iterable[bytes]) -> KeyUpdate:
        """Return what these are now. Whatever became of a key meanwhile, and in which order: only its end counts."""
        return {digest: self._by_digest.get(digest) for digest in digests}

    def replace_fixed(self, entries: Iterable[KeyEntry]) -> None:
        """Let these take the place of the keys that are not of the file. Of `entries`, those of the file don't count.

        For the supervisor, when the configuration has changed.
        """
        of_files = [key for key in self._others if key.in_file]
        others, _ = merged((*(key for key in entries if key.is_fixed), *of_files))
        self._replace_others(others)

    def _replace_others(self, others: tuple[KeyEntry, ...]) -> bool:
        """Let these take the place of the keys that are not managed; False: the same keys hold as before."""
        self._others, self._digests = others, frozenset(key.digest for key in others)
        return self._publish(self._wall())

    def _change(self, changed: Iterable[ChangedKey], now_s: float, *, corrects: bool = False) -> None:
        """Have other managed keys hold. What a file or the settings say of a key comes first."""
        touched: dict[bytes, None] = {}
        for before, now in changed:
            held = {key.digest: key for key in now if not key.has_expired(now_s)}
            self._expired_s = max(self._expired_s, _last_expiry(now, now_s))
            for key in before:
                known = self._by_digest.get(key.digest)
                # It may be another key's by now.
                if key.digest not in held and known is not None and known.is_managed and known.id == key.id:
                    touched[key.digest] = None
                    del self._by_digest[key.digest]
            for digest, key in held.items():
                if digest not in self._digests and self._by_digest.get(digest) != key and self._has_place(digest):
                    touched[digest] = None
                    self._by_digest[digest] = key
        self._tell(touched, corrects=corrects)

    def _has_place(self, digest: bytes) -> bool:
        return self._is_within(len(self._by_digest) + (digest not in self._by_digest))

    def _is_within(self, n: int) -> bool:
        """Tell whether so many keys may be active; where it is news that they may not, log it."""
        was_full, self._is_full = self._is_full, n > MOST_KEYS
        if self._is_full and not was_full:
            self._logger.error("more than %(keys)d keys: further managed keys are not active", {"keys": MOST_KEYS})
        return not self._is_full

    def _judge(self, content: bytes, why: str | None) -> None:
        problems: list[Problem] = []
        keys: tuple[KeyEntry, ...] = ()
        end = key_file_end(content)
        if why is None:
            why = _looks_cut_off(self._end, end)
        if why is None:
            found, problems = self._file.read(content)
            keys, doubtful = merged((*(key for key in self._others if key.is_fixed), *found))
            _, too_many = with_managed(keys, tuple(self._entries()))
            problems = problems or doubtful or too_many or list(unkept_budgets(self._ledger, (), found))
            why = str(problems[0]) if problems else None
        if why is None:
            self._end = end
            self._take(keys)
            return
        self._status.key_file_is_bad = True
        self._status.count_key_file(taken=False)
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        self._logger.error(
            "VELOX_API_KEYS_FILE can't be used, the keys stay as they were: %(error)s%(more)s",
            {"error": why, "more": more},
        )

    def _take(self, others: tuple[KeyEntry, ...]) -> None:
        was_bad, self._status.key_file_is_bad = self._status.key_file_is_bad, False
        before = set(self._by_digest)
        if not self._replace_others(others):
            if was_bad:
                self._logger.info("VELOX_API_KEYS_FILE can be used again, and holds the same keys")
            return
        self._status.count_key_file(taken=True)
        now = self._by_digest.keys()
        self._logger.info(
            "VELOX_API_KEYS_FILE changed: %(added)d keys more, %(removed)d fewer; clients must present one of %(keys)d",
            {"added": len(now - before), "removed": len(before - now), "keys": len(now)},
        )

    def _entries(self) -> Iterable[KeyEntry]:
        return () if self._managed is None else self._managed.entries()

    def _publish(self, now_s: float, *, corrects: bool = False) -> bool:
        """Have those keys hold that have not expired; False: these are the same as before."""
        all_ = (*self._others, *(key for key in self._entries() if key.digest not in self._digests))
        keys = _active(all_, now_s)
        if not self._is_within(len(keys)):
            # Those of files first, then those that have a place.
            keys = tuple(sorted(keys, key=lambda key: key.is_managed + (key.digest not in self._by_digest)))[:MOST_KEYS]
        self._expires_s, self._expired_s = _next_expiry(keys), _last_expiry(all_, now_s)
        before, self._by_digest = self._by_digest, {key.digest: key for key in keys}
        touched = dict.fromkeys(before.keys() - self._by_digest.keys())
        for key in keys:
            known = before.get(key.digest)
            if known is not key and known != key:
                touched[key.digest] = None
        self._tell(touched, corrects=corrects)
        return bool(touched)

    def _tell(self, touched: Mapping[bytes, None], *, corrects: bool = False) -> None:
        """Have this process and all workers accept these digests as they are now: the one way of every change.

        corrects: nothing has changed; they were accepted otherwise than they should have been.
        """
        if not touched:
            return
        self._keys = None
        self._touched |= touched
        update = self._update_of(touched)
        if corrects:
            self._corrections.report(update, self.auth)
        self.auth.change(update)
        self._expires_s = min(self._expires_s, _next_expiry(key for key in update.values() if key is not None))
        publish_update(self.log, update)
        self._status.n_keys = len(self._by_digest)


def _managed(settings: Settings, logger: logging.Logger) -> ManagedKeys | None:
    if not settings.managed_keys or settings.ledger is None:
        return None
    return ManagedKeys(settings.ledger, tuple(key for key in settings.api_keys if key.is_managed), logger)


def _active(keys: tuple[KeyEntry, ...], now_s: float) -> tuple[KeyEntry, ...]:
    """Return the keys that have not expired."""
    if all(key.expires_s is None or key.expires_s > now_s for key in keys):
        return keys
    return tuple(key for key in keys if key.expires_s is None or key.expires_s > now_s)


def _next_expiry(keys: Iterable[KeyEntry]) -> float:
    return min((key.expires_s for key in keys if key.expires_s is not None), default=math.inf)


def _last_expiry(keys: Iterable[KeyEntry], now_s: float) -> float:
    """Return when the last of those expired that have; 0: none has."""
    return max((key.expires_s for key in keys if key.expires_s is not None and key.expires_s <= now_s), default=0.0)


def _looks_cut_off(before: FileEnd, now: FileEnd) -> str | None:
    """Return why a file of keys is not taken to be whole. Half a key would be a key, and a short one lets people in."""
    if before.has_mark and not now.has_mark:
        return "its last line `# end` is gone, which the active file has: it looks cut off"
    if before.is_line and not now.is_line:
        return "its last line has no end, unlike the active file: it looks cut off"
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
                self._logger.error(
                    "the new TLS certificate can't be used, the previous one stays in use: %(error)s", {"error": exc}
                )
            return
        self._files_seen.take(mark)
        if found == self._now:
            return
        self._now, self.context = found, context
        self._snapshot.publish(found)
        self._status.tls_not_after_s = found.not_after_s
        self._status.count_tls_reload(taken=True)
        self._logger.info(
            "the new TLS files are in use; the certificate is valid until %(not_after)s", {"not_after": found.not_after}
        )
        self._warn_if_expired()

    def _warn_if_expired(self) -> None:
        if self._now.is_expired:
            self._logger.warning(
                "the certificate in VELOX_TLS_CERT has expired on %(not_after)s", {"not_after": self._now.not_after}
            )

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
            self._logger.error(
                "the new TLS certificate could not be loaded in this worker: %(error)s", {"error": exc.strerror}
            )
            return
        self._now = found
        tls.context = self.context


def _shared_secret(settings: Settings) -> bytes | None:
    """Return a secret that gateways with the same keys of upstreams share; None: there are no such keys."""
    digests = sorted(key.digest for upstream in settings.upstreams for key in upstream.keys)
    return hashlib.sha256(b"".join(digests)).digest() if digests else None
