"""Run the digits model on numpy arrays with apache-tvm-ffi. SPDX-License-Identifier: 0BSD."""

import sys
from pathlib import Path

import numpy as np
import tvm_ffi

if len(sys.argv) != 4:
    sys.exit("usage: with_tvm_ffi.py LIBRARY IMAGE OUT")
library, image, out = sys.argv[1:]
probabilities = np.empty((1, 10), np.float32)
tvm_ffi.load_module(library).digits(np.fromfile(image, np.float32).reshape(1, 1, 8, 8), probabilities)
Path(out).write_bytes(probabilities.tobytes())
