"""Make a page that reads digits in a browser: ``python examples/browser/run.py [PAGE.html]``.

Requires the extra mlfc[cross], and Node for the check at the end. The page is one file, which opens without a server.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import mlfc

HERE = Path(__file__).parent
DIGITS = HERE.parent / "digits"


def make_page() -> str:
    """Return the page with the model as embedded WebAssembly."""
    mod, params = mlfc.import_model(DIGITS / "digits.onnx")
    factory = mlfc.build(mod, target="c", params=params, module_name="digits")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.wasm"
        factory.export_library(path, target_triple="wasm32-wasi")
        wasm = base64.b64encode(path.read_bytes()).decode()
    code = (HERE / "model.mjs").read_text(encoding="utf-8")
    return (HERE / "page.html").read_text(encoding="utf-8").replace("@WASM@", wasm).replace("@MODEL@", code)


def main() -> None:
    """Write the page, and check its embedded model on held-out images with Node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, default=Path("digits.html"))
    page = parser.parse_args().page
    page.write_text(make_page(), encoding="utf-8")
    print(f"open {page.name} in a browser, and draw")
    node = shutil.which("node")
    if node is None:
        return
    with np.load(DIGITS / "held_out.npz") as data:
        images, labels = data["images"], data["labels"]
    command = [node, "--no-warnings", str(HERE / "check.mjs"), str(page)]
    done = subprocess.run(command, input=images.astype("<f4").tobytes(), capture_output=True, check=True)
    found = np.array(done.stdout.split(), int)
    print(f"in Node it reads {(found == labels).sum()} of {len(labels)} held-out images right")
    print(f"the first ten: {' '.join(map(str, found[:10]))}, which are {' '.join(map(str, labels[:10]))}")


if __name__ == "__main__":
    main()
