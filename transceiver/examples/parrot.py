"""A minimal agent over media.v1: when you have finished a sentence, it says it back to you.

    python3 parrot.py --port 9002

There is no recogniser and no model in it, and still everything that an agent does on the wire:
it finds the turns in what it hears, answers with a segment, is interrupted when you speak, and
tells the client exactly how much of its answer was played. Replace `answer` by something clever.
Needs `websockets` (see requirements.txt).
"""

import array
import asyncio
import sys

import media_v1

FRAME_MS = 20
# Mean square of a frame above which somebody speaks: -40 dB of full scale.
LOUD = (32_768 * 0.01) ** 2
# Speech begins with as many loud frames and ends with as many quiet ones.
LOUD_FRAMES, QUIET_FRAMES = 5, 30
# The longest turn that is kept, and what is kept from before a turn was noticed.
TURN_FRAMES_MAX, LEAD_FRAMES = 1500, 15


class Parrot(media_v1.Call):
    async def begin(self):
        self.frame_bytes = self.rate_hz * FRAME_MS // 1000 * 2
        self.rest, self.frames = b"", []
        self.loud = self.quiet = 0
        self.speaks, self.answering, self.playing = False, None, None

    async def hear(self, pcm):
        self.rest += pcm
        while len(self.rest) >= self.frame_bytes:
            frame, self.rest = self.rest[: self.frame_bytes], self.rest[self.frame_bytes :]
            self.frames.append(frame)
            await self.notice(is_loud(frame))
            kept = TURN_FRAMES_MAX if self.speaks else LEAD_FRAMES
            del self.frames[: max(0, len(self.frames) - kept)]

    async def notice(self, loud):
        self.loud, self.quiet = (self.loud + 1, 0) if loud else (0, self.quiet + 1)
        if not self.speaks and self.loud == LOUD_FRAMES:
            self.speaks = True
            await self.send_event("input_audio_buffer.speech_started")
            await self.interrupt()
        elif self.speaks and self.quiet == QUIET_FRAMES:
            self.speaks = False
            await self.send_event("input_audio_buffer.speech_stopped")
            turn, self.frames = b"".join(self.frames), []
            self.answering = asyncio.create_task(self.answer(turn))

    async def answer(self, turn):
        """Plays the turn back as one segment."""
        self.playing = segment = next(self.segments)
        await self.send_event("response.created", response={"id": f"resp_{segment}"})
        await self.play(segment, turn)
        await self.send("end_of_segment", segment=segment)

    async def interrupt(self):
        """Barge-in: no more of this answer, neither from here nor of what waits at the edge."""
        if self.playing is None:
            return
        self.answering.cancel()
        self.playing = None
        await self.send("flush")

    async def handle_flushed(self, message):
        # No segment: all of it had been played by then.
        if message["segment"] is not None:
            await self.send_event("parrot.interrupted", segment=message["segment"],
                                  played_ms=message["sent_samples"] * 1000 // media_v1.CLOCK_HZ)

    async def handle_playout(self, message):
        if message["state"] == "ended" and message["segment"] == self.playing:
            self.playing = None
            await self.send_event("parrot.finished", segment=message["segment"],
                                  played_ms=message["sent_samples"] * 1000 // media_v1.CLOCK_HZ)

    async def handle_event(self, message):
        if message["event"]["type"] in ("output_audio_buffer.clear", "response.cancel"):
            await self.interrupt()

    async def end(self, reason):
        if self.answering:
            self.answering.cancel()


def is_loud(frame):
    samples = array.array("h", frame)
    if sys.byteorder == "big":
        samples.byteswap()
    return sum(sample * sample for sample in samples) > LOUD * len(samples)


if __name__ == "__main__":
    media_v1.main(Parrot, "Says back what it hears, turn by turn, over media.v1.", 9002)
