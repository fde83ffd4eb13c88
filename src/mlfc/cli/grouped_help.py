"""Help texts with the common options first, then those of each group."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """A command that shows its options by their help panels; those without one come first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section of the arguments, one of the options, and one of each panel in the order of the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if param.param_type_name == "argument" else None
                panel = getattr(param, "rich_help_panel", None)
                name = title or (f"{panel} options" if panel else "Options")
                sections.setdefault(name, []).append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
