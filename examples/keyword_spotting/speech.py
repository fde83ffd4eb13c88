"""A word synthesizer: harmonics of a voice through the resonances of a mouth, and noise for unvoiced sounds."""

from __future__ import annotations

import numpy as np

RATE = 8000
WINDOW = RATE  # samples of the model's window: one second
WORDS = ("silence", "yes", "no", "stop", "go")
# resonances of a sound in Hz, loudness of voice and breath, and length in ms
_SOUNDS = {
    "y": ((280, 2200, 3000), 0.7, 0.0, 60), "e": ((550, 1800, 2500), 1.0, 0.0, 140),
    "s": ((3000, 3500, 3800), 0.0, 0.5, 130), "n": ((250, 1300, 2200), 0.5, 0.0, 100),
    "o": ((480, 850, 2400), 1.0, 0.0, 200), "t": ((2200, 3000, 3600), 0.0, 0.7, 35),
    "a": ((720, 1150, 2500), 1.0, 0.0, 150), "p": ((500, 900, 1800), 0.0, 0.5, 35),
    "g": ((300, 1500, 2300), 0.5, 0.2, 50), "u": ((330, 800, 2300), 0.8, 0.0, 100),
}  # fmt: skip
_SPELLED = {"silence": "", "yes": "yes", "no": "nou", "stop": "stap", "go": "gou"}


def say(word: str, rng: np.random.Generator) -> np.ndarray:
    """Return one second with a word at a random position, by a random voice in a random room."""
    pitch, size, pace = rng.uniform(90, 230), rng.uniform(0.88, 1.15), rng.uniform(0.8, 1.3)
    pieces = [_sound(_SOUNDS[name], pitch * rng.uniform(0.95, 1.05), size, pace, rng) for name in _SPELLED[word]]
    spoken = np.concatenate(pieces) if pieces else np.zeros(1)
    heard = np.zeros(WINDOW)
    start = rng.integers(0, max(1, WINDOW - len(spoken)))
    heard[start : start + len(spoken)] = spoken[:WINDOW] / max(1e-9, np.abs(spoken).max()) * rng.uniform(0.3, 0.9)
    return np.clip(heard + rng.normal(0, rng.uniform(0.002, 0.03), WINDOW), -1, 1).astype(np.float32)


def _sound(
    sound: tuple[tuple[int, ...], float, float, int], pitch: float, size: float, pace: float, rng: np.random.Generator
) -> np.ndarray:
    formants, voice, breath, milliseconds = sound
    count = int(milliseconds * pace * RATE / 1000)
    frequencies = np.fft.rfftfreq(count, 1 / RATE)
    gain = sum(1 / (1 + ((frequencies - size * formant) / 90) ** 2) for formant in formants)
    harmonics = np.arange(1, int(RATE / 2 / pitch))
    times = np.arange(count) / RATE
    strength = sum(1 / (1 + ((harmonics * pitch - size * formant) / 90) ** 2) for formant in formants)
    voiced = (strength / np.sqrt(harmonics)) @ np.sin(2 * np.pi * pitch * harmonics[:, None] * times)
    noise = np.fft.irfft(np.fft.rfft(rng.normal(size=count)) * gain, count)
    return (voice * voiced + breath * noise) * np.hanning(count) ** 0.3
