"""The client for threads, against a real daemon."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from attar_client import (
    AttarError,
    Client,
    ContentDelta,
    Event,
    Message,
    RpcError,
    Session,
    ToolCallDelta,
    connect,
    errors,
)
from attar_client._daemon import default_socket

from .daemon import ENDLESS, LIVELY, Home, user


class WithDaemon(unittest.TestCase):
    """Tests that share a daemon; each has a session of its own."""

    home: Home
    client: Client

    @classmethod
    def setUpClass(cls) -> None:
        cls.home = Home()
        cls.addClassCleanup(cls.home.remove)
        cls.home.start()
        cls.client = connect(cls.home.socket)
        cls.addClassCleanup(cls.client.close)

    def session(self) -> Session:
        return self.client.open(self.id().rpartition(".")[2])


class Sessions(WithDaemon):
    def test_open_append_generate(self) -> None:
        session = self.session()
        self.assertFalse(session.opened["resumed"])
        appended = session.append(user("Why does this fail?"), user("E   assert 3 == 4"))
        self.assertEqual([item["index"] for item in appended["items"]], [0, 1])
        answer = session.generate(8, sampling={"temperature": 0.7, "seed": 5})
        self.assertEqual(answer["message"]["role"], "assistant")
        self.assertEqual(answer["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 8)
        self.assertEqual(answer["seed"], 5)
        history = session.show()["history"]
        self.assertEqual([m["role"] for m in history], ["user", "user", "assistant"])
        self.assertEqual(history[-1]["content"], answer["message"]["content"])

    def test_an_open_session_is_resumed(self) -> None:
        first = self.session()
        first.append(user("Hello"))
        again = self.client.open(first.id)
        self.assertTrue(again.opened["resumed"])
        self.assertEqual(len(again.show()["history"]), 1)

    def test_a_session_without_an_id_gets_one(self) -> None:
        session = self.client.open(messages=[user("Hello")], cache={"budget": 512})
        self.assertIn(session.id, [info["session"] for info in self.client.sessions()])
        session.delete()
        self.assertNotIn(session.id, [info["session"] for info in self.client.sessions()])

    def test_checkpoint_rollback_fork(self) -> None:
        session = self.session()
        session.append(user("one"))
        name = session.checkpoint("before")
        session.append(user("two"))
        fork = session.fork()
        self.assertEqual(session.rollback(name), "before")
        self.assertEqual([m["content"] for m in session.show()["history"]], ["one"])
        self.assertEqual([m["content"] for m in fork.show()["history"]], ["one", "two"])

    def test_configure(self) -> None:
        in_force = self.session().configure(cache={"policy": "snapkv", "budget": 300})
        self.assertEqual(in_force["cache"]["policy"], "snapkv")
        self.assertEqual(in_force["cache"]["budget"], 300)

    def test_close_and_open(self) -> None:
        session = self.session()
        session.append(user("Hello"))
        session.close()
        with self.assertRaises(errors.SessionNotFound):
            session.append(user("there"))
        self.assertTrue(self.client.open(session.id).opened["resumed"])

    def test_inspect(self) -> None:
        session = self.session()
        session.generate(4, messages=[user("Hello")])
        self.assertGreater(len(session.spans()["spans"]), 0)
        kept = session.kept(layer=1)
        self.assertEqual(kept["kept"], list(range(kept["logical"])))

    def test_recall_and_condense(self) -> None:
        log = "\n".join(f"\x1b[32mtest_{n} ... ok\x1b[0m" for n in range(60))
        output: Message = {"role": "tool", "content": log}
        if not self.client.supports("context/condense"):
            with self.assertRaises(errors.MethodNotFound):
                self.client.condense([output])
            return
        (condensed,) = self.client.condense([output])["messages"]
        self.assertEqual(condensed["content"], log.replace("\x1b[32m", "").replace("\x1b[0m", ""))
        session = self.client.open(condense="on")
        (folded,) = session.append(output)["items"]
        self.assertLess(folded["given_tokens"], folded["tokens"])
        self.assertEqual(session.recall(folded["handle"])["text"], log)

    def test_models_and_status(self) -> None:
        self.assertIn("tiny-qwen2", self.client.models()["default"])
        self.assertEqual(
            self.client.status()["version"], self.client.handshake["server"]["version"]
        )


class Streams(WithDaemon):
    def test_events_make_up_the_answer(self) -> None:
        with self.session().stream(50, messages=[user("Hello")], sampling=LIVELY) as stream:
            events: list[Event] = list(stream)
        deltas = [event for event in events if isinstance(event, ContentDelta)]
        self.assertEqual([delta.seq for delta in deltas], list(range(len(deltas))))
        assert stream.answer is not None
        text = "".join(delta.text for delta in deltas)
        self.assertEqual(text, stream.answer["message"]["content"])

    def test_text_alone(self) -> None:
        stream = self.session().stream(10, messages=[user("Hello")])
        text = "".join(stream.text())
        self.assertEqual(text, stream.read()["message"]["content"])

    def test_cancel_a_stream(self) -> None:
        with self.session().stream(ENDLESS, messages=[user("Hello")], sampling=LIVELY) as stream:
            next(stream)
            stream.cancel()
            answer = stream.read()
        self.assertEqual(answer["finish_reason"], "cancelled")
        self.assertNotEqual(answer["message"]["content"], "")

    def test_cancel_from_elsewhere(self) -> None:
        session = self.session()
        self.assertFalse(session.cancel())
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(session.generate(ENDLESS, messages=[user("Hello")]))
        )
        thread.start()
        # The client answers other calls meanwhile.
        while not session.cancel():
            time.sleep(0.01)
        thread.join()
        self.assertEqual(answers[0]["finish_reason"], "cancelled")

    def test_a_busy_session(self) -> None:
        session = self.session()
        with session.stream(ENDLESS, messages=[user("Hello")], sampling=LIVELY) as stream:
            next(stream)
            with self.assertRaises(errors.SessionBusy) as caught:
                session.generate(1, messages=[user("Me too")])
            self.assertTrue(caught.exception.retryable)
            self.assertEqual(caught.exception.retry_after, 1.0)

    def test_hanging_up_cancels(self) -> None:
        session = self.session()
        with session.stream(ENDLESS, messages=[user("Hello")], sampling=LIVELY) as stream:
            next(stream)
        with self.assertRaises(errors.Disconnected):
            stream.read()
        answer = session.attach().read()
        self.assertEqual(answer["finish_reason"], "cancelled")

    def test_attach_after_a_hang_up(self) -> None:
        session = self.session()
        with session.stream(300, messages=[user("Hello")], on_disconnect="finish") as stream:
            seen = next(event for event in stream if isinstance(event, ContentDelta))
        with session.attach(seen.seq + 1) as rest:
            deltas = [event for event in rest if isinstance(event, ContentDelta)]
        assert rest.answer is not None
        self.assertEqual(rest.answer["finish_reason"], "length")
        text = seen.text + "".join(delta.text for delta in deltas)
        self.assertEqual(text, rest.answer["message"]["content"])

    def test_leaving_an_attached_stream_leaves_the_generation(self) -> None:
        session = self.session()
        with session.stream(ENDLESS, messages=[user("Hello")], sampling=LIVELY) as stream:
            next(stream)
            with session.attach() as attached:
                attached.cancel()
                with self.assertRaises(errors.RequestCancelled):
                    attached.read()
            self.assertTrue(session.cancel())


class Refusals(WithDaemon):
    def test_each_error_has_its_type(self) -> None:
        call = self.client.call
        with self.assertRaises(errors.MethodNotFound):
            call("session/dance")
        with self.assertRaisesRegex(errors.InvalidParams, "max_tokens"):
            self.session().generate(0)
        with self.assertRaises(errors.SessionNotFound) as caught:
            call("session/append", session="nobody", messages=[user("Hello")])
        self.assertEqual(caught.exception.code, 1003)
        self.assertEqual(caught.exception.data["kind"], "session_not_found")
        with self.assertRaises(errors.ModelNotFound):
            self.client.open("other", model="no-such-model")
        with self.assertRaises(errors.ContextOverflow) as overflow:
            self.session().append(user("word " * 40_000))
        self.assertEqual(overflow.exception.limit, 32_768)
        # The connection lives on.
        self.assertGreater(len(call("initialize")["capabilities"]["methods"]), 0)

    def test_a_message_over_the_limit(self) -> None:
        with self.assertRaises(errors.TooLarge) as caught:
            self.client.call("session/append", session="s", messages=[user("x" * (65 << 20))])
        self.assertEqual(caught.exception.limit, 64 << 20)
        self.client.status()

    def test_text_that_is_no_unicode(self) -> None:
        with self.assertRaises(errors.ParseError):
            self.session().append(user("lone \ud800 surrogate"))
        with self.assertRaises(ValueError):
            self.session().generate(1, sampling={"temperature": float("nan")})
        self.client.status()

    def test_any_text_comes_back(self) -> None:
        session = self.session()
        text = "\u2028 line \x00 \r\n \U0001f600 ü"
        session.append(user(text))
        self.assertEqual(session.show()["history"][0]["content"], text)

    def test_batch(self) -> None:
        session = self.session()
        good, bad, also = self.client.batch(
            [
                ("session/append", {"session": session.id, "messages": [user("Hello")]}),
                ("session/append", {"session": "nobody", "messages": []}),
                ("daemon/status", {}),
            ]
        )
        self.assertEqual(len(good["items"]), 1)
        self.assertIsInstance(bad, errors.SessionNotFound)
        self.assertIn("pid", also)
        self.assertEqual(self.client.batch([]), [])


class Daemons(unittest.TestCase):
    """Tests that start and end daemons of their own."""

    def setUp(self) -> None:
        self.home = Home()
        self.addCleanup(self.home.remove)

    def test_sessions_outlive_the_daemon(self) -> None:
        for how in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(how=how):
                self.home.start()
                with connect(self.home.socket) as client:
                    session = client.open("s")
                    answer = session.generate(6, messages=[user("Hello")])
                    self.home.stop(how)
                    with self.assertRaises(AttarError):
                        session.show()
                    self.home.start()
                    # The same client connects again by itself.
                    resumed = client.open("s")
                    self.assertTrue(resumed.opened["resumed"])
                    self.assertEqual(resumed.show()["history"][-1], answer["message"])
                    last = resumed.generate(1, messages=[user("And?")])
                    self.assertGreater(last["usage"]["cached_tokens"], 0)
                self.home.stop()

    def test_a_stream_of_a_daemon_that_dies(self) -> None:
        self.home.start()
        with connect(self.home.socket) as client:
            stream = client.open("s").stream(ENDLESS, messages=[user("Hello")], sampling=LIVELY)
            next(stream)
            self.home.stop(signal.SIGKILL)
            with self.assertRaises(errors.Disconnected):
                stream.read()

    def test_a_daemon_is_started_only_if_asked(self) -> None:
        with self.assertRaisesRegex(errors.NotRunning, "attar serve"):
            connect(self.home.socket)
        with connect(self.home.socket, start=self.home.command) as client:
            pid = client.status()["pid"]
            with connect(self.home.socket, start=self.home.command) as other:
                self.assertEqual(other.status()["pid"], pid)
            client.shutdown()
            while not self.home.has_ended(pid):
                time.sleep(0.02)
        self.assertFalse(self.home.socket.exists())

    def test_why_a_daemon_does_not_start(self) -> None:
        with self.assertRaisesRegex(errors.NotRunning, "no-such-flag"):
            connect(self.home.socket, start=[self.home.attar, "serve", "--no-such-flag"])
        with self.assertRaisesRegex(errors.NotRunning, "cannot run"):
            connect(self.home.socket, start=["no-such-program"])
        with self.assertRaisesRegex(errors.NotRunning, "within 0.2 s"):
            connect(self.home.socket, start=["sh", "-c", "sleep 60"], timeout=0.2)


class WithoutDaemon(unittest.TestCase):
    def test_where_the_socket_is(self) -> None:
        with tempfile.TemporaryDirectory() as runtime:
            environment = {"XDG_RUNTIME_DIR": runtime}
            with mock.patch.dict(os.environ, environment, clear=True):
                self.assertEqual(default_socket(), Path(runtime, "attar", "attar.sock"))
            with mock.patch.dict(os.environ, {"ATTAR_SOCKET": "/a/b", **environment}, clear=True):
                self.assertEqual(default_socket(), Path("/a/b"))
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": "relative"}, clear=True):
            self.assertEqual(default_socket(), Path(f"/tmp/attar-{os.geteuid()}/attar.sock"))

    def test_errors_read_from_the_wire(self) -> None:
        error = RpcError.read({"code": 1005, "message": "too long", "data": {"limit": 7}})
        self.assertIsInstance(error, errors.ContextOverflow)
        self.assertEqual((str(error), error.limit, error.asked), ("too long", 7, None))
        unknown = RpcError.read({"code": 4711, "message": "new"})
        self.assertIs(type(unknown), RpcError)
        self.assertFalse(unknown.retryable)
        for malformed in (None, {}, {"code": "x", "message": ""}):
            with self.assertRaises(errors.ProtocolError):
                RpcError.read(malformed)

    def test_events_read_from_the_wire(self) -> None:
        from attar_client import _protocol

        call = {"seq": 1, "kind": "tool_call", "index": 0, "id": "c1", "name": "ls"}
        delta = {"method": "session/delta", "params": {**call, "arguments": "{"}}
        self.assertEqual(_protocol.event(delta), ToolCallDelta(1, 0, "c1", "ls", "{"))
        with self.assertRaises(errors.ProtocolError):
            _protocol.event({"method": "session/delta", "params": call})
        self.assertIsNone(_protocol.event({"method": "session/delta", "params": {"kind": "new"}}))
        self.assertIsNone(_protocol.event({"method": "$/new"}))


if __name__ == "__main__":
    unittest.main()
