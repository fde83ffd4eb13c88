"""Watch a machine whose bearing wears out: ``python examples/anomaly_detection/run.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from machine import spectrum

import mlfc

LIMIT = 3.0  # times the usual value of the new machine


def main() -> None:
    """Measure the usual value, then print the anomaly of each day."""
    model = mlfc.compile(Path(__file__).with_name("model.onnx"))
    rng = np.random.default_rng(1)

    def anomaly(wear: float) -> float:
        felt = [model.run({"spectrum": spectrum(rng, wear)[None]})["anomaly"].item() for _ in range(20)]
        return float(np.mean(felt))

    usual = anomaly(0.0)
    for day in range(1, 13):
        found = anomaly(max(0.0, day - 5) / 10) / usual
        bar = "#" * min(40, round(4 * found))
        print(f"day {day:2}  {found:5.1f}  {bar}{'  stop the machine' if found > LIMIT else ''}".rstrip())


if __name__ == "__main__":
    main()
