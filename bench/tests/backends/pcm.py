"""Samples as the Realtime protocol carries them, and when somebody speaks.

Pure arithmetic on `array('h')` of one channel: G.711 both ways (ITU-T G.711, 1988), WAV files in
and out, and a voice activity detector that goes by energy alone, which is enough for the clean
recordings that tests speak with. No package does this in the standard library any more.
"""

import array
import math
import sys
import wave

FRAME_MS = 20
# Segment ends of the logarithmic curve of mu-law, and its bias (G.711, table 2).
MU_BIAS = 0x84
MU_CLIP = 32_635


def samples_of(data):
    """Little-endian 16-bit samples; a half sample at the end is left out."""
    samples = array.array("h")
    samples.frombytes(data[: len(data) & ~1])
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def bytes_of(samples):
    """The inverse of `samples_of`."""
    if sys.byteorder == "big":
        samples = array.array("h", samples)
        samples.byteswap()
    return samples.tobytes()


def _mu_decode(code):
    code = ~code & 0xFF
    magnitude = (((code & 0x0F) << 3) + MU_BIAS) << ((code & 0x70) >> 4)
    return MU_BIAS - magnitude if code & 0x80 else magnitude - MU_BIAS


def _a_decode(code):
    code ^= 0x55
    magnitude = (code & 0x0F) << 4
    segment = (code & 0x70) >> 4
    magnitude = magnitude + 8 if segment == 0 else (magnitude + 0x108) << (segment - 1)
    return magnitude if code & 0x80 else -magnitude


MU_TABLE = [_mu_decode(code) for code in range(256)]
A_TABLE = [_a_decode(code) for code in range(256)]


def _mu_encode(sample):
    sign = 0x80 if sample < 0 else 0
    magnitude = min(abs(sample), MU_CLIP) + MU_BIAS
    segment = magnitude.bit_length() - 8
    return ~(sign | (segment << 4) | ((magnitude >> (segment + 3)) & 0x0F)) & 0xFF


def _a_encode(sample):
    sign = 0x80 if sample >= 0 else 0
    magnitude = min(sample if sample >= 0 else -sample - 1, 32_767) >> 4
    segment = max(magnitude.bit_length() - 4, 0)
    low = magnitude & 0x0F if segment == 0 else (magnitude >> (segment - 1)) & 0x0F
    return (sign | (segment << 4) | low) ^ 0x55


class Format:
    """An audio format by the name the protocol gives it: its rate, to samples, and back."""

    def __init__(self, rate_hz, decode, encode, sample_bytes):
        self.rate_hz, self.decode, self.encode = rate_hz, decode, encode
        self.sample_bytes = sample_bytes


def _companded(table, encode):
    return Format(
        8_000,
        lambda data: array.array("h", (table[code] for code in data)),
        lambda samples: bytes(encode(sample) for sample in samples),
        1,
    )


PCM16 = Format(24_000, samples_of, bytes_of, 2)
# GA names and beta names side by side.
FORMATS = {
    "audio/pcm": PCM16,
    "pcm16": PCM16,
    "audio/pcmu": _companded(MU_TABLE, _mu_encode),
    "g711_ulaw": _companded(MU_TABLE, _mu_encode),
    "audio/pcma": _companded(A_TABLE, _a_encode),
    "g711_alaw": _companded(A_TABLE, _a_encode),
}


def read_wav(path):
    """Rate in Hz and samples of a 16-bit file of one channel."""
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            raise ValueError(f"{path}: want one channel of 16 bits")
        return file.getframerate(), samples_of(file.readframes(file.getnframes()))


def write_wav(path, rate_hz, samples):
    """Writes a 16-bit file of one channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(bytes_of(samples))


def resample(samples, from_hz, to_hz):
    """Another rate, by straight lines between samples: good enough to be recognised by."""
    if from_hz == to_hz:
        return samples
    count = len(samples) * to_hz // from_hz
    out = array.array("h", bytes(2 * count))
    last = len(samples) - 1
    for index in range(count):
        whole, part = divmod(index * from_hz, to_hz)
        after = samples[min(whole + 1, last)]
        out[index] = samples[whole] + (after - samples[whole]) * part // to_hz
    return out


class SpeechDetector:
    """Tells from energy when speech begins and ends, in 20 ms frames.

    `feed` gives a list of ("started" | "stopped", position in samples). Speech begins with three
    loud frames in a row, so that a click is none, and ends after `silence_ms` below the level.
    """

    LOUD_FRAMES_MIN = 3

    def __init__(self, rate_hz, threshold_db=-40.0, silence_ms=400):
        self.frame = rate_hz * FRAME_MS // 1000
        self.limit = (10 ** (threshold_db / 20) * 32_768) ** 2
        self.quiet_frames_max = max(1, silence_ms // FRAME_MS)
        self.rest = array.array("h")
        self.position = 0
        self.loud = self.quiet = 0
        self.speaking = False

    def feed(self, samples):
        found = []
        self.rest.extend(samples)
        whole = len(self.rest) - len(self.rest) % self.frame
        for at in range(0, whole, self.frame):
            frame = self.rest[at : at + self.frame]
            self.position += self.frame
            event = self._judge(math.sumprod(frame, frame) if SUMPROD else _energy(frame))
            if event:
                found.append(event)
        del self.rest[:whole]
        return found

    def _judge(self, energy):
        if energy / self.frame >= self.limit:
            self.loud, self.quiet = self.loud + 1, 0
        else:
            self.loud, self.quiet = 0, self.quiet + 1
        if not self.speaking and self.loud == self.LOUD_FRAMES_MIN:
            self.speaking = True
            return "started", self.position - self.LOUD_FRAMES_MIN * self.frame
        if self.speaking and self.quiet == self.quiet_frames_max:
            self.speaking = False
            return "stopped", self.position
        return None


# Python 3.12 brings the inner product.
SUMPROD = hasattr(math, "sumprod")


def _energy(frame):
    return sum(sample * sample for sample in frame)
