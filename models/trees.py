"""LightGBM's library without its Python package: prediction alone, through the C interface.

The package imports scikit-learn and with it half of scipy, which takes ten times as long as loading a model.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT32, ROW_MAJOR, NORMAL = 0, 1, 0
"""Constants of the C interface."""

LIBRARIES = ("lib/lib_lightgbm.so", "lib/lib_lightgbm.dylib", "bin/lib_lightgbm.dll", "lib/lib_lightgbm.dll")
"""Where the package keeps its library, by platform."""


@cache
def library() -> Any:
    """LightGBM's library as the installed package has it; the package's own handle where it lies elsewhere."""
    spec = importlib.util.find_spec("lightgbm")
    for name in LIBRARIES if spec and spec.origin else ():
        path = Path(spec.origin).parent / name  # type: ignore[union-attr, arg-type]
        if path.is_file():
            return ctypes.cdll.LoadLibrary(str(path))
    from lightgbm.libpath import _LIB

    return _LIB


def _call(name: str, *arguments: Any) -> None:
    if getattr(library(), name)(*arguments):
        message = library().LGBM_GetLastError
        message.restype = ctypes.c_char_p
        raise ValueError(f"LightGBM: {message().decode('utf-8', 'replace')}")


class Trees:
    """A trained model from LightGBM's text. Raises ValueError for a text that is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._handle = ctypes.c_void_p()
        rounds, classes = ctypes.c_int(), ctypes.c_int()
        content = ctypes.c_char_p(text.encode())
        _call("LGBM_BoosterLoadModelFromString", content, ctypes.byref(rounds), ctypes.byref(self._handle))
        _call("LGBM_BoosterGetNumClasses", self._handle, ctypes.byref(classes))
        self.outputs = classes.value

    def predict(self, features: npt.NDArray[np.float32], threads: int = 1) -> npt.NDArray[np.float64]:
        """Probabilities (n,) of the second class, or (n, n_classes), from features (n, d) float32."""
        rows = np.ascontiguousarray(features, dtype=np.float32)
        found = np.empty((len(rows), self.outputs), dtype=np.float64)
        length = ctypes.c_int64()
        _call(
            "LGBM_BoosterPredictForMat",
            self._handle,
            rows.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int(FLOAT32),
            ctypes.c_int32(rows.shape[0]),
            ctypes.c_int32(rows.shape[1]),
            ctypes.c_int(ROW_MAJOR),
            ctypes.c_int(NORMAL),
            ctypes.c_int(0),
            ctypes.c_int(-1),
            ctypes.c_char_p(f"num_threads={threads}".encode()),
            ctypes.byref(length),
            found.ctypes.data_as(ctypes.POINTER(ctypes.c_double)),
        )
        return found[:, 0] if self.outputs == 1 else found

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library().LGBM_BoosterFree(self._handle)

    def __reduce__(self) -> tuple[type[Trees], tuple[str]]:
        return Trees, (self.text,)
