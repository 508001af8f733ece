"""JSON-RPC 2.0, one JSON text a line: what both clients share, without any input or output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

from .errors import ProtocolError, RpcError
from .types import ContentDelta, Event, Handshake, Progress, ReasoningDelta, ToolCallDelta

#: Version of the protocol that this package speaks.
PROTOCOL = 1

#: A method and its parameters, as an element of a batch.
Request: TypeAlias = tuple[str, Mapping[str, Any]]

_ids = count(1)


def encode(message: object) -> bytes:
    # Escapes keep lone surrogates, which UTF-8 cannot hold, out of the encoder's way.
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params}


def cancellation(request_id: int) -> bytes:
    params = {"id": request_id}
    return encode({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": params})


def decode(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as fault:
        raise ProtocolError(f"not JSON: {line[:80]!r}") from fault


def is_answer(message: Any, request_id: int) -> bool:
    """Whether `message` answers the request. Under a null id stands a refusal of a request whose
    own id the daemon could not read; as one waits at a time, it is ours."""
    return (
        isinstance(message, dict)
        and "method" not in message
        and message.get("id") in (request_id, None)
    )


def outcome(answer: Any) -> Any:
    """The result in an answer; raises its error."""
    if "error" in answer:
        raise RpcError.read(answer["error"])
    if "result" in answer:
        return answer["result"]
    raise ProtocolError(f"neither result nor error: {answer!r}")


def is_batch_answer(message: Any, requests: Sequence[Mapping[str, Any]]) -> bool:
    if isinstance(message, list):
        ids = {request["id"] for request in requests}
        return any(isinstance(answer, dict) and answer.get("id") in ids for answer in message)
    return isinstance(message, dict) and "method" not in message and message.get("id") is None


def batch_outcomes(message: Any, requests: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Results and errors in the order of the requests."""
    if isinstance(message, dict):
        outcome(message)
    answers = {answer.get("id"): answer for answer in message}
    outcomes: list[Any] = []
    for request in requests:
        if request["id"] not in answers:
            raise ProtocolError(f"no answer to {request['method']} in the batch")
        try:
            outcomes.append(outcome(answers[request["id"]]))
        except RpcError as error:
            outcomes.append(error)
    return outcomes


def event(message: Any) -> Event | None:
    """The event in a notification; None for other messages and for kinds not known yet."""
    if not isinstance(message, dict):
        return None
    params: dict[str, Any] = message.get("params") or {}
    try:
        match message.get("method"), params.get("kind"):
            case "session/delta", "content":
                return ContentDelta(params["seq"], params["text"])
            case "session/delta", "reasoning":
                return ReasoningDelta(params["seq"], params["text"])
            case "session/delta", "tool_call":
                call = params.get("id"), params.get("name"), params["arguments"]
                return ToolCallDelta(params["seq"], params["index"], *call)
            case "$/progress", _:
                return Progress(params["phase"], params["done"], params.get("total"))
    except KeyError as fault:
        raise ProtocolError(f"a notification without {fault}: {message!r}") from fault
    return None


def check_handshake(handshake: Handshake) -> Handshake:
    if handshake["protocol"] != PROTOCOL:
        spoken = handshake["protocol"]
        raise ProtocolError(f"the daemon speaks protocol {spoken}, this package {PROTOCOL}")
    return handshake
