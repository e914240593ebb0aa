"""The canonical model between dialects: requests, answers and streams as lists of blocks; a superset of what each says.

    client's bytes -> ClientSide.read()  -> Request -> ModelSide.write()  -> the upstream's bytes
    upstream's     -> ModelSide.answer() -> Answer  -> ClientSide.answer() -> the client's
    upstream's     -> StreamReader.feed() -> events -> StreamWriter.write() -> the client's

It is built like Anthropic's Messages, the richest of the dialects, and never like Chat Completions, the poorest: the
place of a system message, cache marks and signed reasoning keep where they stand.

Text is never decoded on the way: a `JsonText` is a JSON string as it stood in the body, with its quotes and escapes,
and a `JsonValue` is any JSON value so. They are spliced between constants: what caches see does not change.

Knows: what can be said. Does not know: how any dialect says it, or what a model can do (facts/model_facts.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec.structs import astuple

from velox.protocol.usage.token_usage import Bill
from velox.types import AnswerKeeper

__all__ = [
    "Answer",
    "AnswerBlock",
    "ApiError",
    "Audio",
    "Block",
    "CacheMark",
    "Choice",
    "Citation",
    "Cite",
    "ClientCall",
    "ClientSide",
    "Close",
    "Content",
    "Delta",
    "Document",
    "End",
    "ErrorKind",
    "Event",
    "Failed",
    "Finish",
    "Format",
    "Image",
    "JsonText",
    "JsonValue",
    "Kind",
    "Lost",
    "Media",
    "MediaKind",
    "Message",
    "Modalities",
    "ModelSide",
    "Open",
    "Pictured",
    "Reasoning",
    "Refusal",
    "Request",
    "Role",
    "Search",
    "Searched",
    "Sign",
    "Signature",
    "Source",
    "Span",
    "Start",
    "Stop",
    "StopReason",
    "StreamReader",
    "StreamWriter",
    "Text",
    "Thinking",
    "Tool",
    "ToolChoice",
    "ToolResult",
    "ToolUse",
    "Usage",
    "Used",
    "WebSearch",
    "Work",
    "WrappedModel",
    "Written",
    "settled",
]

# A JSON string with its quotes, as it stood in a body: b'"Hi \\u00fc"'. See json_text/text.py.
JsonText: TypeAlias = bytes
# Any JSON value, as it stood in a body; where it says so, an object.
JsonValue: TypeAlias = bytes


# -- requests -------------------------------------------------------------------------------------


class CacheMark(msgspec.Struct, frozen=True, gc=False):
    """The prompt up to here is worth caching. ttl: "5m", "1h"; None: the provider's default."""

    ttl: str | None = None


class Signature(msgspec.Struct, frozen=True, gc=False):
    """What a provider signed its reasoning with. It goes back unchanged, and only to who made it.

    provider: "anthropic", "google", "openai"; Claude signs the same on every platform. value: as it came. item_id: of
    OpenAI's reasoning item, which the value is bound to.
    """

    provider: str
    value: str
    item_id: str | None = None


class IdentityEnum(enum.Enum):
    """What is one of few. Equal only to itself, it is found in tables by its address: Enum hashes a name in Python."""

    __hash__ = object.__hash__


class MediaKind(IdentityEnum):
    """How a picture, a sound or a document is given. ID: a file at one provider, which no other one has."""

    DATA = "data"
    URL = "url"
    ID = "id"
    TEXT = "text"


class Media(msgspec.Struct, frozen=True, gc=False):
    """value: base64 without a prefix, a URL (https:, gs:, s3:), an id, or plain text (as str). type: "image/png"."""

    kind: MediaKind
    value: str
    type: str | None = None


class Source(msgspec.Struct, frozen=True, gc=False):
    """A page that a search of the web found. title: "" where none is given."""

    url: str
    title: str = ""


class Citation(msgspec.Struct, frozen=True, gc=False):
    """The source of some words of a text in an answer.

    start, end: of the words, in characters (code points) of the block's text; None: all of the block. quote: the words
    of the source, where the dialect gives them (Anthropic).
    """

    source: Source
    start: int | None = None
    end: int | None = None
    quote: JsonText | None = None


class Span(msgspec.Struct, frozen=True, gc=False):
    """Where the words of a citation stand in an answer; see streams/citations.py.

    start, end: in characters of the block's text. before: characters of the texts before the block. first_byte,
    last_byte: from the first text on, in UTF-8; the last one is exclusive. words: those that are cited.
    """

    start: int
    end: int
    before: int
    first_byte: int
    last_byte: int
    words: str


class Text(msgspec.Struct, gc=False):
    """Some text. citations: of a request: Anthropic's, as they came. cited: of an answer: pages of the web."""

    text: JsonText
    cache: CacheMark | None = None
    signature: Signature | None = None
    citations: JsonValue | None = None
    cited: tuple[Citation, ...] = ()


class Search(msgspec.Struct, gc=False):
    """A search of the web that the model's provider has made: what was asked, and what was found. Of answers only."""

    queries: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()


class Image(msgspec.Struct, gc=False):
    """A picture. detail: OpenAI's "low", "high", "auto"."""

    source: Media
    detail: str | None = None
    cache: CacheMark | None = None


class Audio(msgspec.Struct, gc=False):
    """A sound. format: "wav", "mp3"."""

    source: Media
    format: str | None = None


class Document(msgspec.Struct, gc=False):
    """A file. name: its name or title."""

    source: Media
    name: str | None = None
    context: JsonText | None = None
    citations: bool | None = None
    cache: CacheMark | None = None


class ToolUse(msgspec.Struct, gc=False):
    """The model calls a tool. arguments: a JSON object. id: "" where the dialect gives none."""

    id: str
    name: str
    arguments: JsonValue
    signature: Signature | None = None
    cache: CacheMark | None = None


class ToolResult(msgspec.Struct, gc=False):
    """What a tool answered. name: of the tool, where the dialect says it; other writers look the id up."""

    id: str
    parts: list[Text | Image | Document]
    name: str | None = None
    is_error: bool = False
    cache: CacheMark | None = None


class Thinking(msgspec.Struct, gc=False):
    """Reasoning. text: b'""' beside a valid signature is usual. is_redacted: its signature's value is all there is."""

    text: JsonText
    signature: Signature | None = None
    is_redacted: bool = False


class Refusal(msgspec.Struct, gc=False):
    """The model's own words for why it does not answer (OpenAI)."""

    text: JsonText


Content: TypeAlias = Text | Image | Audio | Document
Block: TypeAlias = Text | Image | Audio | Document | ToolUse | ToolResult | Thinking | Refusal
# What an answer is made of.
AnswerBlock: TypeAlias = Block | Search


class Role(IdentityEnum):
    """Who says a message. Tool results are the user's. OpenAI's `developer` is a newer name for SYSTEM."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class Message(msgspec.Struct, gc=False):
    """One message, where it stood. Two of one role may follow each other: a writer merges them where it has to.

    name: of who says it (Chat Completions). plain: the text of its only block, where that is all of the message: it is
    not blank, and has neither marks nor a name. Most messages are so, and each writer has a short way for them. A
    reader that does not look leaves it out.
    """

    role: Role
    blocks: list[Block]
    name: str | None = None
    plain: JsonText | None = None


class Tool(msgspec.Struct, gc=False):
    """A function that the model may call. parameters: a JSON schema; None: it takes nothing.

    Tools that a provider runs itself are none (tools/hosted.py).
    """

    name: str
    description: JsonText | None = None
    parameters: JsonValue | None = None
    strict: bool | None = None
    cache: CacheMark | None = None


class WebSearch(msgspec.Struct, frozen=True, gc=False):
    """A search of the web by the model's provider; see tools/hosted.py. is_forced: it must be called.

    location: of the user, a JSON object that Anthropic and OpenAI have alike. most: calls of it. lost: the name of the
    loss, where it is left out.
    """

    is_forced: bool = False
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    most: int | None = None
    location: JsonValue | None = None
    lost: str = "tools.hosted"


class Choice(IdentityEnum):
    """Which tools the model may or must call."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    TOOL = "tool"


class ToolChoice(msgspec.Struct, frozen=True, gc=False):
    """name: of the one tool, for Choice.TOOL. allowed: those among which AUTO or REQUIRED chooses; empty: all."""

    choice: Choice
    name: str | None = None
    allowed: tuple[str, ...] = ()


class Format(msgspec.Struct, frozen=True, gc=False):
    """The form of the answer. schema: None: any JSON object (`json_object`)."""

    schema: JsonValue | None = None
    name: str | None = None
    description: JsonText | None = None
    strict: bool | None = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """How much the model is to reason.

    effort: "none", "minimal", "low", "medium", "high", "xhigh", "max". budget_tokens: in its place. enabled: False:
    none at all; True: as the model likes (Anthropic's adaptive, Gemini's dynamic). summary: how much of it is shown:
    OpenAI's "auto", "concise", "detailed"; Anthropic's display "summarized", "omitted"; None: not said.
    """

    effort: str | None = None
    budget_tokens: int | None = None
    enabled: bool | None = None
    summary: str | None = None


class Request(msgspec.Struct, gc=False):
    """A request to generate text.

    model: as the client named it; the writer is given the one to ask for. cache: a mark on all of it (Anthropic's
    top-level one). tier: OpenAI's names: "auto", "default", "flex", "scale", "priority". cache_key: OpenAI's
    prompt_cache_key. wants_pictures: the answer may have them. has_made_pictures: a message of the
    assistant has some. verbosity: OpenAI's "low", "medium", "high".
    """

    model: str
    messages: list[Message]
    stream: bool = False
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    web_search: WebSearch | None = None
    wants_pictures: bool = False
    has_made_pictures: bool = False
    parallel_tools: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] = []
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    format: Format | None = None
    reasoning: Reasoning | None = None
    user: str | None = None
    tier: str | None = None
    cache: CacheMark | None = None
    cache_key: str | None = None
    verbosity: str | None = None


# -- answers ----------------------------------------------------------------------------------------


class StopReason(IdentityEnum):
    """Why the model stopped. PAUSE: it may be asked to go on. CONTEXT: its context is full, a kind of LENGTH."""

    END = "end"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CONTEXT = "context"
    TOOLS = "tools"
    FILTER = "filter"
    PAUSE = "pause"


class Stop(msgspec.Struct, frozen=True, gc=False):
    """The end of an answer. sequence: the string that it stopped at. explanation: of a filter or a refusal.

    unknown: the upstream's own word, where it is none of the known ones: the reason is then what the rest of the answer
    says.
    """

    reason: StopReason
    sequence: str | None = None
    explanation: JsonText | None = None
    unknown: str | None = None


# Ends that say nothing against a call. The others are cut or withheld: their calls are not to be run.
_PLAIN_ENDS: Final = (StopReason.END, StopReason.STOP_STRING, StopReason.PAUSE)


def settled(stop: Stop, *, has_calls: bool) -> Stop:
    """Return the stop that agrees with the answer's blocks. has_calls: a tool of the client's is called in it.

    The upstream's word for the end and its blocks may contradict each other: servers say `tool_calls` and call nothing
    (earendil-works/pi#9681), or `stop` behind a call (sgl-project/sglang#2877, openvinotoolkit/model_server#3927).
    Agents go by the word: behind `tool_calls` they wait for a call, behind `stop` they don't run the one that is there.
    """
    if not has_calls:
        if stop.reason is not StopReason.TOOLS:
            return stop
        return Stop(StopReason.END, unknown=stop.unknown)
    if stop.reason not in _PLAIN_ENDS:
        return stop
    return msgspec.structs.replace(stop, reason=StopReason.TOOLS, sequence=None)


class Modalities(msgspec.Struct, frozen=True, gc=False):
    """Tokens of sound and pictures. audio_cached: of audio_input; image_cached: of image_input."""

    audio_input: int | None = None
    audio_cached: int | None = None
    audio_output: int | None = None
    image_input: int | None = None
    image_output: int | None = None
    image_cached: int | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens; None: not said. Each is a total so far, never an addition.

    input: all of the prompt, those cached and written to the cache among them. output: all of the answer, reasoning
    among it. cache_written_1h: of cache_written, those for an hour. modalities: what is not text among input and
    output. tier: that the request was served in. bill: what is taken for it. is_regional: it was kept within a region.
    web_searches: that the provider made for it. has_others: another model worked for it, too, whose tokens are not
    among these. No client is told the last six: they are for who counts.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_written: int | None = None
    cache_written_1h: int | None = None
    reasoning: int | None = None
    modalities: Modalities | None = None
    tier: str | None = None
    bill: Bill | None = None
    is_regional: bool = False
    web_searches: int | None = None
    has_others: bool = False

    def over(self, before: Usage) -> Usage:
        """Return these, and those of `before` where these say nothing: the last that was said counts, per field."""
        # Without the usual loop: it is called for each event of a stream that repeats its counts.
        if self.input is not None and self.output is not None and astuple(before)[2:] == _NO_MORE:
            return self  # nothing else was said before
        return Usage(
            before.input if self.input is None else self.input,
            before.output if self.output is None else self.output,
            before.cached if self.cached is None else self.cached,
            before.cache_written if self.cache_written is None else self.cache_written,
            before.cache_written_1h if self.cache_written_1h is None else self.cache_written_1h,
            before.reasoning if self.reasoning is None else self.reasoning,
            self.modalities or before.modalities,
            self.tier or before.tier,
            self.bill or before.bill,
            self.is_regional or before.is_regional,
            before.web_searches if self.web_searches is None else self.web_searches,
            self.has_others or before.has_others,
        )


# The fields of a usage behind its input and output, where they say nothing.
_NO_MORE: Final = astuple(Usage())[2:]


class Answer(msgspec.Struct, gc=False):
    """A whole answer. blocks: of the assistant: Text, Thinking, ToolUse, Refusal, Search, Image.

    id: the upstream's, "" for none. model: as the upstream called it. tier: that it was served in. lost: as in Lost.
    """

    id: str
    model: str
    blocks: list[AnswerBlock]
    stop: Stop
    usage: Usage = Usage()
    tier: str | None = None
    lost: tuple[str, ...] = ()


# -- streams ----------------------------------------------------------------------------------------


class Kind(IdentityEnum):
    """What kind of block a stream opens."""

    TEXT = "text"
    THINKING = "thinking"
    REDACTED = "redacted"
    TOOL = "tool"
    REFUSAL = "refusal"


class Start(msgspec.Struct, gc=False):
    """The stream begins. It may come before the model has begun to work: an error may still take its place."""

    id: str
    model: str


class Open(msgspec.Struct, gc=False):
    """A block begins. n: its number, from 0, new for each block. id, name: of a tool's call; id "" for none.

    Blocks may overlap (parallel calls of Chat Completions): a writer whose dialect forbids that lets them wait.
    """

    n: int
    kind: Kind
    id: str = ""
    name: str = ""


class Delta(msgspec.Struct, gc=False):
    """A part of a block's text, or of the JSON text of a tool's arguments. Never before its Open.

    text: as a JsonText: b'"Hel"'; for a tool a string that holds JSON: b'"{\\\\"city\\\\":"'.
    """

    n: int
    text: JsonText


class Sign(msgspec.Struct, gc=False):
    """The signature of a block, before its Close; of a redacted one all there is."""

    n: int
    signature: Signature


class Cite(msgspec.Struct, gc=False):
    """A citation of a block's text so far, before its Close. span: where it stands, if somebody has counted."""

    n: int
    citation: Citation
    span: Span | None = None


class Close(msgspec.Struct, gc=False):
    """A block is whole."""

    n: int


class Work(msgspec.Struct, gc=False):
    """The model works on what is not told yet, such as reasoning that is not shown: no writer gets it."""


class Searched(msgspec.Struct, gc=False):
    """The model's provider has searched the web; it stands between blocks."""

    search: Search


class Pictured(msgspec.Struct, gc=False):
    """The model has made a picture, as data; it stands between blocks, or within a text."""

    image: Image


class Lost(msgspec.Struct, gc=False):
    """The model said what this form has no place for: no writer gets it.

    field: of a closed list: "answer.image", "answer.audio", "answer.video", "answer.file", "answer.citations",
    "answer.tools.hosted" (what a tool of the provider's own did). translators.py adds "answer.stop", for Stop.unknown.
    """

    field: str


class Used(msgspec.Struct, gc=False):
    """What was used so far. Totals: the last one of each field counts."""

    usage: Usage


class Finish(msgspec.Struct, gc=False):
    """The model has stopped. All blocks are closed. Usage may follow."""

    stop: Stop


class End(msgspec.Struct, gc=False):
    """The stream is whole, which only the dialect's own end says. Nothing follows. Without it a stream was cut."""


class ErrorKind(IdentityEnum):
    """What an error is about, with the HTTP status that it usually has."""

    INVALID = 400
    AUTHENTICATION = 401
    BILLING = 402
    PERMISSION = 403
    NOT_FOUND = 404
    CONFLICT = 409
    TOO_LARGE = 413
    RATE_LIMIT = 429
    API = 500
    UNAVAILABLE = 503
    TIMEOUT = 504
    OVERLOADED = 529


class ApiError(msgspec.Struct, gc=False):
    """An error of an upstream. status: as it came; in a stream the usual one of its kind. message: plain text.

    code, param: OpenAI's, or what says the same: code "content_filter", "context_length_exceeded", ... retry_after_s:
    when to try again, where the body says it (Google); a header is the gateway's.
    """

    kind: ErrorKind
    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None


class Failed(msgspec.Struct, gc=False):
    """The upstream said in its stream that it failed. Nothing follows; never a finish."""

    error: ApiError


Event: TypeAlias = (
    Start | Work | Open | Delta | Sign | Cite | Close | Searched | Pictured | Lost | Used | Finish | End | Failed
)


# -- what a dialect has ------------------------------------------------------------------------------


class StreamReader(Protocol):
    """Reads one stream of an upstream. Its state is bounded."""

    @property
    def n_held(self) -> int:
        """Bytes that came of an event which is not whole yet."""

    def feed(self, data: bytes) -> list[Event]:
        """Take what came, cut anywhere. Raises BrokenReplyError: it can't be read, or is over a bound (errors.py)."""

    def end(self) -> list[Event]:
        """Nothing more comes: return what that says. No End among it: the stream was cut."""


class StreamWriter(Protocol):
    """Writes one stream for a client: always whole events."""

    def write(self, event: Event) -> bytes:
        """Return what the client gets, b"" for nothing yet."""


class ClientSide(Protocol):
    """One request of a client in its dialect, and what it gets back. Made for one attempt."""

    @property
    def takes_pictures(self) -> bool:
        """True where an answer may have them."""

    def read(self, body: bytes | bytearray) -> Request:
        """Read the request. Raises BadRequestError (errors.py)."""

    def own_path(self, path: str) -> str:
        """Return a writer's path of a field of the request that was read, as the client calls it (own_paths.py)."""

    def answer(self, answer: Answer) -> bytes:
        """Return the body of a plain answer."""

    def stream(self) -> StreamWriter:
        """Return what writes a streamed answer."""

    def error(self, error: ApiError) -> bytes:
        """Return the body of an error."""


class ClientCall(msgspec.Struct, frozen=True, gc=False):
    """What is known of a client's request beside its body.

    id: ours, of letters and digits: where an id is needed that the upstream did not give. now_s: Unix time. model,
    stream: of the path, where the dialect has them there (Gemini); elsewhere of the body, as the gateway read it.
    is_array: the stream is to be a JSON array and not events (Gemini, without `alt=sse`).
    keeper: of its answer, where the dialect lets clients refer to it; None: nobody keeps it.
    reads_whole_calls: it reads a streamed call of a tool only in one piece.
    """

    id: str
    now_s: int
    model: str = ""
    stream: bool = False
    is_array: bool = False
    keeper: AnswerKeeper | None = None
    reads_whole_calls: bool = False


class Written(msgspec.Struct, gc=False):
    """A request as a model's API wants it.

    names: tools that are called otherwise there -> as the client calls them. ids: the same for the ids of calls. keys:
    by the client's name of a tool, the same for the properties of its arguments.
    """

    body: bytes
    names: dict[str, str] = {}
    ids: dict[str, str] = {}
    keys: dict[str, Mapping[str, str]] = {}


class ModelSide(Protocol):
    """One attempt at a model's API, made by (facts, dropped fields).

    An upstream's signatures are tagged with its own provider; a writer leaves out those of others.
    """

    def write(self, request: Request, model: str) -> Written:
        """Write the request. Raises BadRequestError for what can't be said and must not be left out (errors.py)."""

    def answer(self, body: bytes) -> Answer:
        """Read a plain answer of status 2xx. Raises BrokenReplyError; or ReplyError, for an error in a 200."""

    def stream(self) -> StreamReader:
        """Return what reads a streamed answer."""

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """Read an error's body, which may be anything: HTML, empty, cut. Never raises.

        headers: of the reply, names in lower case: Bedrock says an error's type there.
        """


class WrappedModel:
    """A model side that does what another one does, but for what its class says."""

    __slots__ = ("_inner",)

    def __init__(self, inner: ModelSide) -> None:
        self._inner: Final = inner

    def answer(self, body: bytes) -> Answer:
        """See ModelSide."""
        return self._inner.answer(body)

    def stream(self) -> StreamReader:
        """See ModelSide."""
        return self._inner.stream()

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """See ModelSide."""
        return self._inner.error(status, body, headers)
