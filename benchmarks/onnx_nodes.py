"""How many of ONNX's node tests are imported as they are: ``python -m benchmarks.onnx_nodes``."""

from __future__ import annotations

import re
import warnings
from collections import Counter

import onnx
from rich.console import Console
from rich.table import Table

import mlfc
from mlfc.errors import MlfcError

# what names a test's own tensors and operators, and where a message goes on to say what to do
_OWN = re.compile(r"'[^']*'|#\d+")


def main() -> None:
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
