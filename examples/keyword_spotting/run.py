"""Find words in a recording: ``python examples/keyword_spotting/run.py [RECORDING.wav]``.

The recording has one channel of 16 bits at 8 kHz. By default, a voice that is not in the training data is generated.
"""

from __future__ import annotations

import argparse
import tempfile
import wave
from pathlib import Path

import numpy as np
from speech import RATE, WINDOW, WORDS, say

import mlfc

STEP = RATE // 4
SURE = 0.9


def record(path: Path) -> None:
    """Write some seconds of speech like a microphone's recording."""
    rng = np.random.default_rng(2026)
    spoken = np.concatenate([say(word, rng) for word in ("silence", "yes", "stop", "silence", "go", "no")])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((spoken * 32767).astype("<i2").tobytes())


def samples(path: Path) -> np.ndarray:
    """Return a recording as numbers from -1 to 1."""
    with wave.open(str(path), "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{path}: expected one channel of 16 bits at {RATE} Hz")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32767


def main() -> None:
    """Slide a one-second window over the recording, and print each word once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", nargs="?", type=Path)
    given = parser.parse_args().recording
    model = mlfc.compile(Path(__file__).with_name("model.onnx"))
    with tempfile.TemporaryDirectory() as folder:
        path = given or Path(folder) / "microphone.wav"
        if given is None:
            record(path)
        sound = samples(path)
    print(f"{len(sound) / RATE:.1f} s of sound, {len(range(0, len(sound) - WINDOW + 1, STEP))} windows")
    last = None
    for start in range(0, len(sound) - WINDOW + 1, STEP):
        scores = model.run({"sound": sound[None, None, start : start + WINDOW]})["words"][0]
        best = int(scores.argmax())
        word = WORDS[best] if scores[best] >= SURE else WORDS[0]
        if word not in (WORDS[0], last):
            print(f"{start / RATE:5.2f} s  {word}")
        last = word


if __name__ == "__main__":
    main()
