"""Every instruction of the virtual machine, in the Python and in the C interpreter, which do the same."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import ArchiveError, DeviceError, InputError, LimitError, OptionError, RunError
from mlfc.runtime import LibraryModule, VirtualMachine, VmModule
from mlfc.runtime.executors.vm.failures import Code
from mlfc.runtime.executors.vm.memory import aligned_zeros
from mlfc.support.bytecode import INSTRUCTIONS, OPERATIONS, Executable, IntegerRegister, disassemble, encode
from tests.conftest import need_opencl
from tests.vm_programs import Outcome, Program, RandomProgram, both, built_library, models, random_input

MOST, LEAST = 2**63 - 1, -(2**63)
EDGES = (LEAST, LEAST + 1, -7, -2, -1, 0, 1, 2, 3, 7, 2**31, 2**32 + 1, MOST - 1, MOST)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> LibraryModule:
    return LibraryModule(built_library(tmp_path_factory.mktemp("vm")))


def integers_of(result: Outcome) -> list[int]:
    assert result.results is not None, result.fault
    ((dtype, _, data),) = result.results
    return np.frombuffer(data, dtype).tolist()


def fault_of(result: Outcome) -> tuple[Any, ...]:
    assert result.fault is not None, result.results
    return result.fault[:2]


def ends(program: Program, library: LibraryModule, **limits: Any) -> tuple[Any, ...]:
    """Let a program that is to fail return nothing of interest; return its fault."""
    executable = program.returns_integers(program.main.integer(1))
    return fault_of(both(executable, library, **limits))


def test_every_instruction_is_used_here() -> None:
    chance = random.Random(0)
    text = "".join(disassemble(RandomProgram(chance).executable) for _ in range(60))
    used = {name for name in (each.name for each in INSTRUCTIONS) if f"  {name}" in text}
    # devices and packed functions are not random; release and drop leave registers unset
    assert used == {each.name for each in INSTRUCTIONS} - {"release", "drop", "invoke_packed"}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_are_those_of_unbounded_integers(operation: str, library: LibraryModule) -> None:
    meaning: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b, "min": min, "max": max,
        "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
        "and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b),
    }  # fmt: skip
    expected, wrong = [], []
    program = Program()
    registers: list[IntegerRegister] = []
    for a in EDGES:
        for b in EDGES:
            undefined = b == 0 and operation in ("floordiv", "floormod")
            if undefined or not LEAST <= meaning[operation](a, b) <= MOST:
                wrong.append((a, b, "DIVISION" if undefined else "OVERFLOW"))
                continue
            registers.append(program.main.compute(operation, program.main.integer(a), b))
            expected.append(int(meaning[operation](a, b)))
    assert integers_of(both(program.returns_integers(*registers), library)) == expected
    for a, b, code in wrong[:: max(1, len(wrong) // 4)]:
        program = Program()
        program.main.compute(operation, a, b)
        assert ends(program, library) == (code, (a, b, 0))


def test_elements_and_extents_of_every_dtype_are_read_and_written(library: LibraryModule) -> None:
    program = Program()
    main = program.main
    found, expected = [main.extent(program.integers, 0)], [3]
    found += [main.element(program.integers, index) for index in range(3)]
    found += [main.element(program.flags, index) for index in range(3)]
    expected += [3, -1, 7, 1, 0, 1]
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"):
        low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, min(np.iinfo(dtype).max, MOST))
        tensor = main.tensor(main.storage(64), 0, dtype, [2, 1])
        for index, value in enumerate((low, high)):
            main.set_element(tensor, index, int(value))
            found.append(main.element(tensor, index))
            expected.append(int(value))
    scalar = main.tensor(main.storage(64), 0, "int8", [])
    found += [main.rank(program.integers), main.rank(tensor), main.rank(scalar)]
    expected += [1, 2, 0]
    assert integers_of(both(program.returns_integers(*found), library)) == expected


@pytest.mark.parametrize(
    ("write", "fault"),
    [
        (lambda p: p.main.extent(p.integers, 1), ("AXIS", (1, 1, 0))),
        (lambda p: p.main.element(p.integers, 3), ("ELEMENT", (3, 3, 0))),
        (lambda p: p.main.element(p.integers, -1), ("ELEMENT", (-1, 3, 0))),
        (lambda p: p.main.element(p.big, 0), ("OVERFLOW", (MOST, 0, 0))),
        (lambda p: p.main.element(p.floats, 0), ("DTYPE", (10, 0, 0))),
        (lambda p: p.main.set_element(p.main.move(p.integers), 0, 1), ("READ_ONLY", (-1, 0, 0))),
        (lambda p: p.main.set_element(fresh(p, "int8"), 0, 128), ("OVERFLOW", (128, 0, 0))),
        (lambda p: p.main.set_element(fresh(p, "bool"), 0, 2), ("OVERFLOW", (2, 0, 0))),
        (lambda p: p.main.set_element(fresh(p, "float16"), 0, 2), ("DTYPE", (9, 0, 0))),
        (lambda p: p.main.require_range(p.main.integer(5), 0, 4, "rows"), ("RANGE", (5, 0, 4))),
        (lambda p: p.main.require_equal(p.main.integer(5), 4, "rows"), ("EQUAL", (5, 4, 0))),
        (lambda p: p.main.fail("not a model"), ("FAILED", (0, 0, 0))),
        (lambda p: p.main.storage(-1), ("NEGATIVE", (-1, 0, 0))),
        (lambda p: p.main.storage(2**62), ("ALLOCATE", (2**62, 0, 0))),
        (lambda p: p.main.tensor(p.main.storage(64), 0, "int32", [17]), ("OUTSIDE", (68, 64, 0))),
        (lambda p: p.main.tensor(p.main.storage(64), 64, "int32", [1]), ("OUTSIDE", (4, 0, 0))),
        (lambda p: p.main.tensor(p.main.storage(64), 128, "int32", [0]), ("OUTSIDE", (0, -64, 0))),
        (lambda p: p.main.tensor(p.main.storage(64), 4, "int32", [1]), ("MISALIGNED", (4, 0, 0))),
        (lambda p: p.main.tensor(p.main.storage(64), -64, "int32", [1]), ("NEGATIVE", (-64, 0, 0))),
        (lambda p: p.main.tensor(p.main.storage(64), 0, "int32", [0, -1]), ("NEGATIVE", (-1, 0, 0))),
        (lambda p: p.main.tensor(p.main.storage(64), 0, "int8", [2**32, 2**31]), ("SIZE", (2**31, 0, 0))),
        (lambda p: p.main.view(p.integers, 0, "int64", [4]), ("OUTSIDE", (32, 24, 0))),
        (lambda p: p.main.copy(fresh(p, "int8"), p.integers), ("SIZES", (1, 24, 0))),
        (lambda p: p.main.copy(p.main.move(p.flags), p.flags), ("READ_ONLY", (-1, 0, 0))),
        (lambda p: p.main.paste(fresh(p, "int8"), 0, p.flags), ("OUTSIDE", (3, 1, 0))),
        (lambda p: p.main.paste(fresh(p, "int64"), -1, p.flags), ("NEGATIVE", (-1, 0, 0))),
        (lambda p: p.main.paste(fresh(p, "int64"), 6, p.flags), ("OUTSIDE", (3, 2, 0))),
        (lambda p: p.main.paste(p.main.move(p.big), 0, p.flags), ("READ_ONLY", (-1, 0, 0))),
        (lambda p: p.main.blocks(p.main.move(p.big), p.flags, 1), ("READ_ONLY", (-1, 0, 0))),
        (lambda p: p.main.blocks(fresh(p, "int64"), p.flags, 1, 2, stride=-1), ("NEGATIVE", (-1, 0, 0))),
        (lambda p: p.main.blocks(fresh(p, "int64"), p.flags, 2, 1 << 62), ("OUTSIDE", (2, 8, 0))),
        (lambda p: p.main.blocks(fresh(p, "int64"), p.flags, 2, 2, step=7), ("OUTSIDE", (2, 8, 0))),
        (lambda p: p.main.blocks(fresh(p, "int64"), p.flags, 2, 2, origin=2), ("OUTSIDE", (2, 3, 0))),
        (lambda p: p.main.blocks(fresh(p, "int64"), p.flags, 1, 2, stride=2**63 - 1), ("OUTSIDE", (1, 3, 0))),
        (lambda p: p.main.invoke(p.status, [], [9]), ("KERNEL", (9, 0, 0))),
        (lambda p: p.main.invoke(p.fill, [p.integers], [0]), ("READ_ONLY", (0, 0, 0))),
        (lambda p: p.main.invoke(p.add, [p.flags, p.flags, fresh(p, "int8")], [1]), ("KERNEL", (2, 0, 0))),
        (lambda p: p.main.erase(p.main.list(), 0), ("INDEX", (0, 0, 0))),
        (lambda p: p.main.insert(p.main.list(), 1, p.flags), ("INDEX", (1, 0, 0))),
        (lambda p: p.main.get(p.main.list(), -1), ("INDEX", (-1, 0, 0))),
    ],
)
def test_faults(write: Callable[[Program], object], fault: tuple[Any, ...], library: LibraryModule) -> None:
    program = Program()
    write(program)
    assert ends(program, library) == fault


def fresh(program: Program, dtype: str) -> Any:
    return program.main.tensor(program.main.storage(64), 0, dtype, [1])


def test_kernels_views_and_moves_share_memory_and_copies_do_not(library: LibraryModule) -> None:
    program = Program(1, 2)
    main = program.main
    rows = program.symbol("rows", 1, 100)
    program.input("x", "int32", (rows, 2))
    program.output("y", "int32", (rows, 2))
    program.output("z", "int32", (None,))
    (x,) = main.parameters
    count = main.compute("mul", main.extent(x, 0), 2)
    storage = main.storage(main.compute("mul", count, 4))
    y = main.tensor(storage, 0, "int32", [main.extent(x, 0), 2])
    flat = main.view(y, 0, "int32", [count])
    main.release(storage)
    main.invoke(program.add, [x, x, y], [count])
    z = main.tensor(main.storage(main.compute("mul", count, 4)), 0, "int32", [count])
    main.copy(z, flat)
    main.invoke(program.reverse, [z, flat, main.storage(800)])
    again = main.move(z)
    main.drop(z)
    main.return_([y, again])
    executable = program.build()
    given = np.arange(6, dtype=np.int32).reshape(3, 2)
    for model in models(executable, library):
        y_found, z_found = model.call(0, [given])
        np.testing.assert_array_equal(z_found, given.reshape(-1) * 2)
        assert y_found.tobytes() == z_found.tobytes()[::-1]
        np.testing.assert_array_equal(given, np.arange(6).reshape(3, 2))
    assert both(executable, library, given[:, ::-1]).results is not None  # neither contiguous nor aligned


def counting(turns: int) -> Executable:
    """Return a program that adds up the numbers below `turns` in a loop, by calls."""
    program = Program()
    step = program.function("step", 1, 1)
    (t,) = step.parameters
    result = step.tensor(step.storage(16), 0, "int64", [2])
    step.set_element(result, 0, step.compute("add", step.element(t, 0), step.element(t, 1)))
    step.set_element(result, 1, step.compute("add", step.element(t, 1), 1))
    step.return_([result])
    main = program.main
    state = main.tensor(main.storage(16), 0, "int64", [2])
    loop, done = main.label(), main.label()
    main.place(loop)
    main.branch(main.compute("lt", main.element(state, 1), turns), done)
    main.call(step, [state], [state])
    main.jump(loop)
    main.place(done)
    return program.returns_integers(main.element(state, 0))


def test_loops_branches_and_calls(library: LibraryModule) -> None:
    assert integers_of(both(counting(10), library)) == [45]
    assert integers_of(both(counting(0), library)) == [0]
    assert integers_of(both(counting(10), library, turn_limit=20)) == [45]
    assert fault_of(both(counting(10), library, turn_limit=19)) == ("TURNS", (19, 0, 0))
    # a step's old storage is freed: what is alive does not depend on the number of turns
    least = next(limit for limit in range(64, 9999, 16) if both(counting(2), library, memory_limit=limit).results)
    assert both(counting(100), library, memory_limit=least).results is not None


def test_endless_loops_and_recursion_end(library: LibraryModule) -> None:
    program = Program(0, 0)
    label = program.main.label()
    program.main.place(label)
    program.main.jump(label)
    assert fault_of(both(program.build(), library, turn_limit=1000)) == ("TURNS", (1000, 0, 0))
    program = Program(0, 0)
    program.main.call(program.main, [])
    program.main.return_([])
    assert fault_of(both(program.build(), library)) == ("DEPTH", (256, 0, 0))


def test_memory_is_limited(library: LibraryModule) -> None:
    program = Program(0, 0)
    main = program.main
    items, label = main.list(), main.label()
    main.place(label)
    main.append(items, main.tensor(main.storage(1000), 0, "int8", [1000]))
    main.jump(label)
    code, (asked, limit, _) = fault_of(both(program.build(), library, memory_limit=100_000))
    assert (code, limit) == ("MEMORY", 100_000)
    assert asked in (128, 1000)
    program = Program(0, 0)
    program.main.return_([])
    assert fault_of(both(program.build(4096), library, memory_limit=4095)) == ("MEMORY", (4096, 4095, 0))


def test_memory_that_is_missing_before_the_first_instruction_is_named(library: LibraryModule) -> None:
    program = Program(1, 0)
    rows = program.symbol("rows", 1, 8)
    program.input("x", "int8", (rows, program.symbol("columns")))
    program.main.move(program.main.parameters[0])
    program.main.return_([])
    x = np.zeros((2, 2), np.int8)

    def message(arena: int, limit: int) -> str:
        found = both(program.build(arena), library, x, memory_limit=limit).fault
        assert found is not None
        return str(found[-1])

    said = message(4096, 4095)
    assert said.startswith("arena of module 'vmtest' for rows up to 8: 4,096 bytes more exceed")
    said = message(-1, 255)
    assert said.startswith("registers of function 'main': 256 bytes more exceed the memory limit of 255")
    assert "--memory-limit" in said
    calling = Program(0, 0)
    other = calling.function("deep", 0, 0)
    other.integer(1)
    other.return_([])
    calling.main.call(other, [])
    calling.main.return_([])
    found = both(calling.build(), library, memory_limit=127).fault
    assert found is not None
    assert "function 'main', instruction 0, 'deep'" in found[-1]


def test_an_arena_is_enough_for_bounded_models(library: LibraryModule) -> None:
    program = Program()
    main = program.main
    first = main.tensor(main.storage(64, 0), 0, "int64", [8])
    other = main.tensor(main.storage(64, 64), 0, "int64", [8])
    over = main.tensor(main.storage(128, 0), 64, "int64", [8])
    main.invoke(program.fill, [first], [1])
    main.invoke(program.fill, [other], [2])
    main.output = None  # type: ignore[attr-defined]
    program.output("y", "int64", (8,))
    main.return_([over])
    executable = program.build(128)
    assert integers_of(both(executable, library)) == [0x0202020202020202] * 8
    program = Program(1, 0)
    program.input("n", "int64", ())
    program.main.storage(program.main.element(program.main.parameters[0], 0), 64)
    program.main.return_([])
    size = np.array(65, np.int64)
    assert fault_of(both(program.build(128), library, size)) == ("OUTSIDE", (65, 64, 0))


def test_tensors_are_pasted_where_they_fit(library: LibraryModule) -> None:
    def pasted(start: int, count: int = 2) -> Any:
        program = Program()
        main = program.main
        whole, part = main.tensor(main.storage(24), 0, "int64", [3]), main.tensor(main.storage(64), 0, "int64", [count])
        for index in range(3):
            main.set_element(whole, index, index + 1)
        for index in range(count):
            main.set_element(part, index, 7 + index)
        main.paste(whole, start, part)
        return both(program.returns_integers(*(main.element(whole, index) for index in range(3))), library)

    assert [integers_of(pasted(start)) for start in (0, 8)] == [[7, 8, 3], [1, 7, 8]]
    assert fault_of(pasted(16)) == ("OUTSIDE", (16, 8, 0))
    assert fault_of(pasted(0, 4)) == ("OUTSIDE", (32, 24, 0))
    assert fault_of(pasted(-8)) == ("NEGATIVE", (-8, 0, 0))


def test_blocks_of_bytes_are_copied_from_and_to_places_apart(library: LibraryModule) -> None:
    program = Program()
    main = program.main
    into, source = (main.tensor(main.storage(64), 0, "int8", [6]) for _ in range(2))
    for index in range(6):
        main.set_element(source, index, index + 1)
        main.set_element(into, index, 0)
    main.blocks(into, source, 2, 2, start=1, step=3, origin=1, stride=2)
    main.blocks(into, source, 0, 1 << 40)
    built = program.returns_integers(*(main.element(into, index) for index in range(6)))
    assert integers_of(both(built, library)) == [0, 2, 3, 0, 4, 5]


def test_lists_have_value_semantics(library: LibraryModule) -> None:
    program = Program()
    main = program.main

    def number(value: int) -> Any:
        tensor = main.tensor(main.storage(8), 0, "int64", [1])
        main.set_element(tensor, 0, value)
        return tensor

    items = main.list()
    for value in (10, 11, 12):
        main.append(items, number(value))
    other = main.list_move(items)
    main.insert(other, 0, number(9))
    main.insert(other, -1, number(99))
    main.insert(other, 5, number(13))
    main.erase(items, -2)
    main.list_move(items, items)
    found = [main.length(items), main.length(other)]
    found += [main.element(main.get(items, index), 0) for index in (0, 1, -1)]
    found += [main.element(main.get(other, index), 0) for index in range(6)]
    assert integers_of(both(program.returns_integers(*found), library)) == [2, 6, 10, 12, 12, 9, 10, 11, 99, 12, 13]


def test_inputs_and_outputs_are_what_the_model_declares(library: LibraryModule) -> None:
    program = Program(2, 1)
    rows = program.symbol("rows", 2, 4)
    program.input("x", "int32", (rows, 3))
    program.input("w", "int32", (None, rows))
    program.output("y", "int32", (rows, None))
    program.main.return_([program.main.parameters[1]])
    executable = program.build()
    x, w = np.zeros((3, 3), np.int32), np.zeros((3, 3), np.int32)
    assert both(executable, library, x, w).results is not None
    cases = [
        ((x.astype(np.int64), w), ("BAD_INPUT", (0, -1, 4)), "x: expected input of dtype int32, got int64"),
        ((x[0], w), ("BAD_INPUT", (0, -2, 1)), "x: expected input of 2 dimensions, got 1"),
        ((x[:, :2], w), ("BAD_INPUT", (0, 1, 2)), "x: expected input with extent 3 on axis 1, got 2"),
        ((x[:1], w), ("BAD_INPUT", (0, 0, 1)), "'rows' (2 to 4, the same wherever it is) on axis 0, got 1"),
        ((x, w[:, :2]), ("BAD_INPUT", (1, 1, 2)), "w: expected input with extent 'rows'"),
        ((x, w[:2]), ("BAD_OUTPUT", (0, 0, 2)), "expected output with extent 'rows'"),
        ((x,), ("BAD_CALL", (0, 1, 1)), "does not take 1 tensors"),
    ]
    for given, fault, text in cases:
        found = both(executable, library, *given)
        assert fault_of(found) == fault
        assert found.fault is not None
        assert text in found.fault[4]


def test_errors_name_function_instruction_and_string(library: LibraryModule) -> None:
    program = Program()
    program.main.integer(1)
    program.main.require_range(program.main.integer(5), 0, 4, "rows")
    executable = program.returns_integers(program.main.integer(0))
    for model in models(executable, library):
        with pytest.raises(InputError, match="function 'main', instruction 2: rows: expected 0 to 4, got 5"):
            model.call(0, [])
    with pytest.raises(LimitError, match="Raise turn_limit"):
        models(counting(9), library, turn_limit=2)[1].call(0, [])


def test_machine_has_the_functions_of_tvms(library: LibraryModule, tmp_path: Path) -> None:
    program = Program(2, 1)
    program.input("a", "int32", (2,))
    program.input("b", "int32", (2,))
    program.output("y", "int32", (2,))
    main = program.main
    y = main.tensor(main.storage(8), 0, "int32", [2])
    main.invoke(program.add, [*main.parameters, y], [2])
    main.return_([y])
    two = program.function("two", 0, 2)
    two.return_([program.integers, program.flags])
    module = VmModule(program.build())
    module.import_module(library)
    a, b = np.int32([1, 2]), np.int32([10, 20])
    for interpreter in ("python", "c"):
        machine = VirtualMachine(module, mlfc.cpu(0), interpreter=interpreter)
        assert machine.module is module
        assert machine.invoke("main", a, b).tolist() == [11, 22]
        assert machine.run(b=b, a=a).tolist() == [11, 22]
        machine.set_input("main", a, b=a)
        machine.invoke_stateful("main")
        assert machine.get_outputs()[0].tolist() == [2, 4]
        machine.set_one_input("main", "b", b)
        assert machine.invoke("main").tolist() == [11, 22]
        machine.set_one_input("main", 0, b)
        assert machine.invoke("main").tolist() == [20, 40]
        out = np.zeros(2, np.int32)
        machine.invoke_with_outputs("main", {"a": a, "b": b}, [out])
        assert out.tolist() == [11, 22]
        assert [each.tolist() for each in machine.invoke("two")] == [[3, -1, 7], [True, False, True]]
        assert (machine.get_input_index("b"), machine.get_input_index("c")) == (1, -1)
        assert machine.model.run({"a": a, "b": b})["y"].tolist() == [11, 22]
        bound = machine.model.bind({"a": a, "b": b}, [out])
        out[:] = 0
        assert (bound(), out.tolist()) == (0, [11, 22])
        with pytest.raises(OptionError, match="unknown function 'mian'; nearest: 'main'"):
            machine.invoke("mian")
        with pytest.raises(InputError, match="expected 2 inputs, got 1"):
            machine.set_input("main", a)
        with pytest.raises(InputError, match="the input is missing"):
            machine.model.run({"a": a})
    assert module["default"](mlfc.cpu(0)).run(a, b).tolist() == [11, 22]
    assert module["vm"](mlfc.cpu(0)).model.interpreter == "c"
    assert "function main(t0, t1) -> 1" in module["get_bytecode"]()


def test_executables_are_stored_in_module_trees(library: LibraryModule) -> None:
    module = VmModule(counting(5))
    loaded = mlfc.runtime.load_from_bytes("mlfc.vm", module.save_to_bytes())
    assert isinstance(loaded, VmModule)
    assert loaded.executable == module.executable
    with pytest.raises(OptionError, match="there is no native code of 'vmtest'"):
        VirtualMachine(loaded, mlfc.cpu(0))
    loaded.import_module(library)
    assert VirtualMachine(loaded, mlfc.cpu(0)).run().tolist() == [10]
    with pytest.raises(OptionError, match="expected one executable"):
        VirtualMachine(library, mlfc.cpu(0))
    with pytest.raises(ArchiveError, match="expected bytecode of mlfc"):
        mlfc.runtime.load_from_bytes("mlfc.vm", b"x" * 200)


def test_native_code_of_another_executable_is_refused(library: LibraryModule) -> None:
    program = Program(0, 0)
    program.kernel("one more", 0, 0, 0)
    program.main.return_([])
    with pytest.raises(ArchiveError, match="native code is that of another executable"):
        models(program.build(), library)


def test_packed_functions_are_found_by_name(library: LibraryModule) -> None:
    program = Program()
    main = program.main
    y = main.tensor(main.storage(24), 0, "int64", [3])
    main.invoke_packed("double_it", [program.integers, y])
    program.output("y", "int64", (3,))
    main.return_([y])

    class Doubles(mlfc.runtime.Module):
        def find_function(self, name: str) -> Any:
            return (lambda x, out: np.multiply(x, 2, out=out)) if name == "double_it" else None

    module = VmModule(program.build())
    module.import_module(library)
    with pytest.raises(RunError, match="function 'main', instruction 2, 'double_it': the packed function failed"):
        VirtualMachine(module, mlfc.cpu(0)).run()
    module.import_module(Doubles())
    assert VirtualMachine(module, mlfc.cpu(0)).run().tolist() == [6, -2, 14]


def test_devices_that_are_missing_are_named(library: LibraryModule) -> None:
    program = Program(0, 0)
    program.main.to_device(program.integers, 2)
    program.main.return_([])
    module = VmModule(program.build())
    with pytest.raises(DeviceError, match="no device of type 2"):
        module.model_with(library).call(0, [])
    with pytest.raises(OptionError, match="the C interpreter is not in this library"):
        module.model_with(library, interpreter="c")


def test_tensors_move_between_devices(library: LibraryModule) -> None:
    device = need_opencl()
    program = Program(0, 3)
    for name in "abc":
        program.output(name, "int64", (None,))
    main = program.main
    there = main.to_device(program.integers, device.type_code)
    room = main.tensor(main.storage(88, device=device.type_code), 64, "int64", [3])
    main.copy(room, there)
    again = main.to_device(room, device.type_code)  # the same one
    other = main.tensor(main.storage(24), 0, "int64", [3])
    main.copy(other, again)
    main.set_element(other, 0, 5)
    main.copy(main.view(room, 0, "int64", [3]), other)
    on_host = main.to_device(main.view(room, 0, "int64", [1]), 1)
    main.return_([main.to_device(there, 1), on_host, other])
    model = VmModule(program.build()).model_with(library, devices=(device,))
    assert [each.tolist() for each in model.call(0, [])] == [[3, -1, 7], [5], [5, -1, 7]]
    for use in ("invoke", "element"):
        program = Program(0, 0)
        main = program.main
        there = main.to_device(program.integers, device.type_code)
        if use == "invoke":
            main.invoke(program.fill, [there], [0])
        else:
            main.element(there, 0)
        main.return_([])
        model = VmModule(program.build()).model_with(library, devices=(device,))
        with pytest.raises(DeviceError, match="function 'main', instruction 1"):
            model.call(0, [])


def test_results_have_memory_of_their_own(library: LibraryModule) -> None:
    program = Program(1, 4)
    program.input("x", "int64", (3,))
    for name in "abcd":
        program.output(name, "int64", (3,))
    main = program.main
    made = main.tensor(main.storage(24), 0, "int64", [3])
    main.copy(made, program.integers)
    main.return_([main.parameters[0], program.integers, made, made])
    executable = program.build()
    given = np.int64([1, 2, 3])
    for model in models(executable, library):
        for array in model.call(0, [given]):
            array[:] = 9
        assert [each.tolist() for each in model.call(0, [given])] == [[1, 2, 3], *[[3, -1, 7]] * 3]
        assert given.tolist() == [1, 2, 3]


def test_results_that_numpy_cannot_hold_are_an_error(library: LibraryModule) -> None:
    program = Program()
    program.output("y", "int64", (None, None))
    program.main.return_([program.main.tensor(program.main.storage(0), 0, "int64", [0, 2**62])])
    assert fault_of(both(program.build(), library)) == ("SIZE", (2**62, 0, 0))


def test_threads_run_one_model_at_once(library: LibraryModule) -> None:
    program = Program(1, 1)
    program.input("x", "int32", (16,))
    program.output("y", "int32", (16,))
    main = program.main
    y = main.tensor(main.storage(64, 64), 0, "int32", [16])
    main.invoke(program.add, [main.parameters[0], main.parameters[0], y], [16])
    main.return_([y])
    executable = program.build(128)
    inputs = [np.full(16, number, np.int32) for number in range(200)]
    for model in models(executable, library):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda each, model=model: model.call(0, [each])[0], inputs))
        assert all((result == 2 * given).all() for result, given in zip(found, inputs, strict=True))


class Bare:
    """The C interpreter without the functions for hosts: no allocator, and a work area of a certain size."""

    def __init__(self, library: LibraryModule, executable: Executable) -> None:
        self.native = library.library
        self.native.mlfc_vm_work_bytes.restype = ctypes.c_size_t
        self.file = encode(executable)
        self.vm = ctypes.create_string_buffer(1024)
        self.error = (ctypes.c_int64 * 7)()
        code = ctypes.c_void_p(library.address("tvmgen_vmtest_vm_code"))
        assert self.native.mlfc_vm_load(self.vm, self.file, ctypes.c_size_t(len(self.file)), code, self.error) == 0

    def work_bytes(self, depth: int = 0) -> int:
        return int(self.native.mlfc_vm_work_bytes(self.vm, depth))

    def run(self, work_bytes: int, skew: int = 0) -> int:
        work = aligned_zeros(work_bytes + skew)[skew:]
        address = ctypes.c_void_p(work.ctypes.data)
        size = ctypes.c_size_t(work_bytes)
        status = self.native.mlfc_vm_run(self.vm, 0, None, 0, None, 0, address, size, None, self.error)
        return int(status)


def test_c_needs_the_work_area_that_it_states_and_no_allocator(library: LibraryModule) -> None:
    program = Program(0, 0)
    main = program.main
    other = program.function("other", 0, 0)
    t = other.tensor(other.storage(64, 64), 0, "int32", [16])
    other.invoke(program.add, [t, t, t], [16])
    other.return_([])
    main.storage(1024, 128)
    main.call(other, [])
    main.return_([])
    bare = Bare(library, program.build(1152))
    size = bare.work_bytes()
    assert 1152 < size < 1152 + 2048
    assert [bare.run(size, skew) for skew in (0, 1, 8, 63)] == [0, 0, 0, 0]
    for less in (100, 200, size - 1152, size):
        assert bare.run(size - less) == Code.WORK
    lists = Program(0, 0)
    lists.main.append(lists.main.list(), lists.flags)
    lists.main.return_([])
    bare = Bare(library, lists.build(0))
    assert bare.run(bare.work_bytes()) == Code.ALLOCATE
    again = Program(0, 0)
    again.main.call(again.main, [])
    again.main.return_([])
    bare = Bare(library, again.build(0))
    assert bare.work_bytes() == 0
    assert bare.run(bare.work_bytes(depth=5)) == Code.WORK


def test_interpreters_agree_on_random_programs(library: LibraryModule) -> None:
    done = set()
    for seed in range(250):
        chance = random.Random(seed)
        program = RandomProgram(chance, is_bounded=seed % 3 == 0)
        found = both(program.executable, library, random_input(chance), memory_limit=200_000, turn_limit=50)
        done.add("results" if found.fault is None else found.fault[0])
    assert len(done) > 10
