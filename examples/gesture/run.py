"""Recognize gestures sample by sample: ``python examples/gesture/run.py``.

The state of the LSTM stays in the compiled model: a caller passes accelerations and receives gestures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from motion import GESTURES, RATE, move

import mlfc


def main() -> None:
    """Generate a sequence of gestures, and print the recognized gesture once a second."""
    states = {"h_in": "h_out", "c_in": "c_out"}
    model = mlfc.compile(Path(__file__).with_name("model.onnx"), states=states, state_init="zeros")
    print(f"inputs: {', '.join(item.name for item in model.inputs)}")
    rng = np.random.default_rng(5)
    made = [name for name in ("rest", "circle", "knock", "wave", "rest") for _ in range(3 * RATE)]
    samples = np.concatenate([move(name, 3 * RATE, rng) for name in ("rest", "circle", "knock", "wave", "rest")])
    right = 0
    for step, (name, sample) in enumerate(zip(made, samples, strict=True)):
        scores = model.run({"sample": sample[None, None]})["gestures"][0]
        found = GESTURES[int(scores.argmax())]
        right += found == name
        if step % RATE == RATE // 2:
            print(f"{step / RATE:5.2f} s  {name:7} {'#' * round(20 * scores.max()):20} {found}")
    print(f"right: {right} of {len(made)} samples; after a change it takes some to notice")


if __name__ == "__main__":
    main()
