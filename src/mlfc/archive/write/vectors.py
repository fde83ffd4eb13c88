"""Test vectors: inputs of a module, and the outputs that its code gives for them on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.archive.templates.demo import FOLDER, vector_names
from mlfc.archive.templates.subject import Vector
from mlfc.archive.write.options import ExportOptions
from mlfc.runtime.tensor.fill import fill

if TYPE_CHECKING:
    from mlfc.factory import Factory


def vector_paths(module: str) -> tuple[str, ...]:
    """Return where the test vectors of a module lie in an archive, if it has any."""
    return tuple(f"{FOLDER}/{name}" for name in vector_names(module))


def computed_vectors(factory: Factory, options: ExportOptions) -> tuple[Vector, ...]:
    """Run the module on random inputs.

    There are as many as the options ask for; the first one's inputs are those of `runtime.fill` with their seed.
    Raises ToolchainError if the C cannot be compiled and run here.
    """
    if not options.test_vectors:
        return ()
    from mlfc.archive.read.load import load_factory

    module = load_factory(factory)
    vectors = []
    for index in range(options.test_vectors):
        inputs = fill(module.inputs, seed=options.seed + index)
        vectors.append(Vector(inputs, module.run(inputs)))
    return tuple(vectors)
