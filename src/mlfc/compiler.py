"""The story in one screen: import -> passes -> lower -> plan -> emit.

`build` takes what `import_model` returns and gives a `Factory`, which unpacks as
``(graph_json, lib, params)`` and is what the exporters write to disk.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import mlfc.ops  # noqa: F401  (registers the operators)
from mlfc import codegen, memory, transform
from mlfc.byoc import find_generators, takes_modules
from mlfc.errors import OptionError, UnsupportedError
from mlfc.factory import Factory
from mlfc.library.toolchain import has_compiler
from mlfc.options import BuildOptions, Params
from mlfc.relay.dynamic import is_dynamic
from mlfc.relay.ir import IRModule
from mlfc.stepped import stepped_unit
from mlfc.support.c_names import module_name as checked_module_name
from mlfc.support.keywords import option, with_keywords
from mlfc.support.parallel_functions import PARALLEL_FOR
from mlfc.support.text import printable, shortened, with_article
from mlfc.target.defaults import PORTABLE
from mlfc.target.shipped import shipped_log
from mlfc.target.target import Target, parse_host, parse_target
from mlfc.target.tuning_log import opened_log

_ACCEPTED = 16.0  # times the usual limits, for a model that was accepted within some limits

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
        What `import_model` or the Relay parser returned.

    Returns
    -------
    Factory

    Raises
    ------
    MlfcError
        For options that do not exist, and for what cannot be compiled.
    """
    return build_module(mod, options.params, options)


def build_module(mod: IRModule, params: Params | None, options: BuildOptions) -> Factory:
    """Compile a Relay module as `build` does."""
    values = transform.checked_params(mod, params)
    _check_names(mod, values)
    if isinstance(options.specialize, str):
        raise OptionError(f"specialize='{options.specialize}' requires mlfc.compile", place="specialize")
    executor, specialize, limit_factor = options.executor, tuple(options.specialize), options.limit_factor
    parallel, external_workspace = options.parallel, options.external_workspace
    memory_options = memory.MemoryOptions(options.workspace_io, tuple(options.pools), tuple(options.constants))
    chosen = parse_target(options.target, options.optimize)
    host = parse_host(options.target_host, options.optimize) if chosen.device else chosen
    log = shipped_log(host) if options.tuned is None else opened_log(options.tuned)
    if log is not None:
        host = log.applied(host)
        chosen = chosen if chosen.device else host
    name = checked_module_name("default" if options.module_name is None else options.module_name)
    if executor is None and is_dynamic(mod):
        executor = "vm"
    if executor is not None:  # before the work is done
        codegen.check_executor(executor, chosen, memory_options, external_workspace=external_workspace)
    if executor == "vm":
        _check_parallel(parallel, host)
        unit = stepped_unit(mod, values, name, (chosen, host), specialize, limit_factor)
        unit = replace(unit, parallel=PARALLEL_FOR if parallel else "")
        beside = host if chosen.device else None
        stepped = Factory(
            name, chosen, executor, mod, values, unit, target_host=beside, specialize=specialize, parallel=parallel
        )
        if log is not None and options.tuned is not None:
            log.note(host)
        return _made(stepped, options.dry_run)
    _require_fixed(mod, executor, specialize)
    _check_parallel(parallel, host)
    partition = transform.PartitionGraph(find_generators(mod.byoc), host.features)
    with transform.within_limits(mod, values, limit_factor):
        fused = transform.run(mod, values, partition=partition, on_device=bool(chosen.device))
        if executor is None:
            executor = "graph" if chosen.device or takes_modules(fused.main.body) else "aot"
            codegen.check_executor(executor, chosen, memory_options, external_workspace=external_workspace)
        on_device = transform.place_on_device(fused, chosen.device, chosen.features) if chosen.device else None
        lower = partial(
            transform.lower,
            fused,
            host.features,
            name,
            cache={},
            placement=on_device,
            shares_work=bool(parallel),
        )
        program, plan = memory.choose_plan(
            lower(),
            memory_options,
            reorder=not host.features.vector_bytes,
            in_arenas=executor == "aot",
            ram=options.ram if executor == "aot" else None,
            tile_for_ram=partial(transform.tile_for_ram, fused, lower),
        )
    if log is not None and options.tuned is not None:
        log.note(host)
    if program.tiling is not None:
        memory_options = replace(memory_options, ram=options.ram)
    small = options.optimize == "size"
    unit = codegen.Unit(
        program,
        plan,
        name,
        executor,
        external_workspace,
        host,
        mod.quantization,
        options.workspace_io,
        memory.assign_constants(program, memory_options.constants),
        small=small,
        packed_constants=small and not host.features.vector_bytes,
        device_target=chosen if chosen.device else None,
        parallel=PARALLEL_FOR if parallel else "",
    )
    beside = host if chosen.device else None
    made = Factory(name, chosen, executor, mod, values, unit, memory_options, beside, parallel=parallel)
    return _made(made, options.dry_run)


def runnable_here(factory: Factory) -> Factory:
    """Return the same module for LLVM in this process, where its code is C and there is no compiler.

    Its results are the same. What external generators made in C stays as it is, and asks for a compiler.
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


def _require_fixed(module: IRModule, executor: str | None, specialize: Sequence[Mapping[str, int]]) -> None:
    """Raise OptionError for what the virtual machine alone runs."""
    if is_dynamic(module):
        raise OptionError(
            f"open dimensions and control flow require the virtual machine, got the executor '{executor}'",
            next_step="Leave the option out, or fix the dimensions: --shape INPUT=1,3,224,224",
        )
    if specialize:
        raise OptionError(
            "specializing requires open dimensions and the virtual machine",
            place="specialize",
            next_step="Leave it out, or leave the dimensions open",
        )


def _check_parallel(parallel: bool | None, host: Target) -> None:
    """Raise OptionError where kernels cannot share their work among threads."""
    if parallel and host.features.optimize == "size":
        raise OptionError(
            "kernels do not share their work among threads with --optimize size",
            place="parallel",
            next_step="Leave it out",
        )


def _made(factory: Factory, dry_run: bool) -> Factory:
    if not dry_run:
        _ = factory.code
    return factory
