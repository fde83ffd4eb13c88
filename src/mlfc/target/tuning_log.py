"""Tuning logs: JSON lines, each a trial of parameter values or the choice for a kernel. Logs are untrusted."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from mlfc.errors import ArchiveError, InputError, OptionError
from mlfc.support.json_text import parse_json
from mlfc.support.plain_file import read_small
from mlfc.support.records import Limits, Record, RecordError
from mlfc.target.features import CPUS, TEMPLATES, Choices, Features, Tuned
from mlfc.target.target import Target

MOST_BYTES, MOST_LINE, MOST_LINES = 64 << 20, 64 << 10, 200_000
FORM = 1
NONE = "none"
"""In place of a log: use only the templates' rules."""
_AGAIN = "Tune again: mlfc tune MODEL -o LOG"

Short: TypeAlias = Annotated[str, Limits(max_length=200)]
Size: TypeAlias = Annotated[int, Limits(minimum=0, maximum=1 << 31)]


@dataclass(frozen=True)
class KernelFacts(Record):
    """The computation of a kernel; see `transform.lower_group.kernel_facts`."""

    operator: Short
    inputs: Annotated[tuple[Annotated[str, Limits(max_length=1000)], ...], Limits(max_items=64)]
    attributes: Mapping[str, Annotated[str, Limits(max_length=1000)]]

    @cached_property
    def key(self) -> str:
        """The canonical JSON text, which identifies the kernel."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class LogEntry(Record):
    """A line of a log."""

    form: Size  # version of the line's format
    templates: Size  # the version of their parameters
    kind: Annotated[str, Limits(enum=("trial", "choice"))]
    target: Short  # a single processor
    optimize: Annotated[str, Limits(enum=("speed", "size"))]
    kernel: KernelFacts
    values: Mapping[str, Short]  # by parameter; the template's rule decides missing ones
    outcome: Annotated[str, Limits(enum=("right", "wrong", "failed"))]  # comparison of the results with the rule's
    ratio: float | None  # time or instructions relative to the rule's
    measured: Short  # ``time``, or the board on which instructions or cycles were counted
    cost: float | None = None  # of the rule's values, in seconds, instructions or cycles
    reason: Annotated[str, Limits(max_length=400)] = ""  # the cause of a failure

    @property
    def values_key(self) -> str:
        """The canonical JSON text of the values."""
        return values_key(self.values)


def values_key(values: Mapping[str, Any]) -> str:
    """Return the canonical JSON text of values."""
    return json.dumps({name: values[name] for name in sorted(values)}, separators=(",", ":"))


@dataclass(frozen=True, eq=False)
class TuningLog:
    """The entries of a log that match this version's templates."""

    entries: tuple[LogEntry, ...]
    place: str = "tuning log"

    def choices(self, target: str, optimize: str) -> dict[str, Choices]:
        """Return the choices for a processor by kernel; the last of several for a kernel is used."""
        return {
            entry.kernel.key: entry.values
            for entry in self.entries
            if entry.kind == "choice" and entry.target == target and entry.optimize == optimize
        }

    def applied(self, target: Target) -> Target:
        """Return the target with the choices of the log."""
        features, levels = target.features, target.levels
        if levels is None:
            own = self._tuned(processor_of(target), target.mcpu, features.optimize)
            return replace(target, features=replace(features, tuned=own))
        by_level = {
            level.name: self._tuned(processor_of(target.at_level(level.name)), level.name, features.optimize)
            for level in levels.levels
        }
        # all levels share weights packed for the highest level's tiles
        packing = by_level[levels.levels[-1].name].kernels

        def tuned(name: str, of: Features) -> Features:
            return replace(of, tuned=replace(by_level[name], packing=packing))

        higher = tuple((name, tuned(name, each)) for name, each in features.levels)
        return replace(target, features=replace(tuned(levels.levels[0].name, features), levels=higher))

    def _tuned(self, text: str, cpu: str, optimize: str) -> Tuned:
        """Return the choices for a processor; if it has none, those of its base processor."""
        own = self.choices(text, optimize)
        base = CPUS.get(cpu).base if cpu in CPUS else ""
        if own or not base:
            return Tuned(own)
        return Tuned(self.choices(text.replace(f"-mcpu={cpu}", f"-mcpu={base}"), optimize), is_borrowed=True)

    def note(self, target: Target) -> None:
        """Warn of choices that templates do not support, or of a log without entries for the target."""
        features = [target.features, *(each for _, each in target.features.levels)]
        tuned = [each.tuned for each in features if each.tuned is not None]
        refused = {key for each in tuned for key in each.refused}
        if refused:
            warnings.warn(
                f"{self.place}: {len(refused)} choices have parameters that templates no longer support; the templates'"
                f" defaults are used. {_AGAIN}",
                stacklevel=3,
            )
        elif self.entries and not any(each.kernels for each in tuned):
            known = ", ".join(sorted({entry.target for entry in self.entries})[:8])
            warnings.warn(f"{self.place}: no entries for '{target}', only for: {known}", stacklevel=3)


def kernels_of(target: Target) -> set[str]:
    """Return the keys of the kernels that were compiled with values of a log."""
    features = [target.features, *(each for _, each in target.features.levels)]
    tuned = [each.tuned for each in features if each.tuned is not None]
    return {key for each in tuned for key in each.used - each.refused}


def processor_of(target: Target) -> str:
    """Return the form of a target in logs; for C only the processor, without other options."""
    if target.kind != "c":
        return str(target)
    return target.kind if target.mcpu == "generic" else f"{target.kind} -mcpu={target.mcpu}"


Log: TypeAlias = "str | os.PathLike[str] | TuningLog"


def opened_log(log: Log) -> TuningLog:
    """Return a log, opened from a file if necessary; entries of other versions are skipped with a warning."""
    if isinstance(log, TuningLog):
        return log
    if not isinstance(log, (str, os.PathLike)):
        raise OptionError(f"expected a tuning log or its path, got {type(log).__name__}", place="tuned")
    path = Path(log)
    if path.name == NONE and not path.exists():
        return TuningLog(())
    entries, _ = read_log(log)
    kept = tuple(entry for entry in entries if entry.form == FORM and entry.templates == TEMPLATES)
    if len(kept) < len(entries):
        warnings.warn(
            f"{log}: {len(entries) - len(kept)} entries are of another version and ignored. {_AGAIN}", stacklevel=3
        )
    return TuningLog(kept, str(log))


def read_log(path: str | os.PathLike[str]) -> tuple[list[LogEntry], int]:
    """Return the entries of a file, and the bytes up to the end of the last whole line.

    The last line may be incomplete, from an interrupted writer. Raises InputError for any other invalid content.
    """
    data = read_small(path, MOST_BYTES, partial(InputError, place=str(path), next_step=_AGAIN), "the log")
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].splitlines()
    if len(lines) > MOST_LINES:
        raise InputError(f"the log exceeds {MOST_LINES:,} lines", place=str(path), next_step=_AGAIN)
    if data and not whole and not data.startswith(b"{"):
        raise InputError("expected JSON lines of mlfc tune, got something else", place=str(path), next_step=_AGAIN)
    return [_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()], whole


def _entry(line: bytes, place: str) -> LogEntry:
    if len(line) > MOST_LINE:
        raise InputError(f"the line exceeds {MOST_LINE:,} bytes", place=place, next_step=_AGAIN)
    try:
        value = parse_json(line, place)
        if isinstance(value, dict) and value.get("form") not in (None, FORM):
            form = value["form"]
            if not isinstance(form, int) or isinstance(form, bool) or form < 0:
                raise RecordError("expected a whole number for 'form'")
            # placeholder for a line of another version, whose other fields are unknown
            return LogEntry(form, 0, "trial", "", "speed", KernelFacts("", (), {}), {}, "failed", None, "")
        return LogEntry.from_json(value)
    except ArchiveError as error:
        raise InputError(error.cause, place=place, next_step=_AGAIN) from None
    except RecordError as fault:
        raise InputError(
            f"{fault.cause}{f' at {fault.path}' if fault.path else ''}", place=place, next_step=_AGAIN
        ) from None


FOLDER = Path(__file__).parent / "tuned_kernels"
"""Logs for the kernels of well-known models, one for each processor, such as ``x86-64-v4.jsonl``, written by
`benchmarks/tuning.py`."""


def shipped_log(target: Target) -> TuningLog | None:
    """Return the log for a target's processor, or the highest of its levels; None if none is shipped."""
    if target.kind != "c" or not target.features.vector_bytes:
        return None
    name = target.mcpu if target.levels is None else target.levels.levels[-1].name
    return _log(name) or _log(CPUS.get(name).base if name in CPUS else "")


@cache
def _log(processor: str) -> TuningLog | None:
    path = FOLDER / f"{processor}.jsonl"
    return opened_log(path) if path.is_file() else None
