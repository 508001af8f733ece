"""The client for threads: every call blocks until its answer is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from . import _protocol, types
from ._daemon import SocketPath, Start, connect_socket, default_socket, ensure_running
from ._version import CLIENT
from .errors import Disconnected

_READ = 64 << 10


def connect(
    socket: SocketPath | None = None, *, start: Start = False, timeout: float = 60.0
) -> Client:
    """Connects to the daemon on `socket`, or where daemons listen by default.

    With `start` a daemon is started where none runs: True runs `attar serve`, a sequence is the
    command to run in its place, such as `["attar", "serve", "--model", "NAME"]`. It is given
    `timeout` seconds to listen, and outlives this process.
    """
    path = default_socket() if socket is None else Path(socket)
    ensure_running(path, start, timeout)
    client = Client(path)
    try:
        client.handshake = _protocol.check_handshake(client.call("initialize", client=CLIENT))
    except BaseException:
        client.close()
        raise
    return client


class _Connection:
    """A socket, and what was read of it beyond the last line."""

    def __init__(self, path: Path) -> None:
        self._socket = connect_socket(path)
        self._input = bytearray()

    def send(self, message: bytes) -> None:
        try:
            self._socket.sendall(message)
        except OSError as fault:
            raise Disconnected(f"cannot send to the daemon: {fault}") from fault

    def receive(self) -> Any:
        scanned = 0
        while (end := self._input.find(b"\n", scanned)) < 0:
            scanned = len(self._input)
            try:
                more = self._socket.recv(_READ)
            except OSError as fault:
                raise Disconnected(f"cannot read from the daemon: {fault}") from fault
            if not more:
                raise Disconnected("the daemon closed the connection")
            self._input += more
        line = bytes(self._input[:end])
        del self._input[: end + 1]
        return _protocol.decode(line)

    def close(self) -> None:
        self._socket.close()


class Client:
    """A daemon, for as many threads as like. Made by `connect`.

    Calls share one connection, and each generation has a connection of its own, so that nothing
    waits for a generation. After a `Disconnected` the next call connects again.
    """

    #: What the daemon said of itself when it was first connected to.
    handshake: types.Handshake

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Sessions live on in the daemon."""
        with self._lock:
            self._drop()

    def supports(self, method: str) -> bool:
        """Whether the daemon has this method."""
        return method in self.handshake["capabilities"]["methods"]

    def call(self, method: str, /, **params: Any) -> Any:
        """Calls any method by its name and gives its result."""
        request = _protocol.request(method, params)
        with self._lock:
            connection = self._send(_protocol.encode(request))
            while not _protocol.is_answer(message := self._receive(connection), request["id"]):
                pass
        return _protocol.outcome(message)

    def batch(self, requests: Sequence[_protocol.Request]) -> list[Any]:
        """Sends several requests at once; they run side by side.

        Gives their results in the same order; a failed request has its `RpcError` in that place.
        """
        if not requests:
            return []
        batch = [_protocol.request(method, params) for method, params in requests]
        with self._lock:
            connection = self._send(_protocol.encode(batch))
            while not _protocol.is_batch_answer(message := self._receive(connection), batch):
                pass
        return _protocol.batch_outcomes(message, batch)

    def open(self, session: str | None = None, **options: Unpack[types.OpenOptions]) -> Session:
        """Opens a session: a stored one of this id is resumed, an unknown one made."""
        given: dict[str, Any] = {**options}
        if session is not None:
            given["session"] = session
        return Session(self, self.call("session/open", **given))

    def sessions(self) -> list[types.SessionInfo]:
        """All stored sessions."""
        listed: list[types.SessionInfo] = self.call("session/list")["sessions"]
        return listed

    def delete(self, session: str) -> None:
        """Deletes a session, open or not, and all that is stored of it."""
        self.call("session/delete", session=session)

    def condense(
        self, messages: Sequence[types.Message], *, tokenizer: str | None = None
    ) -> types.Condensed:
        """Folds the tool output of messages without a session; `tokenizer` names a model."""
        given = {} if tokenizer is None else {"tokenizer": tokenizer}
        condensed: types.Condensed = self.call("context/condense", messages=messages, **given)
        return condensed

    def models(self) -> types.Models:
        """The models that are there."""
        models: types.Models = self.call("model/list")
        return models

    def status(self) -> types.JsonObject:
        """How the daemon is."""
        status: types.JsonObject = self.call("daemon/status")
        return status

    def shutdown(self) -> None:
        """Ends the daemon; every session stays stored."""
        self.call("daemon/shutdown")

    def _send(self, message: bytes) -> _Connection:
        if self._connection is None:
            self._connection = _Connection(self.path)
        try:
            self._connection.send(message)
        except BaseException:
            # What a half-sent message leaves is of no use to the next.
            self._drop()
            raise
        return self._connection

    def _receive(self, connection: _Connection) -> Any:
        try:
            return connection.receive()
        except Disconnected:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Session:
    """A session of the daemon, open until it is closed; another process may use it too."""

    def __init__(self, client: Client, opened: types.Opened) -> None:
        self._client = client
        self.id = opened["session"]
        #: How it was opened: whether it was resumed, and its tokens.
        self.opened = opened

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def append(self, *messages: types.Message) -> types.Appended:
        """Adds messages. They are stored when this returns, and read in the background."""
        appended: types.Appended = self._call("session/append", messages=messages)
        return appended

    def generate(self, max_tokens: int, **options: Unpack[types.GenerateOptions]) -> types.Answer:
        """Generates the assistant's next message, which becomes part of the session."""
        params = {"session": self.id, "max_tokens": max_tokens, **options}
        with Stream(self._client.path, "session/generate", params) as stream:
            return stream.read()

    def stream(self, max_tokens: int, **options: Unpack[types.GenerateOptions]) -> Stream:
        """Begins to generate the assistant's next message, and yields it as it grows."""
        params = {"session": self.id, "max_tokens": max_tokens, "stream": True, **options}
        return Stream(self._client.path, "session/generate", params)

    def attach(self, from_seq: int = 0) -> Stream:
        """Joins the generation that is under way or just ended, from this delta on.

        Closing the stream leaves the generation alone.
        """
        params = {"session": self.id, "from_seq": from_seq}
        return Stream(self._client.path, "session/attach", params)

    def cancel(self) -> bool:
        """Ends its generation, whoever began it; whether there was one."""
        cancelled: bool = self._call("session/cancel")["cancelled"]
        return cancelled

    def checkpoint(self, name: str | None = None) -> str:
        """Keeps the state under a name, which is given back."""
        kept: str = self._call("session/checkpoint", **_checkpoint(name))["checkpoint"]
        return kept

    def rollback(self, checkpoint: str | None = None) -> str:
        """Goes back to a checkpoint, by default the last; its name is given back."""
        found: str = self._call("session/rollback", **_checkpoint(checkpoint))["checkpoint"]
        return found

    def fork(self, checkpoint: str | None = None) -> Session:
        """A new session that goes on from a checkpoint, by default from now."""
        return Session(self._client, self._call("session/fork", **_checkpoint(checkpoint)))

    def configure(
        self, *, cache: types.Cache | None = None, condense: types.Condense | None = None
    ) -> types.Configured:
        """Changes options from now on; gives those in force."""
        given = {"cache": cache, "condense": condense}
        changed = {name: value for name, value in given.items() if value is not None}
        configured: types.Configured = self._call("session/configure", **changed)
        return configured

    def recall(self, handle: str) -> types.Recalled:
        """The original text of folded tool output, by the handle that `append` gave."""
        recalled: types.Recalled = self._call("session/recall", handle=handle)
        return recalled

    def spans(self) -> types.Spans:
        """What its text consists of."""
        spans: types.Spans = self._call("session/inspect", what="spans")
        return spans

    def kept(self, layer: int = 0, head: int = 0) -> types.Kept:
        """Positions of the tokens that a KV head still holds."""
        kept: types.Kept = self._call("session/inspect", what="kept", layer=layer, head=head)
        return kept

    def show(self) -> types.SessionDetails:
        """What is stored of it, with its messages."""
        shown: types.SessionDetails = self._call("session/show")
        return shown

    def close(self) -> None:
        """Stores it and frees its memory; `Client.open` resumes it."""
        self._call("session/close")

    def delete(self) -> None:
        """Deletes it and all that is stored of it."""
        self._call("session/delete")

    def _call(self, method: str, /, **params: Any) -> Any:
        return self._client.call(method, session=self.id, **params)


def _checkpoint(name: str | None) -> dict[str, str]:
    return {} if name is None else {"checkpoint": name}


class Stream:
    """A generation as it grows: an iterator of events, whose result is `answer` at its end.

    It has a connection of its own. Closing it before its end hangs up, which ends the generation
    unless that was begun with `on_disconnect="finish"`; what was generated stays in the session.
    """

    def __init__(self, path: Path, method: str, params: dict[str, Any]) -> None:
        request = _protocol.request(method, params)
        message = _protocol.encode(request)
        self._id: int = request["id"]
        self._connection = _Connection(path)
        self._answer: types.Answer | None = None
        self._is_closed = False
        try:
            self._connection.send(message)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[types.Event]:
        return self

    def __next__(self) -> types.Event:
        if self._is_closed:
            raise StopIteration
        try:
            while not _protocol.is_answer(message := self._connection.receive(), self._id):
                if (event := _protocol.event(message)) is not None:
                    return event
            self._answer = _protocol.outcome(message)
        except Exception:
            self.close()
            raise
        self.close()
        raise StopIteration

    @property
    def answer(self) -> types.Answer | None:
        """The result, once all events are read."""
        return self._answer

    def text(self) -> Iterator[str]:
        """Only the text of the answer, piece by piece."""
        for event in self:
            if isinstance(event, types.ContentDelta):
                yield event.text

    def read(self) -> types.Answer:
        """Reads what is left, and gives the result."""
        for _ in self:
            pass
        if self._answer is None:
            raise Disconnected("the stream was closed before its end")
        return self._answer

    def cancel(self) -> None:
        """Asks the daemon to end the generation; its answer, so far, still comes.

        A stream that only attached to the generation ends with `RequestCancelled`, and leaves the
        generation alone.
        """
        if not self._is_closed:
            self._connection.send(_protocol.cancellation(self._id))

    def close(self) -> None:
        """Hangs up, unless the end was reached."""
        self._is_closed = True
        self._connection.close()
