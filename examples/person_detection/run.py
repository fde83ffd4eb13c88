"""Look for a person in pictures: ``python examples/person_detection/run.py [PICTURE.pgm ...]``.

A picture is a binary PGM file of 48 x 48 pixels. By default, pictures that are not in the training data are drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scenes import KINDS, SIDE, centered, draw

import mlfc

SHADES = " .:-=+*#%@"


def read_pgm(path: Path) -> np.ndarray:
    """Return the pixels of a binary PGM file, from 0 to 1."""
    data = path.read_bytes()
    head = b"P5 48 48 255"
    if data[: len(head)].split() != head.split():
        raise SystemExit(f"{path}: expected a binary PGM file of {SIDE} x {SIDE} pixels, P5 48 48 255")
    return np.frombuffer(data[-SIDE * SIDE :], np.uint8).reshape(SIDE, SIDE).astype(np.float32) / 255


def text_of(picture: np.ndarray) -> list[str]:
    """Return a picture as lines of text."""
    small = picture.reshape(16, 3, 24, 2).mean((1, 3))
    return ["".join(SHADES[int(value * 9.999)] for value in row) for row in small]


def main() -> None:
    """Print pictures side by side, and the model's answer for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="*", type=Path)
    given = parser.parse_args().pictures
    rng = np.random.default_rng(3)
    kinds = ("person", "tree", "person")
    pictures = [read_pgm(path) for path in given] or [draw(kind, rng) for kind in kinds]
    model = mlfc.compile(Path(__file__).with_name("model.onnx"))

    def person(picture: np.ndarray) -> float:
        scores = model.run({"picture": centered(picture)[None, None]})["scores"][0]
        return float(1 / (1 + np.exp(scores[0] - scores[1])))

    for lines in zip(*map(text_of, pictures), strict=True):
        print("   ".join(lines).rstrip())
    said = [f"{'a person' if person(picture) > 0.5 else 'no person'}, {person(picture):.0%}" for picture in pictures]
    print("   ".join(text.ljust(24) for text in said).rstrip())
    if not given:
        kinds = [KINDS[index % len(KINDS)] for index in range(200)]
        right = sum((person(draw(kind, rng)) > 0.5) == (kind == "person") for kind in kinds)
        print(f"right: {right} of {len(kinds)} new pictures")


if __name__ == "__main__":
    main()
