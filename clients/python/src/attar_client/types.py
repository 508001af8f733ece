"""The shapes of what goes over the wire, and the events of a stream.

Parameters and results are plain dictionaries, typed: what a newer daemon adds is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Required, TypeAlias, TypedDict

JsonObject: TypeAlias = dict[str, Any]


class FunctionCall(TypedDict):
    """The function that a tool call names; `arguments` is a JSON text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool by the assistant."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Meta(TypedDict, total=False):
    """What a client knows about a tool's output; without it the daemon finds out by itself."""

    path: str
    #: First and last line shown, counted from one.
    range: tuple[int, int]
    language: str
    exit_code: int
    command: str
    kind: str


class Message(TypedDict, total=False):
    """A message in the shape of OpenAI chat messages."""

    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: Required[str | list[JsonObject] | None]
    reasoning_content: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    meta: Meta


class Cache(TypedDict, total=False):
    """How a session's cache is kept; what is left out keeps its default."""

    policy: str
    #: Slots that stay at a compaction.
    budget: int
    #: Slots beyond the budget that may fill before the next compaction.
    buffer: int


#: Whether tool output is folded: `"on"`, `"off"`, or the rules that are switched off.
Condense: TypeAlias = Literal["on", "off"] | dict[Literal["off"], list[str]]


class OpenOptions(TypedDict, total=False):
    """Options of `Client.open`."""

    model: str
    messages: list[Message]
    tools: list[JsonObject]
    cache: Cache
    condense: Condense
    #: Whether to read the stored text anew where the stored cache does not fit the options.
    rebuild: bool


class Sampling(TypedDict, total=False):
    """How tokens are drawn; greedily where no temperature is given."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    repetition_penalty: float


class Reasoning(TypedDict, total=False):
    """Bounds on what the model thinks before it answers."""

    max_tokens: int
    control: Literal["off", "loops", "terse"]


class GenerateOptions(TypedDict, total=False):
    """Options of `Session.generate` and `Session.stream`."""

    #: Appended first; they become part of the session together with their answer.
    messages: list[Message]
    sampling: Sampling
    stop: list[str]
    reasoning: Reasoning
    tool_choice: str | JsonObject
    response_format: JsonObject
    #: What becomes of the generation when its stream is closed: by default it ends.
    on_disconnect: Literal["cancel", "finish"]


class Tokens(TypedDict):
    """A session's tokens: all of them, those in the cache, and those yet to be read."""

    logical: int
    kept: int
    pending: int


class Opened(TypedDict):
    """A session that was made, resumed or forked."""

    session: str
    resumed: bool
    #: Whether the cache was built anew from the stored text.
    rebuilt: bool
    turns: int
    tokens: Tokens
    #: A turn that a crash cut off.
    partial: NotRequired[JsonObject]


class Item(TypedDict):
    """An appended message, in tokens before and after folding."""

    index: int
    tokens: int
    given_tokens: int
    folds: NotRequired[list[JsonObject]]
    #: Names the original text for `Session.recall`.
    handle: NotRequired[str]


class Appended(TypedDict):
    """What became of appended messages."""

    items: list[Item]
    tokens: Tokens


class Usage(TypedDict):
    """A generation in tokens."""

    prompt_tokens: int
    #: Of the prompt, those that were not read again.
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


class CacheStats(TypedDict):
    """The cache after a generation; all but `bytes` and `compactions` are tokens."""

    policy: str
    budget: int
    kept: int
    evicted: int
    compactions: int
    bytes: int


class Timing(TypedDict):
    """Where the time of a generation went."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    compaction_ms: float
    tokens_per_second: float


class Answer(TypedDict):
    """A generation's result. The message stands in the session already."""

    generation: str
    message: Message
    finish_reason: Literal["stop", "length", "tool_calls", "cancelled"]
    usage: Usage
    cache: CacheStats
    timing: Timing
    seed: int


class SessionInfo(TypedDict):
    """A stored session."""

    session: str
    model: str
    turns: int
    tokens: int
    open: bool


class SessionDetails(SessionInfo):
    """A stored session with its messages."""

    history: list[Message]
    #: The cache in numbers, where the session is in memory.
    cached: JsonObject | None


class Configured(TypedDict):
    """The options in force."""

    session: str
    cache: Cache
    condense: Condense


class Recalled(TypedDict):
    """The original text of a folded tool output."""

    session: str
    #: Index of the message that it stands in.
    message: int
    text: str


class Spans(TypedDict):
    """What a session's text consists of."""

    session: str
    spans: list[JsonObject]
    messages: NotRequired[list[JsonObject]]


class Kept(TypedDict):
    """Positions of the tokens that a KV head still holds."""

    session: str
    layer: int
    head: int
    logical: int
    kept: list[int]


class Condensed(TypedDict):
    """Messages with folded tool output, and what that saved."""

    messages: list[Message]
    report: JsonObject


class Models(TypedDict):
    """Models by name."""

    default: str
    loaded: list[str]
    downloaded: list[str]


class ServerInfo(TypedDict):
    """Name and version of the daemon."""

    name: str
    version: str


class Capabilities(TypedDict, total=False):
    """What the daemon can do."""

    methods: Required[list[str]]
    policies: list[str]
    condense: list[str]
    reasoning_control: list[str]
    inspect: list[str]
    response_format: list[str]
    tool_choice: list[str]


class Handshake(TypedDict):
    """The daemon's answer to `initialize`."""

    server: ServerInfo
    protocol: int
    models: list[str]
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks."""

    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the tool call with this index; `arguments` is a piece of a JSON text."""

    seq: int
    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far long work is; `total` is None where it is not known."""

    phase: str
    done: int
    total: int | None


#: What a stream yields. `seq` counts the deltas of a generation without gaps.
Event: TypeAlias = ReasoningDelta | ContentDelta | ToolCallDelta | Progress
