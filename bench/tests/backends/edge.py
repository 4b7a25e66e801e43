"""A stand-in for the transceiver on the client's end of a media.v1 link, after the manual.

It offers the hello, sends what a caller says, plays out what comes at so many times real time in
20 ms steps, counts credit, answers flush and marks, and keeps every sample that was played. What
a backend is not allowed to do is an assertion here.
"""

import array
import asyncio
import contextlib
import json
import struct

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

HEADER = struct.Struct("<BBHIQQ")
CLOCK_HZ = 48_000
FRAME = CLOCK_HZ // 50
FIRST_CREDIT = 10 * CLOCK_HZ
WAIT_S = 20


class Edge:
    """One call to one backend. `played` has a (segment, samples) for each frame that went out."""

    def __init__(self, socket, times):
        self.socket, self.times = socket, times
        self.messages, self.taken = [], asyncio.Condition()
        self.queue, self.played, self.marks = [], [], []
        self.received = self.spent = self.sequence = self.clock = 0
        self.sent_of = {}
        self.playing = None

    async def greet(self, link=1):
        await self.send("hello", versions=[1], call="rtc_test", model="agent", link=link,
                        formats=["opus", "pcm16"],
                        sample_rates=[8_000, 12_000, 16_000, 24_000, 48_000],
                        credit_samples=FIRST_CREDIT, time_ns=0,
                        limits={"message_bytes": 1 << 20, "queue_samples": 60 * CLOCK_HZ,
                                "marks": 256, "faults": 16})
        self.hello = json.loads(await asyncio.wait_for(self.socket.recv(), WAIT_S))
        assert self.hello["type"] == "hello" and self.hello["version"] == 1, self.hello
        self.rates = {way: self.hello[way].get("sample_rate", CLOCK_HZ)
                      for way in ("audio_in", "audio_out")}
        self.tasks = [asyncio.create_task(self.read()), asyncio.create_task(self.play())]
        await self.send("ready", time_ns=0)

    async def send(self, kind, **fields):
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def send_event(self, kind, **fields):
        await self.send("event", event={"type": kind, **fields})

    async def send_packet(self, payload, samples, flags=0):
        header = HEADER.pack(1, flags, 65_535, self.sequence, self.clock, 0)
        self.sequence += 1
        self.clock += samples
        await self.socket.send(header + payload)

    async def speak(self, pcm):
        """Says it in packets of 20 ms, as fast as the link takes them."""
        step = self.rates["audio_in"] // 50 * 2
        for at in range(0, len(pcm), step):
            piece = pcm[at : at + step]
            await self.send_packet(piece, len(piece) // 2 * CLOCK_HZ // self.rates["audio_in"])

    async def read(self):
        async for message in self.socket:
            if isinstance(message, bytes):
                kind, _flags, segment, *_ = HEADER.unpack_from(message)
                assert kind == 2, kind
                self.enqueue(segment, message[HEADER.size :])
                continue
            message = json.loads(message)
            if message["type"] == "flush":
                await self.flush()
            elif message["type"] == "mark":
                self.queue.append(("mark", message["name"]))
            elif message["type"] == "end_of_segment":
                self.queue.append(("end", message["segment"]))
            await self.note(message)

    def enqueue(self, segment, payload):
        if self.hello["audio_out"]["format"] == "opus":
            self.queue.append((segment, payload))
            return
        assert len(payload) % 2 == 0, "half a sample"
        self.received += len(payload) // 2 * CLOCK_HZ // self.rates["audio_out"]
        assert self.received <= FIRST_CREDIT + self.spent, "more than credit allows"
        step = self.rates["audio_out"] // 50 * 2
        self.queue.extend((segment, payload[at : at + step])
                          for at in range(0, len(payload), step))

    async def play(self):
        while True:
            await asyncio.sleep(0.02 / self.times)
            while self.queue and self.queue[0][0] in ("mark", "end"):
                await self.pass_by(*self.queue.pop(0))
            if self.queue:
                await self.play_frame(*self.queue.pop(0))

    async def play_frame(self, segment, payload):
        if self.playing != segment:
            await self.end_segment()
            self.playing = segment
            self.sent_of[segment] = 0
            await self.report("started")
        self.played.append((segment, payload))
        samples = len(payload) // 2 * CLOCK_HZ // self.rates["audio_out"]
        self.sent_of[segment] += samples
        self.spent += samples
        await self.send("credit", credit_samples=FIRST_CREDIT + self.spent)

    async def pass_by(self, kind, what):
        if kind == "mark":
            await self.send("mark", name=what, flushed=False)
        elif self.playing == what:
            await self.end_segment()

    async def end_segment(self):
        if self.playing is not None:
            await self.report("ended")
            self.playing = None

    async def report(self, state):
        sent = self.sent_of[self.playing]
        await self.send("playout", segment=self.playing, state=state, sent_samples=sent,
                        heard_samples=sent, rtt_ms=None, jitter_ms=None, loss=None, time_ns=0)

    async def flush(self):
        dropped, self.queue = self.queue, []
        audio = [payload for kind, payload in dropped if kind not in ("mark", "end")]
        samples = sum(len(p) // 2 for p in audio) * CLOCK_HZ // self.rates["audio_out"]
        self.spent += samples
        sent = self.sent_of.get(self.playing, 0)
        await self.send("flushed", segment=self.playing, sent_samples=sent, heard_samples=sent,
                        dropped_samples=samples)
        await self.send("credit", credit_samples=FIRST_CREDIT + self.spent)
        self.playing = None

    async def note(self, message):
        async with self.taken:
            self.messages.append(message)
            self.taken.notify_all()

    async def event(self, kind, **fields):
        """Takes the first event of this type, with these fields, out of what came."""
        def find():
            for message in self.messages:
                event = message.get("event") or {}
                if event.get("type") == kind and fields.items() <= event.items():
                    return message
            return None
        async with self.taken:
            try:
                await asyncio.wait_for(self.taken.wait_for(find), WAIT_S)
            except TimeoutError:
                raise AssertionError(f"no {kind} {fields} in {self.messages}") from None
            message = find()
            self.messages.remove(message)
            return message["event"]

    def sound(self, segment):
        """What was played of a segment, as samples."""
        return array.array("h", b"".join(p for s, p in self.played if s == segment))

    async def hang_up(self):
        with contextlib.suppress(ConnectionClosed):
            await self.send("close", reason="hung_up")
        await self.socket.close()
        for task in self.tasks:
            task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, AssertionError):
                raise result


async def call(url, times=20):
    """An edge that is connected to the backend at `url` and has exchanged hellos."""
    socket = await connect(url, subprotocols=["syrinx.media.v1"], max_size=None)
    edge = Edge(socket, times)
    await edge.greet()
    return edge
