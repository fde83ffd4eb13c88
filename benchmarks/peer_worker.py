"""Run a model with a runtime that requires its own environment: IREE or Apache TVM.

The Python of that environment runs it as ``python peer_worker.py NAME MODEL INPUTS.npz THREADS``. It prints ``ready``
or an error. For each line with a number on standard input it then runs that many times and prints the seconds. It
requires numpy, onnx and the runtime's packages, and nothing of mlfc.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Runner = Callable[[], object]


def iree(path: Path, inputs: Sequence[Any], threads: int) -> Runner:
    """Compile with IREE for this processor, with its strongest optimization."""
    import iree.compiler.tools as compiler
    from iree import runtime
    from iree.compiler.tools.import_onnx import __main__ as importer

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "model.mlir"
        importer.main(importer.parse_arguments([str(path), "-o", str(text), "--opset-version", "17"]))
        flags = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
        code = compiler.compile_file(str(text), target_backends=["llvm-cpu"], input_type="onnx", extra_args=flags)
    driver = "local-sync" if threads == 1 else "local-task"
    config = runtime.Config(driver)
    module = runtime.VmModule.copy_buffer(config.vm_instance, code)
    context = runtime.SystemContext(vm_modules=[module], config=config)
    (name,) = [item for item in module.function_names if not item.startswith("__") and "$" not in item]
    function = context.modules[module.name][name]
    given = [runtime.asdevicearray(config.device, array) for array in inputs]
    return lambda: function(*given)


def tvm(path: Path, inputs: Sequence[Any], threads: int) -> Runner:
    """Compile with TVM for this processor with its default rules, without tuning."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    with tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}):
        built = tvm.compile(module)
    machine = relax.VirtualMachine(built, tvm.cpu())
    machine.set_input("main", *(tvm.runtime.tensor(array) for array in inputs))
    return lambda: machine.invoke_stateful("main")


def main() -> None:
    """Prepare the model, then answer requests."""
    name, model, inputs, threads = sys.argv[1:]
    import numpy as np

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep the runtimes' own output away from the answers
    try:
        run = {"iree": iree, "tvm": tvm}[name](Path(model), list(np.load(inputs).values()), int(threads))
        run()
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " ")[:300], file=answers, flush=True)
        return
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        count = int(line)
        start = time.perf_counter()
        for _ in range(count):
            run()
        print(time.perf_counter() - start, file=answers, flush=True)


if __name__ == "__main__":
    main()
