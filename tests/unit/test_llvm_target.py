"""Target strings of kind llvm: their defaults, and options that they reject."""

from __future__ import annotations

import pytest

from mlfc.errors import OptionError
from mlfc.target.llvm import host_triple
from mlfc.target.target import parse_target


@pytest.mark.parametrize(
    ("text", "triple"),
    [
        ("llvm", host_triple()),
        ("llvm -mcpu=cortex-m0", "thumbv6m-none-eabi"),
        ("llvm -mcpu=cortex-m4", "thumbv7em-none-eabi"),
        ("llvm -mcpu=cortex-m4 -mfloat-abi=hard", "thumbv7em-none-eabihf"),
        ("llvm -mcpu=cortex-m7 -mfloat-abi=softfp -mtriple=thumbv7em-none-eabihf", "thumbv7em-none-eabi"),
        ("llvm -mcpu=cortex-m33", "thumbv8m.main-none-eabi"),
        ("llvm -mcpu=cortex-m55", "thumbv8.1m.main-none-eabi"),
        ("llvm -mcpu=generic-rv32", "riscv32-unknown-elf"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72", "aarch64-linux-gnu"),
        ("llvm -mtriple=x86_64-windows-gnu", "x86_64-pc-windows-gnu"),
        ("llvm -mtriple=x86_64-w64-mingw32", "x86_64-pc-windows-gnu"),
        ("llvm -mtriple=aarch64-macos", "aarch64-apple-macos"),
        ("llvm -mtriple=wasm32-wasi", "wasm32-unknown-wasi"),
    ],
)
def test_a_string_says_for_good_what_it_is_for(text: str, triple: str) -> None:
    target = parse_target(text)
    assert target.options["-mtriple"] == triple
    assert parse_target(str(target)) == target


@pytest.mark.parametrize("name", ["cortex-m0", "cortex-m4", "cortex-m33", "cortex-m55", "generic-rv32"])
def test_small_processors_have_the_templates_that_they_have_in_c(name: str) -> None:
    assert parse_target(f"llvm -mcpu={name}").features == parse_target(f"c -mcpu={name}").features


def test_processors_that_llvm_alone_knows_have_the_features_that_it_gives_them() -> None:
    assert parse_target("llvm -mcpu=cortex-m35p").features.has("dsp")
    assert parse_target("llvm -mcpu=cortex-m52").features.has("mve")
    assert parse_target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server").features.vector_registers == 32
    assert parse_target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").features.vector_registers == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llvm -mtriple=pdp11-dec-unix", "unknown LLVM triple 'pdp11-dec-unix'"),
        (
            "llvm -mtriple=x86_64-linux-gnu -mcpu=icelake",
            "unknown LLVM processor 'icelake' for x86_64; nearest: 'icelake-",
        ),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=x86-64-v3", "unknown LLVM processor 'x86-64-v3' for aarch64"),
        ("llvm -mtriple=x86_64-linux-gnu -mattr=+avx51", "unknown LLVM feature 'avx51' for x86_64; nearest: 'avx"),
        ("llvm -mattr=avx2", "expected features such as +avx2"),
        ("llvm -mcpu=cortex-m4 -mfloat-abi=hart", "unknown float ABI 'hart'"),
        ("llvm -mtriple=../evil", "unknown LLVM triple"),
        ("llvm -frobnicate=1", "unknown target option '-frobnicate=1'"),
    ],
)
def test_what_there_is_not_is_named(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_target(text)
    assert message in str(caught.value)


def test_big_endian_processors_are_refused() -> None:
    from mlfc.codegen.llvm.machine import machine_of

    with pytest.raises(OptionError, match="expected a little-endian machine"):
        machine_of(parse_target("llvm -mtriple=s390x-linux-gnu"))


def test_names_for_this_machine_need_no_list_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(triple: str) -> None:
        raise AssertionError(triple)

    monkeypatch.setattr("mlfc.target.llvm._known", listed)
    for text in ("llvm", "llvm -mcpu=native", str(parse_target("llvm -mcpu=native"))):
        parse_target(text)
    with pytest.raises(AssertionError):
        parse_target("llvm -mtriple=aarch64-linux-gnu -mattr=+avxvnni")


def test_native_is_a_level_that_every_reader_knows() -> None:
    target = parse_target("llvm -mcpu=native")
    assert target.mcpu != "native"
    assert "native" not in str(target)
