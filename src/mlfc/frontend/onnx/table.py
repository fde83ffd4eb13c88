"""Table of importers, by domain, operator and the opset that introduced the operator's current definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from mlfc.errors import InternalError, Remedy, nearest
from mlfc.registry import Registry
from mlfc.relay.ir import Expr

if TYPE_CHECKING:
    from mlfc.frontend.onnx.node import Node

OLDEST_OPSET = 1
NEWEST_OPSET = 28
MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"

Convert: TypeAlias = "Callable[[Node], Expr | Sequence[Expr]]"
C = TypeVar("C", bound="Callable[[Node], Expr | Sequence[Expr]]")


@dataclass(frozen=True)
class Importer:
    """Importer of one operator, from one opset on."""

    convert: Convert  # returns the expression of the node's output, or those of its outputs in order
    ignores: frozenset[str]  # attributes that cannot change the result of inference
    folds: bool  # whether the node is evaluated at import when all its inputs are known
    sequences: bool = False  # whether inputs may be sequences of tensors


# by qualified name, the importers of an operator by the first opset that they support
IMPORTERS: Registry[dict[int, Importer]] = Registry("ONNX importer", "mlfc.frontend.onnx")


def normal_domain(domain: str) -> str:
    """Return a domain in canonical form: "ai.onnx" is the empty domain."""
    return "" if domain == "ai.onnx" else domain


def qualified(domain: str, operator: str) -> str:
    """Return the operator's name for messages, qualified by its domain."""
    return f"{domain}.{operator}" if domain else operator


def importer(
    *operators: str,
    since: int = 1,
    domain: str = "",
    ignores: Sequence[str] = (),
    folds: bool = True,
    sequences: bool = False,
) -> Callable[[C], C]:
    """Return a decorator that registers a function as the importer of `operators`."""

    def register(convert: C) -> C:
        for name in (qualified(domain, operator) for operator in operators):
            importers = IMPORTERS.setdefault(name, {})
            if since in importers:
                raise InternalError(f"the importer of {name} since opset {since} is registered twice")
            importers[since] = Importer(convert, frozenset(ignores), folds, sequences)
        return convert

    return register


def find(domain: str, operator: str, opset: int) -> Importer | None:
    """Return the importer for `opset`, or None if it is not supported."""
    fitting = [first for first in since(domain, operator) if first <= opset]
    return IMPORTERS.get(qualified(domain, operator))[fitting[-1]] if fitting else None


def since(domain: str, operator: str) -> list[int]:
    """Return the first opsets of an operator's importers, sorted."""
    name = qualified(domain, operator)
    return sorted(IMPORTERS.get(name)) if name in IMPORTERS else []


def supported(domain: str = "") -> list[str]:
    """Return the names of the supported operators of a domain, sorted."""
    return [name for known, _, name in (item.rpartition(".") for item in IMPORTERS) if known == domain]


def advice(domain: str, operator: str, opset: int = 0) -> str:
    """Return the next step for an unsupported operator: another opset, or a similar supported operator."""
    newer = [first for first in since(domain, operator) if first > opset > 0]
    if newer:
        return f"Export the model with opset {newer[0]} or newer of the domain '{domain or 'ai.onnx'}'"
    if (domain, operator) in _ADVICE:
        return _ADVICE[domain, operator]
    if "String" in operator:
        return _NO_STRINGS
    names = {item.rpartition(".")[2].lower(): item for item in IMPORTERS}
    near = [names[key] for key in nearest(operator.lower(), names)]
    if near and qualified(domain, operator) not in near:
        return f"Supported operators with a similar name: {', '.join(near)}. Otherwise {_DECLARE}"
    return f"{_DECLARE[0].upper()}{_DECLARE[1:]}"


ONNX_RUNTIME = Remedy("--byoc", "onnxruntime")
RUN_IT = f"Run the node in ONNX Runtime (mlfc compile {ONNX_RUNTIME})"
OWN_OPERATORS = "docs/how-to/own-operators.md"
_DECLARE = f"export it as an ONNX local function, or declare it with --op FILE.py: {OWN_OPERATORS}"
_CUT = "Cut the model before this node and do the step in the program that uses the result"
UNROLL = "Export the model with the loop unrolled: a static sequence length makes the iterations plain operators"
_NO_STRINGS = "Generated code has no strings: do the step in the program, and cut the model after this node"
_ADVICE = {
    ("", "MaxRoiPool"): _CUT,
    ("", "ImageDecoder"): "Decode the image in the program, and cut the model after this node",
    ("", "RegexFullMatch"): _NO_STRINGS,
}
