"""The compiler pipeline: import -> passes -> lower -> plan -> emit; `build` returns a `Factory`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from mlfc import codegen, memory, transform
from mlfc.byoc import find_generators, takes_modules
from mlfc.errors import OptionError, UnsupportedError
from mlfc.factory import Factory
from mlfc.library.toolchain import has_compiler
from mlfc.options import BuildOptions, Params
from mlfc.relay.dynamic import is_dynamic
from mlfc.relay.ir import IRModule
from mlfc.support.c_names import PARALLEL_FOR
from mlfc.support.c_names import module_name as checked_module_name
from mlfc.support.dims import UndecidedError
from mlfc.support.garbage import collected_rarely
from mlfc.support.keywords import option, with_keywords
from mlfc.support.text import printable, shortened, with_article
from mlfc.target.target import PORTABLE, Target, parse_host, parse_target
from mlfc.target.tuning_log import opened_log, shipped_log

_ACCEPTED = 16.0  # multiple of the usual limits for a model that was accepted before

_LONGEST_NAME = 65000  # metadata.json and libraries store 65,536, and some names get a suffix
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")


@dataclass(frozen=True, eq=False)
class _BuildArguments(BuildOptions):
    """Arguments of `build` after the module: its options, and the parameters."""

    params: Params | None = option(
        None, "Values of parameters of ``main`` by name; the other parameters are the model's inputs."
    )


@with_keywords(_BuildArguments)
def build(mod: IRModule, options: _BuildArguments) -> Factory:
    """Compile a Relay module.

    Parameters
    ----------
    mod : IRModule
        The result of `import_model` or of the Relay parser.

    Returns
    -------
    Factory

    Raises
    ------
    MlfcError
        For unknown or invalid options, and for modules that cannot be compiled.

    Examples
    --------
    >>> module, params = mlfc.import_model("digits.tflite")
    >>> mlfc.build(module, "c -mcpu=cortex-m4", params).module_name
    'default'
    """
    return build_module(mod, options.params, options)


@collected_rarely()
def build_module(mod: IRModule, params: Params | None, options: BuildOptions) -> Factory:
    """Compile a Relay module as `build` does."""
    values = transform.checked_params(mod, params)
    _check_names(mod, values)
    if isinstance(options.specialize, str):
        raise OptionError(f"specialize='{options.specialize}' requires mlfc.compile", place="specialize")
    specialize = tuple(options.specialize)
    name = checked_module_name("default" if options.module_name is None else options.module_name)
    chosen = parse_target(options.target, options.optimize)
    host = parse_host(options.target_host, options.optimize) if chosen.device else chosen
    log = shipped_log(host) if options.tuned is None else opened_log(options.tuned)
    if log is not None:
        host = log.applied(host)
        chosen = chosen if chosen.device else host
    unit, memory_options = _unit(mod, values, name, (chosen, host), specialize, options)
    if log is not None and options.tuned is not None:
        log.note(host)
    made = Factory(
        name,
        chosen,
        unit.executor,
        mod,
        values,
        unit,
        memory_options,
        host if chosen.device else None,
        specialize=specialize,
        parallel=options.parallel,
    )
    if not options.dry_run:
        _ = made.code
    return made


def _unit(
    mod: IRModule,
    values: Params,
    name: str,
    targets: tuple[Target, Target],
    specialize: Sequence[Mapping[str, int]],
    options: BuildOptions,
) -> tuple[codegen.Unit, memory.MemoryOptions]:
    """Return the unit for code generation, and the memory options; `targets` are the module's and its host's."""
    chosen, host = targets
    memory_options = memory.MemoryOptions(options.workspace_io, tuple(options.pools), tuple(options.constants))
    check = partial(
        codegen.check_executor,
        target=chosen,
        memory_options=memory_options,
        external_workspace=options.external_workspace,
    )
    executor = _executor(mod, options, check)
    dynamic = executor == "vm"
    partition = transform.PartitionGraph(find_generators(mod.byoc), host.features)
    run = partial(transform.run, params=values, partition=partition, on_device=bool(chosen.device), copies=not dynamic)
    special = [(transform.fixed_symbols(mod, each), transform.specialized(mod, each)) for each in specialize]
    with _bounds_decide(), transform.within_limits(mod, values, options.limit_factor * (1 + len(special))):
        fused = run(mod)
        special = [(symbols, run(other)) for symbols, other in special]
        if executor is None:
            executor = "graph" if chosen.device or takes_modules(fused.main.body) else "aot"
            check(executor)
        on_device = None
        if chosen.device:
            others = [other for _, other in special]
            on_device = transform.place_on_device(
                fused, chosen.device, chosen.features, special=others, dynamic=dynamic
            )
        lower = partial(
            transform.lower,
            fused,
            host.features,
            name,
            cache={},
            placement=on_device,
            shares_work=bool(options.parallel),
            special=special,
            dynamic=dynamic,
        )
        program, plan = memory.choose_plan(
            lower(),
            memory_options,
            reorder=not host.features.vector_bytes,
            in_arenas=executor == "aot",
            ram=options.ram if executor == "aot" else None,
            tile_for_ram=partial(transform.tile_for_ram, fused, lower),
        )
        arena = plan.size if plan.is_bounded else None
        executable = codegen.executable_of(program, arena, name, mod.containers) if dynamic else None
    if program.tiling is not None:
        memory_options = replace(memory_options, ram=options.ram)
    small = options.optimize == "size"
    unit = codegen.Unit(
        program,
        plan,
        name,
        executor,
        options.external_workspace,
        host,
        mod.quantization,
        options.workspace_io,
        memory.assign_constants(program, memory_options.constants),
        small=small,
        packed_constants=small and not host.features.vector_bytes,
        device_target=chosen if chosen.device else None,
        executable=executable,
        parallel=PARALLEL_FOR if options.parallel else "",
    )
    return unit, memory_options


def runnable_here(factory: Factory) -> Factory:
    """Return the same module for LLVM if its code is C and no C compiler is available.

    Its results are identical. A module with C code of external generators is returned unchanged, and requires a
    compiler.
    """
    host = factory.target_host or factory.target
    external = factory.code.external or any(kernel.external for kernel in factory.program.kernels)
    if host.kind != "c" or external or has_compiler():
        return factory
    native = "llvm -mcpu=native"
    options = BuildOptions(
        str(factory.target) if factory.target_host else native,
        target_host=native if factory.target_host else PORTABLE,
        executor=factory.executor,
        module_name=factory.module_name,
        optimize=factory.optimize,
        limit_factor=_ACCEPTED,
        specialize=factory.specialize,
        parallel=factory.parallel,
    )
    return build_module(factory.module, factory.source_params, options)


def _check_names(module: IRModule, params: Collection[str]) -> None:
    """Raise UnsupportedError for names that C strings, UTF-8 or libraries cannot store."""
    names = {param.name: "weight" if param.name in params else "input" for param in module.main.params}
    for name, kind in (*names.items(), *((name, "output") for name in module.output_names)):
        if len(name) > _LONGEST_NAME or _UNSTORABLE.search(name):
            raise UnsupportedError(
                f"expected {with_article(kind)} name of at most {_LONGEST_NAME:,} characters without NULs and lone "
                f"surrogates, got '{shortened(printable(name))}' ({len(name):,} characters)",
                next_step=f"Rename the {kind} in the model",
            )


def _executor(module: IRModule, options: BuildOptions, check: Callable[[str], None]) -> str | None:
    """Return the executor, checked in advance; None for a static model, whose executor is chosen later."""
    executor = "vm" if options.executor is None and is_dynamic(module) else options.executor
    if executor is not None:
        check(executor)
    if executor != "vm" and is_dynamic(module):
        raise OptionError(
            f"dynamic dimensions and control flow require the virtual machine, got the executor '{executor}'",
            next_step="Omit the option, or specify static dimensions: --shape INPUT=1,3,224,224",
        )
    if executor != "vm" and options.specialize:
        raise OptionError(
            "specializing requires dynamic dimensions and the virtual machine",
            place="specialize",
            next_step="Omit it, or keep the dimensions dynamic",
        )
    if options.parallel and options.optimize == "size":
        raise OptionError(
            "kernels do not share their work among threads with --optimize size",
            place="parallel",
            next_step="Omit it",
        )
    return executor


@contextmanager
def _bounds_decide() -> Iterator[None]:
    """Raise UnsupportedError if the bounds of symbolic dimensions do not decide a comparison."""
    try:
        yield
    except UndecidedError as error:
        raise UnsupportedError(
            f"the bounds of the dynamic dimensions do not decide how to compile this: {error}",
            next_step="Specify bounds or values for some of them: --shape NAME=batch:1..8,3,224,224",
        ) from error
