"""The memory plan: liveness, offsets in one arena, an independent proof, and the report."""

from __future__ import annotations

from mlfc.memory.assign_pools import assign_constants, assign_pools, prove_pools
from mlfc.memory.blocks import Block, blocks
from mlfc.memory.order import reordered
from mlfc.memory.planner import Plan, plan
from mlfc.memory.policy import Planned, Planner, choose_plan, with_workspace_io
from mlfc.memory.pools import ConstantPool, MemoryOptions, Pool, PoolSpan
from mlfc.memory.proof import prove
from mlfc.memory.report import Row, report
from mlfc.memory.storage import Storages, assign_storages

__all__ = [
    "Block",
    "ConstantPool",
    "MemoryOptions",
    "Plan",
    "Planned",
    "Planner",
    "Pool",
    "PoolSpan",
    "Row",
    "Storages",
    "assign_constants",
    "assign_pools",
    "assign_storages",
    "blocks",
    "choose_plan",
    "plan",
    "prove",
    "prove_pools",
    "reordered",
    "report",
    "with_workspace_io",
]
