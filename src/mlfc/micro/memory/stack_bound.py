"""How much stack an inference takes at most, before anything runs: the deepest way through the graph of calls.

Two witnesses say what a function takes itself: the compiler (``-fstack-usage``), which does not know functions in
assembler or libraries, and the machine code of the linked model. The larger counts. Calls are those of the machine
code, so what a compiler calls of its own accord (``memcpy``, arithmetic in software) is among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlfc.errors import ToolchainError
from mlfc.micro.board.board import Board
from mlfc.micro.board.programs import need, run

_FUNCTION = re.compile(r"([0-9a-f]{4,16}) <(.+)>:")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t([^\t]+)(?:\t(.*))?")
_TARGET = re.compile(r"(?:^|[\s,(])(?:0x)?([0-9a-f]+) <([^>+]+)(\+0x[0-9a-f]+)?>")
_COMMENT = re.compile(r"\t[@;]")
_IMMEDIATE = re.compile(r"#?(-?(?:0x[0-9a-f]+|\d+))")
_ARM_READS = re.compile(r"(str|stm|ldm|cmp|cmn|tst|push|vpush)")
_ARM_PUSHES = re.compile(r"v?stm(db|fd)")
# instructions between the load from a table and the scaling of its index
_TABLE_LOAD = 6
# of the cores with more than 128 KiB of flash; the others leave a byte less
_AVR_CALL = 3
_LISTED = 5
_SECONDS = 60
# an exception of a Cortex-M pushes eight words, with the floating-point registers 26, and a word to align them
_CORTEX_M_FRAME, _CORTEX_M_FLOAT_FRAME = 36, 108
THROUGH_POINTERS = "the graph executor calls operators through pointers"


@dataclass
class MachineFunction:
    """Stack use and calls of a function, from its instructions."""

    name: str
    address: int  # where it begins
    frame: int = 0  # bytes by which it grows the stack at most, without what it calls
    # functions that it calls or jumps to; itself only if it calls itself
    callees: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)  # what it calls, whether the program has it or not
    # the function behind it, unless its last instruction goes elsewhere. Data at its end may look as if not.
    runs_on: str | None = None
    # instructions that the rules do not know, so that `frame` or `callees` may not be all
    untold_growth: list[str] = field(default_factory=list)
    untold_calls: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # functions that it calls and the program does not have


@dataclass(frozen=True)
class Rules:
    """Stack conventions of an architecture."""

    # (mnemonic, operands): bytes by which an instruction grows the stack, 0 for all that do not; None where it does not
    # say how far
    growth: Callable[[str, str], int | None]
    # (mnemonic, operands, before): whether it goes to an address that the text does not name, beyond the function
    # itself; `before` are the instructions in front of it
    is_indirect: Callable[[str, str, Sequence[str]], bool]
    ends: Callable[[str, str], bool]  # (mnemonic, operands): whether no instruction runs behind it
    calls: tuple[str, ...]  # mnemonics that come back
    call_bytes: int = 0  # what a call itself leaves on the stack
    # (name, word_bytes): by how much a function of a library grows the stack for its caller, who calls it to begin
    # with; None for others
    prologue: Callable[[str, int], int | None] = lambda _name, _word_bytes: None
    # the start of a comment that names what other instructions than jumps refer to
    data_comment: str | None = None


def _registers(text: str) -> int:
    """Return how many bytes the registers of an Arm list have, such as ``{r4-r7, lr}``."""
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
    # back to what the frame pointer holds
    return 0 if name == "mov" and rest.strip() in ("r7", "fp") else None


def _arm_indirect(mnemonic: str, operands: str, _before: Sequence[str]) -> bool:
    name = mnemonic.partition(".")[0]
    if name in ("bx", "blx"):
        return operands.strip() != "lr" and "<" not in operands
    # tables of a switch are reached by tbb, tbh and "mov pc"; calls, by the architecture's rule, by bx and blx
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
        # from the frame pointer it is the way back
        return 0 if parts[1] == "s0" else None if amount is None else max(0, -amount)
    return 0 if mnemonic == "mv" and parts[1] == "s0" else None


def _riscv_indirect(mnemonic: str, operands: str, before: Sequence[str]) -> bool:
    if mnemonic not in ("jr", "jalr") or "<" in operands or operands.strip() in ("ra", "t0"):
        return False
    # a jump through a table that is indexed in steps of an address is a switch
    is_switch = mnemonic == "jr" and any(re.match(r"(c\.)?slli?\t.*,0x2$", line) for line in before)
    return not is_switch


def _riscv_prologue(name: str, word_bytes: int) -> int | None:
    saved = re.fullmatch(r"__riscv_save_(\d+)", name)
    # the registers of that number and the way back, in steps of 16 bytes
    return None if saved is None else -(-(int(saved[1]) + 1) * word_bytes // 16) * 16


def _avr_growth(mnemonic: str, operands: str) -> int | None:
    if mnemonic == "push":
        return 1
    # a call of the next instruction makes room for a local variable
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
"""By the architecture of boards."""


def read_functions(
    text: str, rules: Rules, is_data: Callable[[int], bool] = lambda _: False
) -> dict[str, MachineFunction]:
    """Return what ``objdump -d --no-show-raw-insn`` printed of a linked program, by function.

    Labels within a function of assembler count as functions: the one before runs on into them. Of several functions of
    one name, as files have of their own, all but the first have their address in the key: ``start@1c4``.

    `is_data` (address): whether what is printed as an instruction there is none.
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
        # the last instruction apart from data and padding
        last = next((item for item in reversed(body) if not item[0].startswith((".", "nop"))), None)
        if index + 1 < len(blocks) and last is not None and not rules.ends(*last):
            function.runs_on = keys[blocks[index + 1][1]]
    for name in [name for name in found if rules.prologue(name, word_bytes) is not None]:
        # what it leaves is its callers'; what it takes for itself lasts as long as it does
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
            text = text.partition(rules.data_comment)[0]  # noqa: PLW2901  (the part of it that counts)
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
    reached: dict[str, set[str]] = {}  # by jumps alone, as long as no stack is taken
    for start in [name for name, item in functions.items() if item.jumps and not item.grows]:
        there, waiting = reached.setdefault(start, set()), [start]
        while waiting:
            new = {target for target in functions[waiting.pop()].jumps if not functions[target].grows} - there
            there |= new
            waiting += new
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


@dataclass(frozen=True)
class CodeTrial:
    """Code and stack of a model as a compiler makes them; boards with the same compiler and flags share them."""

    sizes: Mapping[str, int]  # bytes by the names of the table's rows; empty where they are not known
    stack: StackBound

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> CodeTrial:
        """Return what `dataclasses.asdict` made an object of."""
        stack = document["stack"]
        frames = tuple(StackFrame(**item) for item in stack["path"])
        return cls(document["sizes"], StackBound(stack["nbytes"], frames, tuple(stack["untold"])))
