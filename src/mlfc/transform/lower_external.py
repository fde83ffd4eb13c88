"""From a subgraph of an external code generator to the function that it writes."""

from __future__ import annotations

from mlfc.byoc.generator import generated, generator_of, subgraph_of
from mlfc.errors import InternalError
from mlfc.relay import ir as relay
from mlfc.target.features import Features
from mlfc.tir.ir import PrimFunc
from mlfc.transform.lower_group import LoweredGroup
from mlfc.transform.matching import macs_of


def lower_external(function: relay.Function, features: Features) -> LoweredGroup:
    """Let the external code generator of a subgraph make its code."""
    generator = generator_of(function)
    if generator is None:
        raise InternalError("a subgraph of no external code generator")
    subgraph = subgraph_of(function, features)
    body = generated(generator, subgraph)
    prim = PrimFunc(
        name=f"{generator.name}_{subgraph.name}",
        inputs=subgraph.inputs,
        constants=tuple(buffer for buffer, _ in subgraph.constants),
        output=subgraph.output,
        scratch=tuple(subgraph.scratch_buffers),
        body=body,
        macs=sum(map(macs_of, subgraph.calls())),
    )
    used = tuple(range(len(subgraph.inputs)))
    return LoweredGroup(prim, subgraph.name, used, tuple(array for _, array in subgraph.constants))
