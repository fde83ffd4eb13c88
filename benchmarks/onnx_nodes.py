"""How many of ONNX's node tests are imported as they are: ``python -m benchmarks.onnx_nodes``.

With ``--run``, how many of them and of the models that PyTorch wrote pass by `mlfc.onnx_backend`, which takes from the
inputs of a run what decides shapes.
"""

from __future__ import annotations

import argparse
import re
import unittest
import warnings
from collections import Counter

import onnx
from onnx.backend.test import BackendTest
from rich.console import Console
from rich.table import Table

import mlfc
from mlfc.errors import MlfcError

# what names a test's own tensors and operators, and where a message goes on to say what to do
_OWN = re.compile(r"'[^']*'|#\d+")
_RANDOM = re.compile("bernoulli|training_dropout_(default_)?(mask_)?cpu")
GROUPS = ("Node", "PyTorchConverted", "PyTorchOperator")
"""Of ONNX's tests: nodes alone, and models that PyTorch wrote."""


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the tests in place of importing their models")
    run() if parser.parse_args().run else count_imports()


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


def count_imports() -> None:
    """Print the count, and the commonest reasons for refusals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        sources = collect_testcases(None)
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
