"""Read digits on an emulated Cortex-M4: ``python examples/digits_board/run.py``.

Requires the Arm compiler and QEMU. The model and its held-out images are those of examples/digits.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import mlfc

DIGITS = Path(__file__).parents[1] / "digits"
MODEL = DIGITS / "digits_int8.tflite"
BOARD = "mps2-an386"
SHADES = " .:-=+*#%@"


def on_board(image: np.ndarray, folder: Path) -> np.ndarray:
    """Return the model's scores, computed by firmware in the emulator."""
    inputs, outputs = folder / "in.npz", folder / "out.npz"
    np.savez(inputs, image=image)
    command = [sys.executable, "-m", "mlfc", "run", MODEL, "--board", BOARD, "--inputs", inputs, "--outputs", outputs]
    done = subprocess.run([*map(str, command), "--json"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    with np.load(outputs) as found:
        return found["probabilities"]


def main() -> None:
    """Read two images on this machine and on the board, and compare every bit."""
    with np.load(DIGITS / "held_out.npz") as data:
        chosen = [int(np.argmax(data["labels"] == digit)) for digit in (3, 9)]
        images, labels = data["images"][chosen], data["labels"][chosen]
    model = mlfc.compile(MODEL)
    for rows in zip(*((image.reshape(8, 8)) for image in images), strict=True):
        text = ("".join(SHADES[min(int(value * 10), 9)] * 2 for value in row) for row in rows)
        print("   ".join(text).rstrip())
    quantized = np.clip(np.round(images * 255 - 128), -128, 127).astype(np.int8)
    said, same = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for image, label in zip(quantized, labels, strict=True):
            scores = on_board(image[None], Path(folder))
            same += bool((scores == model.run({"image": image[None]})["probabilities"]).all())
            said.append(f"read {scores.argmax()}, is {label}".ljust(16))
    print("   ".join(said).rstrip())
    print(f"{same} of {len(said)} have the bits of this machine's code, on a {BOARD}")


if __name__ == "__main__":
    main()
