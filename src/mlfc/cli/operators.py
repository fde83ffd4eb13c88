"""``mlfc operators``."""

from __future__ import annotations

from mlfc.cli.options import Json
from mlfc.cli.tables import print_json, print_table

EXAMPLES = ("mlfc operators", "mlfc operators --json")


def operators(as_json: Json = False) -> None:
    """List the operators and their numeric contracts."""
    import mlfc.ops  # noqa: F401  (registers them)
    from mlfc.relay.op import OPERATORS

    known = [OPERATORS.get(name) for name in OPERATORS]
    if as_json:
        print_json(
            {
                item.name: {
                    "attributes": [attr.name for attr in item.attrs],
                    "kind": item.kind.value,
                    "contract": item.contract,
                    "doc": item.doc,
                }
                for item in known
            }
        )
        return
    print_table(
        "operators", ("name", "kind", "contract", ""), [(i.name, i.kind.value, i.contract, i.doc) for i in known]
    )
