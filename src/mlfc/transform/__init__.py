"""From an imported model to a loop-level program: graph passes, fusion, lowering."""

from mlfc.transform.fit import fit
from mlfc.transform.lower import lower, lower_group
from mlfc.transform.partition import PartitionGraph
from mlfc.transform.pipeline import PASSES, checked_params, run, within_limits
from mlfc.transform.places import place

__all__ = ["PASSES", "PartitionGraph", "checked_params", "fit", "lower", "lower_group", "place", "run", "within_limits"]
