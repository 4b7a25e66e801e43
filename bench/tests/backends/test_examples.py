"""The example services, each in its own process, against a stand-in for the transceiver."""

import array
import asyncio
import contextlib
import logging
import pathlib
import subprocess
import sys
import tempfile
import unittest
import wave

import edge
from test_realtime_server import tone

EXAMPLES = pathlib.Path(__file__).parents[3] / "transceiver" / "examples"
sys.path.append(str(EXAMPLES))
RATE_HZ = 16_000
# The test's loop tells of every slow step, of which a busy machine has many.
logging.getLogger("asyncio").setLevel(logging.ERROR)


@contextlib.asynccontextmanager
async def calling(name, times=20):
    process = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLES / name, "--port", "0", stdout=asyncio.subprocess.PIPE)
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        call = await edge.call(line.decode().split()[-1], times)
        try:
            yield call
        finally:
            await call.hang_up()
        said = await asyncio.wait_for(process.stdout.readline(), 5) if name != "parrot.py" else b""
    finally:
        process.terminate()
        rest = await process.stdout.read()
        await process.wait()
    if name == "echo.py":
        assert b"begins" in said and b"ends, hung_up" in rest, (said, rest)


def silence(seconds):
    return bytes(2 * int(seconds * RATE_HZ))


def spoken(text, voice="rms"):
    """A person's words, in another voice than the agent's."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "spoken.wav"
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", file], check=True)
        with wave.open(str(file)) as spoken_file:
            return spoken_file.readframes(spoken_file.getnframes())


class Echo(unittest.IsolatedAsyncioTestCase):
    async def test_returns_packets_and_events_and_no_gaps(self):
        async with calling("echo.py") as call:
            self.assertEqual(call.hello["audio_out"], {"format": "opus"})
            packets = [bytes([248, n]) for n in range(20)]
            for packet in packets:
                await call.send_packet(packet, 960)
                await call.send_packet((960).to_bytes(4, "little"), 960, flags=1)
            await call.send_event("test.event", text="Grüße")
            await call.event("test.event", text="Grüße")
            await call.send("dtmf", digit="5", timestamp=0)
            await call.event("key", digit="5")
            while len(call.played) < len(packets):
                await asyncio.sleep(0.01)
            self.assertEqual([payload for _, payload in call.played], packets)


class Parrot(unittest.IsolatedAsyncioTestCase):
    async def test_says_back_what_was_said(self):
        async with calling("parrot.py") as call:
            said = tone(1.0, 500)[: RATE_HZ]
            await call.speak(silence(0.5) + said.tobytes() + silence(1))
            segment = (await call.event("parrot.finished"))["segment"]
            sound = call.sound(segment)
            at = next(i for i, sample in enumerate(sound) if sample)
            self.assertEqual(sound[at - 1 : at - 1 + len(said)], said)

    async def test_is_interrupted_and_tells_what_was_played(self):
        async with calling("parrot.py", times=4) as call:
            await call.speak(tone(3.0).tobytes() + silence(1))
            await call.event("response.created")
            while len(call.played) < 25:
                await asyncio.sleep(0.01)
            await call.speak(tone(0.2).tobytes())
            cut = await call.event("parrot.interrupted")
            played = [payload for segment, payload in call.played if segment == cut["segment"]]
            self.assertEqual(cut["played_ms"], 20 * len(played))
            await asyncio.sleep(0.2)
            self.assertEqual(len(call.sound(cut["segment"])), RATE_HZ // 50 * len(played))
            await call.speak(silence(1))
            again = await call.event("parrot.finished")
            self.assertNotEqual(again["segment"], cut["segment"])


class VoiceAgent(unittest.IsolatedAsyncioTestCase):
    async def greeted(self, call):
        """Waits until the agent has introduced itself, and forgets how that sounded."""
        await call.event("agent.ready")
        said = await call.event("response.output_audio_transcript.done")
        self.assertTrue(said["transcript"].startswith("Hello. Ask me"), said)
        await self.played_out(call)
        call.played.clear()

    async def hear_answer(self, call):
        """Transcripts of both sides, and the answer as it is recognised by ear."""
        heard = await call.event("conversation.item.input_audio_transcription.completed")
        said = await call.event("response.output_audio_transcript.done")
        return heard["transcript"], said["transcript"]

    async def test_answers_a_spoken_question_with_the_right_words(self):
        from ears import Ears

        async with calling("voice_agent.py") as call:
            await self.greeted(call)
            await call.speak(silence(0.5) + spoken("what can you do") + silence(1))
            heard, said = await self.hear_answer(call)
            self.assertEqual(heard, "")
            self.assertIn("did not understand", said)
            await call.speak(silence(0.5) + spoken("count to ten") + silence(1))
            heard, said = await self.hear_answer(call)
            self.assertEqual(heard, "count to ten")
            self.assertEqual(said, "One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten.")
            await self.played_out(call)
            words = said.lower().replace(".", "").split()
            wrong = [" ".join(reversed(words)), "one three five"]
            ears = Ears(RATE_HZ, [" ".join(words), *wrong])
            sound = call.sound(call.played[-1][0]).tobytes()
            self.assertEqual(ears.recognise(sound), " ".join(words))

    async def played_out(self, call):
        while call.queue or call.playing is not None:
            await asyncio.sleep(0.02)

    async def test_is_interrupted_and_goes_on_from_what_was_heard(self):
        async with calling("voice_agent.py", times=4) as call:
            await self.greeted(call)
            await call.speak(silence(0.5) + spoken("tell me a story") + silence(1))
            story = (await call.event("response.output_audio_transcript.done"))["transcript"]
            # Into the third sentence, and no further.
            while len(call.played) < 400:
                await asyncio.sleep(0.01)
            await call.speak(silence(0.5) + spoken("stop"))
            cut = await call.event("conversation.item.truncated")
            self.assertEqual(cut["audio_end_ms"], played_ms(call))
            await call.speak(silence(1))
            await call.event("conversation.item.input_audio_transcription.completed",
                             transcript="stop")
            await call.speak(silence(0.5) + spoken("go on") + silence(1))
            rest = (await call.event("response.output_audio_transcript.done"))["transcript"]
            self.assertTrue(rest.startswith("As I was saying. "), rest)
            rest = rest.removeprefix("As I was saying. ")
            self.assertTrue(story.endswith(rest) and len(rest) < len(story), rest)

    async def test_answers_what_was_written_and_stops_at_the_clients_word(self):
        async with calling("voice_agent.py", times=4) as call:
            await self.greeted(call)
            content = [{"type": "input_text", "text": "Tell me a story!"}]
            await call.send_event("conversation.item.create",
                                  item={"type": "message", "role": "user", "content": content})
            await call.send_event("response.create")
            while len(call.played) < 25:
                await asyncio.sleep(0.01)
            await call.send_event("output_audio_buffer.clear")
            await call.send_event("response.cancel")
            cut = await call.event("conversation.item.truncated")
            self.assertEqual(cut["audio_end_ms"], played_ms(call))


def played_ms(call):
    return sum(len(payload) for _, payload in call.played) * 1000 // (2 * RATE_HZ)


if __name__ == "__main__":
    unittest.main()
