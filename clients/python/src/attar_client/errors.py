"""What can go wrong, as exceptions. All of them are `AttarError`s."""

from __future__ import annotations

from typing import Any, ClassVar


class AttarError(Exception):
    """Anything that this package raises by itself."""


class NotRunning(AttarError):
    """No daemon listens on the socket, and none could be started."""


class Untrusted(AttarError):
    """The socket belongs to another user, who could read all that is sent."""


class Disconnected(AttarError):
    """The connection ended before the answer came. The next call connects again."""


class ProtocolError(AttarError):
    """The daemon sent something that this package cannot read."""


class RpcError(AttarError):
    """The daemon refused a request. Each known code has a subclass.

    `code` and `data` are those of the JSON-RPC error; the exception's text is its message.
    """

    #: The JSON-RPC code of a subclass.
    CODE: ClassVar[int | None] = None
    _by_code: ClassVar[dict[int, type[RpcError]]] = {}

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}

    def __init_subclass__(cls) -> None:
        if cls.CODE is not None:
            RpcError._by_code[cls.CODE] = cls

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, with nothing changed by the client."""
        return self.data.get("retryable") is True

    @property
    def retry_after(self) -> float | None:
        """Seconds after which a retry is worth while, where the daemon says so."""
        ms = self.data.get("retry_after_ms")
        return ms / 1000 if isinstance(ms, (int, float)) else None

    @property
    def limit(self) -> int | None:
        """The limit that was passed, where there is one."""
        return self.data.get("limit")

    @property
    def asked(self) -> int | None:
        """What was asked for, where a limit was passed."""
        return self.data.get("asked")

    @staticmethod
    def read(error: Any) -> RpcError:
        """The exception for the `error` member of an answer."""
        try:
            code, message = int(error["code"]), str(error["message"])
        except (TypeError, KeyError, ValueError) as fault:
            raise ProtocolError(f"not a JSON-RPC error: {error!r}") from fault
        return RpcError._by_code.get(code, RpcError)(code, message, error.get("data"))


class ParseError(RpcError):
    """The daemon could not read the request's JSON."""

    CODE = -32700


class InvalidRequest(RpcError):
    """The JSON is no request."""

    CODE = -32600


class MethodNotFound(RpcError):
    """This daemon has no such method."""

    CODE = -32601


class InvalidParams(RpcError):
    """The method does not take these parameters, or this daemon lacks one of them."""

    CODE = -32602


class InternalError(RpcError):
    """A fault of the daemon's own."""

    CODE = -32603


class RequestCancelled(RpcError):
    """The request was cancelled before it was done."""

    CODE = -32800


class NotInitialized(RpcError):
    """The handshake must come first."""

    CODE = 1001


class Unauthorized(RpcError):
    """The token is missing or wrong."""

    CODE = 1002


class SessionNotFound(RpcError):
    """No session of that id is open."""

    CODE = 1003


class SessionBusy(RpcError):
    """The session generates already."""

    CODE = 1004


class ContextOverflow(RpcError):
    """The conversation does not fit the model; `limit` and `asked` are tokens."""

    CODE = 1005


class KvMemory(RpcError):
    """No cache memory is left for it; `limit` and `asked` are bytes."""

    CODE = 1006


class ModelNotFound(RpcError):
    """No such model is known here."""

    CODE = 1007


class ModelMismatch(RpcError):
    """The stored session was made with another model or other tools."""

    CODE = 1008


class TooLarge(RpcError):
    """The message is over the daemon's limit; `limit` and `asked` are bytes."""

    CODE = 1009


class StoreError(RpcError):
    """The daemon's store failed."""

    CODE = 1010


class Overloaded(RpcError):
    """Too much is under way."""

    CODE = 1011


class ShuttingDown(RpcError):
    """The daemon is about to end."""

    CODE = 1012
