"""The client for asyncio, against a real daemon."""

from __future__ import annotations

import asyncio
import signal
import unittest

from attar_client import AttarError, ContentDelta, aio, errors

from .daemon import ENDLESS, LIVELY, Home, user


class Aio(unittest.IsolatedAsyncioTestCase):
    home: Home

    @classmethod
    def setUpClass(cls) -> None:
        cls.home = Home()
        cls.addClassCleanup(cls.home.remove)
        cls.home.start()

    async def asyncSetUp(self) -> None:
        self.client = await aio.connect(self.home.socket)
        self.addAsyncCleanup(self.client.close)
        self.session = await self.client.open(self.id().rpartition(".")[2])

    async def test_open_append_generate(self) -> None:
        appended = await self.session.append(user("Hello"))
        self.assertEqual(len(appended["items"]), 1)
        answer = await self.session.generate(8)
        self.assertEqual(answer["usage"]["completion_tokens"], 8)
        shown = await self.session.show()
        self.assertEqual(shown["history"][-1], answer["message"])
        self.assertIn(self.session.id, [info["session"] for info in await self.client.sessions()])

    async def test_stream(self) -> None:
        texts = []
        async with self.session.stream(50, messages=[user("Hello")], sampling=LIVELY) as stream:
            async for text in stream.text():
                texts.append(text)
        assert stream.answer is not None
        self.assertEqual("".join(texts), stream.answer["message"]["content"])

    async def test_streams_side_by_side(self) -> None:
        async def length(number: int) -> int:
            session = await self.client.open(f"side-{number}")
            answer = await session.stream(number, messages=[user("Hello")]).read()
            return answer["usage"]["completion_tokens"]

        self.assertEqual(await asyncio.gather(*map(length, [3, 5, 7])), [3, 5, 7])

    async def test_cancel(self) -> None:
        async with self.session.stream(
            ENDLESS, messages=[user("Hello")], sampling=LIVELY
        ) as stream:
            await anext(stream)
            self.assertTrue(await self.session.cancel())
            answer = await stream.read()
        self.assertEqual(answer["finish_reason"], "cancelled")

    async def test_a_cancelled_task_ends_its_generation(self) -> None:
        task = asyncio.create_task(self.session.generate(ENDLESS, messages=[user("Hello")]))
        while (await self.client.status())["sessions"]["generating"] == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        answer = await self.session.attach().read()
        self.assertEqual(answer["finish_reason"], "cancelled")

    async def test_a_cancelled_call_does_not_disturb_the_next(self) -> None:
        task = asyncio.create_task(self.client.status())
        await asyncio.sleep(0)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertIn("default", await self.client.models())

    async def test_attach_after_a_hang_up(self) -> None:
        async with self.session.stream(
            2_000, messages=[user("Hello")], sampling=LIVELY, on_disconnect="finish"
        ) as stream:
            async for event in stream:
                if isinstance(event, ContentDelta):
                    break
        texts = [text async for text in self.session.attach().text()]
        shown = await self.session.show()
        self.assertEqual("".join(texts), shown["history"][-1]["content"])

    async def test_errors(self) -> None:
        with self.assertRaises(errors.MethodNotFound):
            await self.client.call("session/dance")
        with self.assertRaises(errors.InvalidParams):
            await self.session.stream(0).read()
        status, error = await self.client.batch([("daemon/status", {}), ("model/load", {})])
        self.assertIn("pid", status)
        self.assertIsInstance(error, errors.InvalidParams)

    async def test_a_long_line(self) -> None:
        text = "x" * 500_000
        answers = await self.client.batch([("model/load", {"model": text})])
        self.assertIsInstance(answers[0], errors.RpcError)
        self.assertGreater(len(str(answers[0])), len(text))


class Restart(unittest.IsolatedAsyncioTestCase):
    async def test_a_daemon_is_started_and_its_sessions_resumed(self) -> None:
        home = Home()
        self.addCleanup(home.remove)
        with self.assertRaises(errors.NotRunning):
            await aio.connect(home.socket)
        async with await aio.connect(home.socket, start=home.command) as client:
            await (await client.open("s")).append(user("Hello"))
            pid = (await client.status())["pid"]
            await client.shutdown()
            while not home.has_ended(pid):
                await asyncio.sleep(0.02)
        home.start()
        async with await aio.connect(home.socket) as client:
            session = await client.open("s")
            self.assertTrue(session.opened["resumed"])
            async with session.stream(ENDLESS, sampling=LIVELY) as stream:
                await anext(stream)
                home.stop(signal.SIGKILL)
                with self.assertRaises(AttarError):
                    await stream.read()


if __name__ == "__main__":
    unittest.main()
