"""Executables for tests of the virtual machine, and a library with the kernels of ``vm_kernels.c`` that runs them."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.crt import crt_files
from mlfc.errors import MlfcError
from mlfc.runtime import LibraryModule, VmModel, VmModule
from mlfc.support.bytecode import (
    OPERATIONS,
    ConstantTensor,
    Executable,
    ExecutableBuilder,
    FunctionBuilder,
    IntegerRegister,
    KernelIndex,
    ListRegister,
    StorageRegister,
    TensorRegister,
)
from tests.conftest import need

KERNELS = Path(__file__).parent / "native" / "crt" / "vm_kernels.c"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


def built_library(folder: Path) -> Path:
    """Compile the C interpreter and the kernels to a shared library."""
    parts = crt_files("include", "vm_host", "src/runtime/crt/vm")
    for name, content in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sources = [folder / name for name in parts if name.endswith(".c")]
    # random programs read what they never wrote, and are to do the same in both interpreters
    flags = [*STRICT, "-O1", "-fPIC", "-shared", "-DMLFC_VM_HOST_ZEROS", "-I", str(folder / "include")]
    library = folder / "vmtest.so"
    command = [need("gcc", "gcc"), *flags, "-I", str(folder / "vm_host"), "-o", str(library), str(KERNELS)]
    subprocess.run([*command, *map(str, sources)], check=True)
    return library


class Program(ExecutableBuilder):
    """A builder with the kernels and constants of the library; its model is `main`."""

    def __init__(self, parameters: int = 0, results: int = 1) -> None:
        super().__init__("vmtest")
        self.add = self.kernel("add", 3, 2, 1)
        self.fill = self.kernel("fill", 1, 0, 1)
        self.reverse = self.kernel("reverse", 3, 1, 0)
        self.status = self.kernel("status", 0, 0, 1)
        self.integers = self.constant("integers", "int64", (3,))
        self.flags = self.constant("flags", "bool", (3,))
        self.big = self.constant("big", "uint64", (1,))
        self.floats = self.constant("floats", "float32", (2,))
        self.main = self.function("main", parameters, results)

    def returns_integers(self, *registers: IntegerRegister) -> Executable:
        """Let the model return integers as one tensor; return the executable."""
        main = self.main
        result = main.tensor(main.storage(8 * len(registers)), 0, "int64", [len(registers)])
        for number, register in enumerate(registers):
            main.set_element(result, number, register)
        self.output("y", "int64", (len(registers),))
        main.return_([result])
        return self.build()


@dataclass(frozen=True)
class Outcome:
    """What a run did: results, or the fault with its place."""

    results: tuple[tuple[str, tuple[int, ...], bytes], ...] | None
    fault: tuple[Any, ...] | None


def outcome(model: VmModel, inputs: list[Any]) -> Outcome:
    """Return what a run did, in a form that can be compared."""
    try:
        results = model.call(0, inputs)
    except MlfcError as error:
        fault = error.fault  # type: ignore[attr-defined]  # of `run_error`
        return Outcome(None, (fault.code.name, fault.values, fault.text, error.where or (0, 0), str(error)))  # type: ignore[attr-defined]
    return Outcome(tuple((str(each.dtype), each.shape, each.tobytes()) for each in results), None)


def models(executable: Executable, library: LibraryModule, **limits: Any) -> tuple[VmModel, VmModel]:
    """Return an executable in both interpreters."""
    module = VmModule(executable)
    return (
        module.model_with(library, interpreter="python", **limits),
        module.model_with(library, interpreter="c", **limits),
    )


def both(executable: Executable, library: LibraryModule, *inputs: Any, **limits: Any) -> Outcome:
    """Run an executable in both interpreters, which must do the same; return what that was."""
    python, c = (outcome(model, list(inputs)) for model in models(executable, library, **limits))
    assert python == c
    return python


class RandomProgram:
    """A valid program of random instructions, jumps included, on registers that a prologue wrote.

    Its input is int32 of 1 to 8 rows of 16; whatever it does, it ends, in results or in a fault.
    """

    VALUES = (-(2**63), -65, -2, -1, 0, 0, 1, 1, 2, 3, 4, 16, 64, 128, 256, 2**31, 2**62, 2**63 - 1)
    DTYPES = ("int32", "int8", "int64", "bool", "uint64", "float32", "uint16")

    def __init__(self, chance: random.Random, *, is_bounded: bool = False) -> None:
        self._chance = chance
        self._is_bounded = is_bounded
        self._wildness = chance.choice((0, 0.02, 0.1, 0.5))
        self._program = Program(1, 2)
        rows = self._program.symbol("rows", 1, 8)
        self._program.input("x", "int32", (rows, 16))
        self._program.output("y", "int32", (rows, 16) if chance.random() < 0.2 else (None, None))
        self._program.output("z", "int32", (None, None))
        self._other = self._program.function("other", 1, 1)
        self._write(self._program.main)
        self._write(self._other)
        self.executable = self._program.build(1024 if is_bounded else -1)

    def _write(self, function: FunctionBuilder) -> None:
        chance = self._chance
        self._f = f = function
        self._integers = [f.integer(value) for value in (0, 1, 16, chance.choice(self.VALUES))]
        self._storages = [self._storage() for _ in range(2)]
        self._tensors = [*f.parameters]
        self._tensors += [f.tensor(each, 0, "int32", [1, 16]) for each in self._storages]
        self._lists = [f.list() for _ in range(2)]
        self._labels = [f.label() for _ in range(4)]
        count = chance.randint(3, 30)
        places = sorted(chance.randrange(count + 1) for _ in self._labels)
        for number in range(count + 1):
            for label, place in zip(self._labels, places, strict=True):
                if place == number:
                    f.place(label)
            if number < count:
                self._instruction()
        results = [self._tensor() if self._is_wild() else f.view(f.parameters[0], 0, "int32", [1, 16])]
        f.return_(results * f.results)

    def _storage(self, into: StorageRegister | None = None) -> StorageRegister:
        offset = self._chance.choice((0, 64, 256)) if self._is_bounded else None
        return self._f.storage(self._chance.choice((64, 128, 512)), offset, into)

    def _integer(self) -> IntegerRegister | int:
        chance = self._chance
        return chance.choice(self._integers) if chance.random() < 0.6 else chance.choice(self.VALUES)

    def _small(self) -> IntegerRegister | int:
        """Return an index that most tensors and lists have, or any integer."""
        return self._integer() if self._is_wild() else self._chance.choice((0, 0, -1))

    def _is_wild(self) -> bool:
        return self._chance.random() < self._wildness

    def _tensor(self) -> TensorRegister | ConstantTensor:
        program = self._program
        constants = (program.integers, program.flags, program.big, program.floats)
        return self._chance.choice(constants) if self._is_wild() else self._chance.choice(self._tensors)

    def _target(self) -> TensorRegister:
        """Return a tensor to write to, or perhaps the input."""
        return self._chance.choice(self._tensors) if self._is_wild() else self._chance.choice(self._tensors[1:])

    def _instruction(self) -> None:
        wild = (self._arithmetic, self._tensor_instruction, self._list_instruction, self._wild_instruction)
        tame = (self._arithmetic, self._memory_instruction, self._list_instruction, self._invoke, self._control)
        self._chance.choice(wild if self._is_wild() else tame)()

    def _arithmetic(self) -> None:
        f, chance = self._f, self._chance
        d = chance.choice(self._integers)
        operation = chance.choice(OPERATIONS)
        chance.choice(
            (
                lambda: f.integer(self._integer(), d),
                lambda: f.compute(operation, self._integer(), self._integer(), d),
                lambda: f.compute(operation, self._small(), chance.choice((1, 2, 3)), d),
                lambda: f.extent(self._tensor(), chance.choice((0, 0, 1, 7)) if self._is_wild() else 0, d),
                lambda: f.length(chance.choice(self._lists), d),
                lambda: f.rank(self._tensor(), d),
                lambda: f.require_range(self._small(), -(2**62), 2**62, "a range"),
            )
        )()

    def _memory_instruction(self) -> None:
        f, chance = self._f, self._chance
        d, t = chance.choice(self._integers), chance.choice(self._tensors[1:])
        chance.choice(
            (
                lambda: self._storage(chance.choice(self._storages)),
                lambda: f.tensor(chance.choice(self._storages), 0, "int32", [1, 16], t),
                lambda: f.set_element(self._target(), chance.choice((0, 1, 5)), chance.choice((-1, 0, 1, 2))),
                lambda: f.element(chance.choice(self._tensors), chance.choice((0, 1, 5)), d),
                lambda: f.view(self._tensor(), 0, "int32", [chance.choice((1, 2))], t),
                lambda: f.move(self._tensor(), t),
                lambda: f.to_device(self._tensor(), 1, t),
            )
        )()

    def _tensor_instruction(self) -> None:
        f, chance = self._f, self._chance
        extents = [chance.choice((1, 2, 4, 16, self._integer())) for _ in range(chance.randint(0, 3))]
        start = chance.choice((0, 0, 0, 64, self._integer()))
        dtype, t = chance.choice(self.DTYPES), self._target()
        chance.choice(
            (
                lambda: f.tensor(chance.choice(self._storages), start, dtype, extents, t),
                lambda: f.view(self._tensor(), start, dtype, extents, t),
            )
        )()

    def _list_instruction(self) -> None:
        f, chance = self._f, self._chance
        items = chance.choice(self._lists)
        if not self._is_wild():
            f.append(items, self._tensor())
        chance.choice(
            (
                lambda: f.append(items, self._tensor()),
                lambda: f.insert(items, self._small(), self._tensor()),
                lambda: f.erase(items, self._small()),
                lambda: f.get(items, self._small(), self._target()),
                lambda: f.list_move(chance.choice(self._lists), items),
                lambda: f.list(items),
                lambda: f.paste(self._target(), self._small(), self._tensor()),
                lambda: self._blocks(self._small),
            )
        )()

    def _blocks(self, number: Callable[[], Any]) -> None:
        start, step, origin, stride = (number() for _ in range(4))
        self._f.blocks(
            self._target(), self._tensor(), number(), number(), start=start, step=step, origin=origin, stride=stride
        )

    def _control(self) -> None:
        f, chance = self._f, self._chance
        chance.choice(
            (
                lambda: f.jump(chance.choice(self._labels)) if self._is_wild() else None,
                lambda: f.branch(self._integer(), chance.choice(self._labels)),
                lambda: f.call(self._other, [self._tensor()], [self._target()]),
            )
        )()

    def _wild_instruction(self) -> None:
        f, chance = self._f, self._chance
        d = chance.choice(self._integers)
        chance.choice(
            (
                lambda: f.element(self._tensor(), self._integer(), d),
                lambda: f.set_element(self._target(), self._integer(), self._integer()),
                lambda: f.require_equal(self._integer(), self._integer(), "some numbers"),
                lambda: f.storage(self._integer(), None, chance.choice(self._storages)),
                lambda: f.copy(self._target(), self._tensor()),
                lambda: f.paste(self._target(), self._small(), self._tensor()),
                lambda: self._blocks(self._integer),
                lambda: f.fail("on purpose"),
            )
        )()

    def _invoke(self) -> None:
        f, program, chance = self._f, self._program, self._chance
        kernel: KernelIndex = chance.choice((program.add, program.fill, program.reverse, program.status))
        written = [self._target()]
        if kernel == program.add:
            f.invoke(kernel, [self._tensor(), self._tensor(), written[0]], [self._integer() if self._is_wild() else 1])
        elif kernel == program.fill:
            f.invoke(kernel, [chance.choice((written[0], self._storages[0]))], [chance.choice((0, 1, 7))])
        elif kernel == program.reverse:
            same = written[0] if self._is_wild() else f.move(written[0])
            f.invoke(kernel, [self._tensor() if self._is_wild() else same, written[0], self._storages[1]])
        else:
            f.invoke(kernel, [], [self._integer() if self._is_wild() else 0])


def random_input(chance: random.Random) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return an input for a random program."""
    rows = chance.randint(1, 8)
    return np.arange(rows * 16, dtype=np.int32).reshape(rows, 16) % 5 - 2


__all__ = ["ListRegister", "Outcome", "Program", "RandomProgram", "both", "built_library", "models", "outcome"]
