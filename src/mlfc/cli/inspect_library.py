"""What ``mlfc inspect`` shows of a shared library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from mlfc.cli.tables import describe_tensor, print_json, print_table
from mlfc.support.text import printable, with_article


def show_library(path: Path, as_json: bool) -> None:
    """Print what a shared library carries."""
    from mlfc.archive.describe.inspect_library import inspect_library

    found = inspect_library(path)
    if as_json:
        print_json(found)
        return
    library, (file,) = found["library"], found["files"]
    interface = "" if library["interface"] is None else f", interface version {library['interface']}"
    form = with_article(library["form"])
    typer.echo(printable(f"{path}: {form} for {library['machine']}, {file['bytes']:,} bytes{interface}"))
    for abi, tree in library["trees"].items():
        rows = [
            (index, node["type_key"], node["bytes"], ", ".join(map(str, node["imports"])) or None)
            for index, node in enumerate(tree)
        ]
        print_table(f"module tree for readers of the generation {abi}", ("", "type", "bytes", "imports"), rows)
    for abi, names in library["functions"].items():
        if names:
            print_table(f"functions, called as those of {abi}", ("name",), [(name,) for name in names])
    for name, module in found["modules"].items():
        _print_module(name, module)


def _print_module(name: str, module: Mapping[str, Any]) -> None:
    rows = [
        (kind, tensor["name"], describe_tensor(tensor))
        for kind, tensors in (("input", module["inputs"]), ("output", module["outputs"]))
        for tensor in tensors or ()
    ]
    print_table(f"module {name}: {module['executor']}", ("", "name", "type"), rows)
    print_table(
        f"module {name}: memory",
        ("", "bytes"),
        [(key.removesuffix("_bytes").replace("_", " "), size) for key, size in (module["memory"] or {}).items()],
    )
