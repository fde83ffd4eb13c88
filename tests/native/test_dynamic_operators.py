"""Operators on dynamic dimensions: C and LLVM code compute the same bits as kernels with static shapes."""

from __future__ import annotations

import re
from pathlib import Path

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.relay.op import OPERATORS
from mlfc.target.features import Features
from mlfc.transform.lower_group import lower_group
from tests.dynamic_cases import DynamicCall, dynamic_calls, group
from tests.dynamic_run import Job, differences
from tests.edge_cases import NO_KERNEL

CALLS = 1
"""Number of calls per operator; targets with vectors get every second one."""
FEATURES = (Features(vector_bytes=0, dot4=False), Features())

MULTIPLE, EQUAL, BOUNDED, FIXED = "a multiple of", "must be equal", "takes rows of at most", "expected .*(fixed|static)"
UNDECIDED = "depends on the run|known at run time|may be 0 or not"
REFUSED = {
    "reshape": MULTIPLE, "nn.group_norm": MULTIPLE, "nn.depth_to_space": MULTIPLE, "nn.space_to_depth": MULTIPLE,
    "nn.svdf_time": MULTIPLE,
    "broadcast_to": EQUAL, "broadcast_to_like": EQUAL, "slice_like": EQUAL, "qnn.dequantize_blocks": EQUAL,
    "qnn.log_softmax": BOUNDED, "qnn.l2_normalize": BOUNDED,
    "gather_nd": FIXED, "ml.pairwise_coupling": FIXED, "nn.attention": FIXED, "qnn.prod": FIXED,
    "qnn.resize_bilinear": FIXED, "signal.rfft": UNDECIDED,
}  # fmt: skip
"""Operators that reject a dynamic dimension in these calls, and why; most of them accept one elsewhere."""


def lowered(call: DynamicCall, features: Features) -> Job | None:
    """Return the kernels of a call at all its sizes; None if it has none."""
    function = call.function
    if OPERATORS.get(call.spec.operator).kind in NO_KERNEL:
        return None
    job = Job(call.label, lower_group(function, features))
    for size in call.sizes:
        job.add(call.numbers(job.prim.symbols, size), group(call.spec, size), features)
    return job


def test_operators_take_extents_that_the_run_decides(tmp_path: Path) -> None:
    jobs: list[Job] = []
    refused: dict[str, set[str]] = {}
    for number, call in enumerate(dynamic_calls(CALLS)):
        features = FEATURES[number % 2]
        try:
            found = [lowered(call, features)]
        except (TypeCheckError, UnsupportedError):
            found = []
            for part in call.alone() if len(call.symbols) > 1 else (call,):
                try:
                    found.append(lowered(part, features))
                except (TypeCheckError, UnsupportedError) as error:
                    refused.setdefault(call.spec.operator, set()).add(str(error))
        jobs += [job for job in found if job is not None]
    assert differences(jobs, tmp_path) == []
    assert sorted(refused) == sorted(REFUSED)
    for name, messages in refused.items():
        assert all(re.search(f"{REFUSED[name]}|{FIXED}|{UNDECIDED}", message) for message in messages), messages
