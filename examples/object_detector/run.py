"""Find colored squares in a picture: ``python examples/object_detector/run.py``.

The model is that of examples/detector/make_model.py, which contains box decoding, scores and non-maximum suppression;
the number of boxes depends on the picture.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

import mlfc

COLORS = ("red", "green", "blue")
SIDE = 32
SQUARES = ((0, 3, 4, 7), (1, 5, 20, 8), (2, 18, 9, 9), (0, 21, 23, 6))  # color, y, x, side


def picture() -> np.ndarray:
    """Return a picture with squares and noise, (1, 3, 32, 32)."""
    made = np.random.default_rng(0).uniform(0, 0.04, (1, 3, SIDE, SIDE))
    for color, y, x, side in SQUARES:
        made[0, color, y : y + side, x : x + side] = 1
    return made.astype(np.float32)


def main() -> None:
    """Print the picture with a letter for each color, and the boxes."""
    detector = runpy.run_path(str(Path(__file__).parents[1] / "detector" / "make_model.py"))["detector"]()
    model = mlfc.compile(detector)
    image = picture()
    for row in range(0, SIDE, 2):
        pixels = image[0, :, row : row + 2].mean(1)
        letters = (COLORS[int(pixel.argmax())][0] if pixel.max() > 0.4 else "." for pixel in pixels.T)
        print("".join(letters))
    found = model.run({"image": image})
    order = np.argsort(found["boxes"][:, 0].round(), kind="stable")
    for box, score, color in zip(*(found[name][order] for name in ("boxes", "scores", "colors")), strict=True):
        top, left, bottom, right = box.round().astype(int)
        print(f"{COLORS[int(color)]:6} {score:4.0%}  rows {top:2} to {bottom:2}, columns {left:2} to {right:2}")


if __name__ == "__main__":
    main()
