"""Tests on a CUDA GPU, which are collected only where there is one: no other machine can run them."""

from __future__ import annotations

import mlfc

collect_ignore_glob = [] if mlfc.cuda(0).exists else ["test_*.py"]
