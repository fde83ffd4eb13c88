"""Writing a Model Library Format archive."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mlforge.archive import layout, metadata
from mlforge.errors import OptionError
from mlforge.library.toolchain import compile_objects, compile_shared
from mlforge.relay.text import to_text
from mlforge.relay.text_printer import parameter_names
from mlforge.runtime.shared_library import DESCRIPTION_SYMBOL
from mlforge.support.atomic import atomic_file, check_writable
from mlforge.support.params import save_params
from mlforge.support.tar import source_date, write_tar

if TYPE_CHECKING:
    from mlforge.compiler import Factory


def export_model_library_format(
    mod: Factory | Sequence[Factory],
    path: str | os.PathLike[str],
    *,
    timestamp: int | None = None,
    include_source_params: bool = False,
) -> Path:
    """Write an archive of version 7, full-model style; the same modules give the same bytes.

    Parameters
    ----------
    mod : Factory or sequence of Factory
        What `build` returned; the modules' names must differ.
    path : path
        Where to write. A file that is there is replaced once the new one is complete.
    timestamp : int, optional
        Seconds since 1970 for the archive's times; default SOURCE_DATE_EPOCH of the environment, else 0.
    include_source_params : bool
        Also keep the model's own weights as ``src/<name>.params``. With ``src/<name>.relay`` they are all that is
        needed to build the model again, for any target; they make the archive about twice as large.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    OptionError
        If two modules have the same name.
    OutputError
        If the place cannot be written.
    """
    factories = list(mod) if isinstance(mod, Sequence) else [mod]
    target = Path(path)
    check_writable(target)
    seconds = source_date(timestamp)
    files = archive_files(factories, include_source_params=include_source_params)
    document = metadata.archive_metadata(factories, files, seconds)
    files[layout.METADATA] = metadata.to_bytes(document)
    with atomic_file(target) as file:
        write_tar(file, files, seconds)
    return target


def export_shared_library(factories: Sequence[Factory], path: str | os.PathLike[str]) -> Path:
    """Write a shared library for this machine that carries its own description.

    Parameters
    ----------
    factories : sequence of Factory
        What `build` returned; the modules' names must differ.
    path : path

    Raises
    ------
    ToolchainError
        If there is no C compiler or it refuses the code.
    OutputError
        If the place cannot be written.
    """
    modules = {factory.module_name: metadata.module_details(factory) for factory in factories}
    text = json.dumps({"modules": modules}, sort_keys=True).encode()
    files = code_files(factories)
    # numbers, because C promises string literals of no more than 4,095 characters
    numbers = ",".join(map(str, (*text, 0)))
    files["src/mlforge_description.c"] = f"const char {DESCRIPTION_SYMBOL}[] = {{{numbers}}};\n".encode()
    return compile_shared(files, path)


def object_files(factories: Sequence[Factory]) -> dict[str, bytes]:
    """Return the code of these modules compiled by the C compiler at hand (``CC``), and its headers, by path.

    Raises
    ------
    ToolchainError
        If there is no C compiler or it refuses the code.
    """
    code = code_files(factories)
    files = {path: data for path, data in code.items() if path.endswith(".h")}
    with tempfile.TemporaryDirectory(prefix="mlforge-objects-") as folder:
        for built in compile_objects(code, Path(folder)):
            files[f"lib/{built.name.removesuffix('.o').rpartition('.')[0]}.o"] = built.read_bytes()
    return files


def code_files(factories: Sequence[Factory]) -> dict[str, bytes]:
    """Return the generated code of these modules by path: ``src/...`` and ``include/...``."""
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    for factory in factories:
        if factory.module_name in seen:
            raise OptionError(
                f"two modules have the name '{factory.module_name}'", next_step="Give each a name of its own"
            )
        seen.add(factory.module_name)
        files.update(factory.code.files)
    return files


def archive_files(factories: Sequence[Factory], *, include_source_params: bool = False) -> dict[str, bytes]:
    """Return the members of an archive of these modules, all but ``metadata.json``, by path."""
    files = {f"{layout.CODE}/{path}": data for path, data in code_files(factories).items()}
    for factory in factories:
        name = factory.module_name
        # with its scales and other small tensors, so that text and weights are all that building again takes
        files[layout.relay_path(name)] = to_text(factory.module).encode()
        # the constants of AOT modules are in their code, so what an executor would load is empty
        files[layout.params_path(name)] = save_params({})
        if include_source_params:
            files[layout.source_params_path(name)] = save_params(_as_printed(factory))
    return files


def _as_printed(factory: Factory) -> dict[str, npt.NDArray[Any]]:
    """Return the weights under the names that the Relay text gives their parameters."""
    printed = parameter_names(factory.module.main)
    return {name: factory.params[param.name] for param, name in printed.items() if param.name in factory.params}
