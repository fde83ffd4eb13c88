"""``mlforge inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mlforge.cli.options import Json
from mlforge.cli.tables import describe_tensor, print_json, print_table

EXAMPLES = ("mlforge inspect kws.tar", "mlforge inspect kws.tar --json")


def inspect(
    artifact: Annotated[Path, typer.Argument(help="An archive.")],
    as_json: Json = False,
) -> None:
    """Show inputs, outputs, operators, memory and files."""
    from mlforge import archive

    found = archive.inspect(artifact)
    if as_json:
        print_json(found)
        return
    for name, module in found["modules"].items():
        _print_module(name, module)
    print_table("files", ("path", "bytes"), [(file["path"], file["bytes"]) for file in found["files"]])


def _print_module(name: str, module: dict[str, Any]) -> None:
    typer.echo(f"module {name}: {module['executor']}, target {', '.join(module['target'])}")
    tensors = [(kind, tensor) for kind in ("inputs", "outputs") for tensor in module[kind]]
    print_table(
        "tensors",
        ("", "name", "type", "scale", "zero point"),
        [
            (kind.removesuffix("s"), tensor["name"], describe_tensor(tensor), tensor["scale"], tensor["zero_point"])
            for kind, tensor in tensors
        ],
    )
    memory = [(key.removesuffix("_bytes").replace("_", " "), size) for key, size in module["memory"].items()]
    print_table("memory", ("", "bytes"), memory)
    operators = [
        (operator["function"], ", ".join(operator["nodes"] or ()), operator["workspace_bytes"], operator["macs"])
        for operator in module["operators"]
    ]
    print_table("operators", ("function", "nodes", "scratch bytes", "MACs"), operators)
    if module["peak"]:
        peak = module["peak"]
        print_table(
            f"peak of {peak['live_bytes']:,} live bytes in {peak['function']}",
            ("tensor", "bytes"),
            [(tensor["name"], tensor["bytes"]) for tensor in peak["tensors"]],
        )
