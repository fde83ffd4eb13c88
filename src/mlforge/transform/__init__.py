"""From an imported model to a loop-level program: graph passes, fusion, lowering."""

from mlforge.transform.fit import fit
from mlforge.transform.lower import lower, lower_group
from mlforge.transform.partition import PartitionGraph
from mlforge.transform.pipeline import PASSES, run
from mlforge.transform.places import place

__all__ = ["PASSES", "PartitionGraph", "fit", "lower", "lower_group", "place", "run"]
