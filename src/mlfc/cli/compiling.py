"""From what the user of ``mlfc compile`` names to compiled modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.cli.options import Inputs
from mlfc.errors import OptionError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.factory import Factory
    from mlfc.micro.board.board import Board


_IMPORTED = "has no effect on an archive, which is imported already"


@dataclass(frozen=True)
class BuildOptions:
    """What the user asks of the compiler; None where nothing was said."""

    target: str | None
    optimize: str | None
    numerics: str | None
    executors: Sequence[str]  # ``graph`` for all modules, ``NAME=graph`` for one
    external_workspace: bool | None
    inputs: Inputs  # with several models ``MODEL:NAME=...``
    memory_options: Mapping[str, Any]  # arguments of `build` that say where memory lies
    # bytes for workspace, inputs and outputs; layers of a single model are tiled by rows to keep within it
    ram: int | None = None
    byoc: Sequence[str] | None = None  # external code generators
    target_host: str | None = None  # of the code beside a device's
    limit_factor: float = 1.0  # of what a model may cost
    parallel: bool | None = None  # whether kernels share their work among threads
    tuned: Path | None = None  # a log of mlfc tune
    specialize: Sequence[str] | None = None  # ``batch=1``: values of open dimensions that get code of their own


def is_archive(path: Path) -> bool:
    """Tell whether a file, if it is there, is an archive rather than a model."""
    from mlfc.archive.read.load import artifact_kind

    return path.is_file() and artifact_kind(path) == "archive"


def compile_archive(path: Path, options: BuildOptions) -> list[Factory]:
    """Compile every module of an archive again; what the user did not say is as it was."""
    from mlfc.archive.write.rebuild import rebuild

    step = "Compile the model itself"
    if options.numerics:
        raise OptionError(f"option --numerics {_IMPORTED}", next_step=step)
    options.inputs.refuse(_IMPORTED, step)
    executors = parse_executors(options.executors, None)
    if set(executors) - {""}:
        raise OptionError("an archive needs the same executor for all modules", place="--executor")
    with stage(f"compiling {path}"):
        return rebuild(
            path,
            options.target,
            target_host=options.target_host,
            executor=executors.get(""),
            optimize=options.optimize,
            external_workspace=options.external_workspace,
            ram=options.ram,
            byoc=options.byoc,
            limit_factor=options.limit_factor,
            tuned=options.tuned,
            parallel=options.parallel,
            specialize=parse_extents(options.specialize, None)[""] if options.specialize else None,
            **options.memory_options,
        )


def compile_files(named: Mapping[str, Path], options: BuildOptions) -> list[Factory]:
    """Compile model files by module name."""
    from mlfc.compiler import build
    from mlfc.frontend import import_for_run
    from mlfc.frontend.shapes import leaves_to_run
    from mlfc.target.defaults import PORTABLE
    from mlfc.target.tuning_log import opened_log

    inputs = options.inputs.by_model(list(named))
    executors = parse_executors(options.executors, list(named))
    special = parse_extents(options.specialize or (), list(named))
    factories = []
    log = None if options.tuned is None else opened_log(options.tuned)
    for name, path in named.items():
        with stage(f"compiling {path}"):
            executor = executors.get(name) or executors.get("")
            given = inputs[name].arguments()
            mod, params = import_for_run(
                path,
                **given,
                dynamic=leaves_to_run(executor, options.target or PORTABLE, given.get("shapes")),
                numerics=options.numerics or "litert",
                byoc=options.byoc or (),
                target=options.target,
                limit_factor=options.limit_factor,
            )
            # of several modules, those for the graph executor have nothing to place
            is_placed = executor != "graph" or len(named) == 1
            factories.append(
                build(
                    mod,
                    options.target or PORTABLE,
                    params,
                    target_host=options.target_host or PORTABLE,
                    executor=executor,
                    module_name=name,
                    optimize=options.optimize or "speed",
                    external_workspace=bool(options.external_workspace) and is_placed,
                    ram=options.ram if len(named) == 1 else None,
                    limit_factor=options.limit_factor,
                    specialize=special[name],
                    parallel=options.parallel,
                    tuned=log,
                    **(options.memory_options if is_placed else {}),
                )
            )
    return factories


def parse_extents(texts: Sequence[str], names: Sequence[str] | None) -> dict[str, list[dict[str, int]]]:
    """Return values of open dimensions by module name, from texts like ``batch=8,width=224``.

    Of several modules, the name is in front: ``kws:batch=8``; under the name ``""`` where `names` is None.
    """
    chosen: dict[str, list[dict[str, int]]] = {name: [] for name in names or ("",)}
    for text in texts:
        only, colon, rest = next(iter(chosen)), "", text
        if len(chosen) > 1:
            only, colon, rest = text.partition(":")
        values: dict[str, int] = {}
        for part in rest.split(","):
            name, _, value = part.partition("=")
            if not name or name in values or not re.fullmatch(r"[0-9]{1,10}", value):
                values.clear()
                break
            values[name] = int(value)
        if not values or only not in chosen or (len(chosen) > 1 and not colon):
            form = "MODEL:batch=8" if len(chosen) > 1 else "batch=8 or batch=8,width=224"
            raise OptionError(
                f"expected values of open dimensions, got '{text}'", place="--specialize", next_step=f"Write {form}"
            )
        chosen[only].append(values)
    return chosen


def board_asks(board: Board, target: str | None, ram: int | None) -> tuple[str, int | None]:
    """Return the target of a board, and the bytes for workspace, inputs and outputs that it has beside its stack.

    Raises OptionError if the user named a target.
    """
    if target is not None:
        raise OptionError(
            "options --board and --target exclude each other: a board has its own target",
            place="--target",
            next_step="Remove one of them",
        )
    if ram is None and board.memories:
        ram = max(0, board.ram.nbytes - board.stack_bytes)
    return board.target, ram


def parse_executors(texts: Sequence[str], names: Sequence[str] | None) -> dict[str, str]:
    """Return executors by module name from texts like ``graph`` (under the name ``""``) and ``kws=graph``.

    Raises OptionError if a name is not one of `names`, or something is said twice.
    """
    chosen: dict[str, str] = {}
    for text in texts:
        name, equals, executor = text.rpartition("=")
        if equals and (not re.fullmatch(r"\w+", name) or (names is not None and name not in names)):
            raise OptionError(
                f"expected NAME=EXECUTOR, got '{text}'",
                place="--executor",
                next_step=f"Write aot, graph, or NAME=graph with a name of: {', '.join(names or ())}",
            )
        if name in chosen:
            raise OptionError(f"the executor of {name or 'all modules'} is specified twice", place="--executor")
        chosen[name] = executor
    return chosen
