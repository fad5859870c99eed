"""What arrays become on their way into the compiled part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Union

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


def pictures(given: Any) -> Iterator[Union[str, bytes, NDArray[np.uint8]]]:
    """One picture or several, each as a path, the bytes of a file, or rows × columns × RGB.

    >>> [type(one).__name__ for one in pictures(["cat.jpg", b"bytes of a file", np.zeros((4, 4, 3), np.uint8)])]
    ['str', 'bytes', 'ndarray']
    >>> list(pictures(np.zeros((4, 4))))
    Traceback (most recent call last):
    ...
    ValueError: picture: expected rows × columns × 3 (RGB) of uint8, got 4 × 4 of float64
    """
    one = isinstance(given, (str, os.PathLike, bytes, bytearray, memoryview)) or hasattr(given, "getbands")
    if one or (isinstance(given, np.ndarray) and given.ndim < 4):
        return iter([_picture(given)])
    try:
        return map(_picture, given)
    except TypeError:
        return iter([_picture(given)])


def _picture(given: Any) -> Union[str, bytes, NDArray[np.uint8]]:
    if isinstance(given, (str, os.PathLike)):
        return os.fsdecode(given)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    if hasattr(given, "getbands"):  # a PIL image
        given = given.convert("RGB")
    elif not hasattr(given, "__array__"):
        raise TypeError(
            f"picture: expected a path, the bytes of a file, an array or a PIL image, got {type(given).__name__}"
        )
    array = np.asarray(given)
    if array.ndim != 3 or array.shape[2] != 3 or array.size == 0 or array.dtype != np.uint8:
        shape = " × ".join(map(str, array.shape))
        raise ValueError(f"picture: expected rows × columns × 3 (RGB) of uint8, got {shape} of {array.dtype}")
    return np.ascontiguousarray(array)


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
