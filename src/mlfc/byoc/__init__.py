"""External code generators: the operators that each one supports, and the code or modules that it produces."""

from __future__ import annotations

from mlfc.byoc.generator import GENERATORS, Composite, Generator, Subgraph, find_generators, takes_modules

__all__ = ["GENERATORS", "Composite", "Generator", "Subgraph", "find_generators", "takes_modules"]
