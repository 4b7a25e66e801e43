"""One call of GStreamer's webrtcbin: speaks a recording, records what comes back, exchanges an
event, closes.

What it saw goes to standard output as one JSON object; what that should be is the test's to say.
Runs under Debian's Python, which has the bindings (python3-gi, gir1.2-gst-plugins-bad-1.0).
"""

import argparse
import hashlib
import json
import os
import queue
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstSdp", "1.0")
gi.require_version("GstWebRTC", "1.0")
from gi.repository import GLib, Gst, GstSdp, GstWebRTC  # noqa: E402

# A step on a machine whose cores are busy.
STEP_WAIT_S = 30
SEND = """
    webrtcbin name=call bundle-policy=max-bundle latency=100
    filesrc location={speech} ! wavparse ! audioconvert ! audioresample ! opusenc
    ! rtpopuspay pt=111 ! application/x-rtp,media=audio,encoding-name=OPUS,payload=111
    ! identity sync=true ! call.
"""
RECEIVE = """
    rtpopusdepay ! opusdec ! audioconvert ! audioresample
    ! audio/x-raw,format=S16LE,rate=48000,channels=1 ! wavenc ! filesink location={returned}
"""


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", required=True, help="URL that takes the offer")
    parser.add_argument("--event", required=True, help="text to send on the data channel")
    parser.add_argument("--speech", required=True, help="WAV file, played once")
    parser.add_argument("--returned", required=True, help="WAV file for what comes back")
    parser.add_argument("--seconds", type=float, required=True, help="how much to record")
    parser.add_argument("--certificate", choices=["own", "ecdsa"], default="ecdsa")
    return parser.parse_args()


def post_offer(url, offer):
    request = urllib.request.Request(
        url, data=offer.encode(), headers={"Content-Type": "application/sdp"}
    )
    with urllib.request.urlopen(request, timeout=STEP_WAIT_S) as answer:
        return answer.status, answer.headers["Location"], answer.read().decode()


def hang_up(calls, location):
    url = urllib.parse.urljoin(calls, location)
    request = urllib.request.Request(url, method="DELETE")
    urllib.request.urlopen(request, timeout=STEP_WAIT_S).close()


def ecdsa_certificate():
    """A fresh certificate and its key in PEM, and the certificate's fingerprint for SDP."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = os.path.join(folder, "key"), os.path.join(folder, "certificate")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-subj", "/CN=webrtcbin", "-days", "2", "-keyout", key,
             "-out", certificate],
            check=True, capture_output=True,
        )
        with open(certificate) as file:
            certificate = file.read()
        with open(key) as file:
            pem = certificate + file.read()
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest().upper()
    return pem, ":".join(re.findall("..", digest))


class Call:
    """Callbacks come from GStreamer's threads and leave what they bring in queues."""

    def __init__(self, options):
        self.options = options
        self.happened = queue.Queue()
        self.messages = queue.Queue()
        self.states = []
        self.kept = []
        self.pipeline = Gst.parse_launch(SEND.format(speech=options.speech))
        self.connection = self.pipeline.get_by_name("call")
        self.connection.connect("on-negotiation-needed", lambda _: self.happened.put("ready"))
        self.connection.connect("pad-added", self.play)
        self.connection.connect("notify::connection-state", self.changed)
        self.fingerprint = self.certify() if options.certificate == "ecdsa" else None
        # A data channel can be made from READY on, and only then is part of the offer.
        self.pipeline.set_state(Gst.State.READY)
        self.channel = self.connection.emit("create-data-channel", "oai-events", None)
        self.channel.connect("on-message-string", lambda _, text: self.messages.put(text))

    def changed(self, connection, _):
        state = connection.get_property("connection-state").value_nick
        self.states.append(state)

    def play(self, _, pad):
        if pad.direction != Gst.PadDirection.SRC:
            return
        sink = Gst.parse_bin_from_description(
            RECEIVE.format(returned=self.options.returned), True
        )
        self.pipeline.add(sink)
        sink.sync_state_with_parent()
        pad.link(sink.get_static_pad("sink"))
        # Time starts with the first packet.
        pad.add_probe(Gst.PadProbeType.BUFFER, lambda *_: self.started())

    def started(self):
        self.happened.put("sound")
        return Gst.PadProbeReturn.REMOVE

    def wait(self, what):
        got = self.happened.get(timeout=STEP_WAIT_S)
        assert got == what, f"{got} came instead of {what}"

    def ask(self, signal, *arguments):
        promise = Gst.Promise.new()
        self.connection.emit(signal, *arguments, promise)
        promise.wait()
        reply = promise.get_reply()
        # Whoever goes first of promise and reply frees the reply, and the offer in it.
        self.kept.append((promise, reply))
        assert reply is None or not reply.has_field("error"), reply.to_string()
        return reply

    def certify(self):
        """Makes the transport use an ECDSA certificate in place of webrtcbin's own, which is RSA,
        and gives its fingerprint. webrtcbin has no property for it; the element inside has."""
        pem, fingerprint = ecdsa_certificate()

        def replace(*added):
            factory = added[-1].get_factory()
            if factory and factory.get_name() == "dtlsdec":
                added[-1].set_property("pem", pem)

        self.connection.connect("deep-element-added", replace)
        return fingerprint

    def negotiate(self):
        offer = self.ask("create-offer", None).get_value("offer")
        text = offer.sdp.as_text()
        if self.fingerprint:
            text = re.sub("(?<=a=fingerprint:sha-256 )[0-9A-F:]+", self.fingerprint, text)
        self.ask("set-local-description", offer)
        status, location, answer = post_offer(self.options.calls, text)
        _, description = GstSdp.SDPMessage.new_from_text(answer)
        self.ask(
            "set-remote-description",
            GstWebRTC.WebRTCSessionDescription.new(GstWebRTC.WebRTCSDPType.ANSWER, description),
        )
        return status, location

    def run(self):
        self.pipeline.set_state(Gst.State.PLAYING)
        self.wait("ready")
        status, location = self.negotiate()
        greeting = self.messages.get(timeout=STEP_WAIT_S)
        self.channel.emit("send-string", self.options.event)
        echo = self.messages.get(timeout=STEP_WAIT_S)
        self.wait("sound")
        bus = self.pipeline.get_bus()
        error = bus.timed_pop_filtered(
            int(self.options.seconds * Gst.SECOND), Gst.MessageType.ERROR
        )
        assert error is None, error.parse_error()
        # webrtcbin of this version leaves without a word: what ends the call is the API.
        hang_up(self.options.calls, location)
        self.pipeline.set_state(Gst.State.NULL)
        return {
            "client": "GStreamer webrtcbin",
            "version": Gst.version_string().removeprefix("GStreamer "),
            "status": status,
            "location": location,
            "greeting": greeting,
            "echo": echo,
            "states": self.states,
        }


Gst.init(None)
json.dump(Call(arguments()).run(), sys.stdout)
