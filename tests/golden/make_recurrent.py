"""Write ``recurrent.npz``: TFLite Micro's results for ``micro_layers`` in ``tests/recurrent_tflite.py``.

It requires the packages tflite-micro (version 0.dev20261023182759 wrote the file), tflite and numpy, of which the tests
do not require the first. Run it from the project's root as ``python -m tests.golden.make_recurrent``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tflite_micro import runtime

from tests.recurrent_tflite import Layer, Model, micro_layers

FILE = Path(__file__).with_name("recurrent.npz")


def results(layer: Layer) -> np.ndarray:
    """Return the concatenated results of all runs of a layer."""
    interpreter = runtime.Interpreter.from_bytes(Model([layer]).data, arena_size=1 << 20)
    found = []
    for frame in layer.frames:
        interpreter.set_input(frame, 0)
        interpreter.invoke()
        found.append(np.array(interpreter.get_output(0)))
    return np.stack(found)


if __name__ == "__main__":
    np.savez_compressed(FILE, **{layer.name: results(layer) for layer in micro_layers()})
