"""Which of some phrases is said in a recording: `recognise.py FILE PHRASE..` prints it.

Nothing is printed when it is none of them to its end. FILE is a WAV of 16 kHz, 16 bits and one
channel. The ears are those of the example agent.
"""

import pathlib
import sys

from pcm import bytes_of, read_wav

sys.path.append(str(pathlib.Path(__file__).parents[3] / "transceiver" / "examples"))
from ears import Ears  # noqa: E402: found by the line above

if __name__ == "__main__":
    rate_hz, samples = read_wav(sys.argv[1])
    print(Ears(rate_hz, sys.argv[2:]).recognise(bytes_of(samples)))
