"""``mlfc inspect``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.artifacts import archive_of, core_warnings
from mlfc.cli.memory import planned_memory, print_memory
from mlfc.cli.options import OF_ITS_ARCHIVE, BoardOptions, Inputs, target_option
from mlfc.cli.tables import LEVELS_TITLE, bar, describe_tensor, device_line, print_json, print_table, tiling_line
from mlfc.errors import OptionError, unknown
from mlfc.support.dtypes import SCALARS, to_numpy
from mlfc.support.text import printable, shortened, with_article

if TYPE_CHECKING:
    from mlfc.cli.options import Inputs
    from mlfc.micro.board.board import Board

EXAMPLES = (
    "mlfc inspect kws.tflite --layers",
    "mlfc inspect kws.tar",
    "mlfc inspect kws.tar --layers",
    "mlfc inspect kws.tar --picture memory.svg",
    "mlfc inspect kws.tar --json",
    "mlfc inspect kws.so",
    "mlfc inspect kws.tar --board mps2-an386",
    "mlfc inspect kws.tflite --board mps3-an547",
)
_PEAK_TENSORS = 8
_TENSOR_NUMBERS = ("scale", "zero_point")
_LAYER_COLUMNS = ("call", "operator", "live bytes", "", "scratch", "bytes moved", "MACs", "MACs/byte", "note")
_OPERATOR_NUMBERS = ("workspace_bytes", "bytes", "macs", "intensity")


def inspect(
    artifact: Annotated[
        Path, typer.Argument(help="A model, an archive of any version of mlfc or TVM, or a library in any form.")
    ],
    *,
    layers: bool = False,
    weights: bool = False,
    files: bool = False,
    picture: Path | None = None,
    module: str | None = None,
    board: Annotated[
        str | None,
        typer.Option(
            "--board",
            metavar="NAME",
            help="Show the memory used on a board, region by region, before anything is built.",
        ),
    ] = None,
    trust_board: bool = False,
    target: Annotated[str | None, target_option(OF_ITS_ARCHIVE)] = None,
    fixed: Inputs,
    as_json: bool = False,
) -> None:
    """Show interface, memory, operators, weights and files.

    Memory is listed by pool and by layer; for a library its module tree is shown. A model is compiled first, in memory:
    the output describes the archive that `mlfc compile` would write.
    """
    from mlfc import archive
    from mlfc.archive.describe.memory_map import memory_picture
    from mlfc.archive.read.load import artifact_kind
    from mlfc.support.atomic import write_bytes
    from mlfc.target.target import PORTABLE

    has_views = layers or weights or files or picture is not None
    on_board = BoardOptions(board, trust_board).chosen(target)
    if on_board is not None:
        if has_views:
            raise OptionError("option --board excludes the other views", next_step="Remove the other options")
        _show_board_memory(artifact, on_board, str(board), module, fixed, as_json)
        return
    kind = artifact_kind(artifact)
    if kind != "model":
        fixed.refuse("requires a model; the inputs of compiled artifacts are static")
        if target is not None:
            raise OptionError("option --target requires a model", place=str(artifact), next_step="Remove --target")
    if kind in ("library", "objects"):
        if has_views:
            raise OptionError(
                "a library has no details of layers, weights and files",
                place=str(artifact),
                next_step="Inspect the archive, or remove the other options",
            )
        _show_library(artifact, as_json)
        return
    with archive_of(artifact, fixed, target or PORTABLE) as compiled:
        found = archive.inspect(compiled)
    if module is not None:
        found = {**found, "modules": {module: found["modules"][_only(found["modules"], module)]}}
    if picture is not None:
        name = _only(found["modules"])
        write_bytes(picture, memory_picture(found["modules"][name], name).encode())
    if as_json:
        print_json(found)
        return
    _print_head(artifact, found)
    for name, item in found["modules"].items():
        _print_module(name, item)
        if layers:
            _print_layers(item)
        if weights and item["constants"] is not None:
            _print_weights(item["constants"])
        _print_rest(item, layers=layers, weights=weights)
    _print_shared(found["shared"])
    if files:
        print_table("files", ("path", "bytes"), [(file["path"], file["bytes"]) for file in found["files"]])


def _show_board_memory(
    artifact: Path, board: Board, named: str, module: str | None, inputs: Inputs, as_json: bool
) -> None:
    """Print the table; raise BudgetError if the board has less memory."""
    from mlfc.micro.firmware.planned_memory import check_fit

    warnings = core_warnings(artifact, board, named, module)
    table, details = planned_memory(artifact, board, module, inputs)
    if as_json:
        print_json({**table.as_json(), **warnings})
    else:
        print_memory(table)
    check_fit(table, details)


def _print_head(artifact: Path, found: Mapping[str, Any]) -> None:
    size = sum(file["bytes"] for file in found["files"])
    writer = f", written by {found['writer']}" if found["writer"] else ""
    form = f"{'as the RFC proposed, ' if found['form'] == 'rfc' else ''}{found['style']}{writer}"
    typer.echo(
        printable(f"{artifact}: version {found['version']}, {form}; {len(found['files'])} files of {size:,} bytes")
    )


def _only(modules: Mapping[str, Any], wanted: str | None = None) -> str:
    if wanted in modules:
        return str(wanted)
    if wanted is None and len(modules) == 1:
        return next(iter(modules))
    raise OptionError(
        f"expected one module, got {len(modules)}" if wanted is None else unknown("module", wanted, modules),
        place="--module",
        next_step=f"Name one of: {', '.join(modules)}",
    )


def _print_facts(facts: Mapping[str, Any]) -> None:
    for title, value in facts.items():
        typer.echo(printable(f"  {title}: {value:,}" if isinstance(value, int) else f"  {title}: {value}"))


def _print_module(name: str, module: dict[str, Any]) -> None:
    target = ", ".join(module["target"])
    typer.echo(printable(f"\nmodule {name}: {module['executor'] or 'functions'}, target {target}"))
    source = module["source"]
    if source and source.get("name"):
        typer.echo(printable(f"  made from {source['name']}, SHA-256 {source.get('sha256', '-')}"))
    _print_facts(module["facts"])
    tensors = [(kind, tensor) for kind in ("inputs", "outputs", "states") for tensor in module[kind]]
    if tensors:
        rows = [
            (kind.removesuffix("s"), tensor["name"], describe_tensor(tensor), byte_text(tensor),
             *map(tensor.get, _TENSOR_NUMBERS))
            for kind, tensor in tensors
        ]  # fmt: skip
        print_table("tensors", ("", "name", "type", "bytes", "scale", "zero point"), rows)
    for function, buffers in (module["functions"] or {}).items():
        rows = [(item["input_binding"], describe_tensor(item), item["bytes"]) for item in buffers]
        print_table(f"function {function}", ("parameter", "type", "bytes"), rows)
    if module["vm"]:
        _print_vm(module["vm"])
    memory = [
        (key.removesuffix("_bytes").replace("_", " "), size)
        for key, size in module["memory"].items()
        if size is not None and (size or key != "state_bytes")
    ]
    if module["workspace_io"]:
        memory.append(("of these in the workspace: io", module["memory"]["io_bytes"]))
    if module["vm"] and module["vm"]["work_bytes"] is not None:
        memory.insert(0, ("work area, including workspace", module["vm"]["work_bytes"]))
    for kind, pools in (("workspace", module["pools"]), ("constants", module["constant_pools"])):
        memory += [(f"{kind} in {pool['name']}", pool["bytes"]) for pool in pools or ()]
    if module["vm"] and module["vm"]["arena_bytes"] is None:
        unbounded = [item["name"] for item in module["vm"]["symbols"] if item["high"] is None]
        memory.insert(0, ("workspace", f"no bound ({', '.join(unbounded) or 'lists'})"))
    if memory:
        print_table("memory", ("", "bytes"), memory)
    if module["stripes"]:
        typer.echo(printable(tiling_line(module["stripes"], len(module["operators"]))))
    on_device = device_line(module["operators"])
    if on_device:
        typer.echo(printable(on_device))
    if module["peak"]:
        _print_peak(module)


def byte_text(tensor: Mapping[str, Any]) -> object:
    """Return the bytes of a tensor: with dynamic dimensions their bound, or the formula if there is none."""
    shape, nbytes = tensor["shape"] or (), tensor["bytes"]
    if all(isinstance(extent, int) for extent in shape):
        return nbytes
    if nbytes is not None:
        return f"at most {nbytes:,}"
    factors = [to_numpy(tensor["dtype"]).itemsize, *shape] if tensor["dtype"] in SCALARS else []
    return " * ".join(f"({item})" if " " in str(item) else str(item) for item in factors if item != 1) or None


def _print_vm(vm: Mapping[str, Any]) -> None:
    """Print dynamic dimensions, sequences and optionals."""
    if vm["symbols"]:
        rows = [
            (item["name"], item["low"], "no bound" if item["high"] is None else item["high"]) for item in vm["symbols"]
        ]
        print_table("dynamic dimensions", ("name", "from", "to"), rows)
    if vm["containers"]:
        containers = [
            (item["binding"], item["name"], f"{item['kind']} of {describe_tensor(item)}", ", ".join(item["tensors"]))
            for item in vm["containers"]
        ]
        print_table("sequences and optionals", ("", "name", "type", "tensors"), containers)
    allocating = "" if vm["arena_bytes"] is not None else "; memory is allocated at run time"
    typer.echo(f"  {vm['kernels']:,} kernels{allocating}")


def _print_peak(module: dict[str, Any]) -> None:
    from mlfc.archive.describe.inspect import overlap_note

    peak = module["peak"]
    operator = module["operators"][peak["call"]] if peak["call"] is not None else {}
    tensors = operator.get("tensors") or peak["tensors"]
    shown = tensors[:_PEAK_TENSORS]
    bases = {pool["name"]: pool["base"] for pool in module["pools"] or ()}
    rows: list[tuple[object, ...]] = []
    for tensor in shown:
        offset, pool = tensor.get("offset"), tensor.get("pool")
        place = offset if offset is None or pool is None else f"{pool} + {offset - bases[pool]:,}"
        rows.append((tensor["name"], tensor["bytes"], place, overlap_note(tensor, tensors)))
    if len(shown) < len(tensors):
        hidden = tensors[len(shown) :]
        rows.append((f"{len(hidden)} more", sum(item["bytes"] for item in hidden), None, ""))
    columns = ["tensor", "bytes", "offset", "note"]
    if not any(row[-1] for row in rows):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    call = "" if peak["call"] is None else f"call {peak['call']}, "
    nodes = f" ({shortened(', '.join(peak['nodes']))})" if peak["nodes"] else ""
    title = f"peak of {peak['live_bytes']:,} live bytes: {call}{peak['function']}{nodes}"
    print_table(title, columns, rows)


def _print_layers(module: dict[str, Any]) -> None:
    from mlfc.archive.describe.inspect import overlap_notes

    operators, peak = module["operators"], module["peak"]
    notes = overlap_notes([operator["tensors"] or () for operator in operators])
    most = peak["live_bytes"] if peak else 0
    rows = []
    for index, operator in enumerate(operators):
        live = operator["live_bytes"]
        mark = " peak" if peak and peak["call"] == index else ""
        shown = None if live is None else f"{bar(live, most)}{mark}"
        name = ", ".join(operator["nodes"] or ()) or operator["function"]
        rows.append((index, name, live, shown, *map(operator.get, _OPERATOR_NUMBERS), notes[index] and "in place"))
    columns: tuple[str, ...] = _LAYER_COLUMNS
    if module["vm"] and module["vm"]["arena_bytes"] is None:  # columns without a value are dropped
        kept = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
        kept = sorted({*kept, columns.index("live bytes"), columns.index("MACs")})
        columns = tuple(columns[index] for index in kept)
        rows = [tuple("no bound" if row[index] is None else row[index] for index in kept) for row in rows]
    print_table("layers", columns, rows, optional=("", "MACs/byte", "bytes moved", "scratch"))
    if any(notes):
        typer.echo("  in place: shares memory with an input, each byte of which is read before it is overwritten")


def _print_weights(constants: list[dict[str, Any]]) -> None:
    largest = constants[0]["bytes"] if constants else 0
    rows = []
    for item in constants:
        name = f"{item['name']} = {item['source']}" if "source" in item else item["name"]
        nbytes = item["bytes"]
        rows.append((name, describe_tensor(item), nbytes, 100 * item["share"], bar(nbytes, largest)))
    print_table("weights", ("name", "type", "bytes", "share %", ""), rows, optional=("", "share %"))


def _print_rest(module: dict[str, Any], *, layers: bool, weights: bool) -> None:
    """Print the options that show more, and the facts that the archive does not record."""
    operators, constants = module["operators"], module["constants"]
    macs = [operator["macs"] for operator in operators]
    more = []
    if operators and not layers:
        more.append(f"{len(operators)} operators{'' if None in macs else f' of {sum(macs):,} MACs'} (--layers)")
    if constants and not weights:
        more.append(f"{len(constants)} weights (--weights)")
    if more:
        typer.echo(f"  {', '.join(more)}")
    tree = module["module_tree"] or []
    if len(tree) > 1 or module["devices"]:
        rows = [(index, node["type_key"], node["parent"], ", ".join(node["files"])) for index, node in enumerate(tree)]
        print_table("modules of devices", ("", "type", "imported by", "files"), rows)
    if module["untold"]:
        typer.echo(f"  The archive does not record: {', '.join(module['untold'])}.")


def _print_shared(shared: Mapping[str, Any] | None) -> None:
    if not shared:
        return
    rows: list[tuple[str, int | None]] = []
    if shared["workspace_bytes"]:
        rows.append((f"workspace of {', '.join(shared['workspace_modules'])}", shared["workspace_bytes"]))
    if shared["constants_bytes"]:
        rows.append(("constants", shared["constants_bytes"]))
    if shared["functions"]:
        rows.append((f"code: {len(shared['functions'])} functions", None))
    if rows:
        typer.echo("")
        print_table("shared by modules", ("", "bytes"), rows)


def _show_library(path: Path, as_json: bool) -> None:
    """Print the contents of a library."""
    from mlfc.archive.describe.inspect_library import inspect_library

    found = inspect_library(path)
    if as_json:
        print_json(found)
        return
    library, (file,) = found["library"], found["files"]
    interface = "" if library["interface"] is None else f", interface version {library['interface']}"
    form = with_article(library["form"])
    typer.echo(printable(f"{path}: {form} for {library['machine']}, {file['bytes']:,} bytes{interface}"))
    if library["levels"]:
        print_table(LEVELS_TITLE, ("level", "bytes"), list(library["levels"].items()))
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
        kinds = ("inputs", "outputs", "states")
        tensors = [(kind.removesuffix("s"), tensor) for kind in kinds for tensor in module[kind] or ()]
        described = [(kind, tensor["name"], describe_tensor(tensor)) for kind, tensor in tensors]
        print_table(f"module {name}: {module['executor']}", ("", "name", "type"), described)
        _print_facts(module["facts"])
        if module["vm"]:
            _print_vm(module["vm"])
        sizes = {key.removesuffix("_bytes").replace("_", " "): size for key, size in (module["memory"] or {}).items()}
        print_table(f"module {name}: memory", ("", "bytes"), list(sizes.items()))
