"""A model compiled for many boards, each kind of code once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from mlfc.archive.details import full_module_info
from mlfc.compiler import build_module
from mlfc.errors import MlfcError
from mlfc.factory import Factory
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import core_flags
from mlfc.micro.firmware.planned_memory import tried
from mlfc.micro.fit.setting import Setting
from mlfc.micro.memory.trial import CodeTrial
from mlfc.options import BuildOptions
from mlfc.relay.ir import IRModule
from mlfc.support.arrays import Array
from mlfc.support.module_info import ModuleInfo
from mlfc.target.target import Target, parse_target

_MOST_THREADS = 4
Result = TypeVar("Result")
CodeKind: TypeAlias = tuple[object, ...]
Say: TypeAlias = Callable[[int, int, str], None]
"""Sets a progress bar: done, of how many, and a note."""


@dataclass(frozen=True)
class Built:
    """A compiled model and its details."""

    factory: Factory
    details: ModuleInfo


class Builds:
    """Compiles a model as often as boards and settings make a difference, and tells what came out.

    Parameters
    ----------
    module : IRModule
    params : mapping of str to ndarray
        What `import_model` returned, for a microcontroller.
    name : str
        The module's name in messages and symbols.
    options : BuildOptions
        Those that boards and settings do not determine.
    say : callable
        Is told the progress: compilations done, those that are known to be wanted, and what is compiled.
    """

    def __init__(
        self, module: IRModule, params: Mapping[str, Array], name: str, *, options: BuildOptions, say: Say
    ) -> None:
        self._model, self._name, self._say = (module, params), name, say
        self._options = replace(options, module_name=name)
        self._built: dict[tuple[CodeKind, Setting], Built | MlfcError] = {}
        self._trials: dict[tuple[object, ...], CodeTrial] = {}
        self._done = self._wanted = 0

    def want(self, count: int) -> None:
        """Tell the progress bar that so many more compilations follow."""
        self._wanted += count

    def get(self, board: Board, setting: Setting) -> Built:
        """Return the model compiled for a board; raise MlfcError where that fails, each time."""
        target = parse_target(board.target)
        key = (code_kind(target), setting)
        if key not in self._built:
            self._tell(f"{target} {setting.options}")
            self._built[key] = self._compiled(str(target), setting)
            self._done += 1
        found = self._built[key]
        if isinstance(found, MlfcError):
            raise found
        return found

    def trial(self, board: Board, setting: Setting) -> CodeTrial:
        """Return code and stack as the board's compiler makes them."""
        key = trial_kind(board, setting)
        if key not in self._trials:
            self._tell(f"{board.toolchain.prefix}gcc {' '.join(board.toolchain.flags)}")
            self._trials[key] = self._try(board, setting)
            self._done += 1
        return self._trials[key]

    def try_all(self, wanted: Iterable[tuple[Board, Setting]]) -> None:
        """Compile for boards side by side: compilers of boards take one processor each."""
        todo = {trial_kind(board, setting): (board, setting) for board, setting in wanted}
        todo = {key: item for key, item in todo.items() if key not in self._trials}
        self.want(len(todo))
        with ThreadPoolExecutor(max(1, min(_MOST_THREADS, os.cpu_count() or 1))) as pool:
            started = {key: pool.submit(self._try, *item) for key, item in todo.items()}
            for key, future in started.items():
                self._tell(f"{todo[key][0].toolchain.prefix}gcc for {todo[key][0].core}")
                self._trials[key] = future.result()
                self._done += 1

    def step(self, what: str, work: Callable[[], Result]) -> Result:
        """Return what some other work gives that the progress bar counts."""
        self._tell(what)
        result = work()
        self._done += 1
        return result

    def _compiled(self, target: str, setting: Setting) -> Built | MlfcError:
        module, params = self._model
        try:
            options = replace(self._options, target=target, **setting.arguments())
            factory = build_module(module, params, options)
            return Built(factory, full_module_info(factory))
        except MlfcError as error:
            return error

    def _try(self, board: Board, setting: Setting) -> CodeTrial:
        built = self.get(board, setting)
        return tried(self._name, built.factory.code.built_files, built.details, board)

    def _tell(self, what: str) -> None:
        self._wanted = max(self._wanted, self._done + 1)
        self._say(self._done, self._wanted, what)


def code_kind(target: Target) -> CodeKind:
    """Return what decides the generated code: C is the same for cores of equal abilities."""
    own = () if target.kind == "c" else (target.mcpu,)
    return (target.kind, target.features, tuple(sorted(target.options.items())), *own)


def trial_kind(board: Board, setting: Setting) -> tuple[object, ...]:
    """Return what decides a board's machine code of a model."""
    tools = board.toolchain
    kind = code_kind(parse_target(board.target))
    return (kind, setting, board.arch, tools.prefix, core_flags(board, {}), tools.link_flags)
