"""The tree of errors: every fault that reaches a user is one of these.

An error carries a stable `code`, the `cause` in one sentence, the `place` (file, node, byte) and the
`next_step` that the user can take. `docs/reference/errors.md` lists the codes.
"""

from __future__ import annotations

from collections.abc import Iterable

_FEW = 8  # names that a message lists whole
_MOST_SHOWN = 80


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the known names that begin with `name` or look like it."""
    import difflib  # only a miss needs it

    names = list(known)
    longer = [item for item in names if name and item.startswith(name)]
    return list(dict.fromkeys([*longer, *difflib.get_close_matches(name, names, n=3)]))[:3]


def unknown(kind: str, name: str, known: Iterable[str], *, where: str = "") -> str:
    """Return the cause ``unknown KIND 'name'; nearest: ...`` of an error.

    Parameters
    ----------
    kind : str
        What was looked up, in the singular: "board", "option".
    name : str
        What was not found.
    known : iterable of str
        What could have been; listed whole where nothing is near and there are few.
    where : str
        Follows the name: " in build.toml".
    """
    names = list(known)
    near = nearest(name, names)
    listed = ", ".join(f"'{item}'" for item in near or sorted(names) if near or len(names) <= _FEW)
    ending = f"; {'nearest' if near else 'known'}: {listed}" if listed else ""
    return f"unknown {kind} '{name[:_MOST_SHOWN]}'{where}{ending}"


class MlfcError(Exception):
    """Root of every error that mlfc raises on purpose.

    Parameters
    ----------
    cause : str
        What is wrong, one sentence without a final period.
    place : str, optional
        Where: a file, a node, a byte offset, a key.
    next_step : str, optional
        What the user can do about it.
    """

    code = "MLF000"
    exit_status = 2

    def __init__(self, cause: str, *, place: str | None = None, next_step: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.place = place
        self.next_step = next_step

    def __str__(self) -> str:
        text = f"{self.place}: {self.cause}" if self.place else self.cause
        return f"{text}. {self.next_step}" if self.next_step else text


class ModelError(MlfcError):
    """A model file that cannot be read as what it claims to be."""

    code = "MLF100"


class UnsupportedError(MlfcError):
    """A well-formed model that asks for something mlfc cannot compile."""

    code = "MLF101"


class ProblemsError(MlfcError):
    """Several errors found in one go; `problems` lists them in order of place."""

    code = "MLF102"

    def __init__(self, problems: Iterable[MlfcError], *, place: str | None = None) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} found", place=place)

    def __str__(self) -> str:
        lines = [super().__str__()]
        lines += [f"  [{problem.code}] {problem}" for problem in self.problems]
        return "\n".join(lines)


class LimitError(MlfcError):
    """A model that would cost more memory or work than the limits allow, which an option raises."""

    code = "MLF103"


class TextError(MlfcError):
    """Relay text that does not parse; the place has line and column."""

    code = "MLF110"


class TypeCheckError(MlfcError):
    """An operator applied to types, shapes or attributes that it does not take."""

    code = "MLF111"


class InputError(MlfcError):
    """An input tensor that is missing, unknown, or of the wrong shape or dtype."""

    code = "MLF120"


class OptionError(MlfcError):
    """An option, target or name that does not exist or does not fit the others."""

    code = "MLF121"


class ExchangeError(InputError, BufferError):
    """Memory that cannot be handed from one library to another as it lies; a BufferError, as DLPack asks for."""

    code = "MLF122"


class OutputError(MlfcError):
    """An output place that cannot be written."""

    code = "MLF130"


class ArchiveError(MlfcError):
    """An archive, parameter file or graph JSON that breaks its format."""

    code = "MLF140"


class ToolchainError(MlfcError):
    """A C compiler that is missing, fails, or makes code that does not load."""

    code = "MLF150"


class RunError(MlfcError):
    """A compiled model that reports failure when run."""

    code = "MLF160"


class IoTimeoutError(RunError):
    """A device that sends or takes nothing in time."""

    code = "MLF161"


class TransportClosedError(RunError):
    """A line to a device that is not open, or whose other side is gone."""

    code = "MLF162"


class SessionError(RunError):
    """A device that answers, but not as the protocol asks."""

    code = "MLF163"


class SessionTerminatedError(SessionError):
    """A session that the device ended: most often because it started again."""

    code = "MLF164"


class RemoteError(RunError):
    """A function on a device, or a request to it, that failed there."""

    code = "MLF165"


class DeviceError(RunError):
    """A device that is not there, has no driver, or whose driver fails."""

    code = "MLF166"


class BudgetError(MlfcError):
    """A comparison or a memory budget that is not met."""

    code = "MLF170"
    exit_status = 1


class ProjectError(MlfcError):
    """A step of a firmware project that fails, or a project's API server that does not answer."""

    code = "MLF180"


class ProjectAPIServerNotFoundError(ProjectError):
    """A folder without an API server, which is no project."""

    code = "MLF181"


class TemplateProjectError(ProjectError):
    """A template where a generated project is asked for."""

    code = "MLF182"


class NotATemplateProjectError(ProjectError):
    """A generated project where a template is asked for."""

    code = "MLF183"


class MalformedReplyError(ProjectError):
    """An API server's answer that is none."""

    code = "MLF184"


class MismatchedIdError(ProjectError):
    """An API server's answer to something else."""

    code = "MLF185"


class ConnectionShutdownError(ProjectError):
    """An API server that ended instead of answering."""

    code = "MLF186"


class InternalError(MlfcError):
    """An invariant of the compiler that does not hold: a bug in mlfc, never the user's fault."""

    code = "MLF900"

    def __init__(self, cause: str, *, place: str | None = None) -> None:
        super().__init__(cause, place=place, next_step="This is a bug in mlfc; please report it with the model")
