"""The backend's side of media.v1, for services that speak: hello, credit, segments and flush.

Derive from `Call` and override what you want to know of. The messages are specified in the
manual, backend-links.md; this file adds only the bookkeeping of credit. Audio is PCM16 of one
rate both ways. Needs `websockets` (see requirements.txt).
"""

import argparse
import asyncio
import itertools
import json
import struct

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

SUBPROTOCOL = "syrinx.media.v1"
# type, flags, segment, sequence, media timestamp, edge time
HEADER = struct.Struct("<BBHIQQ")
AUDIO_IN, AUDIO_OUT = 1, 2
LOST, DTX = 1, 2
# Times on the wire are in samples of this rate, whatever rate the audio has.
CLOCK_HZ = 48_000
PIECE_MS = 100


class Call:
    """One call. `rate_hz` is the rate of the audio both ways."""

    rate_hz = 16_000
    playout_ms = 200

    def __init__(self, link):
        self.link, self.hello = link, None
        self.segments = itertools.cycle(range(1, 65_536))
        self.sent_samples = self.credit_samples = 0
        self.credit_raised = asyncio.Event()

    # -- to be overridden --------------------------------------------------------------------

    async def begin(self):
        """The hellos are exchanged."""

    async def hear(self, pcm):
        """A piece of what the caller says; stretches without any come as silence."""

    async def end(self, reason):
        """The call is over, or the link is."""

    async def handle_event(self, message):
        """The client sent `message["event"]` on its data channel."""

    async def handle_playout(self, message):
        """A segment started, goes on or ended."""

    async def handle_flushed(self, message):
        """Silence; `message["sent_samples"]` of the segment went out."""

    async def handle_mark(self, message):
        """Everything before the mark was played, or flushed."""

    async def handle_error(self, message):
        """Something that was sent was left out by the edge."""
        print(f"{self.hello['call']}: {message['code']}: {message['message']}", flush=True)

    # -- what a call can do ------------------------------------------------------------------

    async def send(self, kind, **fields):
        await self.link.send(json.dumps({"type": kind, **fields}))

    async def send_event(self, kind, **fields):
        """Sends an event to the client's data channel."""
        await self.send("event", event={"type": kind, **fields})

    async def play(self, segment, pcm):
        """Queues audio as part of a segment, as fast as credit allows."""
        step = self.rate_hz * PIECE_MS // 1000 * 2
        for at in range(0, len(pcm), step):
            piece = pcm[at : at + step]
            samples = len(piece) // 2 * CLOCK_HZ // self.rate_hz
            while self.sent_samples + samples > self.credit_samples:
                self.credit_raised.clear()
                await self.credit_raised.wait()
            self.sent_samples += samples
            await self.link.send(HEADER.pack(AUDIO_OUT, 0, segment, 0, 0, 0) + piece)

    # -- the link ----------------------------------------------------------------------------

    async def run(self):
        self.hello = json.loads(await self.link.recv())
        if 1 not in self.hello["versions"]:
            await self.link.close(1002, f"version 1 it is, not {self.hello['versions']}")
            return
        self.credit_samples = self.hello["credit_samples"]
        audio = {"format": "pcm16", "sample_rate": self.rate_hz}
        await self.send("hello", version=1, audio_in=audio, audio_out=audio,
                        playout_ms=self.playout_ms)
        reason = "the link broke"
        try:
            await self.begin()
            async for message in self.link:
                if isinstance(message, bytes):
                    await self.take_audio(message)
                    continue
                message = json.loads(message)
                if message["type"] == "close":
                    reason = message["reason"]
                await self.take_message(message)
        except ConnectionClosed:
            pass
        finally:
            await self.end(reason)

    async def take_message(self, message):
        if message["type"] == "credit":
            self.credit_samples = message["credit_samples"]
            self.credit_raised.set()
        # What a later edge adds is ignored, as the protocol wants it.
        handle = getattr(self, f"handle_{message['type']}", None)
        if handle:
            await handle(message)

    async def take_audio(self, message):
        kind, flags, _level, _sequence, _timestamp, _time = HEADER.unpack_from(message)
        payload = message[HEADER.size :]
        if kind != AUDIO_IN:
            return
        if flags & (LOST | DTX):
            (samples,) = struct.unpack("<I", payload)
            # A long gap is told in one message; more than a second of silence says nothing new.
            payload = bytes(2 * (min(samples, CLOCK_HZ) * self.rate_hz // CLOCK_HZ))
        await self.hear(payload)


async def serve_calls(call_type, description, default_port):
    """Listens for links and runs a `call_type` on each, until interrupted."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=default_port, help="0: any that is free")
    options = parser.parse_args()
    async with serve(lambda link: call_type(link).run(), options.host, options.port,
                     subprotocols=[SUBPROTOCOL], compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        print(f"listening on ws://{options.host}:{port}", flush=True)
        await server.serve_forever()


def main(call_type, description, default_port):
    """The `main` of a service: as `serve_calls`, ended by ^C without a word."""
    try:
        asyncio.run(serve_calls(call_type, description, default_port))
    except KeyboardInterrupt:
        pass
