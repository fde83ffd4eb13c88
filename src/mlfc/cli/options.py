"""Options of all commands, declared once, and parsers for option values with their own syntax."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from mlfc.cli.build_file import read_options
from mlfc.errors import OptionError
from mlfc.options import CompileOptions
from mlfc.support.keywords import doc_of
from mlfc.support.text import byte_count, model_title
from mlfc.target.features import CPUS
from mlfc.target.target import KINDS, PORTABLE

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board
    from mlfc.support.tensor_info import Array

OF_ITS_ARCHIVE = "Target of a model. Default: c, as for the archives of mlfc compile."
_FEW = 30
_ZEROS = "zeros"
_SEVERAL = "--max-growth"


def _option(text: str = "", metavar: str | None = None, flags: str = "", panel: str | None = None, **more: Any) -> Any:
    return flags.split(), {"help": text, "metavar": metavar, "rich_help_panel": panel, **more}


def _board_names(incomplete: str) -> list[str]:
    """Complete a board's name for shells."""
    from mlfc.micro.board.board import boards

    return [name for name in boards() if name.startswith(incomplete.lower())]


def _target_names(incomplete: str) -> list[str]:
    """Complete a target for shells: a kind, or a processor, which alone stands for C on it."""
    return [name for name in (*KINDS, *CPUS) if name.startswith(incomplete)]


_size = partial(_option, metavar="BYTES", parser=byte_count)
_code = partial(_option, panel="Code generation")
_memory = partial(_option, panel="Memory")
_library = partial(_option, panel="Library")
_archive = partial(_option, panel="Archive")
# of options classes, by the annotations of their fields
_KINDS: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "Log": Path, "str | os.PathLike[str]": Path,
    "Sequence[str]": list[str],
}  # fmt: skip
# By parameter; its name is the flag unless flags are given. Without a text, that of `CompileOptions` is shown. Commands
# whose option has another meaning annotate their own parameter.
OPTIONS = {
    "abi": _library(
        "Calling conventions of a library: packed functions of TVM up to 0.20, those of tvm-ffi, or both (default).",
        "classic,ffi",
    ),
    "as_json": _option("Print JSON.", flags="--json"),
    "board": _option(
        "A board of mlfc boards, or a .toml file that describes one.", "NAME", autocompletion=_board_names
    ),
    "board_pools": _memory("Distribute the workspace over the board's memories."),
    "budget": _option(metavar="SECONDS"),
    "byoc": _code(metavar="NAME"),
    "cc": _library("The C compiler of a library. Default: $CC, or a compiler on the PATH.", "COMMAND"),
    "compile_code": _option("Compile the code of both for this machine and compare its size.", flags="--compile"),
    "config": _option(
        "Options from a TOML file: ram = 65536; the command line takes precedence.",
        "FILE",
        callback=read_options,
        is_eager=True,
    ),
    "constants": _memory(
        "A memory for constants, by a section of its name; repeatable, the fastest first.", "NAME[=BYTES]"
    ),
    "device": _option(
        "A device of this machine, such as opencl or cuda:1; a model is compiled for it. Default: the one that the"
        " artifact was compiled for.",
        "KIND[:INDEX]",
    ),
    "emit": _option(
        "mlf (archive), c (C files in a folder), o (objects and headers in a folder); or a library with its header: so"
        " (shared: .so, .dll, .dylib or .wasm, by --triple), a (static), tar (of objects). Default: so or a if -o has"
        " such a suffix, else mlf."
    ),
    "executor": _option(
        f"{doc_of(CompileOptions, 'executor')} NAME=graph for one of several modules.", "[NAME=]aot|graph|vm"
    ),
    "external_workspace": _memory(flags="--external-workspace/--static-workspace"),
    "files": _option("Each file of the archive."),
    "fill": _option("Without --inputs: random, zeros or ones."),
    "flash": _size("Fail if the constants, with --board also the model's code, exceed this size."),
    "force": _option("Overwrite existing files.", flags="--force -f"),
    "format_version": _archive(),
    "host_driven": _option("Run the graph on this machine and every operator on the board."),
    "inputs": _option(
        ".npz with the inputs by name, or arr_0, arr_1, ... by position; .npy; an image, a WAV file, or a folder."
        " Several sets along a leading axis are consecutive steps of a model with state."
    ),
    "labels": _option("Class labels of the largest values, one a line."),
    "layers": _option("Each operator: live memory, bytes moved, MACs."),
    "limit_factor": _code(metavar="N"),
    "load_constants": _memory(
        "A memory that the caller loads with constants, from a file beside the code; comes after --constants.",
        "NAME[=BYTES]",
    ),
    "mean": _option("Of images and sound: subtracted after --scale.", "R,G,B"),
    "matrix": _option(
        "Compile all combinations of the models, targets and options in a file into the folder or .tar of -o.",
        "FILE.toml",
        panel="Matrix",
    ),
    "memory": _option("With --board: bytes that the linked firmware uses in each region."),
    "memory_limit": _size("Maximum memory of a run of the virtual machine. Default: none."),
    "turn_limit": _option(
        "Maximum loop iterations and calls of a run of the virtual machine. Default: 100,000,000.", "N"
    ),
    "module": _option("The module, if there are several.", "NAME"),
    "module_name": _option("Default: from the file name."),
    "numerics": _option(),
    "op": _code("Run a Python file that declares operators or code generators; repeatable.", "FILE.py"),
    "optimize": _option(),
    "option": _option("An option of the project; repeatable.", "NAME=VALUE"),
    "output": _option("Default: <name>.tar.", flags="--output -o"),
    "outputs": _option("Write the outputs to this .npz file."),
    "params_form": _archive("Parameters also as json or bson; repeatable."),
    "picture": _option("Draw the memory map during each call.", "FILE.svg"),
    "pool": _memory("A memory for the workspace; repeatable, the fastest first.", "NAME[=BYTES]"),
    "port": _option("With --host-driven: the serial port of a board that has the firmware, such as /dev/ttyACM0."),
    "profile": _option(
        "Time every operator: medians over the runs, after one to warm up; with the share of this machine's peak."
    ),
    "profile_html": _option("Write the profile as one page: a picture by stages, and a table.", "FILE.html"),
    "trace": _option("Write every call of an operator, for Perfetto or chrome://tracing.", "FILE.json"),
    "ram": _size(
        "Tile layers by rows to keep workspace, inputs and outputs within this size; fail if the workspace,"
        " with --board everything in RAM, exceeds them."
    ),
    "real": _option("Quantize real inputs, and dequantize outputs."),
    "rfc": _archive(flags="--rfc/--tvm"),
    "runtime": _archive(flags="--runtime/--no-runtime"),
    "scale": _option("Of images and sound: factor of pixels, usually 1/255, or samples.", "NUMBER"),
    "seed": _option("Seed of the random inputs."),
    "selftest": _option("Check the archive's test vectors on the board, or on this machine."),
    "shape": _option(
        "The shape of an input; repeatable. A name is a dynamic dimension, with bounds or without:"
        " NAME=batch:1..32,3,224,224.",
        "NAME=1,3,224,224",
    ),
    "value": _option(
        "Make an input a constant: a number that fills it, or its elements in order; or a .npy file. Repeatable.",
        "NAME=16000",
    ),
    "share_weights": _memory(flags="--share-weights/--own-weights"),
    "share_workspace": _memory(flags="--share-workspace/--own-workspace"),
    "source_params": _archive(flags="--source-params/--no-source-params"),
    "parallel": _library(flags="--parallel/--no-parallel"),
    "specialize": _code(
        "Specialized code for values of dynamic dimensions, which is faster and produces the same bits; repeatable.",
        "batch=8[,...]",
    ),
    "std": _option("Of images and sound: the divisor after --mean.", "R,G,B"),
    "state": _memory(
        "Keep an input: the output after = is its value in the next run, and neither is passed; repeatable.",
        "NAME=OUTPUT",
    ),
    "state_in": _option("Start with the state in this .npz file.", "FILE"),
    "state_out": _option("Write the state after the last run to this .npz file.", "FILE"),
    "state_init": _memory(
        "Initial state: zeros, or a .npz file with arrays by the names of inputs or variables. Default: as the"
        " model specifies, else zeros.",
        "zeros|FILE",
    ),
    "signature": _code(metavar="NAME"),
    "system_lib": _archive(flags="--system-lib/--no-system-lib"),
    "target": _option(
        "Compile for: c, 'c -mcpu=cortex-m4', opencl, ... Default: c; for libraries 'c -mcpu=auto', which is fast on"
        " every processor, as is 'llvm -mcpu=auto'.",
        autocompletion=_target_names,
    ),
    "target_host": _code(),
    "scheduler": _option(
        "A dask scheduler: workers with the resource BUILD build, those with MEASURE measure.",
        "tcp://HOST:PORT",
        panel="Matrix",
    ),
    "template": _option("A template of mlfc project list.", "NAME"),
    "tensors": _option("With --host-driven: write every operator's output to this .npz file."),
    "test_vectors": _archive(),
    "timeout": _option("Stop firmware that has not ended after this many seconds."),
    "threads": _option(
        "Maximum threads of a kernel of a model or library. Default: TVM_NUM_THREADS, else the cores of a"
        " socket that the process may use; small models run on one.",
        "N",
    ),
    "top": _option("Show the largest K values of each output."),
    "tuned": _code(metavar="LOG"),
    "trials": _option(metavar="N"),
    "triple": _library(
        "The machine of a library, such as aarch64-linux-gnu; the ziglang wheel compiles (mlfc[cross]). Default:"
        " this one."
    ),
    "trust_board": _code("Let the board's .toml file name any compiler, emulator, option and flash tool."),
    "weights": _option("Each constant, the largest first."),
    "workspace_io": _memory(flags="--workspace-io/--own-io"),
}


def numbers(option: str, text: str | None, usual: tuple[float, ...]) -> tuple[float, ...]:
    """Return the numbers of an option's text, such as 0.485,0.456,0.406 or 1/255."""
    try:
        return usual if text is None else tuple(float(Fraction(part)) for part in text.split(","))
    except (ValueError, ArithmeticError):
        raise OptionError(f"expected numbers such as 0.485,0.456,0.406 or 1/255, got '{text}'", place=option) from None


def size_option(text: str) -> Any:
    """Return typer's declaration of a command's own option with a size in bytes."""
    return typer.Option(metavar="BYTES", parser=byte_count, help=text)


def target_option(text: str) -> Any:
    """Return typer's declaration of a command's own target option."""
    return typer.Option(help=text, autocompletion=_target_names)


@dataclass(frozen=True)
class Fields:
    """Annotation of a command's parameter for options of a class, with their documentation.

    The parameter's value is a mapping of the options with a value; if `optional`, only of those that the user set.
    `panel` is the help group of options without a group.
    """

    kind: type[Any]
    names: tuple[str, ...]
    optional: bool = False
    panel: str | None = None

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield a parameter of the command for each option."""
        known = {item.name: item for item in fields(self.kind)}
        for name in self.names:
            kind = _KINDS[str(known[name].type).removesuffix(" | None")]
            has_default = not self.optional and kind in (bool, int, float, str)
            default = known[name].default if has_default else None
            hint = kind if default is not None else kind | None
            param = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            yield _declared(param, doc_of(self.kind, name), self.panel)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Declare a command's parameters to typer from `OPTIONS`, except those with their own declaration.

    A parameter whose type is a dataclass is replaced by its fields: each is an option of the command. A parameter
    annotated with `Fields` is replaced in the same way.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Callable[..., Any], list[inspect.Parameter]]] = {}
    params: list[inspect.Parameter] = []
    for param in inspect.signature(command).parameters.values():
        hint = hints[param.name]
        chosen = next((item for item in get_args(hint)[1:] if isinstance(item, Fields)), None)
        if chosen is not None:
            groups[param.name] = (lambda **options: given_options(options)), [*chosen.parameters()]
        elif is_dataclass(hint):
            own = get_type_hints(hint, include_extras=True)
            parts = [
                inspect.Parameter(item.name, param.kind, default=item.default, annotation=own[item.name])
                for item in fields(hint)
            ]
            groups[param.name] = cast("type[Any]", hint), list(map(_declared, parts))
        params += groups[param.name][1] if param.name in groups else [_declared(param.replace(annotation=hint))]

    def called(**given: Any) -> None:
        for name, (make, parts) in groups.items():
            given[name] = make(**{part.name: given.pop(part.name) for part in parts})
        command(**given)

    called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
    called.__annotations__ = {param.name: param.annotation for param in params}
    called.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]  # typer reads it
    return called


def _declared(param: inspect.Parameter, doc: str = "", panel: str | None = None) -> inspect.Parameter:
    """Return a parameter with typer's declaration of the option, unless it has one.

    `doc` is its documentation, `panel` its help group unless it declares one.
    """
    if get_origin(param.annotation) is Annotated or not (doc or param.name in OPTIONS):
        return param
    flags, settings = OPTIONS.get(param.name) or _option()
    text = doc or settings["help"] or doc_of(CompileOptions, param.name)
    if text != settings["help"] and list[str] in (param.annotation, *get_args(param.annotation)):
        text = f"{text} Repeatable."
    given = flags or [f"--{param.name.replace('_', '-')}"]
    settings = {**settings, "help": text, "rich_help_panel": settings["rich_help_panel"] or panel}
    return param.replace(annotation=Annotated[param.annotation, typer.Option(*given, **settings)])


class GroupedCommand(TyperCommand):
    """A command that groups its options in its help, if it has many; those without a group come first.

    `--max-growth` accepts several values after each other.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        found: list[str] = []
        for text in args:
            if found[-2:-1] == [_SEVERAL] and re.fullmatch(r"(ram|flash)=.*", text):
                found.append(_SEVERAL)
            found.append(text)
        return super().parse_args(ctx, found)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a group, and the groups in the order of the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        params = self.get_params(ctx)
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None:
                panel = getattr(param, "rich_help_panel", None) if len(params) > _FEW else None
                name = (
                    "Arguments" if param.param_type_name == "argument" else f"{panel} options" if panel else "Options"
                )
                sections.setdefault(name, []).append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


@dataclass(frozen=True)
class BoardOptions:
    """Board of a command, if given."""

    board: str | None = None
    trust_board: bool = False

    def chosen(self, target: str | None = None) -> Board | None:
        """Return the board, or None; raise OptionError if the user sets a target as well."""
        found = chosen_board(self.board, self.trust_board)
        if found is not None and target is not None:
            raise OptionError(
                "options --board and --target exclude each other: a board has its own target",
                place="--target",
                next_step="Remove one of them",
            )
        return found


def chosen_board(name: str | None, trust: bool) -> Board | None:
    """Return the board of --board, or None."""
    if name is None:
        if trust:
            raise OptionError("option --trust-board requires --board", next_step="Add --board FILE.toml")
        return None
    from mlfc.micro.board.board import find_board

    return find_board(name, trust=trust)


@dataclass(frozen=True)
class Inputs:
    """Options about a model's inputs: texts like ``x=1,3,224,224``, ``sr=16000`` and ``h_in=h_out``."""

    shape: list[str] | None = None
    value: list[str] | None = None
    state: list[str] | None = None
    state_init: str | None = None
    signature: str | None = None
    op: list[str] | None = None

    def options(self, target: str | None = None, **more: Any) -> CompileOptions:
        """Return the options of importing and building a model, with `more`; None stands for an option not set."""
        return CompileOptions(target or PORTABLE, **self.keywords(), **given_options(more))

    def keywords(self) -> dict[str, Any]:
        """Return these options of `import_model`; raise OptionError for text that cannot be parsed."""
        from mlfc.frontend.shapes import parse_shapes
        from mlfc.runtime.tensor.npz import read_any_npz

        return {
            "shapes": parse_shapes(self.shape or ()),
            "values": parse_values(self.value or ()),
            "states": parse_states(self.state or ()),
            "state_init": self.state_init if self.state_init in (None, _ZEROS) else read_any_npz(self.state_init),
            "signature": self.signature,
            "operators": self.op or (),
        }

    def with_shapes_of(self, path: Path) -> Inputs | None:
        """Return a copy with the shapes of a file's arrays, by their names; None if it has none to add."""
        from mlfc.runtime.tensor.npz import read_any_npz

        said = {text.rpartition("=")[0] for text in self.shape or ()}
        arrays = read_any_npz(path).items() if path.suffix == ".npz" else ()
        added = [
            f"{name}={','.join(map(str, array.shape))}" for name, array in arrays if array.ndim and name not in said
        ]
        return replace(self, shape=[*(self.shape or ()), *added]) if added else None

    def refuse(self, reason: str, next_step: str | None = None) -> None:
        """Raise OptionError with the `reason` if any option is set."""
        if self.op:
            cause = "option --op is not needed: a compiled model contains the code of its own operators"
            raise OptionError(cause, next_step="Remove it")
        for item in fields(self):
            if getattr(self, item.name):
                raise OptionError(f"option --{item.name.replace('_', '-')} {reason}", next_step=next_step)

    def by_model(self, models: Sequence[str]) -> dict[str, Inputs]:
        """Return the options of each model, from strings like ``kws:input=1,49,10,1``.

        For a single model, strings have no prefix: a colon is part of the input's name.
        """
        if len(models) == 1:
            return {models[0]: self}
        shapes = _by_model(self.shape or (), models, "--shape", "1,3,224,224")
        values = _by_model(self.value or (), models, "--value", "16000")
        states = _by_model(self.state or (), models, "--state", "OUTPUT")
        if self.state_init not in (None, _ZEROS):
            raise OptionError(
                f"option --state-init requires a single model, or '{_ZEROS}'",
                place="--state-init",
                next_step="Compile the models one by one",
            )
        if self.signature is not None:
            raise OptionError("option --signature requires a single model", place="--signature")
        return {name: Inputs(shapes[name], values[name], states[name], self.state_init, op=self.op) for name in models}


def _named_texts(texts: Sequence[str], form: str, flag: str, what: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of texts like ``NAME=TEXT``; raise OptionError for others and for duplicates."""
    seen: set[str] = set()
    for text in texts:
        name, _, rest = text.rpartition("=")
        if not name or not rest:
            raise OptionError(f"expected {form}, got '{text}'", place=flag)
        if name in seen:
            raise OptionError(f"the {what}'{name}' is specified twice", place=flag)
        seen.add(name)
        yield name, rest


def parse_states(texts: Sequence[str]) -> dict[str, str]:
    """Return the output that is the next value of each input, from texts like ``h_in=h_out``."""
    return dict(_named_texts(texts, "NAME=OUTPUT", "--state", "state "))


def parse_values(texts: Sequence[str]) -> dict[str, Array]:
    """Return values by input name from texts like ``sr=16000``, ``sizes=1,2`` and ``mask=mask.npy``."""
    from mlfc.runtime.tensor.npz import read_npy

    return {
        name: read_npy(text, None) if text.endswith(".npy") else _numbers(text, f"{name}={text}")
        for name, text in _named_texts(texts, "NAME=NUMBERS or NAME=FILE.npy", "--value", "value of ")
    }


def _numbers(given: str, text: str) -> Array:
    import numpy as np

    parts = [part.strip().lower() for part in given.split(",")]
    words = {"true": True, "false": False}
    found: list[bool | int | float] = []
    for part in parts:
        if part in words:
            found.append(words[part])
        elif re.fullmatch(r"[+-]?[0-9]{1,20}", part):
            found.append(int(part))
        elif re.fullmatch(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})(e[+-]?[0-9]{1,3})?|[+-]?(inf|nan)", part):
            found.append(float(part))
        else:
            raise OptionError(f"expected NAME=NUMBERS or NAME=FILE.npy, got '{text}'", place="--value")
    return np.asarray(found if len(found) > 1 else found[0])


def _by_model(texts: Sequence[str], models: Sequence[str], flag: str, example: str) -> dict[str, list[str]]:
    """Return the texts for each of several models, without the prefix."""
    given: dict[str, list[str]] = {name: [] for name in models}
    for text in texts:
        name, _, rest = text.partition(":")
        if name not in given:
            raise OptionError(
                f"expected MODEL:NAME={example}, got '{text}'",
                place=flag,
                next_step=f"Write MODEL:NAME={example} with a model of: {', '.join(models)}",
            )
        given[name].append(rest)
    return given


def parse_models(texts: Sequence[str]) -> dict[str, Path]:
    """Return model files by module name from texts like ``kws=a.tflite`` or ``a.tflite`` (named after the file)."""
    models: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        # a file may be called a=b.tflite
        named = equals and not Path(text).exists()
        if named and not re.fullmatch(r"\w+", name) and Path(path).exists():
            raise OptionError(
                f"invalid module name '{name}'", place=text, next_step="Use letters, digits and underscores"
            )
        if not named or not re.fullmatch(r"\w+", name):
            name, path = model_title(text), text
        if name in models:
            raise OptionError(f"two models have the name '{name}'", next_step="Name them: NAME=FILE")
        models[name] = Path(path)
    return models


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user set."""
    return {name: value for name, value in options.items() if value is not None}
