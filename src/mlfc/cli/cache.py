"""``mlfc cache``."""

from __future__ import annotations

from typing import Annotated

import typer

from mlfc.cli.options import size_option
from mlfc.cli.tables import print_json, print_table


def info(as_json: bool = False) -> None:
    """Show location, size and limit of the build cache."""
    from mlfc.library.cache import cache_contents, cache_folder, cache_limit

    folder, limit = cache_folder(), cache_limit()
    found = cache_contents()
    if as_json:
        parts = {part.name: {"files": part.files, "bytes": part.nbytes} for part in found}
        print_json({"folder": str(folder), "limit": limit, "parts": parts})
        return
    print_table(str(folder), ("", "files", "bytes"), [(part.name, part.files, part.nbytes) for part in found])
    typer.echo(
        f"Beyond {limit:,} bytes the least recently used built files are removed. Change it with MLFC_CACHE_LIMIT=500M."
    )


def clean(
    keep: Annotated[int, size_option("Keep the most recently used built files, up to this size.")] = 0,
) -> None:
    """Remove cached builds.

    They are built again when needed.
    """
    from mlfc.library.cache import clean_cache

    removed = clean_cache(keep)
    typer.echo(f"removed {removed.files:,} files, {removed.nbytes:,} bytes")


COMMANDS = (
    ("info", info, ("mlfc cache info", "mlfc cache info --json")),
    ("clean", clean, ("mlfc cache clean", "mlfc cache clean --keep 200M")),
)
