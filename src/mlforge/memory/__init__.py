"""The memory plan: liveness, offsets in one arena, an independent proof, and the report."""

from __future__ import annotations

from mlforge.memory.blocks import Block, blocks
from mlforge.memory.constant_places import place_constants
from mlforge.memory.order import reordered
from mlforge.memory.planner import Plan, plan
from mlforge.memory.pools import ConstantPool, Placement, Pool, Span
from mlforge.memory.proof import prove
from mlforge.memory.report import Row, report
from mlforge.memory.spread import prove_pools, spread
from mlforge.memory.storage import Storages, assign_storages
from mlforge.memory.workspace_io import with_workspace_io

__all__ = [
    "Block",
    "ConstantPool",
    "Placement",
    "Plan",
    "Pool",
    "Row",
    "Span",
    "Storages",
    "assign_storages",
    "blocks",
    "place_constants",
    "plan",
    "prove",
    "prove_pools",
    "reordered",
    "report",
    "spread",
    "with_workspace_io",
]
