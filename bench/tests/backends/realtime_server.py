"""A Realtime server for tests: the published protocol over a WebSocket, with faults to order.

    realtime_server.py --record events.jsonl --answer answer.wav="Four words were said."

Takes orders on standard input, one JSON object a line, each answered by a line, `{"ok": ..}` or
`{"error": ..}`; it ends when its input does, so that nothing outlives a test. Every event of every session goes to the record as it passes, with the milliseconds since
the start: `{"ms", "session", "way": "in" | "out" | "open" | "close" | "order", ...}`. Audio is
recorded as its number of bytes; what the caller was heard to say is written to a WAV file when
the session ends, if `--heard` names a folder.

The order `listening` is answered by the port. The others are for all sessions that are open, and
answered by the number of those:
    respond                      an answer that nobody asked for
    speech_started, speech_stopped   as if speech had been heard; `at_ms` where
    send     text                that text as it is: no JSON, an unknown event
    oversize bytes               one event of so many bytes
    stall    seconds             reads nothing for so long
    speed    times               audio at so many times real time from now on
    close    code, reason        closes with that code
    abort                        drops the TCP connection without a word
"""

import argparse
import asyncio
import functools
import http
import itertools
import json
import pathlib
import sys
import threading
import time
import urllib.parse

from websockets.asyncio.server import serve, unix_serve
from websockets.exceptions import ConnectionClosed

from pcm import read_wav, write_wav
from realtime_session import Session

# Events in either direction may be large; the transceiver's limit is a megabyte.
EVENT_BYTES_MAX = 4 << 20


class Record:
    """The JSON lines of what happened, in the order in which it did."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8", buffering=1)
        self.start = time.monotonic()

    def write(self, session, way, **fields):
        ms = round((time.monotonic() - self.start) * 1000, 3)
        self.file.write(json.dumps({"ms": ms, "session": session, "way": way, **fields}) + "\n")

    def event(self, session, way, event):
        short = event
        if isinstance(event, dict):
            short = {key: {"characters": len(value)} if key in ("audio", "delta")
                     and event.get("type", "").endswith(("audio.delta", "buffer.append"))
                     and isinstance(value, str) else value for key, value in event.items()}
        self.write(session, way, event=short)


class Connection:
    """One WebSocket: moves events between it and a `Session`, and carries out orders."""

    def __init__(self, server, socket):
        self.server, self.socket = server, socket
        self.name = f"s{next(server.names)}"
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(socket.request.path).query)
        model = query.get("model", ["none"])[0]
        self.session = Session(server.options, server.ids, model, self.say)
        self.reading = asyncio.Event()
        self.reading.set()
        self.lock = asyncio.Lock()

    async def say(self, event):
        self.server.record.event(self.name, "out", event)
        await self.socket.send(json.dumps(event))

    async def run(self):
        record, request = self.server.record, self.socket.request
        record.write(self.name, "open", path=request.path, headers=dict(request.headers.raw_items()))
        if self.server.options.heard:
            self.session.heard = self.session.input_format.decode(b"")
        try:
            if not self.server.options.silent:
                await self.session.start()
            async for text in self.socket:
                await self.reading.wait()
                await self.take(text)
        except ConnectionClosed:
            pass
        finally:
            await self.session.close()
            self.save_heard()
            record.write(self.name, "close", code=self.socket.close_code,
                         reason=self.socket.close_reason)

    async def take(self, text):
        try:
            event = json.loads(text)
            if not isinstance(event, dict):
                raise ValueError("not an object")
        except ValueError as error:
            self.server.record.write(self.name, "in", unreadable=str(error))
            return
        self.server.record.event(self.name, "in", event)
        async with self.lock:
            await self.session.handle(event)

    def save_heard(self):
        if self.session.heard is not None:
            path = pathlib.Path(self.server.options.heard) / f"{self.name}.wav"
            write_wav(path, self.session.input_format.rate_hz, self.session.heard)

    async def obey(self, order):
        kind = order["do"]
        if kind == "stall":
            self.reading.clear()
            asyncio.get_running_loop().call_later(order["seconds"], self.reading.set)
        elif kind == "send":
            await self.socket.send(order["text"])
        elif kind == "oversize":
            event = {"type": "test.oversize", "padding": ""}
            event["padding"] = "x" * (order["bytes"] - len(json.dumps(event)))
            await self.socket.send(json.dumps(event))
        elif kind == "speed":
            self.session.speed = order["times"]
        elif kind == "close":
            await self.socket.close(order.get("code", 1011), order.get("reason", ""))
        elif kind == "abort":
            self.socket.transport.abort()
        elif kind == "respond":
            await self.session.handle({"type": "response.create"})
        elif kind == "speech_started":
            await self.session.speech_started(order["at_ms"])
        elif kind == "speech_stopped":
            await self.session.speech_stopped(order["at_ms"])
        else:
            raise ValueError(f"no such order: {kind}")


class Server:
    """What all connections share."""

    def __init__(self, options):
        self.options = options
        self.record = Record(options.record)
        self.names, self.ids = itertools.count(), itertools.count(1)
        self.open = set()

    async def serve(self, socket):
        connection = Connection(self, socket)
        self.open.add(connection)
        try:
            await connection.run()
        finally:
            self.open.discard(connection)

    async def admit(self, socket, request):
        """Answers the handshake: None lets it go on."""
        await asyncio.sleep(self.options.handshake_delay_ms / 1000)
        status = self.options.handshake_status
        token = self.options.token
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            status = http.HTTPStatus.UNAUTHORIZED
        if status:
            self.record.write(None, "refused", path=request.path, status=status)
            return socket.respond(status, "refused\n")
        return None

    async def obey(self, line):
        try:
            order = json.loads(line)
            reply = {"ok": await self.carry_out(order)}
        except Exception as error:  # told to whoever gave the order, whatever it is
            reply = {"error": repr(error)}
        print(json.dumps(reply), flush=True)

    async def carry_out(self, order):
        if order["do"] == "listening":
            return self.port
        self.record.write(None, "order", order=order)
        connections = list(self.open)
        for connection in connections:
            await connection.obey(order)
        return len(connections)

    async def run(self):
        settings = {
            "process_request": self.admit, "max_size": EVENT_BYTES_MAX, "compression": None,
            # A stalled reader is to be felt by the sender: little is read ahead.
            "max_queue": 4,
        }
        if self.options.unix:
            listening = unix_serve(self.serve, self.options.unix, **settings)
        else:
            listening = serve(self.serve, self.options.host, self.options.port, **settings)
        async with listening as server:
            self.port = None if self.options.unix else server.sockets[0].getsockname()[1]
            async for line in standard_input():
                await self.obey(line)
            server.close(close_connections=True)


async def standard_input():
    """Lines of standard input, until its end."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue()

    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


def answer(text):
    """`FILE=WORDS`, as rate, samples and the words that are in the file."""
    file, _, words = text.partition("=")
    return words or pathlib.Path(file).stem, *read_wav(file)


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = functools.partial(parser.add_argument)
    option("--host", default="127.0.0.1", help="address to listen on")
    option("--port", type=int, default=0, help="0: any that is free")
    option("--unix", help="path of a Unix socket, in place of address and port")
    option("--record", required=True, help="file of the events, JSON lines")
    option("--heard", help="folder for what each session heard, as WAV")
    option("--answer", dest="answers", type=answer, action="append", required=True,
           metavar="FILE=WORDS", help="a recorded answer (WAV, 16 bits, one channel); in turn")
    option("--understood", default="something was said",
           help="what input transcription understands")
    option("--names", choices=["ga", "beta"], default="ga", help="which names events have")
    option("--speed", type=float, default=5.0, help="audio comes so many times real time")
    option("--token", help="bearer token to ask for")
    option("--handshake-status", type=int, help="refuse every handshake with this HTTP status")
    option("--handshake-delay-ms", type=int, default=0, help="think so long before accepting")
    option("--silent", action="store_true", help="never say session.created")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(Server(parse(sys.argv[1:])).run())
