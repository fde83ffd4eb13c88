"""Libraries that contain a tree of modules: written in every format, and loaded from files and bytes."""

from __future__ import annotations

import errno
import gc
import gzip
import hashlib
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from benchmarks import library_load
from mlfc.errors import ArchiveError, OptionError, OutputError, ToolchainError
from mlfc.factory import Factory, library_root
from mlfc.library.export import export_library
from mlfc.runtime import Module, OpaqueModule, cpu
from mlfc.runtime.libraries.factory import ModuleSet
from tests.conftest import need
from tests.native.extracted import imported
from tests.shared_library import compile_shared

pytestmark = pytest.mark.usefixtures("quick_builds")

EXECUTORS = ("aot", "graph")
KINDS = {"aot": "AotExecutorFactory", "graph": "GraphExecutorFactory"}
X = np.full((1, 1), 7, np.int8)


@pytest.fixture(scope="module")
def factories(models: Path) -> dict[str, Factory]:
    model = models / "hello_world_int8.tflite"
    return {executor: imported(model, f"hello_{executor}", executor=executor) for executor in EXECUTORS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="module")
def libraries(factories: dict[str, Factory], folder: Path) -> dict[str, Path]:
    return {executor: factory.export_library(folder / f"{executor}.so") for executor, factory in factories.items()}


def only(outputs: Any) -> Any:
    (value,) = outputs.values()
    return value


def symbols(library: Path) -> set[str]:
    need("nm", "binutils")
    text = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in text.splitlines()}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_file_makes_executors(executor: str, factories: dict[str, Factory], libraries: dict[str, Path]) -> None:
    loaded = mlfc.load_module(libraries[executor])
    assert loaded.type_key == KINDS[executor]
    # as in TVM, whose runtime finds the tables of AOT code through an intermediate module
    between = {"aot": ["metadata_module"], "graph": []}[executor]
    assert [module.type_key for module in loaded.walk()] == [KINDS[executor], *between, "library"]
    model = loaded["default"](cpu(0))
    for value in (-128, 7, 127):
        x = np.full((1, 1), value, np.int8)
        model.set_input(0, x)
        model.run()
        expected = only(factories[executor].runtime.run(x))
        np.testing.assert_array_equal(model.get_output(0), expected)
        np.testing.assert_array_equal(only(mlfc.load(libraries[executor]).run(x)), expected)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_library_of_code_alone_is_its_own_root(executor: str, factories: dict[str, Factory], tmp_path: Path) -> None:
    _, lib, _ = factories[executor]
    loaded = mlfc.load_module(lib.export_library(tmp_path / "code.so"))
    assert (loaded.type_key, loaded.imported_modules) == ("library", ())
    assert "__tvm_dev_mblob" not in symbols(tmp_path / "code.so")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_library_loads_from_bytes(executor: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    expected = only(mlfc.load(libraries[executor]).run(X))
    data = libraries[executor].read_bytes()
    for source in (data, memoryview(data)):
        loaded = mlfc.load_module(source)
        np.testing.assert_array_equal(only(loaded.run(X)), expected)
    assert loaded.type_key == KINDS[executor]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("suffix", [".tar", ".o"])
def test_objects_are_linked_when_they_are_loaded(
    suffix: str, executor: str, factories: dict[str, Factory], tmp_path: Path
) -> None:
    path = factories[executor].export_library(tmp_path / f"model{suffix}")
    loaded = mlfc.load_module(path)
    assert loaded.type_key == KINDS[executor]
    expected = only(factories[executor].runtime.run(X))
    np.testing.assert_array_equal(only(loaded.run(X)), expected)
    np.testing.assert_array_equal(only(mlfc.load_module(path.read_bytes()).run(X)), expected)


def test_a_tar_of_objects_has_the_names_of_tvm(factories: dict[str, Factory], tmp_path: Path) -> None:
    path = factories["graph"].export_library(tmp_path / "model.tar")
    with gzip.open(path) as plain, tarfile.open(fileobj=plain, mode="r:") as tar:
        names = [member.name.removeprefix("./") for member in tar if member.isfile()]
    assert {"lib0.o", "lib1.o", "devc.o"} <= set(names)
    assert all(name.endswith(".o") and "/" not in name for name in names)


def test_a_static_library_is_linked_by_others(factories: dict[str, Factory], tmp_path: Path) -> None:
    path = factories["aot"].export_library(tmp_path / "libhello.a")
    header = factories["aot"].code.header_name
    (tmp_path / str(header)).write_bytes(bytes(factories["aot"].code.files[f"include/{header}"]))  # type: ignore[arg-type]
    (tmp_path / "main.c").write_text(
        f"""#include <stdio.h>
#include "{header}"
extern const unsigned char __tvm_dev_mblob[];
int main(void) {{
  int8_t x = 7, y = 0;
  struct tvmgen_hello_aot_inputs in = {{&x}};
  struct tvmgen_hello_aot_outputs out = {{&y}};
  int status = (int)tvmgen_hello_aot_run(&in, &out);
  printf("%d %d %d\\n", status, y, __tvm_dev_mblob[8]);
  return 0;
}}
"""
    )
    subprocess.run([need("gcc", "gcc"), "main.c", path, "-lm", "-o", "main"], cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout.split()
    # four entries: the factory, the intermediate module, the library, the tree
    assert said == ["0", str(int(only(factories["aot"].runtime.run(X))[0, 0])), "4"]
    with pytest.raises(ArchiveError, match="this is a static library"):
        mlfc.load_module(path)


@pytest.mark.parametrize("suffix", [".so", ".a", ".o", ".tar"])
def test_the_same_tree_gives_the_same_bytes(suffix: str, factories: dict[str, Factory], tmp_path: Path) -> None:
    hashes = {
        hashlib.sha256(factories["graph"].export_library(tmp_path / f"{name}{suffix}").read_bytes()).digest()
        for name in ("one", "two")
    }
    assert len(hashes) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"one{suffix}", f"two{suffix}"]


def test_conventions_are_a_choice(factories: dict[str, Factory], libraries: dict[str, Path], tmp_path: Path) -> None:
    entries = {"classic": "tvmgen_hello_aot___tvm_main__", "ffi": "__tvm_ffi_hello_aot"}
    assert set(entries.values()) <= symbols(libraries["aot"])
    for abi, entry in entries.items():
        path = factories["aot"].export_library(tmp_path / f"{abi}.so", abi=(abi,))
        assert symbols(path) & set(entries.values()) == {entry}
        np.testing.assert_array_equal(only(mlfc.load(path).run(X)), only(mlfc.load(libraries["aot"]).run(X)))
    for wrong in (("vectorcall",), (), "classic"):
        with pytest.raises(OptionError, match=r"calling convention.*classic, ffi"):
            factories["aot"].export_library(tmp_path / "x.so", abi=wrong)


class Linker:
    """A linker function as TVM users write them."""

    def __init__(self, triple: str | None = None) -> None:
        self.seen: list[str] = []
        if triple is not None:
            self.get_target_triple = lambda: triple

    def __call__(self, target: str, files: Sequence[str], options: Sequence[str] = ()) -> None:
        self.seen = [Path(name).name for name in files]
        flags = ["-shared", "-fPIC", "-O1", "-w", "-Wl,-Bsymbolic", *options]
        subprocess.run([need("gcc", "gcc"), *flags, "-o", target, *files, "-lm"], check=True)


@pytest.mark.parametrize(("triple", "blob"), [(None, "devc.c"), ("x86_64-linux-gnu", "devc.o")])
def test_a_linker_of_the_users_gets_c_and_the_blob(
    triple: str | None, blob: str, factories: dict[str, Factory], tmp_path: Path
) -> None:
    if triple and os.uname().machine != "x86_64":
        pytest.skip("the linker of this test links for x86-64")
    linker = Linker(triple)
    path = factories["graph"].export_library(tmp_path / "own.so", linker, workspace_dir=tmp_path / "work")
    assert linker.seen[:2] == ["lib0.c", "lib1.c"]
    assert linker.seen[-1] == blob
    assert (tmp_path / "work" / "lib0.c").is_file()
    np.testing.assert_array_equal(only(mlfc.load_module(path).run(X)), only(factories["graph"].runtime.run(X)))


def test_a_linker_that_does_nothing_is_named(factories: dict[str, Factory], tmp_path: Path) -> None:
    def idle(target: str, files: Sequence[str], options: Sequence[str]) -> None:
        assert target
        assert files
        assert options

    with pytest.raises(ToolchainError, match="fcompile did not write a file"):
        factories["aot"].export_library(tmp_path / "none.so", idle)
    assert not list(tmp_path.iterdir())


def test_addons_options_and_compilers(factories: dict[str, Factory], tmp_path: Path) -> None:
    (tmp_path / "more.c").write_text("int mlfc_answer(void) { return ANSWER; }\n")
    path = factories["aot"].export_library(
        tmp_path / "more.so",
        addons=[tmp_path / "more.c"],
        cc=need("clang", "clang"),
        options=["-DANSWER=42"],
        workspace_dir=tmp_path / "work",
    )
    assert mlfc.load_module(path).lib.library.mlfc_answer() == 42
    assert b"clang" in (tmp_path / "work" / "lib1.o").read_bytes()
    with pytest.raises(OptionError, match=r"gone\.c: file to link not found"):
        factories["aot"].export_library(tmp_path / "x.so", addons=[tmp_path / "gone.c"])
    with pytest.raises(ToolchainError, match="the compiler 'no-such-compiler' does not run"):
        factories["aot"].export_library(tmp_path / "x.so", cc="no-such-compiler")
    with pytest.raises(OutputError):
        factories["aot"].export_library(tmp_path / "no" / "folder" / "x.so")
    assert not (tmp_path / "x.so").exists()


def test_members_that_cannot_be_exported_are_all_named(factories: dict[str, Factory], tmp_path: Path) -> None:
    class Bound(Module):
        type_key = "bound-to-this-process"

    class Other(Bound):
        type_key = "another-one"

    root = OpaqueModule("some-root", b"")
    for module in (factories["aot"].lib, Bound(), Other()):
        root.import_module(module)
    with pytest.raises(OptionError, match=r"(?=.*bound-to-this-process)(?=.*another-one)"):
        export_library(root, tmp_path / "x.so")
    assert not list(tmp_path.iterdir())


def test_data_of_other_kinds_comes_back(factories: dict[str, Factory], tmp_path: Path) -> None:
    root = OpaqueModule("unknown-kind", b"\x01\x02")
    root.import_module(factories["aot"].lib)
    path = export_library(root, tmp_path / "kind.so")
    with pytest.raises(ArchiveError, match=r"(?=.*unknown-kind)(?=.*register_loader)"):
        mlfc.load_module(path)


def test_several_models_in_one_library(factories: dict[str, Factory], tmp_path: Path) -> None:
    path = export_library(library_root(list(factories.values())), tmp_path / "both.so")
    loaded = mlfc.load_module(path)
    assert isinstance(loaded, ModuleSet)
    assert {module.type_key for module in loaded.imported_modules} == set(KINDS.values())
    assert len({id(factory.lib) for factory in loaded.modules.values()}) == 1
    for name, factory in loaded.modules.items():
        np.testing.assert_array_equal(only(factory.run(X)), only(mlfc.load(path, name).run(X)))
        loaded[name](cpu(0)).run()
    with pytest.raises(
        OptionError, match=r"both\.so: expected one module, got 2\. Name one of: hello_aot, hello_graph"
    ):
        mlfc.load(path)
    with pytest.raises(OptionError, match="unknown module 'third'"):
        mlfc.load_module(path, "third")


def test_what_a_file_is_said_to_be_is_checked(libraries: dict[str, Path]) -> None:
    assert mlfc.load_module(libraries["aot"], fmt="so").type_key == KINDS["aot"]
    for fmt in ("o", "tar", "exe"):
        with pytest.raises(ArchiveError, match=rf"expected a file of the format '{fmt}'"):
            mlfc.load_module(libraries["aot"], fmt=fmt)


def changed(library: Path, target: Path, offset: int, data: bytes) -> Path:
    content = bytearray(library.read_bytes())
    content[offset : offset + len(data)] = data
    target.write_bytes(content)
    return target


def test_libraries_for_other_machines_are_named(libraries: dict[str, Path], tmp_path: Path) -> None:
    aarch64 = 183
    other = changed(libraries["aot"], tmp_path / "other.so", 18, struct.pack("<H", aarch64))
    for source, place in ((other, r"other\.so"), (other.read_bytes(), "bytes")):
        with pytest.raises(ArchiveError, match=rf"{place}: .* is for AArch64 Linux; this machine is x86-64 Linux"):
            mlfc.load_module(source)


def test_a_cut_off_library_never_reaches_the_loader(libraries: dict[str, Path], tmp_path: Path) -> None:
    data = libraries["graph"].read_bytes()
    for length in (5, 19, 63, 64, 200, 4096, len(data) // 2):
        cut = tmp_path / f"{length}.so"
        cut.write_bytes(data[:length])
        with pytest.raises(ArchiveError):
            mlfc.load_module(cut)


def built(source: str, path: Path, *flags: str) -> Path:
    return compile_shared({"library.c": source.encode()}, path, flags)


def test_a_missing_symbol_is_named(tmp_path: Path) -> None:
    path = built("int lost(void); int f(void) { return lost(); }", tmp_path / "lost.so")
    with pytest.raises(ArchiveError, match=r"lost\.so: .*undefined symbol: lost"):
        mlfc.load_module(path)


def test_another_version_of_the_interface_is_named(tmp_path: Path) -> None:
    path = built("#include <stdint.h>\nconst int32_t mlfc_abi_version = 99;", tmp_path / "later.so")
    with pytest.raises(ArchiveError, match="its mlfc_abi_version is 99, and this mlfc loads libraries of version"):
        mlfc.load_module(path)


@pytest.mark.parametrize("nbytes", [0xFFFF_FFFF_FFFF_FFFF, 1 << 40, 1 << 20])
def test_a_blob_that_says_it_is_larger_than_the_library_is_refused(nbytes: int, tmp_path: Path) -> None:
    words = ", ".join(f"0x{byte:02x}" for byte in struct.pack("<QQ", nbytes, 1))
    path = built(f"const unsigned char __tvm_dev_mblob[] = {{{words}}};", tmp_path / "huge.so")
    with pytest.raises(ArchiveError, match=r"huge\.so"):
        mlfc.load_module(path)


def test_a_library_of_somebody_else_has_functions_but_no_model(tmp_path: Path) -> None:
    path = built("int answer(void) { return 42; }", tmp_path / "foreign.so")
    loaded = mlfc.load_module(path)
    assert loaded.type_key == "library"
    assert loaded.library.answer() == 42
    with pytest.raises(ArchiveError, match="this library does not describe its models"):
        mlfc.load(path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process as Linux tells it")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_parameters_stay_a_map_of_the_file(executor: str, tmp_path: Path) -> None:
    width = 2048
    factory = library_load.large_model(executor, width, layers=1)
    path = factory.export_library(tmp_path / "large.so")
    found = library_load.measured(path, width)
    weights = 4 * width * width
    assert path.stat().st_size > weights
    for moment in ("loaded", "after"):
        assert found[moment]["anonymous"] - found["before"]["anonymous"] < weights // 3
    assert found["after"]["mapped"] - found["before"]["mapped"] > weights // 2


def test_commands_make_run_and_verify_libraries(models: Path, tmp_path: Path, command: Any) -> None:
    model = models / "hello_world_int8.tflite"
    for executor in EXECUTORS:
        path = tmp_path / f"{executor}.so"
        command("compile", model, "--emit", "so", "--executor", executor, "-o", path)
        command("run", path, "--outputs", tmp_path / f"{executor}.npz")
        command("verify", model, path, "--samples", 2)
    assert "tvmgen_hello_world_int8_run" in (tmp_path / "aot.h").read_text()
    assert not (tmp_path / "graph.h").exists()
    outputs = [dict(np.load(tmp_path / f"{executor}.npz")) for executor in EXECUTORS]
    np.testing.assert_array_equal(only(outputs[0]), only(outputs[1]))


def test_a_file_that_replaced_a_loaded_one_is_loaded_itself(factories: dict[str, Factory], tmp_path: Path) -> None:
    """Load the new file although the system would return the library that it already has under this name."""
    library = tmp_path / "model.so"
    factories["aot"].export_library(library)
    before = mlfc.load_module(library)
    factories["graph"].export_library(library)
    assert mlfc.load_module(library).type_key == KINDS["graph"]
    assert before.type_key == KINDS["aot"]
    np.testing.assert_array_equal(only(before.run(X)), only(mlfc.load_module(library).run(X)))


def copies() -> set[str]:
    """Return the inodes of this process's libraries that exist only in memory."""
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return {line.split()[4] for line in mapped.splitlines() if "mlfc-library" in line}


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted where the system lists them")
def test_loading_again_and_again_keeps_no_files_open(factories: dict[str, Factory], tmp_path: Path) -> None:
    library = tmp_path / "model.so"
    gc.collect()
    known = copies()
    before = len(list(Path("/proc/self/fd").iterdir()))
    expected = only(factories["aot"].runtime.run(X))
    loaded = []
    for number in range(4):
        source = factories[EXECUTORS[number % 2]].export_library(library)
        for given in (source, source, source.read_bytes()):
            loaded.append(mlfc.load_module(given))
            assert loaded[-1].type_key == KINDS[EXECUTORS[number % 2]]
    for module in loaded:
        np.testing.assert_array_equal(only(module.run(X)), expected)
    del loaded, module
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    # each content is copied at most once, however often it is loaded
    assert len(copies() - known) <= 4 + 5


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is counted where the system lists it")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_same_bytes_are_mapped_once(executor: str, libraries: dict[str, Path]) -> None:
    data = libraries[executor].read_bytes()
    held = mlfc.load_module(data)
    expected = only(held.run(X))
    counts, memory = [], []
    tracemalloc.start()
    for _ in range(4):
        for _ in range(5):
            np.testing.assert_array_equal(only(mlfc.load_module(bytearray(data)).run(X)), expected)
        gc.collect()
        counts.append(
            (len(Path("/proc/self/maps").read_text().splitlines()), len(list(Path("/proc/self/fd").iterdir())))
        )
        memory.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # the loader's heap may grow by one or two mappings; each load was six of them
    assert counts[-1][0] - counts[0][0] < 10
    assert counts[-1][1] == counts[0][1]
    # the interpreter's lists grow and shrink, but ten loads keep less than one copy
    assert memory[-1] - memory[1] < len(data)


@pytest.mark.parametrize(
    ("name", "options", "error", "expected"),
    [
        ("model.onnx", {}, OptionError, r"model\.onnx: files with the suffix '\.onnx' are not libraries\. Use a name"),
        ("objects.tar.gz", {}, OptionError, r"files with the suffix '\.gz' are not libraries"),
        ("a.so", {"options": "-O1"}, OptionError, r"^options: .*got the string '-O1'\. Pass \['-O1'\]$"),
        ("a.so", {"addons": "x.c"}, OptionError, r"^addons: expected a list of strings"),
        ("a" * 300, {}, OutputError, "cannot be written: File name too long"),
        ("a\0b", {}, OutputError, "cannot be written: embedded null byte"),
    ],
)
def test_slips_of_the_pen_are_named(
    name: str, options: dict[str, Any], error: type[Exception], expected: str, factories: Any, tmp_path: Path
) -> None:
    with pytest.raises(error, match=expected):
        factories["aot"].export_library(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_anything_with_bytes_is_loaded(libraries: dict[str, Path]) -> None:
    data = libraries["aot"].read_bytes()
    for given in (bytearray(data), memoryview(data), memoryview(bytes(byte for byte in data for _ in range(2)))[::2]):
        assert mlfc.load_module(given).type_key == KINDS["aot"]
    for wrong in (b"", b"nothing", data[:100], gzip.compress(b"nothing")):
        with pytest.raises(ArchiveError, match=r"^bytes: "):
            mlfc.load_module(wrong)


def test_full_places_for_temporary_files_are_named(
    factories: dict[str, Factory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    objects = factories["graph"].export_library(tmp_path / "objects.tar")
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mlfc.library.toolchain.write_data", full)
    expected = f"^{re.escape(tempfile.gettempdir())}: cannot be written: No space left on device. Free some space"
    with pytest.raises(OutputError, match=expected):
        factories["aot"].export_library(tmp_path / "a.so")
    with pytest.raises(OutputError, match=expected):
        mlfc.load_module(objects)
    assert not (tmp_path / "a.so").exists()
