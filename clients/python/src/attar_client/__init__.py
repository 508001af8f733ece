"""Talk to Attar, the daemon that keeps reasoning models within a fixed KV-cache budget.

`connect` gives a client whose calls block, `aio.connect` one for asyncio. Both find the daemon's
socket by themselves, and start a daemon if they are told to.
"""

from . import aio, errors, types
from ._version import VERSION as __version__
from .client import Client, Session, Stream, connect
from .errors import AttarError, RpcError
from .types import ContentDelta, Event, Message, Progress, ReasoningDelta, ToolCallDelta

__all__ = [
    "AttarError",
    "Client",
    "ContentDelta",
    "Event",
    "Message",
    "Progress",
    "ReasoningDelta",
    "RpcError",
    "Session",
    "Stream",
    "ToolCallDelta",
    "__version__",
    "aio",
    "connect",
    "errors",
    "types",
]
