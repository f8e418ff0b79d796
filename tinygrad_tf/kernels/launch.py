"""How Python calls a kernel: through a built-in function in machine code that reads the arguments from Python's objects.

numba's own way in finds out the types of all arguments, and gives each array an owner that counts references, at every
call. Here the types are fixed: each argument is compared with what is expected, pointer by pointer, and where one
differs the function says so (it returns False) before anything is run. It holds Python's lock all the while.
"""

from __future__ import annotations

import ctypes
import functools

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype, from_dtype

from .compiling import compile_c, device, slots_of

_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__  # the references' count and the type come first in every object; then:
_TYPE = _HEAD - _WORD
_DATA, _NDIM, _SHAPE, _STRIDES, _DTYPE, _FLAGS = (_HEAD + i * _WORD for i in (0, 1, 2, 3, 5, 6))  # of an array
_SCALAR, _ORDER = _HEAD, _HEAD + _WORD + 2  # of a dtype: the class of its numbers, and the order of their bytes
_READY = 0x1 | 0x100 | 0x400  # flags of an array: C-contiguous, aligned, writable
_METH_FASTCALL = 0x80


def _check_layout() -> None:
    """Raise AssertionError where numpy's arrays or Python's objects have another layout than they had so far."""
    probe, numbers = np.empty((3, 5), np.float32)[1:], (1e-3, np.uint64(2**64 - 3), np.float32(0.1))

    def word(at, kind=ctypes.c_size_t):
        return kind.from_address(id(probe) + at).value

    right = (
        _WORD == 8
        and word(_DATA) == probe.ctypes.data
        and word(_NDIM, ctypes.c_int) == 2
        and [ctypes.c_ssize_t.from_address(word(_SHAPE) + i * _WORD).value for i in range(2)] == [2, 5]
        and [ctypes.c_ssize_t.from_address(word(_STRIDES) + i * _WORD).value for i in range(2)] == [20, 4]
        and word(_DTYPE) == id(probe.dtype)
        and ctypes.c_size_t.from_address(id(probe.dtype) + _SCALAR).value == id(np.float32)
        and ctypes.c_char.from_address(id(probe.dtype) + _ORDER).value == b"="
        and word(_FLAGS, ctypes.c_int) == probe.flags.num
        and word(_TYPE) == id(np.ndarray)
        and ctypes.c_double.from_address(id(numbers[0]) + _HEAD).value == numbers[0]
        and ctypes.c_uint64.from_address(id(numbers[1]) + _HEAD).value == numbers[1]
        and ctypes.c_float.from_address(id(numbers[2]) + _HEAD).value == numbers[2]
        and type(numbers[2]).__basicsize__ >= _HEAD + _WORD
    )
    assert right, "numpy's arrays have another layout than they had up to version 2"


_check_layout()


class _Place(types.Opaque):
    """An argument that is an array of any layout, of which the kernel gets the address, an integer."""


PLACE = _Place("place")


def kind_of(argument, place: bool) -> types.Type:
    """The numba type of an argument as kernels take them: a C-contiguous writable array, or a number; or PLACE."""
    if place:
        if type(argument) is not np.ndarray:
            raise TypeError(f"a kernel takes the place of an array, got {type(argument).__name__}")
        return PLACE
    if type(argument) is np.ndarray:
        if not argument.flags.carray:
            raise TypeError("a kernel takes C-contiguous, aligned, writable arrays; give it contiguous(a)")
        return types.Array(from_dtype(argument.dtype), argument.ndim, "C")
    if not isinstance(argument, np.generic) and type(argument) not in _PYTHONS:
        raise TypeError(f"a kernel takes arrays and numbers, got {type(argument).__name__}")
    return from_dtype(argument.dtype) if isinstance(argument, np.generic) else _PYTHONS[type(argument)]


_PYTHONS = {bool: types.boolean, int: types.intp, float: types.float64}


def plain(argument):
    """The argument as an exact ndarray of one of numba's dtypes, or as Python's number where Python has its kind."""
    if isinstance(argument, np.ndarray):
        return np.asarray(argument).view(as_dtype(from_dtype(argument.dtype)))
    is_numpys = isinstance(argument, np.generic) and from_dtype(argument.dtype) in _PYTHONS.values()
    return argument.item() if is_numpys else argument


# -- in machine code: addresses are integers ---------------------------------------------------------------------------


def _reader(bits: int):
    """The intrinsic that reads an integer of so many bits at an address."""

    @intrinsic
    def read(typing_context, address):
        def generate(context, builder, signature, values):
            number = builder.load(builder.inttoptr(values[0], ir.IntType(bits).as_pointer()))
            return builder.zext(number, values[0].type) if bits < 64 else number

        return types.intp(types.intp), generate

    return read


_word, _half, _byte = _reader(64), _reader(32), _reader(8)


@intrinsic
def _put(typing_context, address, word):
    """Write a word at an address."""

    def generate(context, builder, signature, values):
        builder.store(values[1], builder.inttoptr(values[0], values[1].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _stack(typing_context):
    """The address of room for a launch on the stack."""

    def generate(context, builder, signature, values):
        word = context.get_value_type(types.intp)
        return builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(word, _ROOM)), word)

    return types.intp(), generate


@intrinsic
def call(typing_context, function, a, b, c):
    """function(a, b, c), function the address of a C function of three integers."""

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in values[1:]])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(function, a, b, c), generate


@device
def start(runner, launch, n_tasks):
    """Run the launch at this address: the address of the kernel's code, the launch's length in bytes, and the slots.

    A single task runs in place.
    """
    if n_tasks == 1:
        call(_word(launch), launch + 2 * _WORD, 0, 1)
    else:
        call(runner, _word(launch), launch + 2 * _WORD, n_tasks)


_ROOM = 512  # words of a launch, at most
_ROW = 5 * _WORD
_ARRAY, _PLACE, _INT, _BOOL, _NUMBER = range(5)  # how an argument's slots are read from its object
_as_int = types.ExternalFunction("PyLong_AsUnsignedLongLongMask", types.intp(types.intp))
_incref = types.ExternalFunction("Py_IncRef", types.void(types.intp))


@device
def _fits(known, arguments, n):
    """Whether the arguments are what the table says, see `_table`."""
    for i in range(n):
        given, row = _word(arguments + i * _WORD), known + _ROW * (i + 1)
        if _word(given + _TYPE) != _word(row):
            return False
        if _word(row + _WORD) == _ARRAY:
            dtype = _word(given + _DTYPE)
            if (
                _word(dtype + _SCALAR) != _word(row + 2 * _WORD)
                or (_byte(dtype + _ORDER) | _half(given + _NDIM) << 8) != _word(row + 3 * _WORD)
                or _half(given + _FLAGS) & _READY != _READY
            ):
                return False
    return True


def _enter(table, arguments, count):
    """What Python calls, as a METH_FASTCALL function: (runner, kernel, n_tasks, and what the kernel takes) -> bool.

    Where runner is 0, the launch is written to the address n_tasks, to be run later.
    """
    known = _word(table + _DATA)
    n = _word(known + 2 * _WORD)
    fits = count == n + 3 and _fits(known, arguments + 3 * _WORD, n)
    if fits:
        runner, kernel = _as_int(_word(arguments)), _as_int(_word(arguments + _WORD))
        n_tasks = _as_int(_word(arguments + 2 * _WORD))
        launch = n_tasks if runner == 0 else _stack()
        to = launch + 2 * _WORD
        for i in range(n):
            given, row = _word(arguments + (i + 3) * _WORD), known + _ROW * (i + 1)
            how = _word(row + _WORD)
            if how == _ARRAY:
                # numba's struct; without what counts references: the caller holds it, and tasks that count would wait
                # for one another at every slice
                ndim, items = _half(given + _NDIM), 1
                shape, strides = _word(given + _SHAPE), _word(given + _STRIDES)
                at = to + 5 * _WORD
                for axis in range(ndim):
                    n_axis = _word(shape + axis * _WORD)
                    items *= n_axis
                    _put(at + axis * _WORD, n_axis)
                    _put(at + (ndim + axis) * _WORD, _word(strides + axis * _WORD))
                _put(to, 0)
                _put(to + _WORD, 0)
                _put(to + 2 * _WORD, items)
                _put(to + 3 * _WORD, _word(row + 4 * _WORD))
                _put(to + 4 * _WORD, _word(given + _DATA))
                to = at + 2 * ndim * _WORD
            else:
                if how == _PLACE:
                    number = _word(given + _DATA)
                elif how == _INT:
                    number = _as_int(given)
                elif how == _BOOL:
                    number = 1 if given == _word(known) else 0
                else:
                    number = _word(given + _HEAD)
                _put(to, number)
                to += _WORD
        _put(launch, kernel)
        _put(launch + _WORD, to - launch)
        if runner != 0:
            start(runner, launch, n_tasks)
    answer = _word(known if fits else known + _WORD)
    _incref(answer)
    return answer


# -- the built-in functions --------------------------------------------------------------------------------------------


def _table(kinds) -> np.ndarray:
    """What a call is compared with: True, False, how many arguments; each one's type, how it is read, an array's numbers."""
    rows = [[id(True), id(False), len(kinds), 0, 0]]
    for kind in kinds:
        if isinstance(kind, types.Array):
            dtype = as_dtype(kind.dtype)
            rows.append([id(np.ndarray), _ARRAY, id(dtype.type), ord(dtype.byteorder) | kind.ndim << 8, dtype.itemsize])
        elif kind is PLACE:
            rows.append([id(np.ndarray), _PLACE, 0, 0, 0])
        else:
            python = [python for python, numbas in _PYTHONS.items() if numbas == kind]
            how = {types.boolean: _BOOL, types.intp: _INT}.get(kind, _NUMBER)
            rows.append([id(python[0] if python else as_dtype(kind).type), how, 0, 0, 0])
    assert 2 + sum(slots_of(kind) for kind in kinds) <= _ROOM, "a kernel takes more than a launch has room for"
    return np.array(rows, np.intp)


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    ]


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype, _new_function.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]


@functools.cache
def _method() -> _Method:
    return _Method(b"kernel", compile_c(_enter, "launch._enter", ((types.intp,) * 3, types.intp)), _METH_FASTCALL, None)


@functools.cache
def entry(kinds: tuple):
    """The built-in function that launches any kernel with arguments of these kinds, see `_enter`."""
    return _new_function(ctypes.addressof(_method()), _table(kinds), None)


def note(launch, code, arguments) -> np.ndarray:
    """A launch with these arguments, whose memory stays where it is, to be run later by `start`."""
    words = np.empty(_ROOM, np.intp)
    assert launch(0, code, words.ctypes.data, *arguments)
    return words[: words[1] // _WORD].copy()
