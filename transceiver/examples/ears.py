"""Finds utterances in what is heard, and recognises a few phrases in them.

Where speech begins and ends is told by the WebRTC voice activity detector that PocketSphinx
brings. What was said is found under a grammar of the given phrases alone: a small vocabulary is
what makes a small recogniser reliable, over a telephone too. What fits no phrase to its end gives
an empty text.
"""

import collections

from pocketsphinx import Decoder, Vad

# Of the last START_WINDOW frames, so many with speech begin an utterance: with frames of 30 ms it
# is noticed about 150 ms after its beginning, and a cough or a click is none.
START_WINDOW, START_FRAMES = 7, 5
# Quiet frames in a row that end one: a pause between words is shorter.
STOP_FRAMES = 18
# Frames kept from before the beginning, so that its first sound is not cut off.
LEAD_FRAMES = 12
# A minute; what goes on for longer is cut into pieces.
UTTERANCE_FRAMES_MAX = 2_000
# Wider than the defaults, which drop the right phrase too often; the grammar is small enough.
BEAMS = {"beam": 1e-80, "wbeam": 1e-60, "pbeam": 1e-80}


class Ears:
    def __init__(self, rate_hz, phrases):
        self.vad = Vad(mode=Vad.STRICT, sample_rate=rate_hz)
        self.phrases = phrases
        self.decoder = Decoder(samprate=rate_hz, lm=None, loglevel="FATAL", **BEAMS)
        grammar = f"#JSGF V1.0; grammar phrases; public <phrase> = {' | '.join(phrases)};"
        self.decoder.add_jsgf_string("phrases", grammar)
        self.decoder.activate_search("phrases")
        self.rest = b""
        self.recent = collections.deque(maxlen=START_WINDOW)
        self.frames, self.speaking, self.quiet = [], False, 0

    def feed(self, pcm):
        """Takes a piece of sound of any length; gives ("started", None) and ("stopped", sound)."""
        self.rest += pcm
        size, found = self.vad.frame_bytes, []
        while len(self.rest) >= size:
            frame, self.rest = self.rest[:size], self.rest[size:]
            if event := self.take(frame, self.vad.is_speech(frame)):
                found.append(event)
        return found

    def take(self, frame, is_speech):
        self.frames.append(frame)
        self.recent.append(is_speech)
        if not self.speaking:
            del self.frames[: -(LEAD_FRAMES + START_WINDOW)]
            if sum(self.recent) >= START_FRAMES:
                self.speaking, self.quiet = True, 0
                return "started", None
            return None
        self.quiet = 0 if is_speech else self.quiet + 1
        if self.quiet < STOP_FRAMES and len(self.frames) < UTTERANCE_FRAMES_MAX:
            return None
        utterance, self.frames, self.speaking = b"".join(self.frames), [], False
        self.recent.clear()
        return "stopped", utterance

    def recognise(self, utterance):
        """The phrase that was said, or an empty text. Takes about a tenth of the sound's length."""
        self.decoder.start_utt()
        self.decoder.process_raw(utterance, full_utt=True)
        self.decoder.end_utt()
        best = self.decoder.hyp()
        return best.hypstr if best and best.hypstr in self.phrases else ""
