"""Structural mutations of small TFLite models: one operator of the sweep, changed, or followed by others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz.onnx_mutants import Drawing, UnfitError, extent, extremes, rank
from tests.tflite_builder import Op, T, build
from tests.tflite_sweep import Form, Kind, cases

Array = npt.NDArray[Any]
_DTYPES = ("float32", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "bool", "float16")
_LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


@dataclass
class Mutant(Drawing):
    """Tensors by name, operators, values of the inputs, and the names of form and mutations."""

    tensors: dict[str, T]
    ops: list[Op]
    feeds: dict[str, Array]
    names: list[str] = field(default_factory=list)
    is_extreme: bool = False

    def outputs(self) -> list[str]:
        """Return the tensors that no operator reads."""
        read = {name for op in self.ops for name in op.inputs}
        return [name for op in self.ops for name in op.outputs if name not in read]

    def arrays(self) -> dict[str, Array]:
        """Return feeds and constants."""
        constants = {name: np.asarray(item.value) for name, item in self.tensors.items() if item.value is not None}
        return {**self.feeds, **constants}

    def put(self, name: str, array: Array) -> None:
        """Replace the value of an input or constant."""
        tensor = replace(self.tensors[name], shape=array.shape)
        if name in self.feeds:
            self.feeds[name] = array
        else:
            tensor = replace(tensor, value=array)
        self.tensors[name] = tensor

    def renamed(self, prefix: str) -> None:
        """Put a prefix before all names, so that models can be merged."""
        add: Callable[[str], str] = lambda name: prefix + name if name else name  # noqa: E731
        self.tensors = {add(name): replace(item, name=add(name)) for name, item in self.tensors.items()}
        self.feeds = {add(name): array for name, array in self.feeds.items()}
        self.ops = [replace(op, inputs=[*map(add, op.inputs)], outputs=[*map(add, op.outputs)]) for op in self.ops]

    def model(self) -> bytes:
        """Return the file."""
        return build(list(self.tensors.values()), self.ops, list(self.feeds), self.outputs())


@cache
def cases_of_sweep() -> list[tuple[Kind, Form]]:
    """Return the forms of the sweep, with their kinds of tensors."""
    return list(cases())


def _dtype(m: Mutant) -> None:
    """Change the dtype of all tensors with some dtype, or of one."""
    old = m.pick(sorted({item.dtype for item in m.tensors.values()}))
    new = m.pick([dtype for dtype in _DTYPES if dtype != old])
    chosen = [name for name, item in m.tensors.items() if item.dtype == old]
    for name in chosen if m.chance(0.6) else [m.pick(chosen)]:
        m.tensors[name] = replace(m.tensors[name], dtype=new)
        if name in m.arrays():
            with np.errstate(all="ignore"):
                m.put(name, m.arrays()[name].astype(new))


def _scale(m: Mutant) -> None:
    name = m.pick([name for name, item in m.tensors.items() if item.dtype in (*_LIMITS, "int32")])
    item = m.tensors[name]
    scale = m.pick((None, 0.1, 1 / 256, 1e-4, 3.0, 50.0, (item.scale or 0.1) * 2, (item.scale or 0.1) * 0.37))
    low, high = _LIMITS.get(item.dtype, (0, 0))
    zero = 0 if item.dtype == "int16" and m.chance(0.8) else m.pick((low, high, 0, (low + high + 1) // 2, 3))
    if np.size(item.scale or 0) > 1 or (scale is not None and m.chance(0.3)):
        raise UnfitError
    m.tensors[name] = replace(item, scale=scale, zero=zero)


def _same_scales(m: Mutant) -> None:
    first = next(item for item in m.tensors.values())
    for name, item in m.tensors.items():
        if item.dtype == first.dtype:
            m.tensors[name] = replace(item, scale=first.scale, zero=first.zero)


def _fields(m: Mutant) -> None:
    place = m.pick([place for place, op in enumerate(m.ops) if op.fields])
    op = m.ops[place]
    name = m.pick(list(op.fields))
    old = op.fields[name]
    if "Activation" in name:
        new: Any = m.pick((0, 1, 2, 3, 4))
    elif isinstance(old, bool):
        new = not old
    elif isinstance(old, float):
        new = m.pick((0.0, 1.0, -1.0, 2.5, old * 3))
    elif isinstance(old, int):
        new = m.pick((0, 1, 2, 3, -1, old + 1, -old))
    else:
        raise UnfitError
    m.ops[place] = replace(op, fields={**op.fields, name: new})


def _fused(m: Mutant) -> None:
    place = m.pick([place for place, op in enumerate(m.ops) if "FusedActivationFunction" in op.fields or
                    op.code in ("ADD", "SUB", "MUL", "DIV", "CONV_2D", "FULLY_CONNECTED", "MAX_POOL_2D")])  # fmt: skip
    op = m.ops[place]
    m.ops[place] = replace(op, fields={**op.fields, "FusedActivationFunction": m.pick((1, 2, 3))})


def _operands(m: Mutant) -> None:
    place = m.pick([place for place, op in enumerate(m.ops) if len(op.inputs) > 1])
    names = list(m.ops[place].inputs)
    one, two = m.rng.permutation(len(names))[:2]
    names[one], names[two] = names[two], names[one] if m.chance(0.5) else names[two]
    m.ops[place] = replace(m.ops[place], inputs=names)


def _to_constant(m: Mutant) -> None:
    name = m.pick(list(m.feeds))
    m.tensors[name] = replace(m.tensors[name], value=m.feeds.pop(name))


def _to_input(m: Mutant) -> None:
    name = m.pick([name for name, item in m.tensors.items() if item.value is not None])
    m.feeds[name] = np.asarray(m.tensors[name].value)
    m.tensors[name] = replace(m.tensors[name], value=None)


def _dynamic(m: Mutant) -> None:
    share = m.pick((0.4, 1.0))
    for name in m.feeds:
        item = m.tensors[name]
        m.tensors[name] = replace(item, signature=[-1 if m.chance(share) else size for size in item.shape])


def _then(m: Mutant) -> None:
    """Apply a shape-preserving operator, or a second form, to a result."""
    source = m.pick(m.outputs())
    before, out = m.tensors[source], f"{source}_z"
    result = replace(before, name=out, value=None)
    if m.chance(0.5):
        fitting = [form for kind, form in cases_of_sweep() if kind.dtype == before.dtype and
                   kind.quantized == (before.scale is not None) and isinstance(form.inputs[0], T) and
                   form.inputs[0].value is None and tuple(form.inputs[0].shape) == tuple(before.shape)]  # fmt: skip
        parts = (form := m.pick(fitting)).parts()
        rename = {item.name: f"{out}{item.name}" for item in parts.tensors} | {"x0": source, "": ""}
        for item in parts.tensors:
            if item.name != "x0":
                m.tensors[rename[item.name]] = replace(item, name=rename[item.name])
        m.feeds |= {rename[name]: array for name, array in form.feeds().items() if name != "x0"}
        names = [[rename[name] for name in group] for group in (parts.op.inputs, parts.op.outputs)]
        m.ops.append(replace(parts.op, inputs=names[0], outputs=names[1]))
        m.names.append(form.title)
        return
    m.tensors[out] = result
    code = m.pick(("RELU", "RELU6", "RELU_N1_TO_1", "ADD", "MUL", "SUB", "MAXIMUM", "ABS", "NEG"))
    if code in ("ADD", "MUL", "SUB", "MAXIMUM"):
        shape = m.pick(((), (1,), tuple(before.shape[-1:])))
        value = np.asarray(np.random.default_rng(3).integers(1, 90, shape)).astype(before.dtype)
        m.tensors[f"{out}c"] = replace(before, name=f"{out}c", shape=shape, value=value)
        options = "MaximumMinimumOptions" if code == "MAXIMUM" else f"{code.title()}Options"
        m.ops.append(Op(code, m.pick(([source, f"{out}c"], [f"{out}c", source])), [out], options))
    else:
        m.ops.append(Op(code, [source], [out], f"{code.title()}Options" if code in ("ABS", "NEG") else None))


_STEPS: tuple[Callable[[Any], None], ...] = (
    extremes, extent, extent, rank, _dtype, _scale, _scale, _same_scales, _fields, _fields, _fused, _operands,
    _to_constant, _to_input, _dynamic, _then, _then, _then,
)  # fmt: skip


def mutant(seed: int, number: int) -> Mutant:
    """Return the mutant of a form of the sweep that two numbers determine."""
    rng = np.random.default_rng((seed, number))
    kind, form = cases_of_sweep()[int(rng.integers(len(cases_of_sweep())))]
    parts = form.parts()
    m = Mutant(rng, {item.name: item for item in parts.tensors}, [parts.op], form.feeds(), [f"{form.title} | {kind}"])
    for _ in range(m.pick((1, 2, 2, 3))):
        step = m.pick(_STEPS)
        before = replace(m, tensors=dict(m.tensors), ops=list(m.ops), feeds=dict(m.feeds))
        try:
            step(m)
            m.names.append(step.__name__.strip("_"))
        except UnfitError:
            m.tensors, m.ops, m.feeds = before.tensors, before.ops, before.feeds
    return m
