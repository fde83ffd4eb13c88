"""Error classes: every fault that reaches a user is one of these.

An error has a stable `code`, the `cause` in one sentence, the `place` (file, node, byte) and the `next_step` that the
user can take. `docs/reference/errors.md` lists the codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_FEW = 8  # number of names up to which a message lists all
_MOST_SHOWN = 80
_OURS = "mlfc"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that start with `name` or are similar to it."""
    import difflib  # only needed for unknown names

    names = list(known)
    longer = [item for item in names if name and item.startswith(name)]
    return list(dict.fromkeys([*longer, *difflib.get_close_matches(name, names, n=3)]))[:3]


def unknown(kind: str, name: str, known: Iterable[str], *, where: str = "") -> str:
    """Return the cause ``unknown KIND 'name'; nearest: ...`` of an error; `where` follows the name: " in build.toml".

    All known names are listed if none is similar and there are few.
    """
    names = list(known)
    near = nearest(name, names)
    listed = ", ".join(f"'{item}'" for item in near or sorted(names) if near or len(names) <= _FEW)
    ending = f"; {'nearest' if near else 'known'}: {listed}" if listed else ""
    return f"unknown {kind} '{name[:_MOST_SHOWN]}'{where}{ending}"


@dataclass(frozen=True)
class Remedy:
    """A command line option with which a refused model may compile.

    Examples
    --------
    >>> str(Remedy("--value", "scales=1,1,2,2"))
    '--value scales=1,1,2,2'
    """

    option: str  # "--shape", "--value", "--byoc", "--limit-factor"
    argument: str  # with N or "..." for what only the user knows: x=1,3,N,N and sr=...
    is_example: bool = False  # suitable for the model, as other arguments may be

    @property
    def is_complete(self) -> bool:
        """Return whether the option can be used without changes."""
        value = self.argument.rpartition("=")[2]
        return value != "..." and "N" not in value.split(",")

    @property
    def subject(self) -> str:
        """The tensor that the argument is about; for other arguments the argument itself."""
        name, equals, _ = self.argument.rpartition("=")
        return name if equals else self.argument

    @property
    def numbers(self) -> int | float | bool | tuple[int | float | bool, ...]:
        """The numbers of a complete argument in the form of Python options: a single one, or a tuple."""
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
    """Base class of all errors that mlfc raises deliberately.

    Parameters
    ----------
    cause : str
        What is wrong, one sentence without a final period.
    place : str, optional
        The location: a file, a node, a byte offset, a key.
    next_step : str, optional
        What the user can do about it.
    remedies : iterable of Remedy, optional
        The options named in the next step, which together solve the problem.
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
    """A well-formed model with something that mlfc cannot compile."""


class ProblemsError(MlfcError, code="MLF102"):
    """Several errors found in one pass; `problems` lists them in order of place."""

    def __init__(self, problems: Iterable[MlfcError], *, place: str | None = None) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} found", place=place)

    def __str__(self) -> str:
        lines = [super().__str__()]
        lines += [f"  [{problem.code}] {problem}" for problem in self.problems]
        return "\n".join(lines)


class LimitError(MlfcError, code="MLF103"):
    """A model that exceeds the limits on memory or work; an option raises the limits."""


class TextError(MlfcError, code="MLF110"):
    """Relay text that does not parse; the place has line and column."""


class TypeCheckError(MlfcError, code="MLF111"):
    """An operator applied to types, shapes or attributes that it does not support."""


class InputError(MlfcError, code="MLF120"):
    """An input tensor that is missing, unknown, or of the wrong shape or dtype."""


class OptionError(MlfcError, code="MLF121"):
    """An option, target or name that does not exist or does not fit the others."""


class ExchangeError(InputError, BufferError, code="MLF122"):
    """Memory that cannot be shared with another library without a copy; a BufferError, as DLPack requires."""


class OutputError(MlfcError, code="MLF130"):
    """An output path that cannot be written."""


class ArchiveError(MlfcError, code="MLF140"):
    """An archive, parameter file or graph JSON that violates its format."""


class ToolchainError(MlfcError, code="MLF150"):
    """A C compiler that is missing, fails, or generates code that does not load."""


class InstallationError(MlfcError, code="MLF151"):
    """A required package, or mlfc's compiler, that is not installed."""


class RunError(MlfcError, code="MLF160"):
    """A compiled model that reports failure when run."""


class IoTimeoutError(RunError, code="MLF161"):
    """A device that does not send or receive in time."""


class TransportClosedError(RunError, code="MLF162"):
    """A connection to a device that is not open, or was closed by the other side."""


class SessionError(RunError, code="MLF163"):
    """A device whose answers violate the protocol."""


class SessionTerminatedError(SessionError, code="MLF164"):
    """A session that the device ended, usually because it restarted."""


class RemoteError(RunError, code="MLF165"):
    """A function on a device, or a request to it, that failed there."""


class DeviceError(RunError, code="MLF166"):
    """A device that does not exist, has no driver, or whose driver fails."""


class BudgetError(MlfcError, code="MLF170", exit_status=1):
    """A comparison or a memory budget that is not met."""


class ProjectError(MlfcError, code="MLF180"):
    """A step of a firmware project that fails, or a project's API server that does not answer."""


class ProjectAPIServerNotFoundError(ProjectError, code="MLF181"):
    """A folder without an API server, which is not a project."""


class TemplateProjectError(ProjectError, code="MLF182"):
    """A template project where a generated project is required."""


class NotATemplateProjectError(ProjectError, code="MLF183"):
    """A generated project where a template project is required."""


class MalformedReplyError(ProjectError, code="MLF184"):
    """An invalid reply of an API server."""


class MismatchedIdError(ProjectError, code="MLF185"):
    """A reply of an API server to another request."""


class ConnectionShutdownError(ProjectError, code="MLF186"):
    """An API server that exited without a reply."""


class RegistryError(MlfcError, code="MLF190"):
    """A registry, or a folder in its place, that does not answer, refuses, or returns something unexpected."""


class SignatureError(MlfcError, code="MLF191"):
    """A signature that is missing, cannot be created, or does not match the artifact and key."""


class InternalError(MlfcError, code="MLF900"):
    """A violated invariant of the compiler: a bug in mlfc, never the user's fault."""

    def __init__(self, cause: str, *, place: str | None = None) -> None:
        super().__init__(cause, place=place, next_step="This is a bug in mlfc; please report it with the model")


@contextmanager
def required_for(what: str, place: str | None = None) -> Iterator[None]:
    """Raise InstallationError, naming the feature `what`, if the block imports a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package != _OURS:
            reason = f"{what} requires the package {package}, which is not installed"
            raise InstallationError(reason, place=place, next_step=f"Run: pip install {package}") from error
        raise InstallationError(
            f"{what} requires mlfc's compiler, got an installation that only runs models",
            place=place,
            next_step="Run in a checkout of mlfc: pip install .",
        ) from error
