"""The story in one screen: import -> passes -> lower -> plan -> emit.

`build` takes what `import_model` returns and gives a `Factory`, which unpacks as
``(graph_json, lib, params)`` and is what the exporters write to disk.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

import mlfc.ops  # noqa: F401  (registers the operators)
from mlfc import codegen, memory, transform
from mlfc.byoc import find_generators, takes_modules
from mlfc.errors import OptionError, UnsupportedError
from mlfc.factory import Factory
from mlfc.library.toolchain import has_compiler
from mlfc.relay.dynamic import is_dynamic
from mlfc.relay.ir import IRModule
from mlfc.stepped import stepped_unit
from mlfc.support.c_names import module_name as checked_module_name
from mlfc.support.parallel_functions import PARALLEL_FOR
from mlfc.support.text import printable, shortened, with_article
from mlfc.target.shipped import shipped_log
from mlfc.target.target import Target, parse_host, parse_target
from mlfc.target.tuning_log import Log, opened_log

_ACCEPTED = 16.0  # times the usual limits, for a model that was accepted within some limits

_LONGEST_NAME = 65000  # metadata.json and libraries store 65,536, and some names get a suffix
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")


def build(
    mod: IRModule,
    target: str = "c",
    params: Mapping[str, npt.NDArray[np.generic]] | None = None,
    *,
    target_host: str = "c",
    executor: str | None = None,
    module_name: str = "default",
    optimize: str = "speed",
    external_workspace: bool = False,
    workspace_io: bool = False,
    pools: Sequence[memory.Pool] = (),
    constants: Sequence[memory.ConstantPool] = (),
    ram: int | None = None,
    limit_factor: float = 1.0,
    dry_run: bool = False,
    specialize: Sequence[Mapping[str, int]] = (),
    parallel: bool | None = None,
    tuned: Log | None = None,
) -> Factory:
    """Compile a Relay module.

    Parameters
    ----------
    mod : IRModule
        What `import_model` or the Relay parser returned.
    target : str
        A target string; see `mlfc.target.target.parse_target`. For a device (``opencl``, ``cuda``) every group of
        operators runs there that can, others on the host; see `mlfc.transform.device_placement`.
    params : mapping of str to ndarray, optional
        Values of parameters of ``main``; the others are the model's inputs.
    target_host : str
        The target of the code that launches a device's kernels, and computes what the device does not: ``c`` or
        ``llvm``.
    executor : str
        ``aot``: one C function runs the model. ``graph``: the graph executor calls an operator at a time, with weights
        from a file of parameters. ``vm``: the virtual machine runs models whose extents or course depend on the inputs.
        Default: ``vm`` for such models, ``graph`` where a device or a runtime module of an external generator has a
        part, else ``aot``.
    module_name : str
        Goes into every symbol; letters, digits and underscores.
    optimize : str
        ``speed`` or ``size``.
    external_workspace : bool
        The caller of the generated code passes the workspace in, instead of a static array. Only for AOT, as is what
        follows: the graph executor allocates.
    workspace_io : bool
        Inputs and outputs lie in the workspace, where intermediates take their place when they are not needed.
    pools : sequence of Pool
        Memories that the workspace is spread over, the fastest first.
    constants : sequence of ConstantPool
        Memories that constants are spread over, the fastest first.
    ram : int, optional
        Bytes for the workspace, inputs and outputs. Where they are more, layers are tiled by rows, if that helps:
        more calls, the same results. It is no error if they still are more; see `archive.budget.check_budget`.
    limit_factor : float
        Multiplies the limits of what a model may cost beyond the size of its weights; see `mlfc.support.cost`.
    specialize : sequence of mapping
        Values of open dimensions, ``[{"batch": 1}, {"batch": 8}]``: the virtual machine runs code of its own for each,
        which is faster and gives the same bits.
    parallel : bool, optional
        Kernels of libraries, and of models that run in this process, share their work among threads: those of
        `mlfc.set_num_threads`. Default: for hosts, if the model takes half a millisecond or more, and in programs that
        call the library in C, only once they ask for threads. True: without being asked; and the code of archives
        calls what an application hands in: ``mlfc_set_parallel_for``. For ``optimize="speed"``.
    tuned : path or TuningLog, optional
        What `mlfc tune` wrote: kernels that it measured take the values that were fastest, and give the same bits.
        Default: what was measured for well-known models on this kind of processor; ``none``: nothing.
    dry_run : bool
        Stop before the code is printed: all that can be refused has been by then.

    Returns
    -------
    Factory

    Raises
    ------
    MlfcError
        For options that do not exist, and for what cannot be compiled.
    """
    values = transform.checked_params(mod, params)
    _check_names(mod, values)
    memory_options = memory.MemoryOptions(workspace_io, tuple(pools), tuple(constants))
    chosen = parse_target(target, optimize)
    host = parse_host(target_host, optimize) if chosen.device else chosen
    log = shipped_log(host) if tuned is None else opened_log(tuned)
    if log is not None:
        host = log.applied(host)
        chosen = chosen if chosen.device else host
    name = checked_module_name(module_name)
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
            name,
            chosen,
            executor,
            mod,
            values,
            unit,
            target_host=beside,
            specialize=tuple(specialize),
            parallel=parallel,
        )
        if log is not None and tuned is not None:
            log.note(host)
        return _made(stepped, dry_run)
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
            ram=ram if executor == "aot" else None,
            tile_for_ram=partial(transform.tile_for_ram, fused, lower),
        )
    if log is not None and tuned is not None:
        log.note(host)
    if program.tiling is not None:
        memory_options = replace(memory_options, ram=ram)
    small = optimize == "size"
    unit = codegen.Unit(
        program,
        plan,
        name,
        executor,
        external_workspace,
        host,
        mod.quantization,
        workspace_io,
        memory.assign_constants(program, memory_options.constants),
        small=small,
        packed_constants=small and not host.features.vector_bytes,
        device_target=chosen if chosen.device else None,
        parallel=PARALLEL_FOR if parallel else "",
    )
    beside = host if chosen.device else None
    made = Factory(name, chosen, executor, mod, values, unit, memory_options, beside, parallel=parallel)
    return _made(made, dry_run)


def runnable_here(factory: Factory) -> Factory:
    """Return the same module for LLVM in this process, where its code is C and there is no compiler.

    Its results are the same. What external generators made in C stays as it is, and asks for a compiler.
    """
    host = factory.target_host or factory.target
    external = factory.code.external or any(kernel.external for kernel in factory.program.kernels)
    if host.kind != "c" or external or has_compiler():
        return factory
    native = "llvm -mcpu=native"
    return build(
        factory.module,
        str(factory.target) if factory.target_host else native,
        dict(factory.source_params),
        target_host=native if factory.target_host else "c",
        executor=factory.executor,
        module_name=factory.module_name,
        optimize=factory.optimize,
        limit_factor=_ACCEPTED,
        specialize=factory.specialize,
        parallel=factory.parallel,
    )


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
