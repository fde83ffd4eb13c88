"""External code generators: what they take of a graph, and the code or modules that they make of it, one file each."""

from __future__ import annotations

from mlfc.byoc.generator import GENERATORS, Composite, Generator, Subgraph, find_generators, takes_modules

__all__ = ["GENERATORS", "Composite", "Generator", "Subgraph", "find_generators", "takes_modules"]
