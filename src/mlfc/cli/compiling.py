"""From what the user of ``mlfc compile`` names to compiled modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.cli.options import Inputs
from mlfc.errors import OptionError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.factory import Factory
    from mlfc.micro.board.board import Board


_IMPORTED = "has no effect on an archive, which is imported already"


def is_archive(path: Path) -> bool:
    """Tell whether a file, if it is there, is an archive rather than a model."""
    from mlfc.archive.read.load import artifact_kind

    return path.is_file() and artifact_kind(path) == "archive"


def compile_archive(
    path: Path,
    inputs: Inputs,
    executor: Sequence[str] | None,
    specialize: Sequence[str] | None,
    changes: Mapping[str, Any],
) -> list[Factory]:
    """Compile every module of an archive again; options that the user did not give are as they were.

    `changes`: other options of `build`.
    """
    from mlfc.archive.write.rebuild import rebuild

    step = "Compile the model itself"
    if "numerics" in changes:
        raise OptionError(f"option --numerics {_IMPORTED}", next_step=step)
    inputs.refuse(_IMPORTED, step)
    executors = parse_executors(executor or (), None)
    if set(executors) - {""}:
        raise OptionError("an archive needs the same executor for all modules", place="--executor")
    special = parse_extents(specialize, None)[""] if specialize else None
    with stage(f"compiling {path}"):
        return rebuild(path, executor=executors.get(""), specialize=special, **changes)


def compile_files(
    named: Mapping[str, Path],
    inputs: Inputs,
    by_name: tuple[Sequence[str] | None, Sequence[str] | None],
    placing: Mapping[str, Any],
    common: Mapping[str, Any],
) -> list[Factory]:
    """Compile model files by module name.

    `by_name`: executors and specializations, which may name a module.
    `placing`: options of `build` about memory, which modules for the graph executor beside others do not have.
    `common`: others.
    """
    from mlfc.compiler import build_module
    from mlfc.frontend import import_for_run
    from mlfc.target.tuning_log import opened_log

    by_model = inputs.by_model(list(named))
    executors = parse_executors(by_name[0] or (), list(named))
    special = parse_extents(by_name[1] or (), list(named))
    if "tuned" in common:
        common = {**common, "tuned": opened_log(common["tuned"])}
    if len(named) > 1:
        common = {**common, "ram": None}
    factories = []
    for name, path in named.items():
        with stage(f"compiling {path}"):
            executor = executors.get(name) or executors.get("")
            is_placed = executor != "graph" or len(named) == 1
            own: dict[str, Any] = {"executor": executor, "module_name": name, "specialize": special[name]}
            options = by_model[name].options(**common, **own, **(placing if is_placed else {}))
            factories.append(build_module(*import_for_run(path, options, executor), options))
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


def board_asks(board: Board, ram: int | None) -> tuple[str, int | None]:
    """Return the target of a board, and the bytes for workspace, inputs and outputs that it has beside its stack."""
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
