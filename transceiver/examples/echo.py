"""Plays the caller back to himself over media.v1: the whole protocol that takes, in one file.

    python3 echo.py --port 9001

Audio goes back as it came, Opus packet by Opus packet, marked `live`, so that it is never behind;
what was lost stays lost for the caller's own decoder to conceal. Events of the client's data
channel are returned to it, and each key that he presses is announced. The protocol is specified in
the manual, backend-links.md. Needs `websockets` (see requirements.txt).
"""

import argparse
import asyncio
import json
import struct

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

# type, flags, segment, sequence, media timestamp, edge time
HEADER = struct.Struct("<BBHIQQ")
AUDIO_IN, AUDIO_OUT = 1, 2
LOST, DTX = 1, 2
LIVE = 1


async def echo(link):
    hello = json.loads(await link.recv())
    if 1 not in hello["versions"]:
        await link.close(1002, f"this service speaks version 1, not {hello['versions']}")
        return
    opus = {"format": "opus"}
    await link.send(json.dumps(
        {"type": "hello", "version": 1, "audio_in": opus, "audio_out": opus, "playout_ms": 0}))
    print(f"{hello['call']}: begins", flush=True)
    reason = "the link broke"
    try:
        async for message in link:
            if isinstance(message, bytes):
                await send_back(link, message)
                continue
            text, message = message, json.loads(message)
            if message["type"] == "event":
                # Word for word: what stands in it is the client's business.
                await link.send(text)
            elif message["type"] == "dtmf":
                await say_event(link, {"type": "key", "digit": message["digit"]})
            elif message["type"] == "error":
                print(f"{hello['call']}: {message['code']}: {message['message']}", flush=True)
            elif message["type"] == "close":
                reason = message["reason"]
    except ConnectionClosed:
        pass
    print(f"{hello['call']}: ends, {reason}", flush=True)


async def send_back(link, message):
    kind, flags, _level, sequence, timestamp, _time = HEADER.unpack_from(message)
    if kind != AUDIO_IN or flags & (LOST | DTX):
        return
    header = HEADER.pack(AUDIO_OUT, LIVE, 0, sequence, timestamp, 0)
    await link.send(header + message[HEADER.size :])


async def say_event(link, event):
    await link.send(json.dumps({"type": "event", "event": event}))


async def main():
    parser = argparse.ArgumentParser(description="An echo over media.v1.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9001, help="0: any that is free")
    options = parser.parse_args()
    async with serve(echo, options.host, options.port, subprotocols=["syrinx.media.v1"],
                     compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        print(f"listening on ws://{options.host}:{port}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
