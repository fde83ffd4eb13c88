"""Every layer's result as an output of the model."""

from __future__ import annotations

from dataclasses import replace

from mlfc.relay.ir import Constant, Expr, IRModule, TensorType, Tuple, Var
from mlfc.relay.visitor import post_order


def with_all_tensors(module: IRModule) -> IRModule:
    """Return a model whose outputs are all named tensors of `module`, in an order in which they can be computed.

    Parameters
    ----------
    module : IRModule
        As an importer made it: the last expression of each original node has its tensor's name.

    Returns
    -------
    IRModule
        ``main`` returns a tuple; ``output_names`` are the original tensors' names. The model's own outputs are among
        them under their own names.
    """
    body = module.main.body
    heads = body.fields if isinstance(body, Tuple) else (body,)
    own = dict(zip(module.output_names, heads, strict=True))
    found: dict[str, Expr] = {}
    for expr in post_order(body):
        name = expr.span.tensor
        if name is None or isinstance(expr, (Var, Constant)) or not isinstance(expr.type, TensorType):
            continue
        if name not in own or own[name] is expr:
            found.setdefault(name, expr)
    # an output that is an input, or whose node lost its name, has not been met above
    for name, head in own.items():
        found.setdefault(name, head)
    main = replace(module.main, body=Tuple(tuple(found.values())))
    return replace(module.with_main(main), output_names=tuple(found))
