"""Drivers, one file a kind of device, named after it: memory, queue, kernels, and the module that stores kernels.

Files are found by the name of the kind (`mlfc.runtime.devices.device.driver_files`), not listed. Beside its driver
a new kind of device needs its target (`mlfc.target.target.KINDS`) and its language (`mlfc.codegen.device.DIALECTS`).
DLPack's number and name of it are in `mlfc.support.platforms.DEVICE_KINDS`.
"""
