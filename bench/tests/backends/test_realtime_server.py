"""The mock server against what the Realtime reference says, through a plain WebSocket client."""

import array
import asyncio
import base64
import contextlib
import json
import math
import pathlib
import sys
import tempfile
import unittest

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from pcm import FORMATS, SpeechDetector, bytes_of, read_wav, samples_of, write_wav

SERVER = pathlib.Path(__file__).with_name("realtime_server.py")
RATE_HZ = 24_000
WAIT_S = 10


def tone(seconds, hz=440, level=8_000):
    count = int(seconds * RATE_HZ)
    return array.array("h", (int(level * math.sin(math.tau * hz * i / RATE_HZ))
                             for i in range(count)))


def append(samples):
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(
        bytes_of(samples)).decode()}


class Client:
    """A client of one server process, with the orders to that server."""

    def __init__(self, process, socket, folder):
        self.process, self.socket, self.folder = process, socket, folder

    async def send(self, kind, **fields):
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def event(self):
        return json.loads(await asyncio.wait_for(self.socket.recv(), WAIT_S))

    async def until(self, kind):
        """Events up to and with the first of this type."""
        events = []
        while not events or events[-1]["type"] != kind:
            events.append(await self.event())
        return events

    async def order(self, kind, **fields):
        self.process.stdin.write(json.dumps({"do": kind, **fields}).encode() + b"\n")
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), WAIT_S))

    def record(self):
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@contextlib.asynccontextmanager
async def serving(*arguments, headers=None, connects=True):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_wav(folder / "first.wav", RATE_HZ, tone(2.03, 300))
        write_wav(folder / "second.wav", RATE_HZ, tone(1.0, 600))
        process = await asyncio.create_subprocess_exec(
            sys.executable, SERVER, "--record", folder / "events.jsonl", "--heard", folder,
            "--answer", f"{folder}/first.wav=The first answer.",
            "--answer", f"{folder}/second.wav=The second.", "--speed", "20", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        try:
            process.stdin.write(b'{"do": "listening"}\n')
            port = json.loads(await process.stdout.readline())["ok"]
            url = f"ws://127.0.0.1:{port}/v1/realtime?model=mock"
            if not connects:
                yield url
                return
            async with connect(url, max_size=None, additional_headers=headers) as socket:
                yield Client(process, socket, folder)
        finally:
            process.stdin.close()
            await asyncio.wait_for(process.wait(), WAIT_S)


def types(events):
    return [event["type"] for event in events]


def audio(events):
    deltas = (e["delta"] for e in events if e["type"].endswith("audio.delta"))
    return samples_of(b"".join(map(base64.b64decode, deltas)))


class Turns(unittest.IsolatedAsyncioTestCase):
    async def test_a_spoken_turn_is_heard_and_answered_whole(self):
        async with serving() as client:
            created = await client.event()
            self.assertEqual(created["type"], "session.created")
            self.assertEqual(created["session"]["model"], "mock")
            for piece in (tone(0.8), array.array("h", bytes(RATE_HZ * 2))):
                await client.socket.send(json.dumps(append(piece)))
            events = await client.until("response.done")
            self.assertEqual(types(events)[:8], [
                "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
                "input_audio_buffer.committed", "conversation.item.added",
                "conversation.item.done", "response.created", "conversation.item.added",
                "response.output_item.added"])
            self.assertEqual(audio(events), read_wav(client.folder / "first.wav")[1])
            self.assertEqual(events[-1]["response"]["status"], "completed")
            said = [e for e in events if e["type"] == "response.output_audio_transcript.done"]
            self.assertEqual(said[0]["transcript"], "The first answer.")
            await client.socket.close()
            while client.record()[-1]["way"] != "close":
                await asyncio.sleep(0.02)
            heard = read_wav(client.folder / "s0.wav")[1]
            self.assertEqual(len(heard), int(1.8 * RATE_HZ))
            self.assertEqual(client.record()[0]["way"], "open")

    async def test_speech_cancels_the_answer_that_is_still_being_made(self):
        async with serving("--speed", "2") as client:
            await client.send("response.create")
            await client.until("response.output_audio.delta")
            await client.order("speech_started", at_ms=500)
            events = await client.until("response.done")
            self.assertEqual(events[-1]["response"]["status"], "cancelled")
            self.assertEqual(events[-1]["response"]["status_details"]["reason"], "turn_detected")
            sent_ms = 100
            item = events[-1]["response"]["output"][0]["id"]
            for end_ms, answer in ((80, "conversation.item.truncated"), (80 + sent_ms, "error")):
                await client.send("conversation.item.truncate", item_id=item, content_index=0,
                                  audio_end_ms=end_ms)
                self.assertEqual((await client.event())["type"], answer)

    async def test_refuses_what_the_reference_refuses(self):
        async with serving() as client:
            await client.event()
            cases = [
                ({"type": "output_audio_buffer.clear"}, "invalid_value"),
                ({"type": "session.update", "session": {"instructions": "x"}},
                 "missing_required_parameter"),
                ({"type": "response.cancel"}, "response_cancel_not_active"),
                ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty"),
                ({"type": "conversation.item.truncate", "item_id": "none", "audio_end_ms": 1},
                 "item_not_found"),
                ({"type": "input_audio_buffer.append", "audio": "AAA="}, None),
                ({"type": "input_audio_buffer.append", "audio": "AA=="}, "invalid_value"),
                ({"event_id": "mine"}, "missing_required_parameter"),
            ]
            for event, code in cases:
                await client.socket.send(json.dumps(event))
                if code:
                    error = (await client.event())["error"]
                    self.assertEqual((error["code"], error["event_id"]),
                                     (code, event.get("event_id")))
            await client.send("response.create")
            await client.send("response.create")
            errors = [e for e in await client.until("response.done") if e["type"] == "error"]
            self.assertEqual([e["error"]["code"] for e in errors],
                             ["conversation_already_has_active_response"])

    async def test_beta_names_are_used_throughout(self):
        async with serving("--names", "beta") as client:
            created = await client.event()
            self.assertEqual(created["session"]["input_audio_format"], "pcm16")
            await client.send("session.update", session={"output_audio_format": "g711_ulaw"})
            self.assertEqual((await client.event())["session"]["output_audio_format"], "g711_ulaw")
            await client.send("response.create")
            events = await client.until("response.done")
            self.assertIn("response.audio.delta", types(events))
            self.assertIn("response.audio_transcript.done", types(events))
            self.assertFalse([kind for kind in types(events) if "output_audio" in kind])
            deltas = [e["delta"] for e in events if e["type"] == "response.audio.delta"]
            self.assertEqual(sum(len(base64.b64decode(d)) for d in deltas), int(2.03 * 8_000))

    async def test_text_is_answered_by_text_where_that_is_asked_for(self):
        async with serving() as client:
            await client.event()
            item = {"type": "message", "role": "user",
                    "content": [{"type": "input_text", "text": "hello"}]}
            await client.send("conversation.item.create", item=item)
            await client.send("response.create", response={"output_modalities": ["text"]})
            events = await client.until("response.done")
            self.assertEqual(events[0]["item"]["content"], item["content"])
            done = [e for e in events if e["type"] == "response.output_text.done"]
            self.assertEqual(done[0]["text"], "The first answer.")
            self.assertFalse(audio(events))


class Faults(unittest.IsolatedAsyncioTestCase):
    async def test_closes_and_aborts_when_told(self):
        for kind, code in (("close", 1011), ("abort", None)):
            async with serving() as client:
                await client.event()
                self.assertEqual((await client.order(kind))["ok"], 1)
                with self.assertRaises(ConnectionClosed) as closed:
                    await client.event()
                self.assertEqual(closed.exception.rcvd and closed.exception.rcvd.code, code)

    async def test_sends_rubbish_and_large_events(self):
        async with serving() as client:
            await client.event()
            await client.order("send", text="{not json")
            self.assertEqual(await client.socket.recv(), "{not json")
            await client.order("oversize", bytes=1_000_000)
            self.assertEqual(len(await client.socket.recv()), 1_000_000)
            self.assertIn("error", await client.order("no such thing"))

    async def test_reads_nothing_while_stalled(self):
        async with serving() as client:
            await client.event()
            await client.order("stall", seconds=0.5)
            await client.send("input_audio_buffer.clear")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.socket.recv(), 0.2)
            self.assertEqual((await client.event())["type"], "input_audio_buffer.cleared")

    async def test_refuses_a_handshake_with_another_token(self):
        headers = {"Authorization": "Bearer right"}
        async with serving("--token", "right", headers=headers) as client:
            self.assertEqual((await client.event())["type"], "session.created")
        async with serving("--token", "right", connects=False) as url:
            with self.assertRaises(InvalidStatus) as refused:
                await connect(url)
            self.assertEqual(refused.exception.response.status_code, 401)


class Sound(unittest.TestCase):
    def test_g711_returns_every_code_and_stays_near_every_sample(self):
        for name in ("audio/pcmu", "audio/pcma"):
            codec = FORMATS[name]
            codes = bytes(range(256))
            again = codec.decode(codec.encode(codec.decode(codes)))
            self.assertEqual(again, codec.decode(codes), name)
            for sample in range(-32_768, 32_768, 97):
                back = codec.decode(codec.encode([sample]))[0]
                self.assertLessEqual(abs(back - sample), max(16, abs(sample) // 16), (name, sample))

    def test_g711_agrees_with_the_tables_of_the_recommendation(self):
        self.assertEqual(FORMATS["audio/pcmu"].encode([0, -1, 32_767, -32_768]).hex(), "ff7f8000")
        self.assertEqual(FORMATS["audio/pcma"].encode([0, -1, 32_767, -32_768]).hex(), "d555aa2a")

    def test_speech_begins_and_ends_once_and_a_click_is_none(self):
        ears = SpeechDetector(RATE_HZ, silence_ms=200)
        quiet = array.array("h", bytes(RATE_HZ))
        found = ears.feed(quiet + tone(0.04) + quiet)
        self.assertEqual(found, [])
        found = ears.feed(tone(0.5) + quiet)
        self.assertEqual([what for what, _ in found], ["started", "stopped"])
        self.assertAlmostEqual(found[1][1] - found[0][1], 0.7 * RATE_HZ, delta=960)


if __name__ == "__main__":
    unittest.main()
