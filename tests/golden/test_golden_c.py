"""Golden files of generated C: update them by ``pytest tests/golden --update-golden``, and review the change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive.write.members import archive_members
from mlfc.archive.write.options import ExportOptions
from mlfc.codegen.c import KernelValues, print_function
from mlfc.codegen.operators import OperatorsFile, kernel_comment
from mlfc.relay import ir
from mlfc.support.content import to_bytes
from mlfc.target.target import parse_target
from mlfc.tir.ir import PrimFunc
from mlfc.tir.merge_kernels import merge_kernels
from mlfc.transform.lower_group import lower_group
from tests.c_files import print_file
from tests.native.kernel_runner import group_of
from tests.native.programs import chain, generated, product
from tests.native.test_c_vectors import dot_product, tiled_product, vector_operations
from tests.native.test_dsp_kernels import requantized_sums
from tests.native.test_kernels import Case
from tests.native.test_launch_code import code as launches
from tests.state_models import GRU_STATES, gru
from tests.vm_models import two_layers

FOLDER = Path(__file__).parent / "c"


def functions() -> dict[str, PrimFunc]:
    prims = [tiled_product(3, 7, 16), dot_product(16, broadcast=True), vector_operations("float32", 4)]
    return {prim.name: prim for prim in prims}


CORES = {"dsp": "cortex-m4", "mve": "cortex-m55"}


def convolution(core: str) -> str:
    """Return the function of an int8 convolution with requantization, with the instructions that a core has.

    Its callees are omitted: the header contains them and is the same for all kernels.
    """
    data, kernel, filters = (1, 5, 6, 8), (3, 3), 4
    weights = np.arange(np.prod(kernel) * data[3] * filters).reshape(*kernel, data[3], filters) % 255 - 127
    case = Case(data, kernel, filters, padding=(1, 1, 1, 1))
    x = ir.Var("x", ir.TensorType(data, "int8"))
    bias = np.arange(filters, dtype=np.int32) * 7
    body = requantized_sums(x, case, weights.astype(np.int8), bias, 0.002)
    lowered = lower_group(group_of(body, [x]), parse_target(f"c -mcpu={core}").features)
    return print_function(lowered.prim, "convolution").text


def texts() -> dict[str, str]:
    found = {f"{name}.c": print_file([print_function(prim)]) for name, prim in functions().items()}
    found["shared_product.c"] = shared_kernel()
    found |= {f"convolution_{name}.c": convolution(core) for name, core in CORES.items()}
    for external in (False, True):
        code = generated(chain(5)[0], external_workspace=external)
        variant = "external" if external else "static"
        found |= {f"{variant}_{Path(name).name}": data.decode() for name, data in code.files.items()}
    begin = {"h_in": np.arange(8, dtype=np.float32)}
    cell = mlfc.compile(
        gru(), "c -mcpu=cortex-m4", states=GRU_STATES, state_init=begin, module_name="cell"
    ).factory.code
    for path in ("src/cell_lib0.c", "include/tvmgen_cell.h"):
        found[f"state_{Path(path).name}"] = to_bytes(cell.files[path]).decode()
    for variant, code in (("graph", generated(chain(5)[0], executor="graph")), ("launches", launches())):
        found |= {f"{variant}_{Path(name).name}": to_bytes(data).decode() for name, data in code.files.items()}
    module, params = two_layers(4)
    factory = mlfc.build(module, "c -mcpu=cortex-m4", params, executor="vm", module_name="net")
    members = archive_members([factory], ExportOptions(source_params=False), 0)[0]
    for path in ("codegen/host/include/tvmgen_net.h", "codegen/host/src/net_lib1.c", "demo/demo.c"):
        found[f"vm_{Path(path).name}"] = to_bytes(members[path]).decode()
    return found


def shared_kernel() -> str:
    """Return the merged function of two matrix products, the struct of their differences, and its constants."""
    family = merge_kernels([product(1, 6, 4), product(5, 300, 2)])
    assert family is not None
    operators = OperatorsFile(contracts=True)
    values = KernelValues(family, "tvmgen_net_product")
    operators.add_shared(values)
    for position, member in enumerate(family.members):
        comment = kernel_comment(member, [])
        operators.functions.append(values.definition(position, f"tvmgen_net_product_{position}", comment))
    return operators.text()


def test_golden_c(request: pytest.FixtureRequest) -> None:
    found = texts()
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        for name, text in found.items():
            (FOLDER / name).write_text(text)
    expected = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert found == expected, "read the difference; if it is meant, run: pytest tests/golden --update-golden"
