"""C interface for applications: typed arrays for a module's inputs and outputs, and one function that runs it.

The C interface of generated code takes structs of pointers and, on request, the workspace. Firmware that runs one
model has one buffer for each tensor, so projects contain a C file with these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.archive.templates.subject import DemoTensor, described_subject, given_pools
from mlfc.micro.firmware.bare_metal import COMPILE_FLAGS
from mlfc.micro.project.template import MODEL_CODE, WHAT_TYPES_DO, ProjectModel
from mlfc.micro.render import render
from mlfc.support import dtypes
from mlfc.support.content import Data

_PRINTED = {"uint64": ("%llu", "unsigned long long"), "int64": ("%lld", "long long")}
# for a compiler whose language and optimization the build system chooses
_MODEL_FLAGS = tuple(flag for flag in COMPILE_FLAGS if flag.startswith("-f"))
_INTERFACE_FOLDER = "module"


@dataclass(frozen=True)
class IoBuffer:
    """An input or output of a module, and its array."""

    tensor: DemoTensor
    array: str
    macro: str  # prefix of its macros
    is_float: bool  # whether an element is a floating-point number in C, where halves are plain bits
    is_unsigned: bool  # whether an element is an unsigned integer in C
    printed: tuple[str, str]  # conversion of an element for printf, and the type to cast to
    scale_digits: str  # the scale in C's notation
    description: str  # shape, type and meaning, in one line


@dataclass(frozen=True)
class ModelInterface:
    """The names that an application uses for a module."""

    name: str
    inputs: tuple[IoBuffer, ...]
    outputs: tuple[IoBuffer, ...]
    buffers: tuple[IoBuffer, ...]  # all tensors
    header: str  # file names
    source: str
    run: str  # function that runs the module
    reset: str  # function that resets the states of the module
    nbytes: int  # of all buffers outside the workspace
    is_mapped: bool  # whether they are in the module's workspace instead of separate arrays
    keeps_state: bool  # whether it keeps states between runs


def interface_of(model: ProjectModel) -> ModelInterface:
    """Return the application's names for a module."""
    name, subject = model.name, described_subject(model.name, model.details)
    inputs, outputs = _buffers(f"{name}_input", subject.inputs), _buffers(f"{name}_output", subject.outputs)
    sizes = (item.tensor.c_length * dtypes.nbytes(item.tensor.dtype) for item in (*inputs, *outputs))
    nbytes = 0 if subject.maps_tensors else sum(sizes)
    return ModelInterface(
        name,
        inputs,
        outputs,
        (*inputs, *outputs),
        f"{name}_model.h",
        f"{name}_model.c",
        f"{name}_run",
        f"{name}_reset_state",
        nbytes,
        subject.maps_tensors,
        subject.keeps_state,
    )


def interface_files(model: ProjectModel) -> dict[str, bytes]:
    """Return ``<module>_model.h`` and ``<module>_model.c``."""
    interface, subject = interface_of(model), described_subject(model.name, model.details)
    values = {
        "model": interface,
        "prefix": f"tvmgen_{model.name}",
        "pools": given_pools(subject),
        "reset": subject.reset_call("&pools") if subject.keeps_state else None,
    }
    return {
        interface.header: render("application/model.h", **values),
        interface.source: render("application/model.c", **values),
    }


def _buffers(stem: str, tensors: Sequence[DemoTensor]) -> tuple[IoBuffer, ...]:
    """Return tensors with their arrays, which are named after fields if there are several."""
    found = []
    for tensor in tensors:
        array = stem if len(tensors) == 1 else f"{stem}_{tensor.field}"
        is_float, is_unsigned = tensor.c_type in ("float", "double"), tensor.c_type.startswith("u")
        usual = ("%lu", "unsigned long") if is_unsigned else ("%ld", "long")
        printed = ("%g", "double") if is_float else _PRINTED.get(tensor.dtype, usual)
        digits = repr(float(tensor.scale or 0.0))
        text = f"{tensor.name[:200]}: {' x '.join(map(str, tensor.shape)) or 'scalar'} {tensor.dtype}"
        if tensor.scale is not None:
            text += f", real = {digits} * (value - {tensor.zero_point})"
        found.append(IoBuffer(tensor, array, array.upper(), is_float, is_unsigned, printed, digits, text))
    return tuple(found)


def library_files(model: ProjectModel, application: Mapping[str, Data], folder: str) -> dict[str, Data]:
    """Return the files of the application's interface, and those of an application in a folder, by path."""
    return {
        **{f"{_INTERFACE_FOLDER}/{name}": data for name, data in interface_files(model).items()},
        **{f"{folder}/{name}": data for name, data in application.items()},
    }


def library_values(model: ProjectModel, project_type: str) -> dict[str, Any]:
    """Return the template values that describe a model as a library of some build system, paths as in the project."""
    interface = interface_of(model)
    # section names of workspace and constants end in the names of the memories of the target
    memories = {pool.name for pool in model.details.pools} | {pool.name for pool in model.details.constant_pools}
    return {
        "name": model.name,
        "symbol": symbol(model),
        "model": interface,
        "does": WHAT_TYPES_DO[project_type],
        "memory": model.details.memory,
        "memories": tuple(sorted(memories)),
        # generated files, and the application's interface
        "sources": (*_named(model, ".c", ".S"), f"{_INTERFACE_FOLDER}/{interface.source}"),
        "headers": (*_named(model, ".h"), f"{_INTERFACE_FOLDER}/{interface.header}"),
        "binaries": _named(model, ".bin"),  # large constants that the assembler includes
        "folders": (f"{MODEL_CODE}/include", _INTERFACE_FOLDER),  # of headers
        "flags": _MODEL_FLAGS,
    }


def c_files(files: Iterable[str], folder: str = "") -> list[str]:
    """Return the paths of C files in a folder."""
    return [f"{folder}{name}" for name in files if name.endswith(".c")]


def symbol(model: ProjectModel) -> str:
    """Return the prefix of the model's Kconfig symbols."""
    return f"MLFC_{model.name.upper()}"


def _named(model: ProjectModel, *endings: str) -> tuple[str, ...]:
    return tuple(sorted(f"{MODEL_CODE}/{path}" for path in model.code if path.endswith(endings)))
