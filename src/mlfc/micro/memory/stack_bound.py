"""Static bound of the stack of an inference: the deepest path through the call graph.

The stack use of a function itself has two sources: the compiler (``-fstack-usage``), which does not cover assembler and
library functions, and the machine code of the linked model. The larger value counts. Calls are taken from the machine
code, so calls inserted by the compiler (``memcpy``, arithmetic in software) are included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlfc.errors import ToolchainError
from mlfc.micro.board.board import Board
from mlfc.micro.board.programs import need, run
from mlfc.support.records import Record

_FUNCTION = re.compile(r"([0-9a-f]{4,16}) <(.+)>:")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t([^\t]+)(?:\t(.*))?")
_TARGET = re.compile(r"(?:^|[\s,(])(?:0x)?([0-9a-f]+) <([^>+]+)(\+0x[0-9a-f]+)?>")
_COMMENT = re.compile(r"\t[@;]")
_IMMEDIATE = re.compile(r"#?(-?(?:0x[0-9a-f]+|\d+))")
_ARM_READS = re.compile(r"(str|stm|ldm|cmp|cmn|tst|push|vpush)")
_ARM_PUSHES = re.compile(r"v?stm(db|fd)")
# maximum instructions between a table load and the scaling of its index
_TABLE_LOAD = 6
# return address on cores with more than 128 KiB of flash; others push a byte less
_AVR_CALL = 3
_LISTED = 5
_SECONDS = 60
# a Cortex-M exception pushes 8 words, or 26 with floating-point registers, and a word for alignment
_CORTEX_M_FRAME, _CORTEX_M_FLOAT_FRAME = 36, 108
THROUGH_POINTERS = "the graph executor calls operators through pointers"


@dataclass
class MachineFunction:
    """Stack use and calls of a function, from its instructions."""

    name: str
    address: int  # start address
    frame: int = 0  # maximum bytes by which it grows the stack, without callees
    # functions that it calls or jumps to; itself only if it calls itself
    callees: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)  # all functions that it calls, even if the program lacks them
    # the next function if its last instruction falls through; data at its end may look like that
    runs_on: str | None = None
    # instructions unknown to the rules, so that `frame` or `callees` may be incomplete
    untold_growth: list[str] = field(default_factory=list)
    untold_calls: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # called functions that the program lacks


@dataclass(frozen=True)
class Rules:
    """Stack conventions of an architecture."""

    # (mnemonic, operands): bytes by which an instruction grows the stack, 0 if it does not; None if the amount is
    # unknown
    growth: Callable[[str, str], int | None]
    # (mnemonic, operands, before): whether it jumps outside the function to an address not in the operands; `before`
    # are the preceding instructions
    is_indirect: Callable[[str, str, Sequence[str]], bool]
    ends: Callable[[str, str], bool]  # (mnemonic, operands): whether it never falls through
    calls: tuple[str, ...]  # mnemonics of calls, which return
    call_bytes: int = 0  # bytes that a call itself pushes
    # (name, word_bytes): bytes by which a library's prologue function grows the stack of its caller; None for other
    # functions
    prologue: Callable[[str, int], int | None] = lambda _name, _word_bytes: None
    # start of a comment with the address to which a non-jump instruction refers
    data_comment: str | None = None


def _registers(text: str) -> int:
    """Return the size in bytes of an Arm register list such as ``{r4-r7, lr}``."""
    total = 0
    for item in re.findall(r"[a-z]+\d*(?:-[a-z]+\d*)?", text):
        first, _, last = item.partition("-")
        count = int(last[1:]) - int(first[1:]) + 1 if last else 1
        total += count * (8 if re.fullmatch(r"d\d+", first) else 4)
    return total


def _immediate(text: str) -> int | None:
    match = _IMMEDIATE.fullmatch(text.strip())
    return int(match[1], 0) if match else None


def _arm_growth(mnemonic: str, operands: str) -> int | None:
    name = mnemonic.partition(".")[0]
    first, _, rest = operands.partition(",")
    first = first.strip()
    if name.startswith(("push", "vpush")) or (_ARM_PUSHES.match(name) and first == "sp!"):
        listed = operands[operands.index("{") :]
        return _registers(listed)
    stored = re.search(r"\[sp, #-(\d+)\]!", operands)
    if stored:
        return int(stored[1])
    if first != "sp" or _ARM_READS.match(name):
        return 0
    amount = _immediate(rest.rpartition(",")[2])
    if name.startswith("sub"):
        return amount
    if name.startswith("add"):
        return None if amount is None else max(0, -amount)
    # restores the stack pointer from the frame pointer
    return 0 if name == "mov" and rest.strip() in ("r7", "fp") else None


def _arm_indirect(mnemonic: str, operands: str, _before: Sequence[str]) -> bool:
    name = mnemonic.partition(".")[0]
    if name in ("bx", "blx"):
        return operands.strip() != "lr" and "<" not in operands
    # switch tables use tbb, tbh and "mov pc"; calls, by the architecture's convention, use bx and blx
    return name.startswith("ldr") and operands.startswith("pc,") and not re.match(r"pc, \[sp\]", operands)


def _arm_ends(mnemonic: str, operands: str) -> bool:
    name = mnemonic.partition(".")[0]
    if name in ("b", "bx", "udf", "tbb", "tbh"):
        return True
    if name in ("pop", "ldmia"):
        return "pc}" in operands
    return operands.startswith("pc,")


def _riscv_growth(mnemonic: str, operands: str) -> int | None:
    parts = operands.split(",")
    if parts[0] != "sp" or re.match(r"(s[bhwd]|fs[wd]|b)", mnemonic):
        return 0
    if mnemonic in ("add", "addi", "c.addi", "c.addi16sp"):
        amount = _immediate(parts[-1])
        # an addition to the frame pointer restores the stack pointer
        return 0 if parts[1] == "s0" else None if amount is None else max(0, -amount)
    return 0 if mnemonic == "mv" and parts[1] == "s0" else None


def _riscv_indirect(mnemonic: str, operands: str, before: Sequence[str]) -> bool:
    if mnemonic not in ("jr", "jalr") or "<" in operands or operands.strip() in ("ra", "t0"):
        return False
    # a jump through a table whose index is scaled to the size of an address is a switch
    is_switch = mnemonic == "jr" and any(re.match(r"(c\.)?slli?\t.*,0x2$", line) for line in before)
    return not is_switch


def _riscv_prologue(name: str, word_bytes: int) -> int | None:
    saved = re.fullmatch(r"__riscv_save_(\d+)", name)
    # that many registers and the return address, rounded up to 16 bytes
    return None if saved is None else -(-(int(saved[1]) + 1) * word_bytes // 16) * 16


def _avr_growth(mnemonic: str, operands: str) -> int | None:
    if mnemonic == "push":
        return 1
    # a call of the next instruction allocates a local variable
    if mnemonic == "rcall" and operands.startswith(".+0"):
        return _AVR_CALL
    return None if mnemonic == "out" and operands.startswith(("0x3d", "0x3e")) else 0


RULES = {
    "cortex-m": Rules(_arm_growth, _arm_indirect, _arm_ends, ("bl", "blx")),
    "riscv": Rules(
        _riscv_growth,
        _riscv_indirect,
        lambda mnemonic, _operands: mnemonic in ("j", "jr", "ret", "tail", "ebreak", "unimp", "mret"),
        ("jal", "jalr", "call"),
        prologue=_riscv_prologue,
        data_comment=" # ",
    ),
    "avr": Rules(
        _avr_growth,
        lambda mnemonic, _operands, _before: mnemonic in ("icall", "eicall", "ijmp", "eijmp"),
        lambda mnemonic, _operands: mnemonic in ("ret", "reti", "jmp", "rjmp"),
        ("call", "rcall"),
        call_bytes=_AVR_CALL,
    ),
}
"""Rules by the architecture of boards."""


def read_functions(
    text: str, rules: Rules, is_data: Callable[[int], bool] = lambda _: False
) -> dict[str, MachineFunction]:
    """Parse the output of ``objdump -d --no-show-raw-insn`` for a linked program, by function.

    Labels within an assembler function count as functions into which the preceding one falls through. For several
    functions of one name, as in static functions, all but the first have their address in the key: ``start@1c4``.

    `is_data` (address): whether the address contains data, printed as an instruction.
    """
    blocks: list[tuple[str, int, list[tuple[str, str]]]] = []
    word_bytes = 0
    for line in text.splitlines():
        header = _FUNCTION.fullmatch(line)
        if header:
            blocks.append((header[2], int(header[1], 16), []))
            word_bytes = len(header[1]) // 2
            continue
        match = _INSTRUCTION.match(line)
        if match and blocks and not is_data(int(match[1], 16)):
            blocks[-1][2].append((match[2].strip(), match[3] or ""))
    keys: dict[int, str] = {}
    names: set[str] = set()
    for name, address, _ in blocks:
        keys[address] = f"{name}@{address:x}" if name in names else name
        names.add(name)
    found: dict[str, MachineFunction] = {}
    for index, (_, address, body) in enumerate(blocks):
        function = found[keys[address]] = MachineFunction(keys[address], address, rules.call_bytes)
        _read_body(function, body, rules, word_bytes, keys)
        # the last instruction, ignoring data and padding
        last = next((item for item in reversed(body) if not item[0].startswith((".", "nop"))), None)
        if index + 1 < len(blocks) and last is not None and not rules.ends(*last):
            function.runs_on = keys[blocks[index + 1][1]]
    for name in [name for name in found if rules.prologue(name, word_bytes) is not None]:
        # the stack that it leaves allocated counts for its callers; its own use ends with it
        found[name] = MachineFunction(
            name, found[name].address, found[name].frame - (rules.prologue(name, word_bytes) or 0)
        )
    for function in found.values():
        function.missing += sorted(function.called - found.keys())
        function.callees = (function.callees | function.called) & found.keys()
    return found


def _read_body(
    function: MachineFunction, body: Sequence[tuple[str, str]], rules: Rules, word_bytes: int, keys: Mapping[int, str]
) -> None:
    for index, (mnemonic, text) in enumerate(body):
        operands = _COMMENT.split(text, maxsplit=1)[0]
        growth = rules.growth(mnemonic, operands)
        if growth is None:
            function.untold_growth.append(f"{mnemonic} {operands}")
        function.frame += growth or 0
        before = [f"{name}\t{rest}" for name, rest in body[max(0, index - _TABLE_LOAD) : index]]
        if rules.is_indirect(mnemonic, operands, before):
            function.untold_calls.append(f"{mnemonic} {operands}")
        if rules.data_comment and not mnemonic.startswith(("j", "call", "tail")):
            text = text.partition(rules.data_comment)[0]  # noqa: PLW2901  (the relevant part)
        for target in _TARGET.finditer(text):
            function.frame += rules.prologue(target[2], word_bytes) or 0
            start = int(target[1], 16) - int(target[3] or "0", 16)
            name = keys.get(start, target[2])
            if name == function.name and (target[3] or mnemonic.partition(".")[0] not in rules.calls):
                continue
            if mnemonic.partition(".")[0] in rules.calls:
                function.called.add(name)
            else:
                function.callees.add(name)


@dataclass(frozen=True)
class StackFrame(Record):
    """Stack use of a function itself, without callees."""

    function: str
    nbytes: int


@dataclass(frozen=True)
class StackBound(Record):
    """Stack bound of one inference."""

    nbytes: int | None  # maximum of the entry function and its callees; None if unknown
    path: tuple[StackFrame, ...] = ()  # the deepest call path, from the entry on
    untold: tuple[str, ...] = ()  # reasons why it is unknown


@dataclass(frozen=True)
class _CallGraphNode:
    """A function in the call graph; `jumps` are the callees that it reaches by jumps, without return."""

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
    """Return the maximum stack of a linked model over its entry functions.

    `is_library` (address): whether the code there is from a library.
    `statements`: a folder with the compiler's ``.su`` files.
    `is_data` (address): whether the address contains constants within code.

    Raises ToolchainError if the board's objdump is missing, or cannot read the program.
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
    """Return the disassembly of a program by the board's objdump."""
    program = f"{board.toolchain.prefix}objdump"
    need(program, board.toolchain.packages)
    result = run([program, "-d", "--no-show-raw-insn", elf.name], elf.parent, _SECONDS)
    if result.returncode != 0:
        raise ToolchainError(f"the program's instructions cannot be read: {result.stderr.strip()[:400]}", place=program)
    return result.stdout


def interrupt_bytes(board: Board) -> int | None:
    """Return the bytes that the core pushes for an interrupt during an inference; None if its handler saves them."""
    if board.arch != "cortex-m":
        return None
    has_floats = any(flag in ("-mfloat-abi=hard", "-mfloat-abi=softfp") for flag in board.toolchain.flags)
    return _CORTEX_M_FLOAT_FRAME if has_floats else _CORTEX_M_FRAME


@dataclass(frozen=True)
class Stated:
    """A function's frame according to the compiler, and whether it depends on data."""

    nbytes: int
    is_dynamic: bool


def frame_sizes(folder: Path) -> dict[str, Stated]:
    """Return the frames in the ``.su`` files of a folder by function; for functions of one name, the largest.

    Compilers append suffixes to split or specialized functions, differently here and in the program, so names are cut
    at the first dot.
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
        # compiled functions never fall through, regardless of data after the last instruction
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
    """Return the call path with the most stack, or the reasons why the maximum is unknown."""
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
    """Merge assembler labels that form a loop and use no stack.

    They look like functions that call each other; a function that calls into its own loop still counts as recursive.
    """
    reached: dict[str, set[str]] = {}  # by jumps only, while no stack is used
    for start in [name for name, item in functions.items() if item.jumps and not item.grows]:
        there, waiting = reached.setdefault(start, set()), [start]
        while waiting:
            new = {target for target in functions[waiting.pop()].jumps if not functions[target].grows} - there
            there |= new
            waiting += new
    # a loop is named by the first of its labels
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


def _callees_first(entry: str, functions: Mapping[str, _CallGraphNode]) -> Iterator[tuple[str, str | None]]:
    """Yield functions after their callees, and each call cycle as a string where it closes."""
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


@dataclass(frozen=True)
class CodeTrial(Record):
    """Measured code and stack of a model; boards with the same compiler and flags share them."""

    sizes: Mapping[str, int]  # bytes by row names of the table; empty if unknown
    stack: StackBound
