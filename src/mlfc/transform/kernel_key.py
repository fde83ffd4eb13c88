"""What measurements of kernels are filed under: the same for all groups whose loops have the same work."""

from __future__ import annotations

import json
from typing import Any

from mlfc.relay import ir as relay
from mlfc.relay.visitor import post_order
from mlfc.transform.matching import flat_args, operator_of


def kernel_facts(function: relay.Function) -> dict[str, Any] | None:
    """Return operator, shapes, dtypes and attributes of a fused group's loops; None where no template writes them."""
    calls = (expr for expr in post_order(function.body) if isinstance(expr, relay.Call))
    emitter = next((call for call in calls if operator_of(call).emit is not None), None)
    if emitter is None:
        return None
    return {
        "operator": operator_of(emitter).name,
        "inputs": [str(arg.type) for arg in flat_args(emitter)],
        "attributes": {name: str(value) for name, value in sorted(emitter.attrs.items())},
    }


def key_of(facts: dict[str, Any]) -> str:
    """Return the key of `kernel_facts`."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def kernel_key(function: relay.Function) -> str | None:
    """Return the key of a fused group, None where no template writes its loops."""
    facts = kernel_facts(function)
    return None if facts is None else key_of(facts)
