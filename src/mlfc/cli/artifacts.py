"""Artifacts that commands accept: archives, libraries, and models, which are compiled first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.options import Inputs
from mlfc.errors import OptionError, unknown
from mlfc.support.progress import stage
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.tensor_info import ContainerInfo, TensorInfo
from mlfc.support.text import model_title, printable

if TYPE_CHECKING:
    from mlfc.factory import Factory
    from mlfc.micro.board.board import Board


def is_compiled(artifact: Path, module: str | None, given: Inputs, *, takes_shapes: bool = False) -> bool:
    """Return True for an archive or library, False for a model; reject options of the other kind.

    With `takes_shapes`, shapes may set the dynamic dimensions of a compiled model.
    """
    from mlfc.archive.read.load import artifact_kind

    if artifact_kind(artifact) != "model":
        (replace(given, shape=None) if takes_shapes else given).refuse(
            "requires a model; the inputs of an archive are static"
        )
        return True
    if module is not None:
        raise OptionError("option --module requires an archive or a shared library; a model is a single module")
    return False


def compiled_model(
    model: Path,
    given: Inputs,
    target: str,
    executor: str | None = None,
    *,
    parallel: bool | None = None,
    tuned: Path | None = None,
    name: str | None = None,
) -> Factory:
    """Compile a model file, as a module with a `name`."""
    from mlfc.compiler import build_module
    from mlfc.frontend import import_for_run

    options = given.options(target, executor=executor, module_name=name, parallel=parallel, tuned=tuned)
    return build_module(*import_for_run(model, options, executor), options)


@contextmanager
def archive_of(artifact: Path, given: Inputs, target: str, name: str | None = None) -> Iterator[Path]:
    """Yield an archive as it is, or that of a model, which is compiled into a temporary file.

    The model's module has a `name`, by default the file's.
    """
    from mlfc.archive import export_model_library_format
    from mlfc.archive.read.load import artifact_kind
    from mlfc.support.c_names import module_name

    if artifact_kind(artifact) != "model":
        given.refuse("requires a model; the inputs of an archive are static")
        yield artifact
        return
    with TemporaryFolder() as folder:
        with stage(f"compiling {artifact.name}"):
            factory = compiled_model(artifact, given, target, name=name or module_name(model_title(artifact)))
            made = export_model_library_format(factory, Path(folder, "model.tar"))
        yield made


def inputs_of(artifact: Path, given: Inputs) -> Inputs:
    """Return the options about inputs of one of several artifacts: they apply to models alone."""
    from mlfc.archive.read.load import artifact_kind

    return given if artifact_kind(artifact) == "model" else Inputs()


def input_sizes(
    compiled: object, artifact: Path, fixed: Inputs
) -> tuple[Mapping[str, tuple[int, int]] | None, Sequence[str]]:
    """Return the bounds of a model's dynamic dimensions, and the input shapes from the user."""
    extents = getattr(compiled, "extents", None)
    if not extents and not getattr(compiled, "has_containers", False):
        is_compiled(artifact, None, fixed)
    return extents, fixed.shape or () if is_compiled(artifact, None, fixed, takes_shapes=True) else ()


def core_warnings(artifact: Path, board: Board, named: str, module: str | None) -> dict[str, list[str]]:
    """Warn of an archive compiled for another core than the board's, `named` by the user; return the entry for JSON."""
    from mlfc.archive.read.load import artifact_kind
    from mlfc.micro.board.object_code import archive_mismatches

    if artifact_kind(artifact) != "archive":
        return {}
    found = [item.text(str(artifact), named) for item in archive_mismatches(artifact, board, module)]
    for line in found:
        typer.echo(printable(f"warning: {line}"), err=True)
    return {"warnings": found} if found else {}


def generated_inputs(
    fill: str,
    seed: int,
    infos: Sequence[TensorInfo],
    extents: Mapping[str, tuple[int, int]] | None = None,
    shapes: Sequence[str] = (),
    elements: Mapping[str, Sequence[int | None]] | None = None,
) -> Mapping[str, Any]:
    """Return generated inputs of a model.

    `extents` are the bounds of dynamic dimensions: the inputs use the sizes in `shapes`, or within the bounds 1
    for a batch and 16 for others. `elements` are the known dimension sizes of tensors in sequences and optionals.
    """
    from mlfc.frontend.shapes import parse_shapes
    from mlfc.runtime.tensor.arrays import fill as filled

    usual = {name: 1 if "batch" in name.lower() else 16 for name in extents or ()}
    chosen = {name: max(low, min(high, usual[name])) for name, (low, high) in (extents or {}).items()}
    declared = _declared_sizes(infos, extents or {}, shapes)
    if made_up := {name: value for name, value in chosen.items() if name not in declared}:
        shown = ", ".join(f"{name}={value}" for name, value in made_up.items())
        typer.echo(printable(f"dynamic dimensions of the generated inputs: {shown}"), err=True)
    stated, made = parse_shapes(shapes), list[TensorInfo]()
    for info in infos:
        if isinstance(info, ContainerInfo):  # its tensors have dimension sizes from the user or from the model
            sizes = stated.get(info.name, (elements or {}).get(info.name, ())) or info.shape
            made.append(replace(info, shape=tuple(item if isinstance(item, int) else "?" for item in sizes)))
            continue
        made.append(info.at({**chosen, **declared}))
        if not made[-1].is_static:
            raise OptionError(
                f"dimension sizes of the input {made[-1]} cannot be derived from others",
                next_step=f"Set its shape: --shape {info.name}=..., or pass the inputs: --inputs FILE.npz",
            )
    return filled(made, fill, seed)


def _declared_sizes(
    infos: Sequence[TensorInfo], extents: Mapping[str, tuple[int, int]], shapes: Sequence[str]
) -> dict[str, int]:
    """Return the values of inputs' dynamic dimensions that follow from shapes."""
    from mlfc.frontend.shapes import parse_shapes

    by_name = {info.name: info for info in infos}
    found: dict[str, int] = {}
    for name, shape in parse_shapes(shapes).items():
        if name not in by_name:
            raise OptionError(unknown("input", name, by_name), place="--shape")
        info = by_name[name]
        if isinstance(info, ContainerInfo) and len(shape) == len(info.shape):
            continue
        if len(shape) != len(info.shape) or not all(isinstance(extent, int) for extent in shape):
            shown = ",".join(map(str, shape))
            raise OptionError(f"expected {len(info.shape)} numbers for {info}, got {shown}", place="--shape")
        for extent, value in zip(info.shape, shape, strict=True):
            low, high = extents.get(extent, (1, value)) if isinstance(extent, str) else (extent, extent)
            if isinstance(extent, str):
                low, high = (found[extent],) * 2 if extent in found else (low, high)
                found[extent] = value
            if not low <= value <= high:
                known = low if low == high else f"{low}..{high}"
                raise OptionError(f"expected {known} for '{extent}' of {info}, got {value}", place="--shape")
    return found
