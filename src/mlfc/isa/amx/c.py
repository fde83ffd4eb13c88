"""C forms of products by tiles; every helper also has a form without tiles."""

from __future__ import annotations

import re
from string import Template

from mlfc.codegen.c_types import helper_name, scalar_type
from mlfc.codegen.writer import pieces_beside, text_beside
from mlfc.errors import InternalError
from mlfc.isa.amx.templates import BFLOATS, BYTES, CLOSE, FILTERS, KINDS, OPEN, TileElements
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.ir import Expr

_PIECES = pieces_beside(__file__, "tiles.h")
_SIZES = re.compile(rf"({'|'.join(KINDS)})_([1-4])x([1-4])")
_INSTRUCTIONS = {BYTES.name: "_tile_dpbusd", BFLOATS.name: "_tile_dpbf16ps"}
_TO_FLOAT = "bfloat16_to_float"


def _helper(key: str) -> Helper | None:
    if key == OPEN:
        permission = text_beside(__file__, "permission.h").strip("\n")
        return (), Template(_PIECES["open"]).substitute(permission=permission)
    if key == CLOSE:
        return (), _PIECES["close"]
    sizes = _SIZES.fullmatch(key)
    if sizes is None:
        return None
    kind = KINDS[sizes[1]]
    return (_TO_FLOAT,) if kind is BFLOATS else (), _products(kind, int(sizes[2]), int(sizes[3]))


def _products(kind: TileElements, down: int, across: int) -> str:
    """Return the function for `down` tiles of pixels and `across` vectors of filters."""
    begin, end = [], []
    row = FILTERS * kind.group  # weights of a vector of filters
    multiply = [f"_tile_loadd({6 + j}, factor + {row * j}, 64 * wide);" for j in range(across)]
    for i in range(down):
        stride = "pixel" if kind is BYTES else "2 * pixel"
        multiply.append(f"_tile_loadd({4 + i % 2}, values + {i} * next, {stride});")
        for j in range(across):
            number = i * across + j
            begin.append(f"_tile_loadd({number}, start + {FILTERS * j}, 0);")
            multiply.append(f"{_INSTRUCTIONS[kind.name]}({number}, {4 + i % 2}, {6 + j});")
            end.append(
                f"_tile_stored({number}, sums + {i} * rows * {FILTERS * across} + {FILTERS * j}, {64 * across});"
            )
    wide = "{}[{}]" if kind is BYTES else f"{helper_name(_TO_FLOAT)}({{}}[{{}}])"
    products = [f"{wide.format('group', place)} * {wide.format('own', place)}" for place in range(kind.group)]
    return Template(_PIECES["products"]).substitute(
        name=kind.name,
        down=down,
        across=across,
        group=kind.group,
        sum=scalar_type(kind.sum),
        data=scalar_type(kind.data),
        weight=scalar_type(kind.weight),
        begin=_lines(begin, 4),
        multiply=_lines(multiply, 10),
        end=_lines(end, 4),
        products=" + ".join(products),
    )


def _lines(statements: list[str], indent: int) -> str:
    return "\n".join(f"{' ' * indent}{statement}" for statement in statements)


def _expression(printer: CPrinter, expr: Expr) -> str | None:
    if not isinstance(expr, ir.Call) or expr.name not in (OPEN, CLOSE):
        return None
    return f"{printer.need(expr.name)}({', '.join(map(printer.expr, expr.args))})"


def _store(printer: CPrinter, stmt: ir.Store) -> str | None:
    call = stmt.value
    if not isinstance(call, ir.Call) or call.name not in KINDS:
        return None
    tiles, *operands = call.args[:4]
    numbers = call.args[4:]
    loads = [operand for operand in operands if isinstance(operand, ir.Load)]
    rows = numbers[0]
    if len(loads) != len(operands) or not isinstance(rows, ir.Const):
        raise InternalError(f"C requires the operands of '{call.name}' to be loaded from memory")
    across = dtypes.lanes(loads[0].dtype) // FILTERS
    down = dtypes.lanes(call.dtype) // (int(rows.value) * FILTERS * across)
    addresses = [printer.address(load.buffer, load.indices) for load in loads]
    to = printer.address(stmt.buffer, stmt.indices)
    args = [printer.expr(tiles), to, *addresses, *map(printer.expr, numbers)]
    return f"{printer.need(f'{call.name}_{down}x{across}')}({', '.join(args)});"


C_FORMS.add("amx", CForm(_helper, tuple(_PIECES["includes"].splitlines()), expression=_expression, store=_store))
