"""The memory plan: liveness, offsets in one arena, an independent proof, and the report."""

from __future__ import annotations

from mlforge.memory.blocks import Block, blocks
from mlforge.memory.planner import Plan, plan
from mlforge.memory.proof import prove
from mlforge.memory.report import Row, report
from mlforge.memory.storage import Storages, assign_storages

__all__ = ["Block", "Plan", "Row", "Storages", "assign_storages", "blocks", "plan", "prove", "report"]
