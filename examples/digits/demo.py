"""Compile the digits models, run them on held-out images, and show predictions, accuracy, memory and time."""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import mlfc

HERE = Path(__file__).parent
SHADES = " .:-=+*#%@"


@dataclass
class Result:
    """One model's numbers."""

    title: str
    archive: Path
    guesses: npt.NDArray[np.int64]
    microseconds: float
    memory: dict[str, int]


def compile_model(model: Path, archive: Path) -> None:
    """Compile as ``mlfc compile MODEL -o ARCHIVE`` does."""
    mod, params = mlfc.import_model(model)
    factory = mlfc.build(mod, target="c", params=params, module_name=model.stem)
    mlfc.export_model_library_format(factory, archive)


def quantized(images: npt.NDArray[np.float32], info: Any) -> npt.NDArray[Any]:
    """Return images in the layout and dtype of the model's input."""
    if info.dtype == "float32":
        return images.transpose(0, 3, 1, 2)  # the ONNX model is channels first
    return np.clip(np.round(images / info.scale + info.zero_point), -128, 127).astype(np.int8)


def run(title: str, model: Path, out: Path, images: npt.NDArray[np.float32]) -> Result:
    """Compile, load and run one model on all images."""
    archive = out / f"{model.stem}.tar"
    compile_model(model, archive)
    loaded = mlfc.load(archive)
    source, target = loaded.inputs[0], loaded.outputs[0]
    batch = quantized(images, source)
    guesses = np.array([loaded.run({source.name: item[None]})[target.name].argmax() for item in batch])
    x, y = np.ascontiguousarray(batch[:1]), np.empty(target.shape, target.dtype)
    infer = loaded.bind({source.name: x}, {target.name: y})
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        infer()
        times.append(time.perf_counter() - start)
    memory = mlfc.inspect(archive)["modules"][model.stem]["memory"]
    return Result(title, archive, guesses, statistics.median(times) * 1e6, memory)


def picture(image: npt.NDArray[np.float32]) -> str:
    """Return an image as text."""
    rows = image.reshape(8, 8)
    return "\n".join("".join(SHADES[min(int(v * 10), 9)] * 2 for v in row) for row in rows)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder for the archives")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    with np.load(HERE / "held_out.npz") as data:
        images, labels = data["images"], data["labels"]
    results = [
        run("int8 TFLite", HERE / "digits_int8.tflite", out, images),
        run("float32 ONNX", HERE / "digits.onnx", out, images),
    ]
    shown = zip(images[:5], labels[:5], results[0].guesses[:5], strict=True)
    console.print(Columns([Panel(picture(i), title=f"predicted {g}, is {n}", expand=False) for i, n, g in shown]))
    table = Table(title=f"{len(images)} held-out images; memory in bytes, time of one inference")
    for name in ("model", "accuracy", "workspace", "bound", "constants", "I/O", "time"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for result in results:
        memory = result.memory
        table.add_row(
            result.title,
            f"{np.mean(result.guesses == labels):.1%}",
            f"{memory['workspace_bytes']:,}",
            f"{memory['workspace_lower_bound_bytes']:,}",
            f"{memory['constants_bytes']:,}",
            f"{memory['io_bytes']:,}",
            f"{result.microseconds:.1f} us",
        )
    console.print(table)
    console.print("Archives: " + ", ".join(str(result.archive) for result in results))


if __name__ == "__main__":
    main()
