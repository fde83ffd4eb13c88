"""The memory plan: liveness, offsets in one arena, an independent proof, and the report."""

from __future__ import annotations

from mlfc.memory.blocks import Block, blocks
from mlfc.memory.constant_places import place_constants
from mlfc.memory.order import reordered
from mlfc.memory.planner import Plan, plan
from mlfc.memory.policy import Planned, Planner, choose_plan
from mlfc.memory.pools import ConstantPool, Placement, Pool, Span
from mlfc.memory.proof import prove
from mlfc.memory.report import Row, report
from mlfc.memory.spread import prove_pools, spread
from mlfc.memory.storage import Storages, assign_storages
from mlfc.memory.workspace_io import with_workspace_io

__all__ = [
    "Block",
    "ConstantPool",
    "Placement",
    "Plan",
    "Planned",
    "Planner",
    "Pool",
    "Row",
    "Span",
    "Storages",
    "assign_storages",
    "blocks",
    "choose_plan",
    "place_constants",
    "plan",
    "prove",
    "prove_pools",
    "reordered",
    "report",
    "spread",
    "with_workspace_io",
]
