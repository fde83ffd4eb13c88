"""Transformation of an imported model into a loop-level program: graph passes, fusion, lowering."""

from mlfc.transform.device_placement import place_on_device
from mlfc.transform.lower import lower
from mlfc.transform.lower_group import lower_group
from mlfc.transform.partition import PartitionGraph
from mlfc.transform.pipeline import PASSES, checked_params, run, within_limits
from mlfc.transform.rounding import is_rounding_sensitive
from mlfc.transform.row_tiling import tile_for_ram
from mlfc.transform.specialize import fixed_symbols, specialized

__all__ = [
    "PASSES",
    "PartitionGraph",
    "checked_params",
    "fixed_symbols",
    "is_rounding_sensitive",
    "lower",
    "lower_group",
    "place_on_device",
    "run",
    "specialized",
    "tile_for_ram",
    "within_limits",
]
