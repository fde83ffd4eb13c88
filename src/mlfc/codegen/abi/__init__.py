"""Functions of libraries that other programs find and call by a convention, beside a module's own code.

Two conventions, whose symbols do not clash, may be in one library: ``classic``, TVM's packed functions, and ``ffi``,
those of tvm-ffi.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from mlfc.codegen.abi.classic_entries import classic_entries
from mlfc.codegen.abi.entry import AotEntry
from mlfc.codegen.abi.ffi_entries import ffi_entries, operator_entries
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host.aot import main_function_name
from mlfc.codegen.unit import Unit
from mlfc.errors import OptionError, unknown
from mlfc.support.content import Data, to_bytes

ABIS = ("classic", "ffi")
"""The conventions, by the names of the option ``--abi``."""


def library_files(
    units: Sequence[Unit], codes: Sequence[GeneratedCode], abi: Sequence[str], files: Mapping[str, Data] | None = None
) -> Mapping[str, Data]:
    """Return the C by which others call the modules of a library: files by path, laid over the modules' own.

    Some replace files of the same path. They need the headers and sources of `mlfc.library.build.runtime_files`. `abi`
    has entries of `ABIS`; `files` is the modules' code, where that differs from `codes`.

    Raises
    ------
    OptionError
        For an unknown convention, and for a module that no function on tensors can run.
    """
    for name in abi:
        if name not in ABIS:
            raise OptionError(unknown("calling convention", name, ABIS))
    own = files if files is not None else {path: data for code in codes for path, data in code.files.items()}
    beside: dict[str, Data] = {}
    shares = [code.workspace_peers != () for code in codes]
    for index, (unit, code) in enumerate(zip(units, codes, strict=True)):
        if not abi or unit.executor == "vm":  # its main function calls them
            continue
        if unit.executor == "graph":
            beside |= operator_entries(unit, code, abi)
            continue
        entry = AotEntry(unit, code, defines_gate=shares.index(True) == index if shares[index] else False)
        beside[f"src/{unit.module}_entries.c"] = _entries_file(entry, abi, alone=len(units) == 1).encode()
        # under its own name readers of the classic convention would call it, whether or not the library has that
        beside |= _with_other_main(unit.module, own)
    return beside


def _entries_file(entry: AotEntry, abi: Sequence[str], *, alone: bool) -> str:
    parts = [entry.file_start()]
    if "classic" in abi:
        parts.append(classic_entries(entry, alone=alone))
    if "ffi" in abi:
        parts.append(ffi_entries(entry, alone=alone))
    return "\n".join(parts)


def _with_other_main(module: str, files: Mapping[str, Data]) -> dict[str, Data]:
    """Return those of the files that are a module's code; its main function has another name in them.

    The C interface's main function, which takes plain pointers, has the very name by which executors look for the
    packed one. Only the module's own files call it. Objects have room for a name of the same length.
    """
    name = main_function_name(f"tvmgen_{module}").encode()
    other = f"tvmgen_{module}_on_pointers".encode().ljust(len(name), b"_")
    stems = (f"{module}_lib0", f"{module}_lib1")
    paths = [path for path in files if PurePosixPath(path).stem in stems]
    return {path: to_bytes(files[path]).replace(name, other) for path in paths}
