"""Tests on a CUDA GPU, collected only on machines that have one."""

from __future__ import annotations

import mlfc

collect_ignore_glob = [] if mlfc.cuda(0).exists else ["test_*.py"]
