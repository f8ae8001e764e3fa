"""Arrays in files: :func:`memmap`, :func:`open_npy`, :func:`save_npy`, :func:`ref`."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple, Union

from ._files import replace
from ._maps import Map, Order, Shape, _mode
from ._maps import map as _map

if TYPE_CHECKING:
    import numpy

Path = Union[str, "os.PathLike[str]"]


def _size(dtype: Any, shape: Tuple[int, ...]) -> int:
    size = int(dtype.itemsize)
    for extent in shape:
        if extent < 0:
            raise ValueError(f"the shape {shape} has a negative extent")
        size *= extent
    return size


def memmap(
    filename: Path,
    dtype: Any = "uint8",
    mode: str = "r+",
    offset: int = 0,
    shape: Optional[Shape] = None,
    order: Order = "C",
    *,
    shared: bool = False,
) -> "numpy.ndarray":
    """An array in a file, with the arguments of ``numpy.memmap``. Its ``base`` is the :class:`Map`.

    What the program stores reaches the file at ``a.base.commit()`` or ``a.base.flush()``: all of it, or nothing. An
    array that is forgotten before discards it, where ``numpy.memmap`` leaves a mixture.

    >>> import untorn
    >>> a = untorn.memmap("grid", "f4", "w+", shape=(3, 4))
    >>> a[1] = 7
    >>> a.base.commit() > 0
    True
    """
    import numpy

    mode = _mode(mode)
    dtype = numpy.dtype(dtype)
    if offset < 0:
        raise ValueError(f"offset is {offset}; it may not be negative")
    if shape is not None:
        shape = (shape,) if isinstance(shape, (int, numpy.integer)) else tuple(shape)
        size: Optional[int] = offset + _size(dtype, tuple(int(extent) for extent in shape))
    elif mode == "w+":
        raise ValueError('mode "w+" needs a shape')
    else:
        size = None
        there = os.path.getsize(filename)
        if (there - offset) % dtype.itemsize:
            raise ValueError(f"{os.fspath(filename)}: {there} bytes are no whole number of elements of {dtype}")
    if size is not None and mode in ("r", "c") and size > os.path.getsize(filename):
        raise ValueError(f"{os.fspath(filename)}: the array needs {size} bytes, and the file is shorter")
    found = _map(filename, size if mode in ("r+", "w+") else None, mode, shared=shared)
    return found.array(dtype, shape, offset, order)


def open_npy(
    filename: Path,
    mode: str = "r+",
    dtype: Any = None,
    shape: Optional[Shape] = None,
    fortran_order: bool = False,
    *,
    shared: bool = False,
) -> "numpy.ndarray":
    """The array of an ``.npy`` file, as memory that commits. With mode ``"w+"`` it makes a file of zeros.

    The arguments are those of ``numpy.lib.format.open_memmap``. A crash leaves a file that ``numpy.load`` reads: at
    its last commit. ``a.base.commit()`` commits.

    >>> import numpy, untorn
    >>> a = untorn.open_npy("weights.npy", "w+", "f8", (100,))
    >>> a[:] = 1
    >>> a.base.commit() > 0
    True
    >>> del a
    >>> float(numpy.load("weights.npy").sum())
    100.0
    """
    import numpy
    from numpy.lib import format as npy

    mode = _mode(mode)
    if mode == "w+":
        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise ValueError("an array of Python objects cannot be in a file")
        if shape is None:
            raise ValueError('mode "w+" needs a shape')
        shape = (shape,) if isinstance(shape, (int, numpy.integer)) else tuple(shape)
        header = _header(dtype, shape, fortran_order)
        found = _map(filename, len(header) + _size(dtype, shape), "w+", shared=shared)
        found[0 : len(header)] = header
        found.commit()
        return found.array(dtype, shape, len(header), "F" if fortran_order else "C")
    found = _map(filename, None, mode, shared=shared)
    try:
        head = io.BytesIO(found[0 : min(len(found), 1 << 16)])
        version = npy.read_magic(head)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"{os.fspath(filename)}: the version {version} of the npy format is not supported")
        shape, fortran_order, dtype = read(head)
        offset = head.tell()
        if offset + _size(dtype, shape) > len(found):
            raise ValueError(f"{os.fspath(filename)}: the file is shorter than its header says")
    except ValueError:
        found.discard()
        raise
    return found.array(dtype, shape, offset, "F" if fortran_order else "C")


def _header(dtype: Any, shape: Sequence[int], fortran_order: bool) -> bytes:
    from numpy.lib import format as npy

    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": bool(fortran_order), "shape": tuple(shape)}
    head = io.BytesIO()
    try:
        npy.write_array_header_1_0(head, header)
    except ValueError:
        head = io.BytesIO()
        npy.write_array_header_2_0(head, header)
    return head.getvalue()


def save_npy(filename: Path, array: Any) -> None:
    """Saves an array as ``numpy.save`` does. The file has the old array or the new one, never a mixture.

    Unlike ``numpy.save`` it adds no ``.npy`` to the name.
    """
    import numpy

    array = numpy.asanyarray(array)
    if array.dtype.hasobject:
        raise ValueError("an array of Python objects cannot be in such a file")
    with replace(filename) as file:
        numpy.lib.format.write_array(file, array, allow_pickle=False)


class ArrayRef:
    """Where an array is in a map: path, offset, element type, shape and strides. It pickles as that, without the data.

    :func:`ref` makes one. In another process :meth:`array` opens the map again, ``shared``.
    """

    __slots__ = ("map", "offset", "dtype", "shape", "strides")

    def __init__(self, map: Map, offset: int, dtype: Any, shape: Any, strides: Any) -> None:
        self.map, self.offset, self.dtype, self.shape, self.strides = map, offset, dtype, shape, strides

    def array(self) -> "numpy.ndarray":
        """The array, over the memory of this process's map."""
        return self.map.array(self.dtype, self.shape, self.offset, strides=self.strides)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> "numpy.ndarray":
        array = self.array()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"an array of {array.dtype} is none of {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __reduce__(self) -> Tuple[Any, ...]:
        return ArrayRef, (self.map, self.offset, self.dtype, self.shape, self.strides)


def map_of(array: Any) -> Map:
    """The :class:`Map` that an array, or a view of it, lies in."""
    base = array
    while base is not None:
        if isinstance(base, Map):
            return base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    raise ValueError("the array is in no untorn map")


def ref(array: "numpy.ndarray") -> ArrayRef:
    """A reference to an array over a map, to send to another process. It takes no copy of the data.

    >>> import pickle, untorn
    >>> m = untorn.map("shared", 4096, mode="w+", shared=True)  # doctest: +SKIP
    >>> again = pickle.loads(pickle.dumps(untorn.ref(m.array("f4"))))  # doctest: +SKIP
    """
    found = map_of(array)
    start = found.array().__array_interface__["data"][0]
    offset = array.__array_interface__["data"][0] - start
    return ArrayRef(found, offset, array.dtype, array.shape, array.strides)


__all__ = ["ArrayRef", "map_of", "memmap", "open_npy", "ref", "save_npy"]
