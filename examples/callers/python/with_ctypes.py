"""Run the digits model with only the standard library. SPDX-License-Identifier: 0BSD."""

import ctypes
import sys
from pathlib import Path

if len(sys.argv) != 4:
    sys.exit("usage: with_ctypes.py LIBRARY IMAGE OUT")
library, image, out = map(Path, sys.argv[1:])
pixels = (ctypes.c_float * 64).from_buffer_copy(image.read_bytes())
probabilities = (ctypes.c_float * 10)()
inputs, outputs = (
    (ctypes.c_void_p * 1)(ctypes.addressof(pixels)),
    (ctypes.c_void_p * 1)(ctypes.addressof(probabilities)),
)
if ctypes.CDLL(str(library.resolve())).tvmgen_digits_run(inputs, outputs) != 0:
    sys.exit("the model failed")
out.write_bytes(probabilities)
