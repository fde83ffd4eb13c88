"""Train the digits model and write digits.onnx, digits_int8.tflite and held_out.npz next to this file.

Requires the development extras (scikit-learn for the data, ai-edge-litert for the TFLite schema):

    pip install -e ".[dev]" && python examples/digits/train.py

The data set is scikit-learn's copy of the UCI optical digits: 1,797 images of 8x8 pixels, values 0 to 16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from export import to_onnx, to_tflite
from network import forward, train
from sklearn.datasets import load_digits

HERE = Path(__file__).parent


def main() -> None:
    """Train, report the accuracy on the held-out images, write the files."""
    data = load_digits()
    images = (data.images / 16).astype(np.float32)[..., None]
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    held_out, used = order[:360], order[360:]
    weights = train(images[used], labels[used], epochs=30, seed=0)
    guesses = forward(weights, images[held_out]).logits.argmax(axis=1)
    print(f"float accuracy on {len(held_out)} held-out images: {np.mean(guesses == labels[held_out]):.3f}")
    (HERE / "digits.onnx").write_bytes(to_onnx(weights))
    seen = forward(weights, images[used])
    (HERE / "digits_int8.tflite").write_bytes(to_tflite(weights, images[used], seen))
    np.savez_compressed(HERE / "held_out.npz", images=images[held_out], labels=labels[held_out])


if __name__ == "__main__":
    main()
