"""From an imported model to a loop-level program: graph passes, fusion, lowering."""

from mlforge.transform.fit import fit
from mlforge.transform.lower import lower, lower_group
from mlforge.transform.pipeline import PASSES, run

__all__ = ["PASSES", "fit", "lower", "lower_group", "run"]
