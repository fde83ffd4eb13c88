"""The options of ``mlfc run``, and which of them exclude each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.artifacts import given_inputs
from mlfc.cli.options import given_options
from mlfc.errors import OptionError

if TYPE_CHECKING:
    from mlfc.runtime.devices.device import Device

_PROFILED_RUNS = 10
THIS_MACHINE = "host"


@dataclass(frozen=True)
class RunOptions:
    """Options of all kinds of run."""

    inputs: Path | None = None
    outputs: Path | None = None
    fill: str = "random"
    seed: int = 0
    module: str | None = None
    repeat: Annotated[
        int | None,
        typer.Option(help=f"Run so many times and show how long it took. Default: 1, with --profile {_PROFILED_RUNS}."),
    ] = None
    profile: bool = False
    profile_html: Path | None = None
    trace: Path | None = None
    top: int = 0
    device: str | None = None
    board: str | None = None
    trust_board: bool = False
    selftest: bool = False
    memory: bool = False
    host_driven: bool = False
    port: str | None = None
    tensors: Path | None = None
    state_in: Path | None = None
    state_out: Path | None = None
    memory_limit: int | None = None
    turn_limit: int | None = None
    threads: int | None = None
    tuned: Path | None = None
    as_json: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """True for runs as firmware, under an emulator or on a device, instead of in this process."""
        return self.board is not None or self.host_driven or self.selftest

    @property
    def board_name(self) -> str:
        """The board for the user."""
        return self.board or THIS_MACHINE

    @property
    def is_profiled(self) -> bool:
        """True if an option requests times of operators."""
        return self.profile or self.profile_html is not None or self.trace is not None

    @property
    def runs(self) -> int:
        """The number of runs."""
        return self.repeat if self.repeat is not None else _PROFILED_RUNS if self.is_profiled else 1

    @property
    def limits(self) -> dict[str, int]:
        """The limits that the user sets."""
        return given_options({"memory_limit": self.memory_limit, "turn_limit": self.turn_limit})

    @property
    def compiling(self) -> dict[str, Any]:
        """Options of `build` for a model that is compiled to run here."""
        return {"parallel": None if self.threads is None else self.threads != 1, "tuned": self.tuned}

    def fill_inputs(self, *arguments: Any) -> Any:
        """Return the inputs of a model; the other arguments are as for `given_inputs`."""
        return given_inputs(self.inputs, self.fill, self.seed, *arguments)

    def devices(self) -> tuple[Device, ...]:
        """Return the device that the user names, if there is one."""
        if self.device is None:
            return ()
        from mlfc.runtime.devices.device import device

        kind, colon, index = self.device.partition(":")
        if colon and not (index.isascii() and index.isdigit() and len(index) < 4):
            raise OptionError(
                f"expected a device such as {kind}:0, got '{self.device}'",
                place="--device",
                next_step=f"Write {kind}:0",
            )
        return (device(kind, int(index or 0)),)

    def check(self) -> None:
        """Raise OptionError for options that the kind of run excludes, and numbers out of range."""
        if (self.profile_html or self.trace) and self.is_elsewhere:
            raise OptionError(
                "options --profile-html and --trace require a run on this machine",
                next_step="Remove them, or --board, --host-driven and --selftest",
            )
        if self.runs < 1 or self.top < 0:
            raise OptionError("--repeat must be at least 1, and --top at least 0")
        if self.host_driven and (self.selftest or self.memory):
            raise OptionError(
                "option --host-driven excludes --selftest and --memory: the host runs single operators",
                place="--host-driven",
                next_step="Remove --selftest and --memory",
            )
        if not self.host_driven and (self.port is not None or self.tensors is not None):
            raise OptionError("options --port and --tensors require --host-driven", next_step="Add --host-driven")
        if self.device is not None and self.is_elsewhere:
            raise OptionError(
                "option --device excludes --board, --host-driven and --selftest",
                place="--device",
                next_step="Leave it out",
            )

    def check_run(self) -> None:
        """Raise OptionError for what only some runs have, and files that cannot be written; not for self-tests."""
        from mlfc.support.atomic import check_writable

        if self.memory and (self.board is None or self.is_profiled):
            raise OptionError(
                "option --memory requires --board and excludes --profile",
                place="--memory",
                next_step="Add --board, or remove --profile",
            )
        for path in (self.outputs, self.tensors, self.state_out, self.profile_html, self.trace):
            if path is not None:
                check_writable(path)
        if (self.state_in or self.state_out) and (self.is_elsewhere or self.is_profiled):
            raise OptionError(
                "options --state-in and --state-out require a run on this machine without --profile",
                next_step="Remove them, or --board, --host-driven and --profile",
            )
        if self.limits and self.is_elsewhere:
            raise OptionError(
                "options --memory-limit and --turn-limit require a run on this machine", next_step="Leave them out"
            )
