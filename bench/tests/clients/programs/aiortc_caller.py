"""One call of aiortc: speaks a recording, records what comes back, exchanges an event, closes.

What it saw goes to standard output as one JSON object; what that should be is the test's to say.
"""

import argparse
import array
import asyncio
import json
import sys
import urllib.request
import wave

import aiortc
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.contrib.media import MediaPlayer

RATE_HZ = 48_000
# A step on a machine whose cores are busy.
STEP_WAIT_S = 30


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", required=True, help="URL that takes the offer")
    parser.add_argument("--event", required=True, help="text to send on the data channel")
    parser.add_argument("--speech", required=True, help="WAV file for the microphone")
    parser.add_argument("--returned", required=True, help="WAV file for what comes back")
    parser.add_argument("--seconds", type=float, required=True, help="how much to record")
    return parser.parse_args()


def post_offer(url, offer):
    request = urllib.request.Request(
        url, data=offer.encode(), headers={"Content-Type": "application/sdp"}
    )
    with urllib.request.urlopen(request, timeout=STEP_WAIT_S) as answer:
        return answer.status, answer.headers["Location"], answer.read().decode()


async def record(track, file, seconds):
    """Writes the left channel of what `track` plays: a mono source is the same on both."""
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE_HZ)
        written = 0
        while written < seconds * RATE_HZ:
            frame = await asyncio.wait_for(track.recv(), STEP_WAIT_S)
            assert (frame.format.name, frame.sample_rate) == ("s16", RATE_HZ), frame
            channels = len(frame.layout.channels)
            samples = array.array("h", bytes(frame.planes[0])[: 2 * channels * frame.samples])
            out.writeframes(samples[::channels].tobytes())
            written += frame.samples


async def call(options):
    connection = RTCPeerConnection()
    states, messages = [], asyncio.Queue()
    tracks = asyncio.get_running_loop().create_future()
    connection.on("connectionstatechange", lambda: states.append(connection.connectionState))
    connection.on("track", lambda track: tracks.done() or tracks.set_result(track))
    player = MediaPlayer(options.speech, loop=True)
    connection.addTrack(player.audio)
    channel = connection.createDataChannel("oai-events")
    channel.on("message", messages.put_nowait)

    await connection.setLocalDescription(await connection.createOffer())
    status, location, answer = await asyncio.to_thread(
        post_offer, options.calls, connection.localDescription.sdp
    )
    await connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
    greeting = await asyncio.wait_for(messages.get(), STEP_WAIT_S)
    channel.send(options.event)
    echo = await asyncio.wait_for(messages.get(), STEP_WAIT_S)
    await record(await asyncio.wait_for(tracks, STEP_WAIT_S), options.returned, options.seconds)
    dtls = connection.sctp.transport._ssl.get_protocol_version_name()
    await connection.close()
    player.audio.stop()
    return {
        "client": "aiortc",
        "version": aiortc.__version__,
        "status": status,
        "location": location,
        "greeting": greeting,
        "echo": echo,
        "dtls": dtls,
        "states": states,
    }


json.dump(asyncio.run(call(arguments())), sys.stdout)
