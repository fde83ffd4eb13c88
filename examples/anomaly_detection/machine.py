"""A vibration sensor on a fan with a motor: rotation, blades, bearing."""

from __future__ import annotations

import numpy as np

RATE, SAMPLES, BANDS = 4096, 1024, 64


def vibration(rng: np.random.Generator, wear: float = 0.0) -> np.ndarray:
    """Return a quarter of a second of acceleration; `wear` of the bearing is from 0 (new) to 1 (broken)."""
    times = np.arange(SAMPLES) / RATE
    speed = rng.uniform(28, 32)  # revolutions per second
    load = rng.uniform(0.7, 1.3)
    felt = 0.3 * np.sin(2 * np.pi * speed * times + rng.uniform(0, 6))
    for harmonic, strength in enumerate((1.0, 0.5, 0.3, 0.2), 1):
        felt += load * strength * np.sin(2 * np.pi * 7 * speed * harmonic * times + rng.uniform(0, 6))
    # a damaged ball rings each time it is rolled over
    hits = np.sin(2 * np.pi * 4.7 * speed * times + rng.uniform(0, 6)) > 0.97
    ringing = np.convolve(
        hits * rng.normal(1, 0.3, SAMPLES), np.sin(2 * np.pi * 1450 * times[:64]) * 0.9 ** np.arange(64)
    )
    return felt + wear * 1.2 * ringing[:SAMPLES] + rng.normal(0, 0.15, SAMPLES)


def spectrum(rng: np.random.Generator, wear: float = 0.0) -> np.ndarray:
    """Return the logarithmic energies of frequency bands."""
    strengths = np.abs(np.fft.rfft(vibration(rng, wear) * np.hanning(SAMPLES)))[1:]
    return np.log10(strengths.reshape(BANDS, -1).mean(1) + 0.1).astype(np.float32)
