"""Small drawn gray pictures with a person, or with something else."""

from __future__ import annotations

import numpy as np

SIDE = 48
KINDS = ("person", "tree", "car", "lamp", "nothing")


def draw(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return a picture, (48, 48), values from 0 to 1."""
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    picture = np.full((SIDE, SIDE), rng.uniform(0.2, 0.8))
    picture += rng.uniform(-0.2, 0.2) * y / SIDE
    shade = np.clip(picture.mean() + rng.choice([-1, 1]) * rng.uniform(0.25, 0.5), 0, 1)
    height, middle, floor = rng.uniform(26, 42), rng.uniform(14, 34), rng.uniform(40, 47)
    top = floor - height
    for inside in _SHAPES[kind](y, x, top, floor, middle, rng):
        picture[inside] = shade
    return np.clip(picture + rng.normal(0, 0.04, picture.shape), 0, 1).astype(np.float32)


def centered(picture: np.ndarray) -> np.ndarray:
    """Return a picture as the model's input, centered around zero."""
    return (4 * picture - 2).astype(np.float32)


def _limb(y: np.ndarray, x: np.ndarray, start: tuple, end: tuple, width: float) -> np.ndarray:
    """Return the pixels near a line between two points (y, x)."""
    (y0, x0), (y1, x1) = start, end
    length = max(1e-6, (y1 - y0) ** 2 + (x1 - x0) ** 2)
    along = np.clip(((y - y0) * (y1 - y0) + (x - x0) * (x1 - x0)) / length, 0, 1)
    return (y - y0 - along * (y1 - y0)) ** 2 + (x - x0 - along * (x1 - x0)) ** 2 <= width**2


def _person(y, x, top, floor, middle, rng):
    size = floor - top
    neck, hip = top + 0.2 * size, top + 0.55 * size
    yield (y - top - 0.1 * size) ** 2 + (x - middle) ** 2 <= (0.09 * size) ** 2
    yield _limb(y, x, (neck, middle), (hip, middle), 0.09 * size)
    for side in (-1, 1):
        foot = middle + side * rng.uniform(0.05, 0.2) * size
        hand = (neck + rng.uniform(0.05, 0.35) * size, middle + side * rng.uniform(0.12, 0.28) * size)
        yield _limb(y, x, (hip, middle), (floor, foot), 0.045 * size)
        yield _limb(y, x, (neck + 0.05 * size, middle), hand, 0.035 * size)


def _tree(y, x, top, floor, middle, rng):
    size = floor - top
    yield (y - top - 0.3 * size) ** 2 + ((x - middle) * rng.uniform(0.8, 1.2)) ** 2 <= (0.3 * size) ** 2
    yield _limb(y, x, (top + 0.3 * size, middle), (floor, middle), 0.06 * size)


def _car(y, x, top, floor, middle, rng):
    size = 0.55 * (floor - top)
    yield (np.abs(x - middle) < size * 0.8) & (y < floor - 0.15 * size) & (y > floor - 0.5 * size)
    yield (np.abs(x - middle) < size * 0.45) & (y < floor - 0.4 * size) & (y > floor - 0.8 * size)
    for side in (-1, 1):
        yield (y - floor + 0.15 * size) ** 2 + (x - middle - side * 0.5 * size) ** 2 <= (0.16 * size) ** 2
    del rng


def _lamp(y, x, top, floor, middle, rng):
    yield _limb(y, x, (top, middle), (floor, middle), rng.uniform(0.8, 1.6))
    yield _limb(y, x, (top, middle), (top, middle + rng.choice([-1, 1]) * 8), 1.5)


def _nothing(*_given):
    return ()


_SHAPES = {"person": _person, "tree": _tree, "car": _car, "lamp": _lamp, "nothing": _nothing}
