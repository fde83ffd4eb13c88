"""Write ``signal.npz``: TFLite Micro's results for the cases of ``tests/signal_cases.py``, run by run.

It requires the packages tflite-micro (version 0.dev20261023182759 wrote the file), tflite and numpy, which the tests do
not require. Run it from the project's root as ``python -m tests.golden.make_signal``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tflite_micro import runtime

from tests.signal_cases import Case, front_end, signal_cases
from tests.tflite_builder import build

FILE = Path(__file__).with_name("signal.npz")


def results(case: Case) -> dict[str, np.ndarray]:
    """Return the concatenated outputs of all runs of a case."""
    fed = list(case.runs[0])
    model = build(case.tensors, case.ops, fed, case.outputs)
    interpreter = runtime.Interpreter.from_bytes(model, arena_size=1 << 20)
    found: dict[str, list[np.ndarray]] = {name: [] for name in case.outputs}
    for run in case.runs:
        for place, name in enumerate(fed):
            interpreter.set_input(run[name], place)
        interpreter.invoke()
        for place, name in enumerate(case.outputs):
            found[name].append(np.array(interpreter.get_output(place)))
    return {name: np.stack(values) for name, values in found.items()}


if __name__ == "__main__":
    cases = [*signal_cases(), front_end()]
    np.savez_compressed(FILE, **{name: value for case in cases for name, value in results(case).items()})
