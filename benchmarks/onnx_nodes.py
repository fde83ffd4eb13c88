"""Coverage of ONNX's node tests by unmodified imports: ``python -m benchmarks.onnx_nodes``.

``--run`` counts the node tests and PyTorch models that pass with `mlfc.onnx_backend`, which reads values that decide
shapes from the inputs of a run. ``--groups`` counts tests with data-dependent shapes or control flow that pass when
compiled once: unmodified, and by the virtual machine with no declared output shapes.
"""

from __future__ import annotations

import argparse
import re
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx.backend.test import BackendTest
from rich.console import Console
from rich.table import Table

import mlfc
from mlfc.errors import MlfcError

# names of a test's tensors and operators, which would make each message unique
_OWN = re.compile(r"'[^']*'|#\d+")
_RANDOM = re.compile("bernoulli|training_dropout_(default_)?(mask_)?cpu")
GROUPS = ("Node", "PyTorchConverted", "PyTorchOperator")
"""Groups of ONNX's tests: single nodes, and models that PyTorch exported."""
DYNAMIC = (
    "If", "Loop", "Scan", "Sequence", "Optional", "NonZero", "Unique", "Compress", "NonMaxSuppression", "Range",
    "Reshape", "Slice", "Expand",
)  # fmt: skip
"""Parts of the names of operators with data-dependent shapes or control flow."""


def main() -> None:
    """Print the requested counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the tests in place of importing their models")
    parser.add_argument("--groups", action="store_true", help="run those of operators whose shapes follow from data")
    asked = parser.parse_args()
    run() if asked.run else run_groups() if asked.groups else count_imports()


def run() -> None:
    """Print how many tests of each group pass, and the names of those that differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = BackendTest(mlfc.onnx_backend, __name__).exclude("_cuda$").test_cases
        for name in GROUPS:
            run_group(groups[f"OnnxBackend{name}ModelTest"], name)


def run_group(tests: type[unittest.TestCase], name: str) -> None:
    """Print how many tests pass, and the names of those that differ."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(tests).run(result)
    refused = [text for _, text in result.errors if "mlfc.errors." in text]
    differing = [*result.failures, *(item for item in result.errors if item[1] not in refused)]
    ran = result.testsRun - len(result.skipped)
    print(f"onnx {onnx.__version__}, {name}: of {ran:,} tests {ran - len(refused) - len(differing):,} pass,")
    drawn = [item for item in differing if _RANDOM.search(item[0].id())]
    print(f"{len(refused)} are refused, {len(drawn)} expect the random numbers of numpy,")
    print(f"{len(differing) - len(drawn)} differ:")
    for test, text in differing:
        if (test, text) in drawn:
            continue
        print(f"  {test.id().rpartition('.')[2]}: {text.strip().splitlines()[-1][:100]}")


def run_groups() -> None:
    """Print how many tests of each operator pass, and the faults of the others."""
    tests: Counter[str] = Counter()
    passing: Counter[tuple[str, bool]] = Counter()
    failures = []
    for case in _cases():
        operators = set(_operators(case.model.graph))
        groups = [name for name in DYNAMIC if any(_is_of(operator, name) for operator in operators)]
        if not groups or case.name.endswith("_expanded"):
            continue
        tests.update(groups)
        for states in (True, False):
            fault = _fault(case, states=states)
            if fault:
                failures.append(f"{case.name}, shapes {'declared' if states else 'dynamic'}: {fault}")
            else:
                passing.update((name, states) for name in groups)
    table = Table(title=f"onnx {onnx.__version__}: node tests that pass, compiled once")
    for column in ("operator", "tests", "as they are", "no output shape declared"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for name in DYNAMIC:
        table.add_row(name, str(tests[name]), *(str(passing[name, states]) for states in (True, False)))
    Console(width=140).print(table)
    print("\n".join(failures) or "all pass")


def _is_of(operator: str, name: str) -> bool:
    """Return whether an operator belongs to a group; those of sequences and optionals have several operators."""
    return name in operator if name in ("Sequence", "Optional") else operator == name


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the operators of a graph and of its subgraphs."""
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g)


def _fault(case: Any, *, states: bool) -> str:
    """Return why a test does not pass; an empty string if it does."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for item in () if states else model.graph.output:
        kind = item.type
        while kind.WhichOneof("value") != "tensor_type":
            kind = getattr(kind, kind.WhichOneof("value")).elem_type
        for size in kind.tensor_type.shape.dim:
            size.ClearField("dim_value")
    try:
        compiled = mlfc.compile(model, "llvm") if states else mlfc.compile(model, "llvm", executor="vm")
        for inputs, expected in case.data_sets:
            given = {info.name: _value(value) for info, value in zip(model.graph.input, inputs, strict=True)}
            known = {info.name for info in compiled.inputs}
            results = compiled.run({name: value for name, value in given.items() if name in known})
            if not _is_same([*results.values()], [_value(value) for value in expected], case):
                return "differs"
    except MlfcError as error:
        return " ".join(str(error).split())[:150]
    return ""


def _value(value: Any) -> Any:
    """Return a value of a test in mlfc's form: a sequence is a list, an optional may be None."""
    return value if value is None or isinstance(value, (list, Mapping)) else np.asarray(value)


def _is_same(found: Any, expected: Any, case: Any) -> bool:
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(_is_same(one, other, case) for one, other in zip(found, expected, strict=True))
        )
    if expected is None or found is None:
        return found is expected
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if expected.dtype.kind not in "fV":
        return np.array_equal(found, expected)
    wide = found.astype(np.float64), expected.astype(np.float64)
    return np.allclose(*wide, rtol=case.rtol, atol=case.atol, equal_nan=True)


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def count_imports() -> None:
    """Print the count, and the most common reasons for rejection."""
    sources = _cases()
    refusals: Counter[str] = Counter()
    for source in sources:
        try:
            mlfc.import_model(source.model.SerializeToString(), name=source.name)
        except MlfcError as error:
            refusals[_OWN.sub("_", str(error).replace(source.name, "_"))[:110]] += 1
    done = len(sources) - refusals.total()
    table = Table(title=f"onnx {onnx.__version__}: {done:,} of {len(sources):,} node tests are imported as they are")
    table.add_column("tests", justify="right")
    table.add_column("refused")
    for reason, count in refusals.most_common(20):
        table.add_row(str(count), reason)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
