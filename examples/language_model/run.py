"""Write sentences on an emulated microcontroller: ``python examples/language_model/run.py [--here]``.

Requires the Arm compiler and QEMU; --here runs the same model on this machine instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from text import PROMPT, letters, numbers

import mlfc

MODEL = Path(__file__).with_name("model.onnx")
BOARD = "mps2-an386"  # a Cortex-M4


def on_board(prompt: np.ndarray, folder: Path) -> np.ndarray:
    """Return the model's text from the board, by ``mlfc run``."""
    inputs, outputs = folder / "in.npz", folder / "out.npz"
    np.savez(inputs, prompt=prompt)
    command = [sys.executable, "-m", "mlfc", "run", MODEL, "--board", BOARD, "--inputs", inputs, "--outputs", outputs]
    done = subprocess.run([*map(str, command), "--json"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    json.loads(done.stdout)
    with np.load(outputs) as found:
        return found["written"]


def main() -> None:
    """Complete the beginnings of sentences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="run on this machine")
    parser.add_argument("--prompt", action="append", help=f"{PROMPT} letters; repeatable")
    options = parser.parse_args()
    here = options.here
    model = mlfc.compile(MODEL) if here else None
    print(f"on {'this machine' if here else f'the board {BOARD}'}")
    with tempfile.TemporaryDirectory() as folder:
        for start in options.prompt or ("the cat ", "the old ", "the sun "):
            prompt = numbers(start)
            if len(prompt) != PROMPT:
                raise SystemExit(f"expected {PROMPT} letters, got '{start}'")
            written = model.run({"prompt": prompt})["written"] if model else on_board(prompt, Path(folder))
            print(f"  {start}|{letters(written)}")


if __name__ == "__main__":
    main()
