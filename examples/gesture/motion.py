"""Movements of a wrist: accelerations along three axes, 25 times a second."""

from __future__ import annotations

import numpy as np

RATE = 25
GESTURES = ("rest", "circle", "wave", "knock")


def move(gesture: str, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Return accelerations in g, (steps, 3), of a continuously repeated gesture."""
    times = np.arange(steps) / RATE + rng.uniform(0, 5)
    pace, strength = rng.uniform(0.8, 1.25), rng.uniform(0.7, 1.3)
    turns = 2 * np.pi * pace * times
    felt = np.zeros((steps, 3))
    if gesture == "circle":
        felt[:, 0], felt[:, 1] = np.cos(1.2 * turns), np.sin(1.2 * turns)
    elif gesture == "wave":
        felt[:, 0] = np.sign(np.sin(2.2 * turns)) * 0.8 + 0.3 * np.sin(2.2 * turns)
    elif gesture == "knock":
        felt[:, 2] = 2.5 * np.maximum(0, np.sin(1.5 * turns)) ** 12
    felt = strength * felt + rng.normal(0, 0.08, felt.shape)
    return (felt + np.array([0, 0, 1])).astype(np.float32)
