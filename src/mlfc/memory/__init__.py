"""Memory planning: liveness, offsets in one arena, an independent proof, and the report."""

from __future__ import annotations

from mlfc.memory.allocations import assign_storages as assign_storages
from mlfc.memory.assign_pools import assign_constants as assign_constants
from mlfc.memory.assign_pools import assign_pools as assign_pools
from mlfc.memory.assign_pools import prove_pools as prove_pools
from mlfc.memory.order import reordered as reordered
from mlfc.memory.plan import NO_PLAN as NO_PLAN
from mlfc.memory.plan import ConstantPool as ConstantPool
from mlfc.memory.plan import MemoryOptions as MemoryOptions
from mlfc.memory.plan import Plan as Plan
from mlfc.memory.plan import Pool as Pool
from mlfc.memory.plan import PoolSpan as PoolSpan
from mlfc.memory.plan import Storage as Storage
from mlfc.memory.planner import live_tensors as live_tensors
from mlfc.memory.planner import plan as plan
from mlfc.memory.policy import Planned as Planned
from mlfc.memory.policy import Planner as Planner
from mlfc.memory.policy import choose_plan as choose_plan
from mlfc.memory.policy import with_workspace_io as with_workspace_io
from mlfc.memory.proof import blocks as blocks
from mlfc.memory.proof import prove as prove
