"""Writes executables: one builder for a model with its tables, one for each function with a method per instruction.

An integer operand is a register or a Python integer, which goes into the pool. Methods that write a register take it as
`into`, or make a new one, and return it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from mlfc.errors import InternalError
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
from mlfc.support.bytecode.instructions import (
    BY_NAME,
    CONSTANT_BIT,
    CPU,
    NO_OFFSET,
    NUMBERED_DTYPES,
    OPEN,
    OPERATIONS,
    STORAGE_BIT,
    first_word,
)
from mlfc.support.bytecode.verify import verify


@dataclass(frozen=True)
class IntegerRegister:
    """A register that holds an int64."""

    index: int


@dataclass(frozen=True)
class TensorRegister:
    """A register that holds a tensor: where it starts in its storage, dtype and extents."""

    index: int


@dataclass(frozen=True)
class StorageRegister:
    """A register that holds a storage."""

    index: int


@dataclass(frozen=True)
class ListRegister:
    """A register that holds a list of tensors."""

    index: int


@dataclass(frozen=True)
class ConstantTensor:
    """A constant as an operand."""

    index: int


@dataclass(frozen=True)
class KernelIndex:
    """A kernel of the executable."""

    index: int


@dataclass(frozen=True)
class Label:
    """A place that jumps go to; `FunctionBuilder.place` says where it is."""

    number: int


Integer: TypeAlias = "IntegerRegister | int"
Tensor: TypeAlias = "TensorRegister | ConstantTensor"
Buffer: TypeAlias = "TensorRegister | ConstantTensor | StorageRegister"
_Register = TypeVar("_Register", IntegerRegister, TensorRegister, StorageRegister, ListRegister)
T = TypeVar("T")


class _Pool(Generic[T]):
    """Numbers things in the order in which they come; an equal one has the number of the first."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}

    def index(self, item: T) -> int:
        return self._numbers.setdefault(item, len(self._numbers))

    def values(self) -> tuple[T, ...]:
        return tuple(self._numbers)


class ExecutableBuilder:
    """Writes an executable. The first function made is the model: one parameter per input, one result per output.

    Parameters
    ----------
    name : str
        Of the module.

    Examples
    --------
    >>> builder = ExecutableBuilder("twice")
    >>> rows = builder.symbol("rows", 1, 1000)
    >>> builder.input("x", "float32", (rows, 4))
    >>> builder.output("y", "float32", (rows, 4))
    >>> double = builder.kernel("double", buffers=2, reads=1, numbers=1)
    >>> main = builder.function("main", parameters=1, results=1)
    >>> (x,) = main.parameters
    >>> n = main.extent(x, 0)
    >>> size = main.compute("mul", n, 16)
    >>> y = main.tensor(main.storage(size), 0, "float32", [n, 4])
    >>> main.invoke(double, [x, y], [n])
    >>> main.return_([y])
    >>> executable = builder.build()
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._strings: _Pool[str] = _Pool()
        self._integers: _Pool[int] = _Pool()
        self._symbols: list[Symbol] = []
        self._inputs: list[Value] = []
        self._outputs: list[Value] = []
        self._kernels: list[Kernel] = []
        self._constants: list[Constant] = []
        self._states: list[int | None] = []
        self._functions: list[FunctionBuilder] = []

    def symbol(self, name: str, low: int = 1, high: int = OPEN) -> OpenExtent:
        """Add an open dimension; return it as an extent of inputs and outputs."""
        self._symbols.append(Symbol(name, low, high))
        return OpenExtent(len(self._symbols) - 1)

    def input(self, name: str, dtype: str, extents: Sequence[Extent], part: Part | None = None) -> None:
        """Add an input of the model."""
        self._inputs.append(Value(name, dtype, tuple(extents), part))

    def output(self, name: str, dtype: str, extents: Sequence[Extent], part: Part | None = None) -> None:
        """Add an output of the model; an extent of None is known only when the model runs."""
        self._outputs.append(Value(name, dtype, tuple(extents), part))

    def kernel(self, name: str, buffers: int, reads: int, numbers: int) -> KernelIndex:
        """Add a kernel, in the order of the native code; it only reads the first `reads` of its buffers."""
        self._kernels.append(Kernel(name, buffers, reads, numbers))
        return KernelIndex(len(self._kernels) - 1)

    def constant(self, name: str, dtype: str, shape: Sequence[int]) -> ConstantTensor:
        """Add a constant, in the order of the native code."""
        self._constants.append(Constant(name, dtype, tuple(shape)))
        return ConstantTensor(len(self._constants) - 1)

    def state(self, first: ConstantTensor | None = None) -> None:
        """Keep a tensor from run to run: the last inputs in order, whose next values are the last outputs."""
        self._states.append(None if first is None else first.index)

    def function(self, name: str, parameters: int, results: int) -> FunctionBuilder:
        """Start a function whose parameters and results are tensors."""
        function = FunctionBuilder(self, len(self._functions), name, parameters, results)
        self._functions.append(function)
        return function

    def build(self, arena_bytes: int = -1) -> Executable:
        """Return the executable, verified.

        Raises
        ------
        ArchiveError
            If the code reads a register before it is written, or breaks another rule.
        """
        functions = tuple(function.finished() for function in self._functions)
        executable = Executable(
            self._name,
            functions,
            strings=self._strings.values(),
            symbols=tuple(self._symbols),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            kernels=tuple(self._kernels),
            constants=tuple(self._constants),
            integers=self._integers.values(),
            arena_bytes=arena_bytes,
            states=tuple(self._states),
        )
        verify(executable)
        return executable

    def string_word(self, text: str) -> int:
        """Return a string as an operand."""
        return self._strings.index(text)

    def integer_word(self, value: int) -> int:
        """Return an integer of the pool as an operand."""
        return CONSTANT_BIT | self._integers.index(int(value))

    def kernel_at(self, kernel: KernelIndex) -> Kernel:
        """Return what a kernel takes."""
        return self._kernels[kernel.index]


class FunctionBuilder:
    """Writes one function; made by `ExecutableBuilder.function`.

    Attributes
    ----------
    index : int
        For `call`.
    name : str
    parameters : tuple of TensorRegister
    results : int
        How many tensors it returns.
    """

    def __init__(self, tables: ExecutableBuilder, index: int, name: str, parameters: int, results: int) -> None:
        self.index = index
        self.name = name
        self.parameters = tuple(map(TensorRegister, range(parameters)))
        self.results = results
        self._tables = tables
        self._counts: dict[type, int] = {TensorRegister: parameters}
        self._code: list[int] = []
        self._places: list[int | None] = []
        self._label_words: list[int] = []  # where in the code a label is named

    def integer_register(self) -> IntegerRegister:
        """Return a new register, for a value that several instructions write."""
        return self._new(IntegerRegister)

    def tensor_register(self) -> TensorRegister:
        """Return a new register, for a tensor that several instructions write."""
        return self._new(TensorRegister)

    def storage_register(self) -> StorageRegister:
        """Return a new register, for a storage that several instructions write."""
        return self._new(StorageRegister)

    def list_register(self) -> ListRegister:
        """Return a new register, for a list that several instructions write."""
        return self._new(ListRegister)

    def label(self) -> Label:
        """Return a new label, to be placed before or after it is jumped to."""
        self._places.append(None)
        return Label(len(self._places) - 1)

    def place(self, label: Label) -> None:
        """Put a label before the next instruction."""
        if self._places[label.number] is not None:
            raise InternalError(f"label {label.number} is placed twice", place=self.name)
        self._places[label.number] = len(self._code)

    def integer(self, value: Integer, into: IntegerRegister | None = None) -> IntegerRegister:
        """Copy an integer."""
        target = into or self.integer_register()
        self._emit("integer", target.index, self._integer(value))
        return target

    def compute(self, operation: str, a: Integer, b: Integer, into: IntegerRegister | None = None) -> IntegerRegister:
        """Compute an operation of `OPERATIONS`; a result that does not fit in 64 bits is an error."""
        target = into or self.integer_register()
        self._emit("compute", OPERATIONS.index(operation), target.index, self._integer(a), self._integer(b))
        return target

    def extent(self, tensor: Tensor, axis: int, into: IntegerRegister | None = None) -> IntegerRegister:
        """Read an extent of a tensor."""
        target = into or self.integer_register()
        self._emit("extent", target.index, _tensor(tensor), axis)
        return target

    def element(self, tensor: Tensor, index: Integer, into: IntegerRegister | None = None) -> IntegerRegister:
        """Read an element of a tensor of integers or bool, by its place in row-major order."""
        target = into or self.integer_register()
        self._emit("element", target.index, _tensor(tensor), self._integer(index))
        return target

    def set_element(self, tensor: TensorRegister, index: Integer, value: Integer) -> None:
        """Write an element of a tensor of integers or bool."""
        self._emit("set_element", tensor.index, self._integer(index), self._integer(value))

    def require_range(self, value: Integer, low: Integer, high: Integer, text: str) -> None:
        """Fail unless ``low <= value <= high``; `text` names the symbol or node."""
        words = (self._integer(value), self._integer(low), self._integer(high))
        self._emit("require_range", *words, self._tables.string_word(text))

    def require_equal(self, a: Integer, b: Integer, text: str) -> None:
        """Fail unless two integers are equal; `text` names the symbol or node."""
        self._emit("require_equal", self._integer(a), self._integer(b), self._tables.string_word(text))

    def storage(
        self, nbytes: Integer, offset: int | None = None, into: StorageRegister | None = None, *, device: int = CPU
    ) -> StorageRegister:
        """Take storage: at an offset of the arena, or from the allocator of `device`, a device type of DLPack."""
        target = into or self.storage_register()
        word = NO_OFFSET if offset is None else self._tables.integer_word(offset)
        self._emit("storage", target.index, self._integer(nbytes), word, device)
        return target

    def release(self, storage: StorageRegister) -> None:
        """Forget a storage; its memory is freed when no tensor is left in it."""
        self._emit("release", storage.index)

    def tensor(
        self,
        storage: StorageRegister,
        start: Integer,
        dtype: str,
        extents: Iterable[Integer],
        into: TensorRegister | None = None,
    ) -> TensorRegister:
        """Make a tensor that begins `start` bytes, a multiple of `ALIGNMENT`, into a storage."""
        target = into or self.tensor_register()
        shape = map(self._integer, extents)
        self._emit("tensor", target.index, storage.index, self._integer(start), NUMBERED_DTYPES[dtype], *shape)
        return target

    def view(
        self,
        source: Tensor,
        start: Integer,
        dtype: str,
        extents: Iterable[Integer],
        into: TensorRegister | None = None,
    ) -> TensorRegister:
        """Make a tensor on the memory of another, `start` bytes into it; it may not leave it."""
        target = into or self.tensor_register()
        shape = map(self._integer, extents)
        self._emit("view", target.index, _tensor(source), self._integer(start), NUMBERED_DTYPES[dtype], *shape)
        return target

    def move(self, source: Tensor, into: TensorRegister | None = None) -> TensorRegister:
        """Let a register hold the tensor of another; the memory is the same."""
        target = into or self.tensor_register()
        self._emit("move", target.index, _tensor(source))
        return target

    def copy(self, tensor: TensorRegister, source: Tensor) -> None:
        """Copy the bytes of a tensor into another of the same size."""
        self._emit("copy", tensor.index, _tensor(source))

    def paste(self, tensor: TensorRegister, start: Integer, source: Tensor) -> None:
        """Copy the bytes of a tensor into another, from any byte of that on; they must fit."""
        self._emit("paste", tensor.index, self._integer(start), _tensor(source))

    def blocks(
        self,
        tensor: TensorRegister,
        source: Tensor,
        nbytes: Integer,
        count: Integer = 1,
        *,
        start: Integer = 0,
        step: Integer = 0,
        origin: Integer = 0,
        stride: Integer = 0,
    ) -> None:
        """Copy blocks of bytes: from `origin` of the source on, to `start` of a tensor on, each that many further."""
        words = (self._integer(start), self._integer(step), _tensor(source), self._integer(origin))
        rest = (self._integer(stride), self._integer(nbytes), self._integer(count))
        self._emit("blocks", tensor.index, *words, *rest)

    def drop(self, tensor: TensorRegister) -> None:
        """Forget a tensor."""
        self._emit("drop", tensor.index)

    def to_device(self, source: Tensor, device: int, into: TensorRegister | None = None) -> TensorRegister:
        """Have a tensor on a device, by DLPack's device type; one that is there already is not copied."""
        target = into or self.tensor_register()
        self._emit("to_device", target.index, _tensor(source), device)
        return target

    def invoke(self, kernel: KernelIndex, buffers: Sequence[Buffer], numbers: Sequence[Integer] = ()) -> None:
        """Call a kernel: on what it reads, then what it writes (results and workspaces), and numbers."""
        takes = self._tables.kernel_at(kernel)
        if (len(buffers), len(numbers)) != (takes.buffers, takes.numbers):
            given = f"{len(buffers)} buffers and {len(numbers)} numbers"
            raise InternalError(f"expected {takes.buffers} buffers and {takes.numbers} numbers, got {given}")
        self._emit("invoke", kernel.index, *map(_buffer, buffers), *map(self._integer, numbers))

    def invoke_packed(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Call a packed function of the library on tensors."""
        self._emit("invoke_packed", self._tables.string_word(name), *map(_tensor, tensors))

    def jump(self, label: Label) -> None:
        """Go to a label."""
        self._emit("jump", label.number)
        self._label_words.append(len(self._code) - 1)

    def branch(self, value: Integer, label: Label) -> None:
        """Go to a label if an integer is zero."""
        self._emit("branch", self._integer(value), label.number)
        self._label_words.append(len(self._code) - 1)

    def call(
        self, function: FunctionBuilder, arguments: Sequence[Tensor], into: Sequence[TensorRegister] | None = None
    ) -> tuple[TensorRegister, ...]:
        """Call a function; return the registers of its results."""
        targets = tuple(self.tensor_register() for _ in range(function.results)) if into is None else tuple(into)
        self._emit("call", function.index, *map(_tensor, arguments), *(target.index for target in targets))
        return targets

    def return_(self, results: Sequence[Tensor]) -> None:
        """Return tensors to the caller."""
        self._emit("return", *map(_tensor, results))

    def fail(self, text: str) -> None:
        """End the run with an error; `text` says why."""
        self._emit("fail", self._tables.string_word(text))

    def rank(self, tensor: Tensor, into: IntegerRegister | None = None) -> IntegerRegister:
        """Read how many dimensions a tensor has."""
        target = into or self.integer_register()
        self._emit("rank", target.index, _tensor(tensor))
        return target

    def list(self, into: ListRegister | None = None) -> ListRegister:
        """Make an empty list."""
        target = into or self.list_register()
        self._emit("list", target.index)
        return target

    def append(self, items: ListRegister, source: Tensor) -> None:
        """Add a tensor at the end of a list."""
        self._emit("append", items.index, _tensor(source))

    def insert(self, items: ListRegister, index: Integer, source: Tensor) -> None:
        """Add a tensor before position `index`, from ``-length`` to ``length``."""
        self._emit("insert", items.index, self._integer(index), _tensor(source))

    def erase(self, items: ListRegister, index: Integer) -> None:
        """Remove the tensor at position `index`; a negative one counts from the end."""
        self._emit("erase", items.index, self._integer(index))

    def get(self, items: ListRegister, index: Integer, into: TensorRegister | None = None) -> TensorRegister:
        """Read the tensor at position `index`; a negative one counts from the end."""
        target = into or self.tensor_register()
        self._emit("get", target.index, items.index, self._integer(index))
        return target

    def length(self, items: ListRegister, into: IntegerRegister | None = None) -> IntegerRegister:
        """Read how many tensors a list has."""
        target = into or self.integer_register()
        self._emit("length", target.index, items.index)
        return target

    def list_move(self, source: ListRegister, into: ListRegister | None = None) -> ListRegister:
        """Let a register hold a list equal to another; changes of one do not change the other."""
        target = into or self.list_register()
        self._emit("list_move", target.index, source.index)
        return target

    def finished(self) -> Function:
        """Return the function, its labels sorted; raise InternalError if one was jumped to and never placed."""
        named = {self._code[word] for word in self._label_words}
        missing = sorted(number for number in named if self._places[number] is None)
        if missing:
            raise InternalError(f"labels {missing} are jumped to and never placed", place=self.name)
        offsets = sorted({place for number, place in enumerate(self._places) if number in named and place is not None})
        numbers = {offset: number for number, offset in enumerate(offsets)}
        code = list(self._code)
        for word in self._label_words:
            place = self._places[code[word]]
            assert place is not None
            code[word] = numbers[place]
        return Function(
            self.name,
            len(self.parameters),
            self.results,
            tensors=self._counts[TensorRegister],
            integers=self._counts.get(IntegerRegister, 0),
            storages=self._counts.get(StorageRegister, 0),
            lists=self._counts.get(ListRegister, 0),
            labels=tuple(offsets),
            code=tuple(code),
        )

    def _new(self, kind: type[_Register]) -> _Register:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return kind(number)

    def _emit(self, name: str, *operands: int) -> None:
        self._code += [first_word(BY_NAME[name].opcode, 1 + len(operands)), *operands]

    def _integer(self, value: Integer) -> int:
        return value.index if isinstance(value, IntegerRegister) else self._tables.integer_word(value)


def _tensor(tensor: Tensor) -> int:
    return CONSTANT_BIT | tensor.index if isinstance(tensor, ConstantTensor) else tensor.index


def _buffer(buffer: Buffer) -> int:
    return STORAGE_BIT | buffer.index if isinstance(buffer, StorageRegister) else _tensor(buffer)
