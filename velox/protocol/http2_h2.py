"""The HTTP/2 engine on h2, in pure Python: for machines without ngh2, and its opponent in tests.

Knows: h2's calls, events and gaps. Does not know: sockets, what an exchange means.

About 20 times dearer than ngh2. What h2 leaves to us:
- It sends nothing beyond a window and no more than a frame at once; queues, cutting and turns are here.
- It closes for good when a GOAWAY comes, though the streams below the last id may finish (RFC 9113 §6.8).
- It has no budget for control frames, and no limit on the number of header fields.
A rule broken on one stream ends the whole connection, and events that came in the same read are lost with it.
"""

from __future__ import annotations

from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    PingReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple
from hyperframe.frame import Frame, GoAwayFrame

from velox.protocol.http2 import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    MAX_INTERIM,
    MAX_OUTPUT,
    NEVER_INDEXED,
    NO_ERROR,
    PING_DATA,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    EngineError,
    EngineHandler,
    EngineSettings,
    SendQueue,
)
from velox.types import Header, Headers

__all__ = ["H2Engine"]

# PING and SETTINGS that a peer may send between two writes of ours; each makes us queue an answer. As libnghttp2's.
_MAX_UNANSWERED: Final = 1_000
# What an endpoint may assume before the peer's settings came: RFC 9113 §6.5.2 recommends no less than 100.
_ASSUMED_STREAMS: Final = 100


class _Connection(H2Connection):
    """h2's connection, which stays open after a GOAWAY."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        # h2 goes to CLOSED here and drops its output: every frame after it would be a protocol error.
        event = ConnectionTerminated(error_code=frame.error_code, last_stream_id=frame.last_stream_id)
        return [], [event]


class _Stream:
    """What this file must know of an open stream."""

    __slots__ = ("held", "local_ended", "n_interim", "queue", "remote_ended")

    def __init__(self) -> None:
        self.held = 0  # bytes received and not acknowledged
        self.n_interim = 0
        self.queue: Final = SendQueue()
        self.local_ended = False
        self.remote_ended = False
