"""The two HTTP/2 engines side by side, as clients of one server that says anything: what each heard and did.

Knows: what both must agree on, and which differences are known. Does not know: what is said (frames.py).

    python -m tests.storm.http2_duel --seconds 600 [--seed N]
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.storm.frames import Blame, Server, Stage, frame
from tests.unit.protocol.http2.http2_peers import REQUEST, Name
from velox.heads import Header
from velox.protocol.http2.engine import Engine, EngineError, EngineSettings
from velox.protocol.http2.engines import engine_factory

__all__ = ["KNOWN", "Duel", "duel"]

# The differences that may be. Each is counted, and none changes what the client of a gateway gets from a sane server.
KNOWN: Final = {
    "wider": "one ends the connection where the other ends the stream (RFC 9113 §5.4.2 allows both)",
    "lost": "one drops the events of the read in which the connection broke; the streams fail either way",
    "deaf": "after GOAWAY, with no stream left, ngh2 reads nothing more, or says so; it is closed then anyway",
    "lag": "ngh2 counts a stream that ended by our last byte until the next read, and may refuse one meanwhile",
    "lax": "h2 lets pass what only a server that is broken or evil says, and what does nobody harm; see LAX",
    "padding": "h2 takes a HEADERS frame of padding alone for an error (RFC 9113 §6.2 does not); nobody sends one",
}
# RFC 9113 §5.1: a reset of an idle stream; §6.10: a CONTINUATION, when its stream is over.
LAX: Final = ("RST_STREAM on an idle stream", "CONTINUATION of nothing")
_UNLIMITED: Final = 1 << 31
_SETTINGS: Final = EngineSettings(stream_window=70_000, connection_window=250_000)
_MAX_STREAMS: Final = 12


class Ear:
    """A handler that writes down what it hears, and objects to what no handler may hear."""

    def __init__(self, name: Name) -> None:
        self.name: Final = name
        self.engine: Engine = engine_factory(name)(self, _SETTINGS, True)
        self.streams: Final[dict[int, list[tuple[object, ...]]]] = collections.defaultdict(list)
        self.bodies: Final[dict[int, bytearray]] = collections.defaultdict(bytearray)
        self.of_connection: Final[collections.Counter[object]] = collections.Counter()
        self.fatal = ""
        self.is_left = False
        self.objections: Final[list[str]] = []
        self._over: Final[set[int]] = set()  # ended by an event or by us
        self._whole: Final[set[int]] = set()
        self.engine.start()
        self.engine.take_output()

    def close(self, stream_id: int) -> None:
        """Hear nothing more of a stream: we have reset it."""
        self._over.add(stream_id)

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        self._check(stream_id, "head", first=True)
        self._note(stream_id, ("head", tuple((bytes(n), bytes(v)) for n, v in headers)), end_stream)
        if stream_id % 14 == 13:  # as a client that left a moment ago, or a head that we don't like
            self.engine.reset(stream_id)
            self.close(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self._check(stream_id, "data")
        self.bodies[stream_id] += data
        self.engine.acknowledge(stream_id, len(data))
        if end_stream:
            self._note(stream_id, (), True)

    def on_stream_end(self, stream_id: int) -> None:
        self._check(stream_id, "end")
        self._note(stream_id, (), True)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        self._check(stream_id, "reset")
        self._over.add(stream_id)
        self.streams[stream_id].append(("reset", error_code))

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self.is_left = True
        self._connection(("goaway", last_stream_id, error_code))

    def on_settings(self) -> None:
        self._connection("settings")

    def on_window(self, stream_id: int) -> None:
        self._connection(None)

    def on_pong(self) -> None:
        self._connection("pong")

    def on_fatal(self, message: str) -> None:
        if self.fatal:
            self.objections.append("two ends of one connection")
        self.fatal = message

    def _connection(self, event: object) -> None:
        if self.fatal:
            self.objections.append(f"{event} after the connection's end")
        if event is not None:
            self.of_connection[event] += 1

    def _note(self, stream_id: int, event: tuple[object, ...], end_stream: bool) -> None:
        if event:
            self.streams[stream_id].append(event)
        if end_stream:
            self._over.add(stream_id)
            self.streams[stream_id].append(("end",))

    def _check(self, stream_id: int, what: str, *, first: bool = False) -> None:
        if self.fatal:
            self.objections.append(f"{what} of {stream_id} after the connection's end")
        if stream_id in self._over:
            self.objections.append(f"{what} of {stream_id}, which is over")
        if first and self.streams[stream_id]:
            self.objections.append(f"a second head of {stream_id}")
        if what in ("data", "end") and not self.streams[stream_id]:
            self.objections.append(f"{what} of {stream_id} before its head")

    @property
    def is_done(self) -> bool:
        """True when the server takes no more and nothing is left to be heard: see KNOWN."""
        return self.is_left and not self.open_ids and not self.fatal

    @property
    def open_ids(self) -> set[int]:
        """The streams that the engine still holds."""
        return set(self.engine._streams)  # type: ignore[attr-defined]


@dataclass
class Duel:
    """One connection's life, for both engines. problems: what they must not differ in, or must not do."""

    seed: int
    problems: list[str] = field(default_factory=list)
    known: collections.Counter[str] = field(default_factory=collections.Counter)
    said: list[str] = field(default_factory=list)
    is_over: bool = False
    uploads: list[int] = field(default_factory=list)  # streams whose request has not ended

    def run(self, *, wrong: bool) -> Duel:
        """Let a server speak until it has said enough or the connection is over. wrong: also against the rules."""
        dice = random.Random(self.seed)
        ears = (Ear("ngh2"), Ear("h2"))
        server = Server(dice)
        self._hear(ears, frame(4, 0, 0) + frame(4, 1, 0), Blame.NONE, dice)
        for _ in range(dice.randint(5, 60)):
            if self.problems or self.is_over or any(ear.fatal or ear.is_done for ear in ears):
                break
            if dice.random() < 0.35:
                self._act(ears, server, dice)
                continue
            wire, blame = b"", Blame.NONE
            for _ in range(dice.choice((1, 1, 1, 2, 5))):
                if wrong and dice.random() < 0.08:
                    name, blame, piece = server.wrong()
                else:
                    name, piece = server.right()
                wire += piece
                if piece:
                    self.said.append(name)
                if blame:
                    break
            self._hear(ears, wire, blame, dice)
        if not self.problems and not self.is_over:
            self._compare(ears)
        return self

    # -- inside -----------------------------------------------------------------------------------

    def _act(self, ears: tuple[Ear, Ear], server: Server, dice: random.Random) -> None:
        """Do the same with both."""
        verb = dice.choice(("request", "request", "request", "upload", "reset", "ping", "forgive"))
        self.said.append(verb.upper())
        if verb == "request" and len(server.stages) < _MAX_STREAMS:
            ids = []
            is_end = dice.random() < 0.7
            for ear in ears:
                try:
                    ids.append(ear.engine.send_request(REQUEST, is_end))
                except EngineError:
                    ids.append(0)
            if ids[1] and not ids[0] and len(ears[0].open_ids) == ears[0].engine.peer_max_streams:
                self.known["lag"] += 1
                self.is_over = True
            elif ids[0] != ids[1]:
                self.problems.append(f"streams opened: {ids}")
            elif ids[0]:
                server.stages[ids[0]] = Stage.ASKED
                if not is_end:
                    body, ended = bytes(dice.choice((0, 5, 3_000, 90_000))), dice.random() < 0.6
                    if not ended:
                        self.uploads.append(ids[0])
                    for ear in ears:
                        ear.engine.send_data(ids[0], body, ended)
        elif verb == "upload" and self.uploads:
            stream_id, is_end = dice.choice(self.uploads), dice.random() < 0.5
            if is_end:
                self.uploads.remove(stream_id)
            for ear in ears:
                ear.engine.send_data(stream_id, b"more", is_end)
        elif verb == "reset" and (stream_id := server.pick(Stage.ASKED, Stage.BEGUN)):
            server.stages[stream_id] = Stage.LEFT
            for ear in ears:
                ear.close(stream_id)
                ear.engine.reset(stream_id)
        elif verb == "ping":
            for ear in ears:
                ear.engine.ping()
        for ear in ears:
            _drain(ear)

    def _hear(self, ears: tuple[Ear, Ear], wire: bytes, blame: Blame, dice: random.Random) -> None:
        """Let both read the same bytes, in the same pieces."""
        cuts = sorted(dice.randrange(len(wire) + 1) for _ in range(dice.choice((0, 0, 1, 3))))
        for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            for ear in ears:
                try:
                    ear.engine.receive(memoryview(wire[begin:end]))
                    _drain(ear)
                except Exception as exc:
                    self.problems.append(f"{ear.name} raised {exc!r}")
        for ear in ears:
            self.problems += [f"{ear.name}: {objection}" for objection in ear.objections]
        if ears[0].is_left and not ears[0].open_ids:
            self.known["deaf"] += 1
        else:
            self._judge(ears, blame)

    def _judge(self, ears: tuple[Ear, Ear], blame: Blame) -> None:
        ngh2, h2 = ears
        last = self.said[-1] if self.said else "SETTINGS"
        if blame is Blame.NONE:
            self.known["padding"] += "invalid padding" in h2.fatal
            found = [f"{ear.name} ended the connection: {ear.fatal}" for ear in ears if ear.fatal]
            self.problems += [problem for problem in found if "invalid padding" not in problem]
        elif blame is Blame.CONNECTION:
            self.known["lax"] += last in LAX and not h2.fatal
            found = [f"{ear.name} let pass: {last}" for ear in ears if not ear.fatal]
            self.problems += [problem for problem in found if problem[:2] != "h2" or last not in LAX]
        else:
            self.known["wider"] += bool(h2.fatal) != bool(ngh2.fatal)

    def _compare(self, ears: tuple[Ear, Ear]) -> None:
        """Both heard the same; of a connection that broke one of them heard the beginning of it."""
        ngh2, h2 = ears
        if ngh2.fatal or h2.fatal or ngh2.is_done:
            self.known["lost"] += bool(ngh2.bodies != h2.bodies or ngh2.streams != h2.streams)
            for stream_id in {*ngh2.streams, *h2.streams}:
                first, second = ngh2.streams[stream_id], h2.streams[stream_id]
                n_common = min(len(first), len(second))
                if first[:n_common] != second[:n_common]:
                    self.problems.append(f"stream {stream_id}: ngh2 {first}, h2 {second}")
                bodies = sorted((ngh2.bodies[stream_id], h2.bodies[stream_id]), key=len)
                if not bodies[1].startswith(bodies[0]):
                    self.problems.append(f"stream {stream_id}: not the same body")
            return
        self._open_windows(ears)
        pairs = {
            "events": ({k: v for k, v in ear.streams.items() if v} for ear in ears),
            "bodies": ({k: bytes(v) for k, v in ear.bodies.items() if v} for ear in ears),
            "of the connection": (dict(ear.of_connection) for ear in ears),
            "open streams": (ear.open_ids for ear in ears),
            "peer_max_streams": (min(ear.engine.peer_max_streams, _UNLIMITED) for ear in ears),
        }
        for name, (first, second) in pairs.items():
            if first != second:
                self.problems.append(f"{name}: ngh2 {first}, h2 {second}")

    def _open_windows(self, ears: tuple[Ear, Ear]) -> None:
        """Let both send what is queued: whose turn it was while the window was small is nobody's business."""
        for ear in ears:
            for stream_id in (0, *ear.open_ids):
                ear.engine.receive(frame(8, 0, stream_id, (1 << 24).to_bytes(4, "big")))
            _drain(ear)
            ear.engine.receive(frame(6, 0, 0, bytes(8)))  # ngh2 tells of a stream that ended by our last byte
            stuck = {i: n for i in ear.open_ids if (n := ear.engine.queued_bytes(i))}
            if stuck and not ear.fatal:
                self.problems.append(f"{ear.name} does not send {stuck}, though it may")


def _drain(ear: Ear) -> None:
    """Write what is to be written; has_output may be True for nothing once."""
    n_empty = 0
    while ear.engine.has_output and n_empty < 2:
        n_empty = 0 if ear.engine.take_output() else n_empty + 1
    if n_empty >= 2:
        ear.objections.append("has_output, and nothing to take")


def duel(seed: int, *, wrong: bool) -> Duel:
    """Return one duel, fought."""
    return Duel(seed).run(wrong=wrong)


def main() -> int:
    """Fight until the time is up; print what was found, one example of each kind; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm.http2_duel")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 40))
    given = parser.parse_args()
    until_s = time.monotonic() + given.seconds
    found: dict[str, Duel] = {}
    known: collections.Counter[str] = collections.Counter()
    n_duels = 0
    while time.monotonic() < until_s:
        fought = duel(given.seed + n_duels, wrong=n_duels % 2 == 1)
        n_duels += 1
        known += fought.known
        for problem in fought.problems[:1]:
            best = found.get(problem[:40])
            if best is None or len(best.said) > len(fought.said):
                found[problem[:40]] = fought
    print(f"{n_duels} duels from seed {given.seed}; known differences: {dict(known)}; {len(found)} kinds of problems")
    for fought in found.values():
        print(f"- seed {fought.seed}: {fought.problems[0][:500]}\n  said: {', '.join(fought.said[-12:])}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
