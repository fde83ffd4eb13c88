"""Drivers, one file per kind of device and named after it: memory, queue, kernels, and the module that stores kernels.

Files are found by the name of the kind (`mlfc.runtime.devices.device.driver_files`), not listed. Besides its driver,
a new kind of device needs a target (`mlfc.target.target.KINDS`) and a language (`mlfc.codegen.device.DIALECTS`).
Its DLPack number and name are in `mlfc.support.platforms.DEVICE_KINDS`.
"""
