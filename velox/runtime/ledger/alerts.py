"""Alerts of budgets in the ledger's process: a look at all budgets, and a thread that tells a webhook.

Knows: when budgets are looked at, what survives a restart, and when a webhook is asked. Does not know: which thresholds
are reached (policy/budgets/alerts.py), or how one is asked (webhook.py). No request and no record waits for any of it.

A file in the ledger's folder says what was told, and what the webhook has not taken yet. It is written before the
webhook is asked: after a crash an alert may come twice, with the same id, but is not lost.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from velox.policy.budgets.alerts import AlertBook, Level, Told
from velox.settings import Settings
from velox.settings.mail_url import is_mail_url, mail_target
from velox.shm.budget_table import AlertCount, BudgetMemory

__all__ = ["AlertWatch"]

_LOOK_S: Final = 1.0
# Looking may take one part of so many of the time, however many budgets there are.
_LOOK_PART: Final = 20
_FORGET_S: Final = 3600.0
_MOST_WAITING: Final = 256
_TRIES: Final = 6
_FIRST_PAUSE_S: Final = 1.0
_MOST_PAUSE_S: Final = 60.0
_LEAVE_S: Final = 2.0
_FILE: Final = "alerts.json"


class AlertWatch:
    """Of one gateway.

    hook: sends an alert, and says why it was not taken (Webhook.send); None: alerts are logged and counted only. pause:
    waits, True if it is time to end. write: returns what is sent of an alert; None: its fields.
    """

    def __init__(
        self,
        memory: BudgetMemory,
        folder: Path,
        logger: logging.Logger,
        hook: Callable[[bytes], str] | None = None,
        pause: Callable[[float], bool] | None = None,
        write: Callable[[Mapping[str, Any]], bytes] | None = None,
    ) -> None:
        self._to_body: Final = write or _plain
        self._memory: Final = memory
        self._path: Final = folder / _FILE
        self._logger: Final = logger
        self._hook: Final = hook
        self._ends: Final = threading.Event()
        self._pause: Final = self._ends.wait if pause is None else pause
        self._lock: Final = threading.Lock()
        self._queue: Final[queue.SimpleQueue[Mapping[str, Any] | None]] = queue.SimpleQueue()
        self._waiting: Final[deque[Mapping[str, Any]]] = deque()
        self._next_look_s = self._next_forget_s = 0.0
        self._thread: threading.Thread | None = None
        self._book: Final = AlertBook(self._read())
        if self._waiting:
            self._begin()  # last: the thread writes what the book holds

    def __repr__(self) -> str:
        return f"<AlertWatch {self._book!r} waiting={len(self._waiting)}>"

    @classmethod
    def of(
        cls, settings: Settings, memory: BudgetMemory | None, folder: Path, logger: logging.Logger
    ) -> AlertWatch | None:
        """Return that of a gateway; None: it has no budgets."""
        if memory is None:
            return None
        if settings.alert_webhook is None:
            return cls(memory, folder, logger)
        # Here, not above: few gateways have one (on_demand.py).
        if is_mail_url(settings.alert_webhook.reveal()):
            from velox.runtime.ledger.mail import Mail

            return cls(memory, folder, logger, Mail(mail_target(settings.alert_webhook.reveal())).send)
        from velox.runtime.ledger.alert_formats import written
        from velox.runtime.ledger.webhook import Webhook

        # Only a receiver of Velox's own format knows what a signature is.
        secret = settings.alert_secret if settings.alert_format == "velox" else None
        webhook = Webhook(settings.alert_webhook, secret, proxies=settings.proxies)
        write = partial(written, form=settings.alert_format, secret=settings.alert_secret)
        return cls(memory, folder, logger, webhook.send, write=write)

    def turn(self, monotonic_s: float, now_s: float) -> None:
        """Look if it is time. now_s: Unix time."""
        if monotonic_s < self._next_look_s:
            return
        began_s = time.monotonic()
        new = []
        for row in self._memory.used_rows():
            state = self._memory.state(row, now_s)
            if state is not None and state.label.soft:
                new += self._book.look(
                    self._memory.name(row),
                    *(state.label, state.window, state.limit, state.spent),
                    is_refusing=state.has_refused,
                    n_refused=state.n_refused,
                )
        for alert in new:
            self._memory.count_alert(AlertCount.REACHED)
            self._logger.warning("%s", alert.text, extra={"reason": "budget_threshold"})
        if monotonic_s >= self._next_forget_s:
            self._next_forget_s = monotonic_s + _FORGET_S
            self._book.forget(now_s)
        if new:
            told_at = {"time": int(now_s)}
            self._wait_for([{**alert.fields(), **told_at} for alert in new])
        self._next_look_s = monotonic_s + max(_LOOK_S, _LOOK_PART * (time.monotonic() - began_s))

    def close(self) -> None:
        """End the thread; what was not taken is sent after the next start."""
        self._ends.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    # -- the webhook --------------------------------------------------------------------------------

    def _wait_for(self, alerts: list[Mapping[str, Any]]) -> None:
        if self._hook is None:
            self._write()
            return
        with self._lock:
            for alert in alerts:
                if len(self._waiting) >= _MOST_WAITING:
                    self._memory.count_alert(AlertCount.DROPPED)
                    self._logger.error(
                        "budget alert dropped: %(alerts)d wait already for VELOX_ALERT_WEBHOOK",
                        {"alerts": _MOST_WAITING},
                    )
                    continue
                self._waiting.append(alert)
                self._queue.put(alert)
        self._write()
        self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="alerts", daemon=True)
            self._thread.start()

    def _send_all(self) -> None:
        while (alert := self._queue.get()) is not None:
            if not self._send(alert):
                return
            with self._lock:
                self._waiting.remove(alert)
            self._write()

    def _send(self, alert: Mapping[str, Any]) -> bool:
        """Send one alert, or give it up; False: it is time to end."""
        assert self._hook is not None, "else there is no thread"
        body = self._to_body(alert)
        pause_s, why = _FIRST_PAUSE_S, ""
        for n in range(_TRIES):
            if n:
                if self._pause(pause_s * (0.5 + random.random() / 2)):
                    return False
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            why = self._hook(body)
            if not why:
                self._memory.count_alert(AlertCount.SENT)
                return True
            if why.startswith("refused"):
                break
        self._memory.count_alert(AlertCount.FAILED)
        self._logger.error("budget alert could not be sent to VELOX_ALERT_WEBHOOK: %(error)s", {"error": why})
        return True

    # -- the file -----------------------------------------------------------------------------------

    def _read(self) -> Mapping[str, Told]:
        try:
            found = json.loads(self._path.read_bytes())
            told = {str(name): Told(*map(_number, each[:3])) for name, each in found["told"].items()}
            for name in found.get("refusing", ()):
                told[name] = told[name]._replace(is_refusing=True)
            for name, levels in found.get("limits", {}).items():
                told[name] = told[name]._replace(levels=tuple(Level(*map(_amount, each)) for each in levels))
            waiting = [each for each in found["waiting"][:_MOST_WAITING] if isinstance(each, dict)]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._logger.warning(
                "%(file)s can't be read: budget alerts of open windows may be sent again", {"file": self._path.name}
            )
            return {}
        if self._hook is not None and waiting:
            self._waiting.extend(waiting)
            for each in waiting:
                self._queue.put(each)
        return told

    def _write(self) -> None:
        with self._lock:
            told = list(self._book.told.items())  # at once: this may be the thread
            # An earlier Velox reads three numbers of each, and leaves out what it does not know.
            three, refusing = {name: each[:3] for name, each in told}, [name for name, each in told if each.is_refusing]
            limits = {name: each.levels for name, each in told if each.levels}
            found = {"told": three, "refusing": refusing, "limits": limits, "waiting": list(self._waiting)}
            content = json.dumps(found).encode()
            new = self._path.with_name(f"{_FILE}.new")
            try:
                with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                    file.write(content)
                new.replace(self._path)
            except OSError as exc:
                self._logger.error(
                    "%(file)s can't be written: %(error)s; after a restart budget alerts may be sent again",
                    {"file": _FILE, "error": exc.strerror},
                )


def _plain(alert: Mapping[str, Any]) -> bytes:
    return json.dumps(alert, ensure_ascii=True).encode()


def _amount(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("no number")
    return value


def _number(value: object) -> Any:
    if value is not None and not isinstance(value, int):
        raise TypeError("no number")
    return value
