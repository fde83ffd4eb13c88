"""What machine code says of the stack: how far each function grows it, whom it calls, and what cannot be told.

A compiler states the frames of what it compiled. Of libraries, and of functions in assembler, only their instructions
tell. They are read as ``objdump -d`` prints them, by rules for each architecture: every instruction that lowers the
stack pointer counts once, as if all of a function's ran before any is taken back: no function of a library lowers it
again and again in a loop. What the rules do not know is named, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_FUNCTION = re.compile(r"([0-9a-f]{4,16}) <(.+)>:")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t([^\t]+)(?:\t(.*))?")
_TARGET = re.compile(r"(?:^|[\s,(])(?:0x)?([0-9a-f]+) <([^>+]+)(\+0x[0-9a-f]+)?>")
_COMMENT = re.compile(r"\t[@;]")
_IMMEDIATE = re.compile(r"#?(-?(?:0x[0-9a-f]+|\d+))")


@dataclass
class MachineFunction:
    """What the instructions of a function say."""

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
    """How an architecture treats its stack."""

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


_ARM_READS = re.compile(r"(str|stm|ldm|cmp|cmn|tst|push|vpush)")
_ARM_PUSHES = re.compile(r"v?stm(db|fd)")


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


def _riscv_ends(mnemonic: str, _operands: str) -> bool:
    return mnemonic in ("j", "jr", "ret", "tail", "ebreak", "unimp", "mret")


def _avr_growth(mnemonic: str, operands: str) -> int | None:
    if mnemonic == "push":
        return 1
    # a call of the next instruction makes room for a local variable
    if mnemonic == "rcall" and operands.startswith(".+0"):
        return _AVR_CALL
    return None if mnemonic == "out" and operands.startswith(("0x3d", "0x3e")) else 0


def _avr_indirect(mnemonic: str, _operands: str, _before: Sequence[str]) -> bool:
    return mnemonic in ("icall", "eicall", "ijmp", "eijmp")


def _avr_ends(mnemonic: str, _operands: str) -> bool:
    return mnemonic in ("ret", "reti", "jmp", "rjmp")


# instructions between the load from a table and the scaling of its index
_TABLE_LOAD = 6
# of the cores with more than 128 KiB of flash; the others leave a byte less
_AVR_CALL = 3

RULES = {
    "cortex-m": Rules(_arm_growth, _arm_indirect, _arm_ends, ("bl", "blx")),
    "riscv": Rules(
        _riscv_growth,
        _riscv_indirect,
        _riscv_ends,
        ("jal", "jalr", "call"),
        prologue=_riscv_prologue,
        data_comment=" # ",
    ),
    "avr": Rules(_avr_growth, _avr_indirect, _avr_ends, ("call", "rcall"), call_bytes=_AVR_CALL),
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
    keys = _keys([(name, address) for name, address, _ in blocks])
    found: dict[str, MachineFunction] = {}
    for index, (_, address, body) in enumerate(blocks):
        function = found[keys[address]] = MachineFunction(keys[address], address, rules.call_bytes)
        _read_body(function, body, rules, word_bytes, keys)
        if index + 1 < len(blocks) and _runs_on(body, rules):
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


def _keys(functions: Sequence[tuple[str, int]]) -> dict[int, str]:
    """Return a key for each function, by address, from its name."""
    keys: dict[int, str] = {}
    names: set[str] = set()
    for name, address in functions:
        keys[address] = f"{name}@{address:x}" if name in names else name
        names.add(name)
    return keys


def _read_body(
    function: MachineFunction,
    body: Sequence[tuple[str, str]],
    rules: Rules,
    word_bytes: int,
    keys: Mapping[int, str],
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


def _runs_on(body: Sequence[tuple[str, str]], rules: Rules) -> bool:
    """Tell whether the last instruction, apart from data and padding, lets the next one run."""
    for mnemonic, text in reversed(body):
        if not mnemonic.startswith((".", "nop")):
            return not rules.ends(mnemonic, text)
    return False
