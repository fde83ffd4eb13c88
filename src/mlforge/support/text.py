"""Text for people."""

from __future__ import annotations

_GAP = "..."


def shortened(text: str, limit: int = 64) -> str:
    """Return `text` with its middle left out if it has more than `limit` characters.

    Converters join the names of all fused operators, which gives names of hundreds of characters; their ends tell
    them apart.
    """
    if len(text) <= limit:
        return text
    kept = limit - len(_GAP)
    return text[: kept - kept // 2] + _GAP + text[-(kept // 2) :]
