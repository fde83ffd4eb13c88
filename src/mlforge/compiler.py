"""The story in one screen: import -> passes -> lower -> plan -> emit.

`build` takes what `import_model` returns and gives a `Factory`, which unpacks as
``(graph_json, lib, params)`` and is what the exporters write to disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlforge.ops  # noqa: F401  (registers the operators)
from mlforge import codegen, memory, transform
from mlforge.errors import OptionError
from mlforge.relay.ir import IRModule
from mlforge.support.c_names import module_name as checked_module_name
from mlforge.target.target import Target, parse_target
from mlforge.tir.ir import Program

EXECUTORS = ("aot",)


@dataclass(frozen=True, eq=False)
class Library:
    """The generated code of one module."""

    code: codegen.GeneratedCode

    @property
    def type_key(self) -> str:
        """TVM's name for a module of C source."""
        return "c"

    def get_source(self) -> str:
        """Return all C files as one text, in the order of their names."""
        files = sorted(self.code.files.items())
        return "\n".join(data.decode() for path, data in files if Path(path).suffix == ".c")


@dataclass(frozen=True, eq=False)
class Factory:
    """A compiled module; unpacks as ``(graph_json, lib, params)``.

    Attributes
    ----------
    module_name : str
    target : Target
    executor : str
    options : dict of str to str
        ``numerics`` and ``optimize``, for the record in metadata.
    module : IRModule
        The model as it was imported.
    params : dict of str to ndarray
        The model's own weights by name.
    program : Program
    plan : memory.Plan
    code : codegen.GeneratedCode
    graph_json : str
        Empty for the AOT executor.
    """

    module_name: str
    target: Target
    executor: str
    options: Mapping[str, str]
    module: IRModule
    params: Mapping[str, npt.NDArray[Any]]
    program: Program
    plan: memory.Plan
    code: codegen.GeneratedCode
    graph_json: str = ""

    @property
    def lib(self) -> Library:
        """The code as a module."""
        return Library(self.code)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self.lib, self.params))


def build(
    mod: IRModule,
    target: str = "c",
    params: Mapping[str, npt.NDArray[np.generic]] | None = None,
    *,
    executor: str = "aot",
    module_name: str = "default",
    optimize: str = "speed",
    numerics: str = "litert",
    external_workspace: bool = False,
) -> Factory:
    """Compile a Relay module to C.

    Parameters
    ----------
    mod : IRModule
        What `import_model` or the Relay parser returned.
    target : str
        A target string; see `mlforge.target.target.parse_target`.
    params : mapping of str to ndarray, optional
        Values of parameters of ``main``; the others are the model's inputs.
    executor : str
        ``aot``.
    module_name : str
        Goes into every symbol; letters, digits and underscores.
    optimize : str
        ``speed`` or ``size``.
    numerics : str
        Whose integer rounding the importer chose; kept for the record.
    external_workspace : bool
        The caller of the generated code passes the workspace in, instead of a static array.

    Returns
    -------
    Factory

    Raises
    ------
    MlforgeError
        For options that do not exist, and for what cannot be compiled.
    """
    if executor not in EXECUTORS:
        raise OptionError(f"there is no executor '{executor}'", next_step=f"Executors: {', '.join(EXECUTORS)}")
    chosen = parse_target(target, optimize)
    name = checked_module_name(module_name)
    values = dict(params or {})
    fused = transform.run(mod, values)
    program = transform.lower(fused, chosen.features, name)
    plan = memory.plan(program)
    memory.prove(program, plan)
    code = codegen.generate(
        program,
        plan,
        module_name=name,
        external_workspace=external_workspace,
        target_text=str(chosen),
        quantization=mod.quantization,
    )
    options = {"numerics": numerics, "optimize": optimize}
    return Factory(name, chosen, executor, options, mod, values, program, plan, code)
