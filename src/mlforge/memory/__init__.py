"""The memory plan: liveness, offsets in one arena, an independent proof, and the report."""

from __future__ import annotations

from mlforge.memory.planner import Plan, plan
from mlforge.memory.proof import prove
from mlforge.memory.report import Row, report

__all__ = ["Plan", "Row", "plan", "prove", "report"]
