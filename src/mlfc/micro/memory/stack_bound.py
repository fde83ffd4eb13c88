"""How much stack an inference takes at most, before anything runs: the deepest way through the graph of calls.

Two witnesses say what a function takes itself: the compiler (``-fstack-usage``), which does not know functions in
assembler or libraries, and the machine code of the linked model. The larger counts. Calls are those of the machine
code, so what a compiler calls of its own accord (``memcpy``, arithmetic in software) is among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlfc.errors import ToolchainError
from mlfc.micro.board.board import Board
from mlfc.micro.board.programs import need, run
from mlfc.micro.memory.disassembly import RULES, MachineFunction, Rules, read_functions

_LISTED = 5
_SECONDS = 60
# an exception of a Cortex-M pushes eight words, with the floating-point registers 26, and a word to align them
_CORTEX_M_FRAME, _CORTEX_M_FLOAT_FRAME = 36, 108


THROUGH_POINTERS = "the graph executor calls operators through pointers"


@dataclass(frozen=True)
class StackFrame:
    """What a function takes of the stack itself, without what it calls."""

    function: str
    nbytes: int


@dataclass(frozen=True)
class StackBound:
    """The stack of one inference."""

    nbytes: int | None  # what the entry function and all that it calls take at most; None where that cannot be told
    path: tuple[StackFrame, ...] = ()  # the calls that take it, from the entry on
    untold: tuple[str, ...] = ()  # why it cannot be told


@dataclass(frozen=True)
class _CallGraphNode:
    """What the graph of calls says of a function; of its callees, `jumps` are those that it goes to for good."""

    frame: int
    callees: tuple[str, ...]
    untold: tuple[str, ...] = ()
    jumps: frozenset[str] = frozenset()
    grows: bool = True


def stack_bound(
    elf: Path,
    entries: Sequence[str],
    board: Board,
    is_library: Callable[[int], bool],
    statements: Path | None = None,
    is_data: Callable[[int], bool] = lambda _: False,
) -> StackBound:
    """Return how much stack a linked model takes at most from its entry functions on: that of the deepest.

    `is_library` (address): whether the code there comes from a library.
    `statements`: a folder with the compiler's ``.su`` files.
    `is_data` (address): whether constants lie there, among the code.

    Raises ToolchainError if the board's objdump is missing, or does not read the program.
    """
    rules = RULES.get(board.arch)
    if rules is None:
        return StackBound(None, untold=(f"no stack rules for the instructions of {board.core}",))
    machine = read_functions(disassembled(elf, board), rules, is_data)
    frames = frame_sizes(statements) if statements else {}
    functions = _functions(machine, frames, rules, is_library)
    found = [deepest(entry, functions) for entry in entries]
    unknown = [item for item in found if item.nbytes is None]
    return max(unknown or found, key=lambda item: item.nbytes or 0)


def disassembled(elf: Path, board: Board) -> str:
    """Return a program's instructions as the board's objdump prints them."""
    program = f"{board.toolchain.prefix}objdump"
    need(program, board.toolchain.packages)
    result = run([program, "-d", "--no-show-raw-insn", elf.name], elf.parent, _SECONDS)
    if result.returncode != 0:
        raise ToolchainError(f"the program's instructions cannot be read: {result.stderr.strip()[:400]}", place=program)
    return result.stdout


def interrupt_bytes(board: Board) -> int | None:
    """Return what the core itself pushes for an interrupt that strikes an inference; None where its handler does."""
    if board.arch != "cortex-m":
        return None
    has_floats = any(flag in ("-mfloat-abi=hard", "-mfloat-abi=softfp") for flag in board.toolchain.flags)
    return _CORTEX_M_FLOAT_FRAME if has_floats else _CORTEX_M_FRAME


@dataclass(frozen=True)
class Stated:
    """What a compiler says of a function: its frame, and whether that depends on data."""

    nbytes: int
    is_dynamic: bool


def frame_sizes(folder: Path) -> dict[str, Stated]:
    """Return what the ``.su`` files of a folder say, by function; of functions of one name the largest.

    A compiler that splits or specializes a function adds to its name, in different ways here and in the program: the
    names are those before a dot.
    """
    found: dict[str, Stated] = {}
    for path in sorted(folder.rglob("*.su")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            place, size, kind = (*line.split("\t"), "", "")[:3]
            if not size.isdecimal():
                continue
            name = place.rpartition(":")[2].partition(".")[0]
            known = found.get(name, Stated(0, False))
            found[name] = Stated(max(known.nbytes, int(size)), known.is_dynamic or kind == "dynamic")
    return found


def _functions(
    machine: Mapping[str, MachineFunction],
    stated: Mapping[str, Stated],
    rules: Rules,
    is_library: Callable[[int], bool],
) -> dict[str, _CallGraphNode]:
    found = {}
    for name, item in machine.items():
        said = stated.get(re.split("[.@]", name, maxsplit=1)[0])
        unknown = [*item.untold_calls, *item.missing]
        untold = [f"{name} has an unknown call target: {call}" for call in unknown]
        callees = item.callees
        # what a compiler made ends itself, whatever data lie behind its last instruction
        if item.runs_on is not None and is_library(item.address):
            callees.add(item.runs_on)
        if said is None:
            untold += [f"{name} changes the stack by an unknown amount: {line}" for line in item.untold_growth]
        elif said.is_dynamic:
            untold.append(f"{name} uses stack that depends on data")
        frame = max(item.frame, said.nbytes if said else 0)
        jumps = frozenset(callees - item.called)
        found[name] = _CallGraphNode(frame, tuple(sorted(callees)), tuple(untold), jumps, frame > rules.call_bytes)
    return found


def deepest(entry: str, functions: Mapping[str, _CallGraphNode]) -> StackBound:
    """Return the way through the calls that takes most stack, unless there is one that cannot be told."""
    if entry not in functions:
        return StackBound(None, untold=(f"the program has no function {entry}",))
    below: dict[str, int] = {}
    chosen: dict[str, str | None] = {}
    untold: list[str] = []
    functions = _without_loops(functions)
    for name, cycle in _callees_first(entry, functions):
        if cycle is not None:
            untold.append(f"a function calls itself: {cycle}")
            continue
        function = functions[name]
        untold += function.untold
        chosen[name] = max(function.callees, key=lambda callee: below.get(callee, 0), default=None)
        below[name] = function.frame + max((below.get(callee, 0) for callee in function.callees), default=0)
    if untold:
        return StackBound(None, untold=tuple(untold[:_LISTED]))
    path: list[StackFrame] = []
    at: str | None = entry
    while at is not None:
        path.append(StackFrame(at.partition("@")[0], functions[at].frame))
        at = chosen[at]
    return StackBound(below[entry], tuple(path))


def _without_loops(functions: Mapping[str, _CallGraphNode]) -> dict[str, _CallGraphNode]:
    """Return functions with labels of assembler made one where they go round in a loop and take no stack.

    They look like functions that call each other; one that calls its own loop still calls itself.
    """
    reached = {name: _gone_to(name, functions) for name, item in functions.items() if item.jumps and not item.grows}
    # a loop is known by the first of its labels
    first = {
        name: min((other for other in there if name in reached.get(other, ())), default=name)
        for name, there in reached.items()
    }
    found: dict[str, _CallGraphNode] = {}
    for name, item in functions.items():
        one = first.get(name, name)
        callees = {first.get(callee, callee) for callee in item.callees if callee not in item.jumps}
        callees |= {first.get(callee, callee) for callee in item.jumps} - {one}
        other = found.get(one, _CallGraphNode(0, ()))
        found[one] = _CallGraphNode(
            max(item.frame, other.frame), tuple(sorted({*callees, *other.callees})), (*other.untold, *item.untold)
        )
    return {name: found[first.get(name, name)] for name in functions}


def _gone_to(name: str, functions: Mapping[str, _CallGraphNode]) -> set[str]:
    """Return what is reached from a function by jumps alone, as long as no stack is taken."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = {target for target in functions[waiting.pop()].jumps if not functions[target].grows} - found
        found |= new
        waiting += new
    return found


def _callees_first(entry: str, functions: Mapping[str, _CallGraphNode]) -> Iterator[tuple[str, str | None]]:
    """Yield functions behind all that they call, and each cycle of calls as a text where it closes."""
    done: set[str] = set()
    open_: dict[str, None] = {entry: None}
    waiting: list[tuple[str, Iterator[str]]] = [(entry, iter(functions[entry].callees))]
    while waiting:
        name, callees = waiting[-1]
        following = next(callees, None)
        if following is None:
            waiting.pop()
            del open_[name]
            done.add(name)
            yield name, None
        elif following in open_:
            chain: Sequence[str] = list(open_)
            yield following, " -> ".join([*chain[chain.index(following) :], following])
        elif following not in done:
            open_[following] = None
            waiting.append((following, iter(functions[following].callees)))
