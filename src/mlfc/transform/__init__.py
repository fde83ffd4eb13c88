"""From an imported model to a loop-level program: graph passes, fusion, lowering."""

from mlfc.transform.fit import fit
from mlfc.transform.lower import lower, lower_group
from mlfc.transform.partition import PartitionGraph
from mlfc.transform.pipeline import PASSES, run
from mlfc.transform.places import place

__all__ = ["PASSES", "PartitionGraph", "fit", "lower", "lower_group", "place", "run"]
