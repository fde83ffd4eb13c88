"""Mutants of ONNX's node tests and of TFLite's operators, compared with ONNX Runtime, ONNX's reference and LiteRT.

Batches run in child processes, so that code that crashes ends only its batch. Targets and executors rotate.
"""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

import mlfc
from fuzz import onnx_mutants, tflite_mutants
from fuzz.python_readers import Failure
from mlfc.archive.read.load import load_factory
from mlfc.errors import InternalError, MlfcError, ToolchainError
from mlfc.frontend import import_for_run
from mlfc.options import ImportOptions
from mlfc.support import dtypes
from mlfc.verify.litert import LiteRtReference
from tests.conftest import flags_for_o3
from tests.merged import merge

Array = npt.NDArray[Any]

NAME = "mutants"
FAILING = ("wrong", "unconfirmed", "peers disagree", "exception", "crash")
_BATCH = 32
_CPU_SECONDS = 20
_MEMORY = 6 << 30
_EXECUTORS = ("aot", "vm", "graph", None)
_C = ("c", "c -mcpu=native", "c -mcpu=cortex-m4")
# references compute some float64 functions with float32 constants
_TOLERANCES = {"float32": 1e-5, "float64": 1e-7, "float16": 2e-3, "bfloat16": 1.6e-2}
_UNAVAILABLE = re.compile(
    "NOT_IMPLEMENTED|Could not find an implementation|is not supported|Unexpected input data type|is invalid|Type Err",
    re.IGNORECASE,
)
_MODERATE = 1e3
_MOST_ELEMENTS = 1 << 20
_COMPILING = 1


@dataclass(frozen=True)
class Sample:
    """A model with feeds and the expected outputs, which are in the order of the model."""

    number: int
    title: str
    operators: tuple[str, ...]
    data: bytes
    feeds: Mapping[str, Array]
    expected: tuple[Array, ...]
    is_extreme: bool = False

    @property
    def is_onnx(self) -> bool:
        """True for an ONNX model, False for TFLite."""
        return self.data[4:8] != b"TFL3"

    def to_bytes(self) -> bytes:
        """Return a file for `replayed`."""
        arrays = {"model": np.frombuffer(self.data, np.uint8)}
        facts: dict[str, Any] = {"title": self.title, "operators": self.operators, "feeds": {}}
        for place, (name, array) in enumerate(self.feeds.items()):
            arrays[f"a{place}"] = np.frombuffer(array.tobytes(), np.uint8)
            facts["feeds"][name] = [array.dtype.name, array.shape]
        buffer = io.BytesIO()
        np.savez_compressed(buffer, facts=json.dumps(facts), **arrays)  # type: ignore[arg-type]  # arrays by name
        return buffer.getvalue()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant."""

    sample: Sample
    kind: str
    cause: str = ""
    way: str = ""


def sample_of(data: bytes) -> Sample:
    """Return the sample of a file of `to_bytes`, with the outputs that the references compute."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        facts = json.loads(str(file["facts"]))
        feeds = {
            name: np.frombuffer(file[f"a{place}"].tobytes(), dtypes.to_numpy(dtype)).reshape(shape)
            for place, (name, (dtype, shape)) in enumerate(facts["feeds"].items())
        }
        model = file["model"].tobytes()
    found = Sample(0, facts["title"], tuple(facts["operators"]), model, feeds, ())
    return replace(found, expected=tuple(_expected(found)))


def _expected(sample: Sample) -> list[Array]:
    if not sample.is_onnx:
        reference = LiteRtReference(sample.data)
        results = reference.run(sample.feeds)
        names = [str(item["name"]) for item in reference._interpreter.get_output_details()]
        return [results[name] for name in names]
    model = onnx.load_from_string(sample.data)
    try:
        return _arrays(onnx_mutants.by_onnxruntime(model, dict(sample.feeds)).values())
    except Exception as error:  # its errors have no common base
        if not _UNAVAILABLE.search(str(error)):
            raise
    onnx.checker.check_model(model, full_check=True)
    return _by_reference(sample)


def _by_reference(sample: Sample) -> list[Array]:
    with np.errstate(all="ignore"):
        return _arrays(ReferenceEvaluator(onnx.load_from_string(sample.data)).run(None, dict(sample.feeds)))


def _arrays(values: Any) -> list[Array]:
    found = [np.asarray(value) for value in values if not isinstance(value, (list, tuple))]
    if len(found) < len(list(values)) or any(array.dtype == object or array.size > _MOST_ELEMENTS for array in found):
        raise onnx_mutants.UnfitError
    return found


def onnx_sample(seed: int, number: int) -> Sample:
    """Return a mutant of a node test; raise any error if no reference runs it."""
    m = onnx_mutants.mutant(seed, number)
    sample = Sample(number, " + ".join(m.names), tuple(onnx_mutants.operators(m.model)), m.model.SerializeToString(),
                    m.feeds, (), m.is_extreme)  # fmt: skip
    expected = _expected(sample)
    onnx_mutants.declared(m, expected)
    return replace(sample, data=m.model.SerializeToString(), expected=tuple(expected))


def tflite_sample(seed: int, number: int) -> Sample:
    """Return a mutant of a TFLite operator; raise any error if LiteRT does not run it."""
    m = tflite_mutants.mutant(seed, number)
    m.renamed(f"m{number}/")
    codes = tuple(op.code for op in m.ops)
    results = LiteRtReference(m.model()).run(m.feeds)
    for name, item in m.tensors.items():
        if name in results:  # LiteRT computes shapes itself
            m.tensors[name] = replace(item, shape=results[name].shape)
    expected = tuple(results[name] for name in m.outputs())
    return Sample(number, " + ".join(m.names), codes, m.model(), m.feeds, expected, m.is_extreme)


def difference(found: Sequence[Array], expected: Sequence[Array], *, elementwise: bool = False) -> str:
    """Return how outputs differ; an empty string if they are equal, or floats are close.

    `elementwise` floats are close relative to themselves, others relative to the largest finite one.
    """
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"output {place}: {ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
        wrong = ~close(ours, theirs, elementwise=elementwise)
        if wrong.any():
            return (f"output {place}: {np.count_nonzero(wrong)} of {wrong.size} differ: got {ours[wrong][:3]}, "
                    f"expected {theirs[wrong][:3]}")  # fmt: skip
    return ""


def close(ours: Array, theirs: Array, *, elementwise: bool) -> npt.NDArray[np.bool_]:
    """Return which elements of equal shape are close enough."""
    if ours.dtype.kind not in "fVc":
        return np.asarray(ours == theirs)
    tolerance = _TOLERANCES.get(ours.dtype.name, 0.0)
    a, b = (array.astype(np.float64 if ours.dtype.kind != "c" else np.complex128) for array in (ours, theirs))
    with np.errstate(all="ignore"):
        scale = np.abs(b) if elementwise else np.abs(b[np.isfinite(b)]).max(initial=0)
        near = np.isfinite(b) & np.isfinite(a) & (np.abs(a - b) <= tolerance * scale + 1e-30)
    return np.asarray(near | (a == b) | (np.isnan(a) & np.isnan(b)))


def _is_ill_conditioned(sample: Sample, found: Sequence[Array]) -> bool:
    """Return whether the reference's outputs change as much if its floats change in their last bits."""
    apart = [~close(a, b, elementwise=sample.is_extreme) for a, b in zip(found, sample.expected, strict=True)]
    for attempt in range(8):
        rng = np.random.default_rng(attempt)
        fewest = 5 if attempt < 4 else 1  # small float arrays may be scales, which decide shapes
        feeds = {name: _moved(array, rng, fewest) for name, array in sample.feeds.items()}
        data = sample.data
        if sample.is_onnx:
            model = onnx.load_from_string(data)
            for item in model.graph.initializer:
                moved = _moved(onnx.numpy_helper.to_array(item), rng, fewest)
                item.CopyFrom(onnx.numpy_helper.from_array(moved, item.name))
            data = model.SerializeToString()
        try:
            others = _expected(replace(sample, data=data, feeds=feeds))
        except Exception:  # any error of the reference
            continue
        for place, (ours, theirs, other) in enumerate(zip(found, sample.expected, others, strict=True)):
            if other.shape != theirs.shape:
                break
            with np.errstate(all="ignore"):
                a, b, c = (np.asarray(array).astype(np.float64) for array in (ours, theirs, other))
                moved = (np.abs(c - b) * 4 >= np.abs(a - b)) | (np.isfinite(c) != np.isfinite(b))
            apart[place] &= ~moved
    return not any(map(np.any, apart))


def _moved(array: Array, rng: np.random.Generator, fewest: int) -> Array:
    if array.dtype.kind not in "fV" or array.size < fewest:
        return array
    step = {"float32": 2.0**-22, "float64": 2.0**-50, "float16": 2.0**-9}.get(array.dtype.name, 2.0**-6)
    with np.errstate(all="ignore"):
        wide, signs = array.astype(np.float64), step * rng.choice([-1, 1], array.shape)
        largest = np.abs(wide[np.isfinite(wide)]).max(initial=0)
        return np.asarray(wide * (1 + signs) + (signs * largest if largest < _MODERATE else 0)).astype(array.dtype)


# ---- one batch


def _import(sample: Sample, target: str, executor: str | None) -> Any:
    return import_for_run(sample.data, ImportOptions(name="mutant", target=target), executor)


def _run(modules: Sequence[Any], samples: Sequence[Sample], target: str, executor: str | None) -> Iterator[list[Array]]:
    """Yield the outputs of each sample, all compiled as one module."""
    module, params, firsts = merge(modules) if len(modules) > 1 else (*modules[0], [0])
    chosen = {} if executor is None else {"executor": executor}
    loaded = load_factory(mlfc.build(module, target, params, module_name="mutants", **chosen))
    results = loaded.run({name: array for sample in samples for name, array in sample.feeds.items()})
    outputs = list(results.values())
    for first, sample in zip(firsts, samples, strict=True):
        yield [np.asarray(item) for item in outputs[first : first + len(sample.expected)]]


def _is_plain(module: Any) -> bool:
    """Return whether a module can be merged with others: static, without functions and containers."""
    shapes = [extent for var in module.main.params for extent in getattr(var.type, "shape", ("?",))]
    is_static = all(isinstance(extent, int) for extent in shapes) and not module.main.attrs.get("defines")
    return is_static and len(module.functions) == 1 and not module.states and not module.containers


def outcomes(samples: Sequence[Sample], target: str, executor: str | None) -> Iterator[Outcome]:
    """Yield the outcome of each sample: samples with static shapes share one module, others have their own."""
    together, alone = [], []
    for sample in samples:
        try:
            imported = _import(sample, target, executor)
        except Exception:  # reported below
            alone.append(sample)
        else:
            (together if _is_plain(imported[0]) else alone).append((sample, imported))
    plain = [sample for sample, _ in together]
    try:
        found = list(_run([imported for _, imported in together], plain, target, executor)) if plain else []
    except Exception:
        alone += plain
    else:
        for sample, outputs in zip(plain, found, strict=True):
            if difference(outputs, sample.expected):
                alone.append(sample)
            else:
                yield Outcome(sample, "equal", way=f"{target} {executor}")
    for item in alone:
        sample = item[0] if isinstance(item, tuple) else item
        yield _alone(sample, target, executor)


def _alone(sample: Sample, target: str, executor: str | None) -> Outcome:
    """Return the outcome of one sample. If a static-shape executor rejects it, the virtual machine runs it."""
    for way in dict.fromkeys(((target, executor), (target.replace(" -mcpu=cortex-m4", ""), None))):
        name = f"{way[0]} {way[1]}"
        try:
            (found,) = _run([_import(sample, *way)], [sample], *way)
        except (InternalError, ToolchainError) as error:
            return Outcome(sample, "exception", f"{type(error).__name__}: {error}", name)
        except MlfcError as error:
            refusal = Outcome(sample, "refused", _cause(error), name)
        except Exception as error:  # the fuzzer looks for these
            return Outcome(sample, "exception", f"{type(error).__name__}: {error}", name)
        else:
            return _judged(sample, found, name)
    return refusal


def _cause(error: MlfcError) -> str:
    problems = getattr(error, "problems", None)
    return problems[0].cause if problems else error.cause


def _judged(sample: Sample, found: list[Array], way: str) -> Outcome:
    cause = difference(found, sample.expected, elementwise=False)
    if not cause:
        return Outcome(sample, "equal", way=way)
    same_types = all((a.dtype, a.shape) == (b.dtype, b.shape) for a, b in zip(found, sample.expected, strict=True))
    if same_types and _is_ill_conditioned(sample, found):
        return Outcome(sample, "ill-conditioned", cause, way)
    try:
        other = _by_reference(sample) if sample.is_onnx else None
    except Exception:  # any error of the reference
        other = None
    if other is None:
        return Outcome(sample, "unconfirmed", cause, way)
    return Outcome(sample, "wrong" if difference(found, other) else "peers disagree", cause, way)


def replayed(data: bytes) -> bool:
    """Print the outcome of a saved mutant for every target and executor; return whether any result is wrong."""
    sample, failed = sample_of(data), False
    print(f"{sample.title}\n  expected {sample.expected}")
    for target, executor in dict.fromkeys(map(_way, range(96))):
        outcome, said = _apart(lambda _, way=(target, executor): _alone(sample, *way))
        failed |= bool(said) or outcome.kind in FAILING
        print(f"  {target} {executor}: {said or outcome.kind} {'' if said else outcome.cause}")
    return failed


def _warm() -> None:
    """Compile a small model for every target, so that the processes of batches need not import parts of mlfc."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [extent]) for name, extent in
            (("x", "n"), ("y", "n")))  # fmt: skip
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    feeds = {"x": np.ones(3, np.float32)}
    with flags_for_o3(("-O0",)):
        for extent in ("n", 3):
            x.type.tensor_type.shape.dim[0].CopyFrom(onnx.TensorShapeProto.Dimension(
                **({"dim_param": extent} if extent == "n" else {"dim_value": extent})))  # fmt: skip
            graph.input[0].CopyFrom(x)
            data = onnx.helper.make_model(graph, ir_version=10).SerializeToString()
            for way in dict.fromkeys(map(_way, range(96))):
                _alone(Sample(0, "", (), data, feeds, (np.ones(3, np.float32),)), *way)
    gc.freeze()


# ---- processes


def _apart(function: Callable[[mmap], Any]) -> tuple[Any, str]:
    """Run a function in its own process; return its result, or an empty one, and its last progress."""
    stage = mmap(-1, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.dup2(2, 1)
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            with os.fdopen(writer, "wb") as file:
                file.write(pickle.dumps(function(stage)))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return pickle.loads(data), ""
    said = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "an error of the process"
    return None, said if stage[0] == _COMPILING else "invalid"


def _way(turn: int) -> tuple[str, str | None]:
    """Return the target and executor of a batch; C compilers are slow and get one batch in eight."""
    if turn % 8 == 7:
        target = _C[turn // 8 % len(_C)]
        executors = _EXECUTORS[::2] if "cortex" in target else _EXECUTORS
        return target, executors[turn // 24 % len(executors)]
    return "llvm", _EXECUTORS[(turn + turn // 8) % len(_EXECUTORS)]


def _batch(make: Callable[[int, int], Sample], seed: int, numbers: Sequence[int], turn: int) -> list[Outcome]:
    """Return the outcomes of mutants: from one process, or from one process each if that one crashes."""
    target, executor = _way(turn)

    def work(stage: mmap) -> list[Outcome]:
        seconds = _CPU_SECONDS + len(numbers)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        samples, found = [], []
        for number in numbers:
            try:
                samples.append(make(seed, number))
            except Exception:  # no reference runs it
                found.append(Outcome(Sample(number, "", (), b"", {}, ()), "invalid"))
        stage[0] = _COMPILING
        with flags_for_o3(("-O0",)):
            return [*found, *outcomes(samples, target, executor)]

    found, said = _apart(work)
    if not said:
        return list(found)
    if len(numbers) > 1:
        return [outcome for number in numbers for outcome in _batch(make, seed, [number], turn)]
    empty = Sample(numbers[0], "", (), b"", {}, ())
    if said == "invalid":
        return [Outcome(empty, "invalid")]
    sample, _ = _apart(lambda _: make(seed, numbers[0]))
    if sample is None:  # a reference that writes beyond its memory crashes the process, sometimes later
        return [Outcome(empty, "invalid")]
    found, again = _apart(lambda _: list(outcomes([sample], target, executor)))
    if again:
        return [Outcome(sample, "crash", said, f"{target} {executor}")]
    return list(found)


# ---- documented differences


@dataclass(frozen=True)
class Known:
    """A documented difference: patterns of the operators, the title and the cause, and the reason.

    `wrong` entries also apply where ONNX's reference returns a third result.
    """

    reason: str
    operators: str = ""
    title: str = ""
    cause: str = ""
    wrong: bool = False

    def fits(self, outcome: Outcome) -> bool:
        """Return whether this entry documents an outcome."""
        if not any(re.fullmatch(self.operators or ".*", name) for name in outcome.sample.operators):
            return False
        if outcome.kind not in ("peers disagree", "unconfirmed", *(("wrong",) if self.wrong else ())):
            return False
        return bool(re.search(self.title, outcome.sample.title) and re.search(self.cause, outcome.cause))


def known_differences() -> list[Known]:
    """Return the documented list."""
    text = Path(__file__).with_name("differential_known.json").read_text(encoding="utf-8")
    return [Known(**item) for item in json.loads(text)]


def fuzz(
    seconds: float,
    seed: int,
    *,
    mutants: int = 1 << 60,
    counts: Counter[str],
    refusals: Counter[str],
    batch: int = _BATCH,
) -> list[Failure]:
    """Compare mutants for a time, or a number of them; return the failing ones.

    Parameters
    ----------
    seconds : float
    seed : int
        The same seed gives the same mutants.
    mutants : int
        Maximum number of mutants that a reference runs.
    counts, refusals : Counter
        Receive the number of mutants by outcome, and of rejections by cause.
    batch : int
        Mutants per process.
    """
    known, failures = known_differences(), []
    end, number = time.monotonic() + seconds, 0
    onnx_mutants.claimed()
    tflite_mutants.cases_of_sweep()
    _warm()
    while time.monotonic() < end and counts.total() - counts["invalid"] < mutants:
        turn = number // batch
        make = tflite_sample if turn % 3 == 2 else onnx_sample
        for outcome in _batch(make, seed, range(number, number + batch), turn // 3 + turn % 3):
            listed = next((item for item in known if outcome.kind in FAILING and item.fits(outcome)), None)
            kind = "documented" if listed else outcome.kind
            counts[kind] += 1
            if kind == "refused":
                refusals[re.sub(r"'[^']*'|[-\d]+", "_", outcome.cause)] += 1
            elif kind in FAILING:
                cause = f"{kind} ({outcome.way}): {outcome.sample.title}: {outcome.cause}"
                label = f"{seed}/{outcome.sample.number}: "
                failures.append(Failure(NAME, outcome.sample.to_bytes() if outcome.sample.data else b"", label + cause))
        number += batch
    return failures
