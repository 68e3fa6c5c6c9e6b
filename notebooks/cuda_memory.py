"""Holds memory of a real GPU through the driver's own library: ``hold_gpu(device, size)``.

For the demonstration on a machine with a GPU, without any framework.
"""

from __future__ import annotations

import ctypes


def hold_gpu(device: int, size: int) -> None:
    """Let this process hold ``size`` bytes of a device, a number among the visible ones.

    The context that CUDA needs comes on top of it.  Raises `RuntimeError` naming the call that
    failed, `OSError` where there is no driver.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    handle, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _call(cuda, "cuInit", ctypes.c_uint(0))
    _call(cuda, "cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    _call(cuda, "cuCtxSetCurrent", context)
    _call(cuda, "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = library[name](*arguments)
    if code != 0:
        raise RuntimeError(f"{name} failed with CUDA error {code}")
