"""How Python calls a kernel: through a built-in function in machine code that reads the arguments from Python's objects.

numba's own way in finds out the types of all arguments, and gives each array an owner that counts references, at every
call. Here the types are fixed: each argument is compared with what is expected, pointer by pointer, and where one
differs the function says so (it returns False) before anything is run. It holds Python's lock all the while.
"""

from __future__ import annotations

import ctypes

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype, from_dtype

_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__  # the references' count and the type come first in every object; then:
_DATA, _NDIM, _SHAPE, _STRIDES, _DTYPE, _FLAGS = (_HEAD + i * _WORD for i in (0, 1, 2, 3, 5, 6))  # of an array
_SCALAR, _ORDER = _HEAD, _HEAD + _WORD + 2  # of a dtype: the class of its numbers, and the order of their bytes
_C_CONTIGUOUS, _ALIGNED, _WRITABLE = 0x1, 0x100, 0x400
_METH_FASTCALL = 0x80
NOTE_HEAD = 2 * _WORD


def _check_layout() -> None:
    """Raise AssertionError where numpy's arrays or Python's objects have another layout than they had so far."""
    probe, numbers = np.empty((3, 5), np.float32)[1:], (1e-3, np.uint64(2**64 - 3), np.float32(0.1))

    def word(at, kind=ctypes.c_size_t):
        return kind.from_address(id(probe) + at).value

    right = (
        word(_DATA) == probe.ctypes.data
        and word(_NDIM, ctypes.c_int) == 2
        and [ctypes.c_ssize_t.from_address(word(_SHAPE) + i * _WORD).value for i in range(2)] == [2, 5]
        and [ctypes.c_ssize_t.from_address(word(_STRIDES) + i * _WORD).value for i in range(2)] == [20, 4]
        and word(_DTYPE) == id(probe.dtype)
        and ctypes.c_size_t.from_address(id(probe.dtype) + _SCALAR).value == id(np.float32)
        and ctypes.c_char.from_address(id(probe.dtype) + _ORDER).value == b"="
        and word(_FLAGS, ctypes.c_int) == probe.flags.num
        and word(_HEAD - _WORD) == id(np.ndarray)
        and ctypes.c_double.from_address(id(numbers[0]) + _HEAD).value == numbers[0]
        and ctypes.c_uint64.from_address(id(numbers[1]) + _HEAD).value == numbers[1]
        and ctypes.c_float.from_address(id(numbers[2]) + _HEAD).value == numbers[2]
    )
    assert right, "numpy's arrays have another layout than they had up to version 2"


_check_layout()


def kind_of(argument) -> types.Type:
    """The numba type of an argument as kernels take them: a C-contiguous writable array, or a number."""
    if type(argument) is np.ndarray:
        if not argument.flags.carray:
            raise TypeError("a kernel takes C-contiguous, aligned, writable arrays; give it contiguous(a)")
        return types.Array(from_dtype(argument.dtype), argument.ndim, "C")
    return from_dtype(argument.dtype) if isinstance(argument, np.generic) else _PYTHONS[type(argument)]


_PYTHONS = {bool: types.boolean, int: types.intp, float: types.float64}


def plain(argument):
    """The argument as an exact ndarray of one of numba's dtypes, or as Python's number where Python has its kind."""
    if isinstance(argument, np.ndarray):
        return np.asarray(argument).view(as_dtype(from_dtype(argument.dtype)))
    is_numpys = isinstance(argument, np.generic) and from_dtype(argument.dtype) in _PYTHONS.values()
    return argument.item() if is_numpys else argument


def _table(kinds) -> np.ndarray:
    """What a call is compared with, addresses mostly: True and False; each argument's type, an array's numbers."""
    rows = [[id(True), id(False), 0, 0]]
    for kind in kinds:
        if isinstance(kind, types.Array):
            dtype = as_dtype(kind.dtype)
            rows.append([id(np.ndarray), id(dtype.type), ord(dtype.byteorder), 0])
        else:
            python = [python for python, numbas in _PYTHONS.items() if numbas == kind]
            rows.append([id(python[0] if python else as_dtype(kind).type), 0, 0, 0])
    return np.array(rows, np.intp)


def _enter(kinds):
    """The intrinsic that takes (table, arguments, count) as a METH_FASTCALL function gets them, and runs the kernel.

    The arguments are runner, kernel, n_tasks and what the kernel takes. The kernel's address and these lie in a struct on
    the stack; the runner gets its address, and that of a function, made here, that takes the struct apart and calls
    the kernel. A single task runs in place.
    """

    @intrinsic
    def enter(typing_context, table, arguments, count):
        def generate(context, builder, signature, values):
            table_, arguments_, count_ = values
            word, i32 = count_.type, ir.IntType(32)

            def load(address, offset=0, kind=None):
                kind = word if kind is None else kind
                place = builder.add(address, word(offset)) if isinstance(offset, int) else builder.add(address, offset)
                return builder.load(builder.inttoptr(place, kind.as_pointer()))

            known = load(table_, _DATA)
            objects = [load(arguments_, i * _WORD) for i in range(3 + len(kinds))]
            outcome = cgutils.alloca_once_value(builder, load(known, _WORD))  # False
            fits = builder.icmp_signed("==", count_, word(len(objects)))

            def both(condition):
                nonlocal fits
                fits = builder.and_(fits, condition)

            for i, given in enumerate(objects[3:]):
                both(builder.icmp_signed("==", load(given, _HEAD - _WORD), load(known, 4 * _WORD * (i + 1))))
            with builder.if_then(fits, likely=True):  # only now may they be read as such
                for i, kind in enumerate(kinds):
                    if isinstance(kind, types.Array):
                        array, row = objects[3 + i], 4 * _WORD * (i + 1)
                        dtype, order = load(array, _DTYPE), ir.IntType(8)
                        both(builder.icmp_signed("==", load(dtype, _SCALAR), load(known, row + _WORD)))
                        both(builder.icmp_signed("==", load(dtype, _ORDER, order), load(known, row + 2 * _WORD, order)))
                        both(builder.icmp_signed("==", load(array, _NDIM, i32), i32(kind.ndim)))
                        wanted = i32(_C_CONTIGUOUS | _ALIGNED | _WRITABLE)
                        both(builder.icmp_signed("==", builder.and_(load(array, _FLAGS, i32), wanted), wanted))
                with builder.if_then(fits, likely=True):
                    as_int = cgutils.get_or_insert_function(
                        builder.module, ir.FunctionType(word, [word]), "PyLong_AsUnsignedLongLongMask"
                    )
                    runner, kernel, n_tasks = (builder.call(as_int, [o]) for o in objects[:3])
                    parts = []
                    for value, kind in zip(objects[3:], kinds, strict=True):
                        if isinstance(kind, types.Array):
                            parts.append(_array(context, builder, kind, value, load))
                        elif kind == types.float64:
                            parts.append(load(value, _HEAD, ir.DoubleType()))
                        elif kind == types.boolean:
                            parts.append(builder.icmp_signed("==", value, load(known)))
                        elif kind == types.intp:
                            parts.append(builder.call(as_int, [value]))
                        else:  # a number of numpy's, which lies where a float's does
                            parts.append(load(value, _HEAD, context.get_value_type(kind)))
                    _start(context, builder, runner, kernel, n_tasks, parts)
                    builder.store(load(known), outcome)  # True
            answer = builder.load(outcome)
            keep = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), [word]), "Py_IncRef")
            builder.call(keep, [answer])
            return answer

        return types.intp(table, arguments, count), generate

    return enter


def _array(context, builder, kind, address, load):
    """numba's struct of the array at this address; without what counts its references: the caller holds it.

    Tasks that counted would wait for one another at every slice of it.
    """
    made = context.make_array(kind)(context, builder)
    word = address.type
    shape = [load(load(address, _SHAPE), i * _WORD) for i in range(kind.ndim)]
    strides = [load(load(address, _STRIDES), i * _WORD) for i in range(kind.ndim)]
    items = word(1)
    for n in shape:
        items = builder.mul(items, n)
    made.meminfo = made.meminfo.type(None)
    made.parent = made.parent.type(None)
    made.nitems = items
    made.itemsize = word(as_dtype(kind.dtype).itemsize)
    made.data = builder.inttoptr(load(address, _DATA), made.data.type)
    made.shape = cgutils.pack_array(builder, shape, ty=word)
    made.strides = cgutils.pack_array(builder, strides, ty=word)
    return made._getvalue()


def _start(context, builder, runner, kernel, n_tasks, parts):
    """Run kernel(t, n_tasks, *parts) for every t below n_tasks. Where runner is 0, note the launch at the address n_tasks:

    the address of the function that takes the struct apart, the note's length in bytes, and, NOTE_HEAD bytes on, the struct.
    """
    word = n_tasks.type
    struct = ir.LiteralStructType([word, *(p.type for p in parts)])
    three = ir.FunctionType(ir.VoidType(), [word] * 3)
    task = ir.Function(builder.module, three, builder.module.get_unique_name("tinygrad_tf.task"))
    task.linkage = "internal"
    inside = ir.IRBuilder(task.append_basic_block())
    slots, t, n = task.args
    taken = inside.load(inside.inttoptr(slots, struct.as_pointer()))
    address, *numbers = [inside.extract_value(taken, i) for i in range(len(parts) + 1)]
    kind = ir.FunctionType(ir.VoidType(), [word, word, *(p.type for p in parts)])
    inside.call(inside.inttoptr(address, kind.as_pointer()), [t, n, *numbers])
    inside.ret_void()

    def store(place):
        for i, part in enumerate([kernel, *parts]):
            builder.store(part, cgutils.gep_inbounds(builder, place, 0, i))

    place = cgutils.alloca_once(builder, struct)
    here, task_address = builder.ptrtoint(place, word), builder.ptrtoint(task, word)
    with builder.if_else(builder.icmp_signed("!=", runner, word(0))) as (at_once, later):
        with at_once:
            store(place)
            with builder.if_else(builder.icmp_signed("==", n_tasks, word(1))) as (alone, together):
                with alone:
                    builder.call(task, [here, word(0), n_tasks])
                with together:
                    run = builder.inttoptr(runner, three.as_pointer())
                    builder.call(run, [task_address, here, n_tasks])
        with later:
            for offset, number in ((0, task_address), (_WORD, word(NOTE_HEAD + context.get_abi_sizeof(struct)))):
                builder.store(number, builder.inttoptr(builder.add(n_tasks, word(offset)), word.as_pointer()))
            store(builder.inttoptr(builder.add(n_tasks, word(NOTE_HEAD)), struct.as_pointer()))


_NOTES = np.empty(1 << 13, np.uint8)


def note(launch, code, arguments) -> np.ndarray:
    """A launch with these arguments, whose memory stays where it is, to be run later: see `_start`."""
    assert launch(0, code, _NOTES.ctypes.data, *arguments)
    return _NOTES[: int(_NOTES[_WORD : 2 * _WORD].view(np.intp)[0])].copy()


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    ]


_alive: list[tuple] = []
_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype, _new_function.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]


def make_entry(kinds: tuple, compile_):
    """The built-in function for kernels that take arguments of these kinds; compile_(function, signature) -> address."""
    enter = _enter(kinds)

    def entry(table, arguments, count):
        return enter(table, arguments, count)

    address = compile_(entry, ((types.intp,) * 3, types.intp))
    method = _Method(b"kernel", address, _METH_FASTCALL, None)
    table = _table(kinds)
    _alive.append((method, table))
    return _new_function(ctypes.addressof(method), table, None)
