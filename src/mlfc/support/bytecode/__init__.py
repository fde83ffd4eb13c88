"""The bytecode of the virtual machine: models whose shapes or control flow depend on their inputs.

An `Executable` is one model. `ExecutableBuilder` and `FunctionBuilder` write one, `encode` and `decode` are its file,
`verify` proves what an interpreter relies on, `disassemble` shows it. `docs/reference/vm.md` has the whole format.
"""

from __future__ import annotations

from mlfc.support.bytecode.builder import (
    Buffer,
    ConstantTensor,
    ExecutableBuilder,
    FunctionBuilder,
    Integer,
    IntegerRegister,
    KernelIndex,
    Label,
    ListRegister,
    StorageRegister,
    Tensor,
    TensorRegister,
)
from mlfc.support.bytecode.executable import (
    Constant,
    Executable,
    Extent,
    Function,
    Kernel,
    OpenExtent,
    Part,
    Symbol,
    Value,
)
from mlfc.support.bytecode.file import decode, encode
from mlfc.support.bytecode.instructions import ALIGNMENT, CPU, DTYPES, INSTRUCTIONS, MAX_RANK, OPEN, OPERATIONS
from mlfc.support.bytecode.text import disassemble
from mlfc.support.bytecode.verify import verify
from mlfc.support.bytecode.work import state_offsets, work_bytes

__all__ = [
    "ALIGNMENT",
    "CPU",
    "DTYPES",
    "INSTRUCTIONS",
    "MAX_RANK",
    "OPEN",
    "OPERATIONS",
    "Buffer",
    "Constant",
    "ConstantTensor",
    "Executable",
    "ExecutableBuilder",
    "Extent",
    "Function",
    "FunctionBuilder",
    "Integer",
    "IntegerRegister",
    "Kernel",
    "KernelIndex",
    "Label",
    "ListRegister",
    "OpenExtent",
    "Part",
    "StorageRegister",
    "Symbol",
    "Tensor",
    "TensorRegister",
    "Value",
    "decode",
    "disassemble",
    "encode",
    "state_offsets",
    "verify",
    "work_bytes",
]
