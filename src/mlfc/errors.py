"""The tree of errors: every fault that reaches a user is one of these.

An error carries a stable `code`, the `cause` in one sentence, the `place` (file, node, byte) and the
`next_step` that the user can take. `docs/reference/errors.md` lists the codes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_FEW = 8  # names that a message lists whole
_MOST_SHOWN = 80


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the known names that begin with `name` or look like it."""
    import difflib  # only a miss needs it

    names = list(known)
    longer = [item for item in names if name and item.startswith(name)]
    return list(dict.fromkeys([*longer, *difflib.get_close_matches(name, names, n=3)]))[:3]


def unknown(kind: str, name: str, known: Iterable[str], *, where: str = "") -> str:
    """Return the cause ``unknown KIND 'name'; nearest: ...`` of an error; `where` follows the name: " in build.toml".

    The known names are listed whole where nothing is near and there are few.
    """
    names = list(known)
    near = nearest(name, names)
    listed = ", ".join(f"'{item}'" for item in near or sorted(names) if near or len(names) <= _FEW)
    ending = f"; {'nearest' if near else 'known'}: {listed}" if listed else ""
    return f"unknown {kind} '{name[:_MOST_SHOWN]}'{where}{ending}"


@dataclass(frozen=True)
class Remedy:
    """An option of the command line with which a model that was refused may be compiled.

    Examples
    --------
    >>> str(Remedy("--value", "scales=1,1,2,2"))
    '--value scales=1,1,2,2'
    """

    option: str  # "--shape", "--value", "--byoc", "--limit-factor"
    argument: str  # with N or three dots for what only the user knows: x=1,3,N,N and sr=...
    is_example: bool = False  # it fits the model, as other arguments may

    @property
    def is_complete(self) -> bool:
        """Whether the option can be given as it is."""
        value = self.argument.rpartition("=")[2]
        return value != "..." and "N" not in value.split(",")

    @property
    def subject(self) -> str:
        """The tensor that the argument is about; for other arguments the argument itself."""
        name, equals, _ = self.argument.rpartition("=")
        return name if equals else self.argument

    @property
    def numbers(self) -> int | float | bool | tuple[int | float | bool, ...]:
        """The numbers of a complete argument, as Python's options take them: one alone, or several."""
        texts = self.argument.rpartition("=")[2].split(",")
        found = tuple(_number(text) for text in texts)
        return found if len(found) > 1 or self.option == "--shape" else found[0]

    def __str__(self) -> str:
        return f"{self.option} {self.argument}"


def _number(text: str) -> int | float | bool:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else float(text)


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
    remedies : iterable of Remedy, optional
        The options that it names: together they take the cause away.
    """

    code = "MLF000"
    exit_status = 2

    def __init_subclass__(cls, *, code: str = "", exit_status: int = 0) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.exit_status = exit_status or cls.exit_status

    def __init__(
        self,
        cause: str,
        *,
        place: str | None = None,
        next_step: str | None = None,
        remedies: Iterable[Remedy] = (),
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.place = place
        self.next_step = next_step
        self.remedies = tuple(remedies)

    def __str__(self) -> str:
        text = f"{self.place}: {self.cause}" if self.place else self.cause
        return f"{text}. {self.next_step}" if self.next_step else text


class ModelError(MlfcError, code="MLF100"):
    """A model file that cannot be read as what it claims to be."""


class UnsupportedError(MlfcError, code="MLF101"):
    """A well-formed model that asks for something mlfc cannot compile."""


class ProblemsError(MlfcError, code="MLF102"):
    """Several errors found in one go; `problems` lists them in order of place."""

    def __init__(self, problems: Iterable[MlfcError], *, place: str | None = None) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} found", place=place)

    def __str__(self) -> str:
        lines = [super().__str__()]
        lines += [f"  [{problem.code}] {problem}" for problem in self.problems]
        return "\n".join(lines)


class LimitError(MlfcError, code="MLF103"):
    """A model that would cost more memory or work than the limits allow, which an option raises."""


class TextError(MlfcError, code="MLF110"):
    """Relay text that does not parse; the place has line and column."""


class TypeCheckError(MlfcError, code="MLF111"):
    """An operator applied to types, shapes or attributes that it does not take."""


class InputError(MlfcError, code="MLF120"):
    """An input tensor that is missing, unknown, or of the wrong shape or dtype."""


class OptionError(MlfcError, code="MLF121"):
    """An option, target or name that does not exist or does not fit the others."""


class ExchangeError(InputError, BufferError, code="MLF122"):
    """Memory that cannot be handed from one library to another as it lies; a BufferError, as DLPack asks for."""


class OutputError(MlfcError, code="MLF130"):
    """An output place that cannot be written."""


class ArchiveError(MlfcError, code="MLF140"):
    """An archive, parameter file or graph JSON that breaks its format."""


class ToolchainError(MlfcError, code="MLF150"):
    """A C compiler that is missing, fails, or makes code that does not load."""


class InstallationError(MlfcError, code="MLF151"):
    """Something that needs a package, or mlfc's compiler, which is not installed."""


class RunError(MlfcError, code="MLF160"):
    """A compiled model that reports failure when run."""


class IoTimeoutError(RunError, code="MLF161"):
    """A device that sends or takes nothing in time."""


class TransportClosedError(RunError, code="MLF162"):
    """A line to a device that is not open, or whose other side is gone."""


class SessionError(RunError, code="MLF163"):
    """A device that answers, but not as the protocol asks."""


class SessionTerminatedError(SessionError, code="MLF164"):
    """A session that the device ended: most often because it started again."""


class RemoteError(RunError, code="MLF165"):
    """A function on a device, or a request to it, that failed there."""


class DeviceError(RunError, code="MLF166"):
    """A device that is not there, has no driver, or whose driver fails."""


class BudgetError(MlfcError, code="MLF170", exit_status=1):
    """A comparison or a memory budget that is not met."""


class ProjectError(MlfcError, code="MLF180"):
    """A step of a firmware project that fails, or a project's API server that does not answer."""


class ProjectAPIServerNotFoundError(ProjectError, code="MLF181"):
    """A folder without an API server, which is no project."""


class TemplateProjectError(ProjectError, code="MLF182"):
    """A template where a generated project is asked for."""


class NotATemplateProjectError(ProjectError, code="MLF183"):
    """A generated project where a template is asked for."""


class MalformedReplyError(ProjectError, code="MLF184"):
    """An API server's answer that is none."""


class MismatchedIdError(ProjectError, code="MLF185"):
    """An API server's answer to something else."""


class ConnectionShutdownError(ProjectError, code="MLF186"):
    """An API server that ended instead of answering."""


class RegistryError(MlfcError, code="MLF190"):
    """A registry, or a folder in its place, that does not answer, refuses, or gives something else than it says."""


class SignatureError(MlfcError, code="MLF191"):
    """A signature that is missing, cannot be made, or is not of this artifact and key."""


class InternalError(MlfcError, code="MLF900"):
    """An invariant of the compiler that does not hold: a bug in mlfc, never the user's fault."""

    def __init__(self, cause: str, *, place: str | None = None) -> None:
        super().__init__(cause, place=place, next_step="This is a bug in mlfc; please report it with the model")
