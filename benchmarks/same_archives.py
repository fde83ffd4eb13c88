"""Check that two versions of the source produce the same archives; exit with 1 if code or data differ.

    python -m benchmarks.same_archives ../before/src            # against the source of this tree
    python -m benchmarks.same_archives ../before/src --quick    # only small models and common targets

Both compile every model for every target and executor. Members are compared without comments and with the project's
former name replaced by the current one; C is compared function by function, so that the list names them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.models import ROOT, find

QUICK_MODELS = ("digits_int8", "digits", "kws_ref_model", "kws_ref_model_float32", "hello_world_int8", "ad01_int8")
MODELS = (*QUICK_MODELS, "vww_96_int8", "pretrainedResnet_quant", "pretrainedResnet", "squeezenet", "shufflenet")
QUICK_TARGETS = ("c", "c -mcpu=cortex-m4", "c -mcpu=cortex-m55", "llvm -mcpu=x86-64-v3")
TARGETS = (
    *QUICK_TARGETS,
    "c -mcpu=x86-64-v4",
    "c -mcpu=cortex-m0",
    "c -mcpu=generic-rv32",
    "llvm -mcpu=x86-64-v4",
    "llvm -mcpu=cortex-m55",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "llvm -mtriple=armv7em-none-eabi -mcpu=cortex-m4",
    "llvm -mtriple=aarch64-linux-gnu",
    "opencl",
    "cuda",
)
EXECUTORS = ("aot", "graph")
_SMALL = 1 << 20

# Runs in either tree, whose package has the former or the current name.
_COMPILE = r"""
import importlib, json, sys
from pathlib import Path
source, out, cases = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
package = importlib.import_module("mlfc" if (source / "mlfc").is_dir() else "mlforge")
assert Path(package.__file__).is_relative_to(source), package.__file__
errors = importlib.import_module(package.__name__ + ".errors")
root = getattr(errors, "MlfcError", None) or errors.MlforgeError
models = {}
for name, path, target, executor, optimize in cases:
    if name not in models:
        models = {name: package.import_model(path)}
    module, params = models[name]
    place = out / (f"{name} {target} {executor} {optimize}".replace("/", "_") + ".tar")
    try:
        factory = package.build(
            module, target=target, params=params, executor=executor, module_name=name, optimize=optimize
        )
        package.export_model_library_format(factory, place)
    except root as error:
        place.with_suffix(".refused").write_text(type(error).__name__)
"""


def main(argv: list[str]) -> int:
    """Compile with both versions, compare the archives, and print the differences."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_archives")
    parser.add_argument("before", type=Path, help="the folder src of the other version")
    parser.add_argument("--after", type=Path, default=ROOT / "src")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    cases = _cases(options.quick)
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, name) for name in ("before", "after")]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(_compile, (options.before, options.after), folders, (cases, cases)))
        return _report(*folders)


def _cases(quick: bool) -> list[tuple[str, str, str, str, str]]:
    models = find(list(QUICK_MODELS if quick else MODELS))
    return [
        (model.name, str(model.path), target, executor, optimize)
        for model in models
        for target in (QUICK_TARGETS if quick else TARGETS)
        for executor in EXECUTORS
        for optimize in (("speed",) if quick or model.path.stat().st_size > _SMALL else ("speed", "size"))
    ]


def _compile(source: Path, out: Path, cases: list[tuple[str, str, str, str, str]]) -> None:
    out.mkdir()
    command = [sys.executable, "-c", _COMPILE, str(source.resolve()), str(out), json.dumps(cases)]
    subprocess.run(command, check=True, env={"PYTHONPATH": str(source.resolve()), "PATH": "/usr/bin:/bin"})


def _report(before: Path, after: Path) -> int:
    names = sorted({path.name for folder in (before, after) for path in folder.iterdir()})
    different: Counter[str] = Counter()
    first: dict[str, str] = {}
    same = 0
    for name in names:
        paths = before / name, after / name
        if not all(path.exists() for path in paths):
            faults = [f"{'refused' if name.endswith('.refused') else 'compiled'} by only one"]
        elif name.endswith(".refused"):
            faults = []
        else:
            faults = sorted(set(_differences(*map(_members, paths))))
        same += not faults
        different.update(faults)
        for fault in faults:
            first.setdefault(fault, name)
    print(f"{same} of {len(names)} archives are the same")
    for fault, count in different.most_common():
        print(f"  {count:4} x {fault}    first in: {first[fault]}")
    return 1 if different else 0


def _members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        found = {item.name: tar.extractfile(item).read() for item in tar if item.isfile()}  # type: ignore[union-attr]
    return {_today(name.encode()).decode().removeprefix("./"): data for name, data in found.items()}


def _today(data: bytes) -> bytes:
    data = re.sub(rb"\bbuild/[0-9a-f]{12}\b", b"build/*", data)  # named after a hash of all files
    return data.replace(b"mlforge", b"mlfc").replace(b"MLFORGE", b"MLFC").replace(b"Mlforge", b"Mlfc")


def _differences(before: dict[str, bytes], after: dict[str, bytes]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        place = re.sub(r"/[^/]*(lib\d+\.\w+)$", r"/*\1", name) if name.startswith("codegen/") else name
        if name not in before or name not in after:
            yield f"{place}: exists in only one"
        elif before[name] == after[name] or _today(before[name]) == _today(after[name]):
            continue
        elif name == "metadata.json":
            yield from _metadata_differences(before[name], after[name])
        elif name.endswith((".c", ".h")):
            yield from _c_differences(place, before[name], after[name])
        elif not name.endswith(".md"):  # prose may change
            yield f"{place}: differs"


def _metadata_differences(before: bytes, after: bytes) -> Iterator[str]:
    documents = [json.loads(_today(data)) for data in (before, after)]
    for document in documents:
        document.get("mlfc", {}).pop("files", None)  # hashes of all files
    yield from (f"metadata.json: {place}" for place in _paths(*documents))


def _paths(before: object, after: object, place: str = "$") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            # the module's own name does not matter
            step = "*" if place == "$.modules" else key
            if key in before and key in after:
                yield from _paths(before[key], after[key], f"{place}.{step}")
            else:
                yield f"{place}.{step} exists in only one"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for first, second in zip(before, after, strict=True):
            yield from _paths(first, second, f"{place}[]")
    elif before != after:
        yield f"{place} differs"


def _c_differences(place: str, before: bytes, after: bytes) -> Iterator[str]:
    pieces = [_pieces(_today(data).decode()) for data in (before, after)]
    for name in sorted({*pieces[0], *pieces[1]}):
        first, second = pieces[0].get(name), pieces[1].get(name)
        if first != second:
            verb = "is new" if first is None else "is gone" if second is None else "differs"
            yield f"{place}: {re.sub(r'tvmgen_.*', 'tvmgen_*', name)} {verb}"


def _pieces(text: str) -> dict[str, str]:
    """Return the functions of C without comments, by name; everything else as ``top``."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    found: dict[str, str] = {}
    name, depth = "top", 0
    for line in filter(str.strip, text.splitlines()):
        if depth == 0 and not line.startswith("#"):
            head = re.match(r"[\w*\s]+?(\w+)\(", line)
            name = head[1] if head and "=" not in line and not line.endswith(";") else "top"
        found[name] = f"{found.get(name, '')}{line.rstrip()}\n"
        if not line.startswith("#"):
            depth += line.count("{") - line.count("}")
            depth += line.count("(") - line.count(")")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
