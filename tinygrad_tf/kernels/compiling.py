"""How the kernels' parts are compiled: `device` functions into their callers, a `routine` once by itself, both by numba."""

from __future__ import annotations

import gc
import inspect

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numba
from numba import types
from numba.core import ccallback, cgutils
from numba.extending import intrinsic

from .cache import Cache, digest, routines

# No nnan, no ninf: -inf masks and NaN keep their meaning.
FASTMATH = {"contract", "reassoc", "arcp", "nsz"}
OPTIONS = {"fastmath": FASTMATH, "error_model": "numpy", "boundscheck": False}


def device(function):
    """Compile a small function that its callers inline: always, or it would have two bodies, of one symbol.

    Its own, and the copy inside the caller's code, optimised once more. A process that compiles would call the one, and a
    process that loads the code from disk the other, with results that differ in the last bit.
    """
    return numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)(function)


def name_of(function) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def compile_c(function, name: str, signature, make=ccallback.CFunc, **options) -> int:
    """The address of the machine code of `function`, in C's calling convention; from the disk where it is there."""
    code = make(function, signature, {}, {"nopython": True, **OPTIONS, **options})
    code._cache = Cache(name, function.__code__, lambda name, kinds: Routine.known[name].symbol(kinds))
    collecting = gc.isenabled()
    gc.disable()  # numba makes a great many objects, nearly all of which stay for a while
    try:
        code.compile()
    finally:
        if collecting:
            gc.enable()
    _alive.append(code)
    return code.address


_alive: list[ccallback.CFunc] = []  # what is compiled stays


class _Task(ccallback.CFunc):
    """A kernel as a C function of (slots, t, n_tasks): the further arguments lie at the address `slots`, see `slots_of`."""

    def _compile_uncached(self):
        result = super()._compile_uncached()
        context, arguments = result.target_context, result.fndesc.argtypes
        module = context.create_module("slots")
        word, name = ir.IntType(64), result.fndesc.llvm_cfunc_wrapper_name
        values = [context.get_value_type(kind) for kind in arguments]
        kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), values), name)
        task = ir.Function(module, ir.FunctionType(ir.VoidType(), [word] * 3), name + _SLOTS)
        builder = ir.IRBuilder(task.append_basic_block())
        at, *given = task.args
        for kind, value in zip(arguments[2:], values[2:], strict=True):
            stored = context.get_data_type(kind) if kind == types.boolean else value
            number = builder.load(builder.inttoptr(at, stored.as_pointer()))
            given.append(builder.trunc(number, value) if kind == types.boolean else number)
            at = builder.add(at, word(8 * slots_of(kind)))
        builder.call(kernel, given)
        builder.ret_void()
        result.library.add_ir_module(module)
        return result

    @property
    def address(self):
        return self._library.get_pointer_to_function(self._wrapper_name + _SLOTS)


_SLOTS = ".slots"


def slots_of(kind: types.Type) -> int:
    """How many slots of 8 bytes an argument of this kind takes: an array's are numba's struct of it."""
    return 5 + 2 * kind.ndim if isinstance(kind, types.Array) else 1


def compile_task(function, name: str, kinds: tuple) -> int:
    """The address of a kernel's machine code, a C function of (slots, t, n_tasks)."""
    return compile_c(function, name, ((types.intp, types.intp, *kinds), types.void), _Task)


class Routine:
    """A function that is compiled once by itself for each list of argument types; kernels call it by its symbol."""

    known: dict[str, Routine] = {}

    def __init__(self, function, returns) -> None:
        self.function, self.returns = function, returns
        self.name = name_of(function)
        self.symbols: dict[tuple, str] = {}
        self.known[self.name] = self

    def symbol(self, argument_types: tuple) -> str:
        """The symbol under which the machine code for these types is found; compiled or loaded if it is new."""
        if argument_types not in self.symbols:
            address = compile_c(self.function, self.name, (argument_types, self.returns))
            symbol = f"tinygrad_tf.{self.name}.{digest(argument_types)}"
            llvm.add_symbol(symbol, address)
            self.symbols[argument_types] = symbol
            routines[symbol] = self.name, argument_types
        return self.symbols[argument_types]


def routine(returns=types.void):
    """Compile a big function once, to be called, not inlined; `returns` is its result's type."""

    def decorate(function):
        made = Routine(function, returns)

        def call(typing_context, *arguments):
            argument_types = tuple(types.unliteral(a) for a in arguments)
            symbol = made.symbol(argument_types)

            def generate(context, builder, signature, values):
                result = ir.VoidType() if returns == types.void else context.get_value_type(returns)
                kind = ir.FunctionType(result, [v.type for v in values])
                answer = builder.call(cgutils.get_or_insert_function(builder.module, kind, symbol), values)
                return context.get_dummy_value() if returns == types.void else answer

            return returns(*argument_types), generate

        own = inspect.signature(function)  # numba matches the arguments of a call with these parameters
        context = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = own.replace(parameters=[context, *own.parameters.values()])
        return intrinsic(call)

    return decorate
