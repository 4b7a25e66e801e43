"""A voice agent over media.v1 that runs on this machine alone: PocketSphinx hears, Flite speaks.

    python3 voice_agent.py --port 9003

Ask it one of the questions in `skills.py`, by voice or as text. It is interrupted when you speak,
knows how much of its answer you heard, and goes on from there when you say "go on". Its events
have the names of the Realtime API, so that any page that shows transcripts shows these.
Needs requirements.txt, and Debian's `flite`.
"""

import asyncio
import itertools
import pathlib
import tempfile
import wave

import media_v1
import skills
from ears import Ears

VOICE = "slt"


class VoiceAgent(media_v1.Call):
    async def begin(self):
        self.ears = Ears(self.rate_hz, skills.PHRASES)
        self.ids = itertools.count(1)
        self.reply, self.tasks = None, {}
        self.cut, self.text = skills.Cut(), ""
        await self.send_event("agent.ready", phrases=skills.PHRASES)
        # Held by the edge until the caller can hear it.
        self.reply_with(skills.GREETING)

    # -- hearing -----------------------------------------------------------------------------

    async def hear(self, pcm):
        for what, utterance in self.ears.feed(pcm):
            if what == "started":
                self.item = self.id("item")
                await self.send_event("input_audio_buffer.speech_started", item_id=self.item)
                await self.interrupt("turn_detected")
            else:
                await self.send_event("input_audio_buffer.speech_stopped", item_id=self.item)
                self.start("understand", self.understand(self.item, utterance))

    async def understand(self, item, utterance):
        words = await asyncio.to_thread(self.ears.recognise, utterance)
        await self.send_event("conversation.item.input_audio_transcription.completed",
                              item_id=item, content_index=0, transcript=words)
        await self.answer(words)

    async def handle_event(self, message):
        event = message["event"]
        if event["type"] == "conversation.item.create":
            self.text = " ".join(part.get("text", "") for part in event["item"]["content"])
        elif event["type"] == "response.create":
            await self.answer(self.text)
        elif event["type"] in ("response.cancel", "output_audio_buffer.clear"):
            await self.interrupt("client_cancelled")

    # -- answering ---------------------------------------------------------------------------

    async def answer(self, words):
        await self.interrupt("turn_detected")
        self.reply_with(skills.answer(words, self.cut))

    def reply_with(self, sentences):
        if sentences:
            self.reply = Reply(self.id("resp"), self.id("item"), next(self.segments), sentences)
            self.start("speak", self.speak(self.reply))

    async def speak(self, reply):
        """Synthesises sentence by sentence: the first is heard while the next is made."""
        await self.send_event("response.created", response=reply.summary("in_progress"))
        for sentence in reply.sentences:
            pcm = await synthesise(sentence, self.rate_hz)
            reply.lengths_ms.append(len(pcm) // 2 * 1000 // self.rate_hz)
            await self.send_event("response.output_audio_transcript.delta", **reply.place(),
                                  delta=sentence + " ")
            await self.play(reply.segment, pcm)
        await self.send("end_of_segment", segment=reply.segment)
        await self.send_event("response.output_audio_transcript.done", **reply.place(),
                              transcript=" ".join(reply.sentences))
        await self.send_event("response.done", response=reply.summary("completed"))

    async def interrupt(self, reason):
        """Stops the answer here and at the edge; `handle_flushed` tells how far it came."""
        reply, self.reply = self.reply, None
        if reply is None:
            return
        if not self.tasks["speak"].done():
            self.tasks["speak"].cancel()
            await self.send_event("response.done", response=reply.summary("cancelled", reason))
        self.cut = skills.Cut(reply)
        await self.send("flush")

    async def handle_flushed(self, message):
        reply = self.cut.reply
        # No segment: the answer had come to its end, or had not begun.
        if reply is not None and message["segment"] == reply.segment:
            self.cut.played_ms = message["sent_samples"] * 1000 // media_v1.CLOCK_HZ
            await self.send_event("conversation.item.truncated", item_id=reply.item_id,
                                  content_index=0, audio_end_ms=self.cut.played_ms)

    async def handle_playout(self, message):
        reply = self.reply
        if reply and message["state"] == "ended" and message["segment"] == reply.segment:
            self.reply = None
            if reply.sentences == skills.GOOD_BYE:
                await self.send("close", reason="the caller said good-bye")
                await self.link.close()

    async def end(self, reason):
        print(f"{self.hello['call']}: ends, {reason}", flush=True)
        for task in self.tasks.values():
            task.cancel()

    def start(self, name, work):
        """Runs it beside the link; kept by name, for a task that nobody holds may vanish."""
        self.tasks[name] = asyncio.create_task(work)

    def id(self, kind):
        return f"{kind}_{next(self.ids)}"


class Reply:
    """An answer, and how long each of its sentences is."""

    def __init__(self, response_id, item_id, segment, sentences):
        self.response_id, self.item_id = response_id, item_id
        self.segment, self.sentences = segment, sentences
        self.lengths_ms = []

    def rest(self, played_ms):
        """The sentences that were not heard to their end."""
        ends = itertools.accumulate(self.lengths_ms)
        heard = sum(1 for end in ends if end <= played_ms)
        return self.sentences[heard:]

    def place(self):
        return {"response_id": self.response_id, "item_id": self.item_id, "output_index": 0,
                "content_index": 0}

    def summary(self, status, reason=None):
        details = {"type": status, "reason": reason} if reason else None
        return {"object": "realtime.response", "id": self.response_id, "status": status,
                "status_details": details}


async def synthesise(sentence, rate_hz):
    """Samples of a spoken sentence."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "spoken.wav"
        flite = await asyncio.create_subprocess_exec(
            "flite", "-voice", VOICE, "-t", sentence, "-o", str(file))
        try:
            status = await flite.wait()
        except asyncio.CancelledError:
            flite.kill()
            await flite.wait()
            raise
        if status != 0:
            raise RuntimeError(f"flite cannot say {sentence!r}")
        with wave.open(str(file)) as spoken:
            assert (spoken.getframerate(), spoken.getnchannels()) == (rate_hz, 1)
            return spoken.readframes(spoken.getnframes())


if __name__ == "__main__":
    media_v1.main(VoiceAgent, "A small voice agent over media.v1.", 9003)
