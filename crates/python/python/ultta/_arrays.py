"""What arrays become on their way into the compiled part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: DLPack's number for memory that the CPU reads.
_DLPACK_CPU = (1, 3)


def float32(what: str, values: Any) -> NDArray[np.float32]:
    """Values as a C-contiguous float32 array, without a copy where none is needed.

    Accepts NumPy arrays of any float type and stride, whatever speaks DLPack or ``__array__`` and lives on the
    CPU, and nested lists of numbers.

    >>> float32("features", [[1, 0], [0.6, 0.8]]).dtype
    dtype('float32')
    >>> float32("features", np.zeros(3, dtype=complex))
    Traceback (most recent call last):
    ...
    ValueError: features: expected dtype float16, float32 or float64, got complex128
    """
    if np.ma.is_masked(values):
        raise ValueError(f"{what}: expected no masked values; leave those rows out first")
    array = values if isinstance(values, np.ndarray) else _array(what, values)
    if array.dtype.kind != "f":
        raise ValueError(f"{what}: expected dtype float16, float32 or float64, got {array.dtype}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity, which the core refuses
        return np.require(array, np.float32, ["C_CONTIGUOUS", "ALIGNED"])


def vector(what: str, dtype: str, values: Any) -> NDArray[Any]:
    """One value or a list of them as a contiguous vector of the given type; no rounding on the way.

    >>> vector("ids", "int64", 3)
    array([3])
    >>> vector("ids", "int64", [0.5])
    Traceback (most recent call last):
    ...
    ValueError: ids: expected int64 values, got float64
    """
    array = values if isinstance(values, np.ndarray) else _array(what, values)
    if array.ndim > 1:
        raise ValueError(f"{what}: expected one value per row, got {array.ndim} dimensions")
    wanted = np.dtype(dtype)
    # An empty list has no type of its own; whole numbers may be times, too.
    fits = array.size == 0 or np.can_cast(array.dtype, wanted, "same_kind")
    if not fits and not (array.dtype.kind == "u" and wanted.kind == "i"):
        raise ValueError(f"{what}: expected {dtype} values, got {array.dtype}")
    return np.ascontiguousarray(np.atleast_1d(array), dtype=wanted)


def _array(what: str, values: Any) -> NDArray[Any]:
    """Anything array-like as a NumPy array."""
    if isinstance(values, (str, bytes)) or values is None:
        raise TypeError(f"{what}: expected an array, got {type(values).__name__}")
    if hasattr(values, "detach"):  # a PyTorch tensor that requires gradients hands nothing over
        values = values.detach()
    if hasattr(values, "__dlpack_device__"):
        kind, number = values.__dlpack_device__()
        if int(kind) not in _DLPACK_CPU:
            raise ValueError(
                f"{what}: expected an array on the CPU, got one on device {getattr(values, 'device', number)}; "
                "move it first (.cpu())"
            )
        try:
            return np.from_dlpack(values)
        except (BufferError, RuntimeError, TypeError):
            # A type that NumPy lacks (bfloat16), or a DLPack version it does not read.
            if hasattr(values, "float"):
                values = values.float()
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{what}: expected rows of one length: {error}") from None
    if array.dtype.kind == "O":
        raise TypeError(f"{what}: expected an array of numbers, got {type(values).__name__}")
    if isinstance(values, (list, tuple, int)) and array.dtype.kind in "iu" and what in _REAL:
        return array.astype(np.float32)
    return array


#: Arguments for which a list of whole numbers means real numbers.
_REAL = ("features", "prototypes", "anchors", "views", "weights", "times")
