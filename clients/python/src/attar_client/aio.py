"""The client for asyncio: the same as the one for threads, with `await`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from . import _protocol, types
from ._daemon import SocketPath, Start, connect_socket, default_socket, ensure_running
from ._version import CLIENT
from .errors import Disconnected

# A line of the daemon's is as long as it has to be.
_LINE_MAX = 1 << 62


async def connect(
    socket: SocketPath | None = None, *, start: Start = False, timeout: float = 60.0
) -> Client:
    """As `attar_client.connect`."""
    path = default_socket() if socket is None else Path(socket)
    await asyncio.to_thread(ensure_running, path, start, timeout)
    client = Client(path)
    try:
        client.handshake = _protocol.check_handshake(await client.call("initialize", client=CLIENT))
    except BaseException:
        await client.close()
        raise
    return client


class _Connection:
    """A socket as a pair of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def open(path: Path) -> _Connection:
        sock = connect_socket(path)
        sock.setblocking(False)
        return _Connection(*await asyncio.open_unix_connection(sock=sock, limit=_LINE_MAX))

    async def send(self, message: bytes) -> None:
        self._writer.write(message)
        try:
            await self._writer.drain()
        except OSError as fault:
            raise Disconnected(f"cannot send to the daemon: {fault}") from fault

    async def receive(self) -> Any:
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as fault:
            raise Disconnected("the daemon closed the connection") from fault
        except OSError as fault:
            raise Disconnected(f"cannot read from the daemon: {fault}") from fault
        return _protocol.decode(line)

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            # It is closed all the same.
            pass


class Client:
    """A daemon, for as many tasks as like. Made by `aio.connect`.

    Calls share one connection, and each generation has a connection of its own, so that nothing
    waits for a generation. After a `Disconnected` the next call connects again.
    """

    #: What the daemon said of itself when it was first connected to.
    handshake: types.Handshake

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = asyncio.Lock()
        self._connection: _Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Sessions live on in the daemon."""
        async with self._lock:
            await self._drop()

    def supports(self, method: str) -> bool:
        """Whether the daemon has this method."""
        return method in self.handshake["capabilities"]["methods"]

    async def call(self, method: str, /, **params: Any) -> Any:
        """Calls any method by its name and gives its result."""
        request = _protocol.request(method, params)
        async with self._lock:
            connection = await self._send(_protocol.encode(request))
            while not _protocol.is_answer(
                message := await self._receive(connection), request["id"]
            ):
                pass
        return _protocol.outcome(message)

    async def batch(self, requests: Sequence[_protocol.Request]) -> list[Any]:
        """Sends several requests at once; they run side by side.

        Gives their results in the same order; a failed request has its `RpcError` in that place.
        """
        if not requests:
            return []
        batch = [_protocol.request(method, params) for method, params in requests]
        async with self._lock:
            connection = await self._send(_protocol.encode(batch))
            while not _protocol.is_batch_answer(message := await self._receive(connection), batch):
                pass
        return _protocol.batch_outcomes(message, batch)

    async def open(
        self, session: str | None = None, **options: Unpack[types.OpenOptions]
    ) -> Session:
        """Opens a session: a stored one of this id is resumed, an unknown one made."""
        given: dict[str, Any] = {**options}
        if session is not None:
            given["session"] = session
        return Session(self, await self.call("session/open", **given))

    async def sessions(self) -> list[types.SessionInfo]:
        """All stored sessions."""
        listed: list[types.SessionInfo] = (await self.call("session/list"))["sessions"]
        return listed

    async def delete(self, session: str) -> None:
        """Deletes a session, open or not, and all that is stored of it."""
        await self.call("session/delete", session=session)

    async def condense(
        self, messages: Sequence[types.Message], *, tokenizer: str | None = None
    ) -> types.Condensed:
        """Folds the tool output of messages without a session; `tokenizer` names a model."""
        given = {} if tokenizer is None else {"tokenizer": tokenizer}
        condensed: types.Condensed = await self.call("context/condense", messages=messages, **given)
        return condensed

    async def models(self) -> types.Models:
        """The models that are there."""
        models: types.Models = await self.call("model/list")
        return models

    async def status(self) -> types.JsonObject:
        """How the daemon is."""
        status: types.JsonObject = await self.call("daemon/status")
        return status

    async def shutdown(self) -> None:
        """Ends the daemon; every session stays stored."""
        await self.call("daemon/shutdown")

    async def _send(self, message: bytes) -> _Connection:
        if self._connection is None:
            self._connection = await _Connection.open(self.path)
        try:
            await self._connection.send(message)
        except BaseException:
            # What a half-sent message leaves is of no use to the next.
            await self._drop()
            raise
        return self._connection

    async def _receive(self, connection: _Connection) -> Any:
        try:
            return await connection.receive()
        except Disconnected:
            await self._drop()
            raise

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
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

    async def append(self, *messages: types.Message) -> types.Appended:
        """Adds messages. They are stored when this returns, and read in the background."""
        appended: types.Appended = await self._call("session/append", messages=messages)
        return appended

    async def generate(
        self, max_tokens: int, **options: Unpack[types.GenerateOptions]
    ) -> types.Answer:
        """Generates the assistant's next message, which becomes part of the session."""
        params = {"session": self.id, "max_tokens": max_tokens, **options}
        async with Stream(self._client.path, "session/generate", params) as stream:
            return await stream.read()

    def stream(self, max_tokens: int, **options: Unpack[types.GenerateOptions]) -> Stream:
        """Generates the assistant's next message, and yields it as it grows."""
        params = {"session": self.id, "max_tokens": max_tokens, "stream": True, **options}
        return Stream(self._client.path, "session/generate", params)

    def attach(self, from_seq: int = 0) -> Stream:
        """Joins the generation that is under way or just ended, from this delta on.

        Closing the stream leaves the generation alone.
        """
        params = {"session": self.id, "from_seq": from_seq}
        return Stream(self._client.path, "session/attach", params)

    async def cancel(self) -> bool:
        """Ends its generation, whoever began it; whether there was one."""
        cancelled: bool = (await self._call("session/cancel"))["cancelled"]
        return cancelled

    async def checkpoint(self, name: str | None = None) -> str:
        """Keeps the state under a name, which is given back."""
        kept: str = (await self._call("session/checkpoint", **_checkpoint(name)))["checkpoint"]
        return kept

    async def rollback(self, checkpoint: str | None = None) -> str:
        """Goes back to a checkpoint, by default the last; its name is given back."""
        found: str = (await self._call("session/rollback", **_checkpoint(checkpoint)))["checkpoint"]
        return found

    async def fork(self, checkpoint: str | None = None) -> Session:
        """A new session that goes on from a checkpoint, by default from now."""
        return Session(self._client, await self._call("session/fork", **_checkpoint(checkpoint)))

    async def configure(
        self, *, cache: types.Cache | None = None, condense: types.Condense | None = None
    ) -> types.Configured:
        """Changes options from now on; gives those in force."""
        given = {"cache": cache, "condense": condense}
        changed = {name: value for name, value in given.items() if value is not None}
        configured: types.Configured = await self._call("session/configure", **changed)
        return configured

    async def recall(self, handle: str) -> types.Recalled:
        """The original text of folded tool output, by the handle that `append` gave."""
        recalled: types.Recalled = await self._call("session/recall", handle=handle)
        return recalled

    async def spans(self) -> types.Spans:
        """What its text consists of."""
        spans: types.Spans = await self._call("session/inspect", what="spans")
        return spans

    async def kept(self, layer: int = 0, head: int = 0) -> types.Kept:
        """Positions of the tokens that a KV head still holds."""
        kept: types.Kept = await self._call("session/inspect", what="kept", layer=layer, head=head)
        return kept

    async def show(self) -> types.SessionDetails:
        """What is stored of it, with its messages."""
        shown: types.SessionDetails = await self._call("session/show")
        return shown

    async def close(self) -> None:
        """Stores it and frees its memory; `Client.open` resumes it."""
        await self._call("session/close")

    async def delete(self) -> None:
        """Deletes it and all that is stored of it."""
        await self._call("session/delete")

    async def _call(self, method: str, /, **params: Any) -> Any:
        return await self._client.call(method, session=self.id, **params)


def _checkpoint(name: str | None) -> dict[str, str]:
    return {} if name is None else {"checkpoint": name}


class Stream:
    """A generation as it grows: an iterator of events, whose result is `answer` at its end.

    It begins with `async with`, or with the first event that is asked for, and has a connection
    of its own. Closing it before its end hangs up, which ends the generation unless that was
    begun with `on_disconnect="finish"`; what was generated stays in the session.
    """

    def __init__(self, path: Path, method: str, params: dict[str, Any]) -> None:
        self._path = path
        self._request = _protocol.request(method, params)
        self._connection: _Connection | None = None
        self._answer: types.Answer | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[types.Event]:
        return self

    async def __anext__(self) -> types.Event:
        if self._is_closed:
            raise StopAsyncIteration
        connection = await self._begin()
        try:
            while not _protocol.is_answer(
                message := await connection.receive(), self._request["id"]
            ):
                if (event := _protocol.event(message)) is not None:
                    return event
            self._answer = _protocol.outcome(message)
        except Exception:
            await self.close()
            raise
        await self.close()
        raise StopAsyncIteration

    @property
    def answer(self) -> types.Answer | None:
        """The result, once all events are read."""
        return self._answer

    async def text(self) -> AsyncIterator[str]:
        """Only the text of the answer, piece by piece."""
        async for event in self:
            if isinstance(event, types.ContentDelta):
                yield event.text

    async def read(self) -> types.Answer:
        """Reads what is left, and gives the result."""
        async for _ in self:
            pass
        if self._answer is None:
            raise Disconnected("the stream was closed before its end")
        return self._answer

    async def cancel(self) -> None:
        """Asks the daemon to end the generation; its answer, so far, still comes.

        A stream that only attached to the generation ends with `RequestCancelled`, and leaves the
        generation alone.
        """
        if self._connection is not None and not self._is_closed:
            await self._connection.send(_protocol.cancellation(self._request["id"]))

    async def close(self) -> None:
        """Hangs up, unless the end was reached."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    async def _begin(self) -> _Connection:
        if self._connection is None:
            message = _protocol.encode(self._request)
            self._connection = await _Connection.open(self._path)
            await self._connection.send(message)
        return self._connection
