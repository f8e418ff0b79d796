"""exp, tanh, erf, sigmoid and the normal distribution, for use inside kernels: code that the compiler can vectorise.

Calls of the C library inside a loop keep the compiler from vectorising it, and cost six times more. float32 gets
polynomials (Chebyshev interpolation of the functions named beside them, computed with 40 digits). float64, which serves
gradient checks, gets a Taylor polynomial for exp and the C library for the rest. NaN stays NaN, infinities give
the limits.

These functions are compiled without "reassoc": it would merge the two halves of ln 2, and cancel the rounding by a
large number.
"""

import math

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

EXACT = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True}

f32 = np.float32
# ln 2 as a sum of which n times the first part is exact, and e**r = the sum of EXP[i] r**i on |r| <= ln(2) / 2
LN2, LN2_DOUBLE = (
    (0.693145751953125, 1.42860682030941723212e-6),
    (6.93147180369123816490e-01, 1.90821492927058770002e-10),
)
EXP = 1.0, 1.0, 0.5, 0.16666573381900845, 0.04166655011030512, 0.008363773874405574, 0.0013926926614021907
EXP_DOUBLE = tuple(1 / math.factorial(i) for i in range(14))


def _bits(x):
    """(integer type with the bits of x, bits of the mantissa, exponent bias)."""
    return (ir.IntType(32), 23, 127) if x == types.float32 else (ir.IntType(64), 52, 1023)


def raise_two(builder, n, integer, constant, mantissa, bias):
    """2**n for a number or a vector; `constant` makes a number of what all lanes are to hold."""
    n_type = n.type
    shifted = builder.fadd(n, ir.Constant(n_type, constant(1.5 * 2.0**mantissa)))  # n is now in the lowest bits
    raised = builder.add(builder.bitcast(shifted, integer), ir.Constant(integer, constant(bias)))
    return builder.bitcast(builder.shl(raised, ir.Constant(integer, constant(mantissa))), n_type)


@intrinsic
def power_of_two(typing_context, n):
    """2**n for a whole float n within the exponent's range: puts n into the exponent's bits."""
    integer, mantissa, bias = _bits(n)

    def generate(context, builder, signature, arguments):
        return raise_two(builder, arguments[0], integer, lambda number: number, mantissa, bias)

    return n(n), generate


@intrinsic
def round_even(typing_context, x):
    """x rounded to the nearest whole number."""

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [value.type]), [value])

    return x(x), generate


@intrinsic
def order_key(typing_context, x):
    """An integer that sorts as x does, so that a loop for the maximum vectorises though NaN may occur.

    NaN with a clear sign bit comes last; NaN with a set one comes first.
    """
    integer, mantissa, _ = _bits(x)
    result = types.int32 if x == types.float32 else types.int64

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], integer)
        sign = builder.ashr(bits, ir.Constant(integer, integer.width - 1))
        return builder.xor(bits, builder.and_(sign, ir.Constant(integer, 2 ** (integer.width - 1) - 1)))

    return result(x), generate


@intrinsic
def from_order_key(typing_context, key):
    """The float that `order_key` made this integer of."""
    result = types.float32 if key == types.int32 else types.float64

    def generate(context, builder, signature, arguments):
        (bits,) = arguments
        integer = bits.type
        sign = builder.ashr(bits, ir.Constant(integer, integer.width - 1))
        bits = builder.xor(bits, builder.and_(sign, ir.Constant(integer, 2 ** (integer.width - 1) - 1)))
        return builder.bitcast(bits, context.get_value_type(result))

    return result(key), generate


@intrinsic
def larger_key(typing_context, a, b):
    """The larger of two integers."""

    def generate(context, builder, signature, arguments):
        first, second = arguments
        return builder.select(builder.icmp_signed(">", first, second), first, second)

    return a(a, a), generate


@numba.njit(**EXACT)
def minus_two(x, high, low):
    """(x - high) - low, in this order: `high + low` is one number with more digits than x's type holds."""
    return (x - high) - low


def exp(x):
    """e**x: x = n ln 2 + r, e**r by a polynomial, 2**n by the exponent's bits.

    To one unit in the last place; to 200 in the last 0.35 before overflow. Subnormal results may be 0.
    """
    return np.exp(x)


@overload(exp, jit_options=EXACT)
def _exp(x):
    def single(x):
        x = f32(-88.0) if x < f32(-88.0) else x
        n = round_even(x * f32(1.4426950408889634))
        n = f32(127.0) if n > f32(127.0) else n
        r = x - n * f32(LN2[0])
        r = r - n * f32(LN2[1])
        # in pairs, so that no product waits for six others
        s = r * r
        q = f32(EXP[3]) * r + f32(EXP[2]) + s * (f32(EXP[5]) * r + f32(EXP[4]))
        p = (q + s * s * f32(EXP[6])) * s + (r + f32(1.0))
        return p * power_of_two(n)

    def double(x):
        x = -709.4 if x < -709.4 else x
        n = round_even(x * 1.4426950408889634)
        n = 1023.0 if n > 1023.0 else n
        r = x - n * LN2_DOUBLE[0]
        r = r - n * LN2_DOUBLE[1]
        p = EXP_DOUBLE[13]
        for i in range(12, -1, -1):
            p = p * r + EXP_DOUBLE[i]
        return p * power_of_two(n)

    return single if x == types.float32 else double


def sigmoid(x):
    """1 / (1 + e**-x)."""
    return 1 / (1 + np.exp(-x))


@overload(sigmoid, jit_options=EXACT)
def _sigmoid(x):
    def single(x):
        return f32(1.0) / (f32(1.0) + exp(-x))

    def double(x):
        return 1.0 / (1.0 + exp(-x))

    return single if x == types.float32 else double


def tanh(x):
    """tanh x: an odd polynomial near 0, else 1 - 2 / (e**2|x| + 1) with the sign of x."""
    return np.tanh(x)


@overload(tanh, jit_options=EXACT)
def _tanh(x):
    def single(x):
        s = x * x
        # tanh(sqrt(s)) / sqrt(s) on s <= 0.4
        q = f32(-0.005599785037277397)
        q = q * s + f32(0.02053697199790436)
        q = q * s + f32(-0.05370427743882311)
        q = q * s + f32(0.13330917169420492)
        q = q * s + f32(-0.3333325144731387)
        q = q * s + f32(0.9999999954609966)
        size = abs(x)
        far = f32(1.0) - f32(2.0) / (exp(size + size) + f32(1.0))
        far = -far if x < f32(0.0) else far
        return q * x if s < f32(0.4) else far

    def double(x):
        return math.tanh(x)

    return single if x == types.float32 else double


def normal_tail(x):
    """(P(X > |x|), e**(-x**2 / 2)) for a standard normal X, with a relative error near the type's own."""
    return math.erfc(abs(x) / math.sqrt(2)) / 2, math.exp(-x * x / 2)


@overload(normal_tail, jit_options=EXACT)
def _normal_tail(x):
    def single(x):
        size = abs(x)
        size = f32(16.0) if size > f32(16.0) else size
        bell = exp(f32(-0.5) * (size * size))
        # P(X > |x|) / bell, a smooth function of t = 1 / (1 + 0.35 |x|), which is 0 at t = 0
        t = f32(1.0) / (f32(1.0) + f32(0.35) * size)
        s = t * t
        low = f32(0.13991480395037198) * t + f32(0.13961864287057624)
        low = (f32(0.10726277300241639) * t + f32(0.11941703607345935)) * s + low
        high = f32(0.1658018015307221) * t + f32(-0.027482889553070378)
        high = (f32(0.14695092217492817) * t + f32(-0.26171266922639713)) * s + high
        q = (f32(-0.029770438996600576) * (s * s) + high) * (s * s) + low
        return q * t * bell, bell

    def double(x):
        return 0.5 * math.erfc(abs(x) * 0.7071067811865476), exp(-0.5 * (x * x))

    return single if x == types.float32 else double


def erf(x):
    """erf x: an odd polynomial near 0, else from the normal distribution's tail."""
    return math.erf(x)


@overload(erf, jit_options=EXACT)
def _erf(x):
    def single(x):
        s = x * x
        # erf(sqrt(s)) / sqrt(s) on s <= 1
        q = f32(7.87587506268201e-05)
        q = q * s + f32(-0.0008016864287164737)
        q = q * s + f32(0.005189087423433832)
        q = q * s + f32(-0.02685421201062633)
        q = q * s + f32(0.11283594715160215)
        q = q * s + f32(-0.3761262666672033)
        q = q * s + f32(1.1283791658483509)
        tail = normal_tail(x * f32(1.4142135623730951))
        far = f32(1.0) - f32(2.0) * tail[0]
        far = -far if x < f32(0.0) else far
        return q * x if s < f32(1.0) else far

    def double(x):
        return math.erf(x)

    return single if x == types.float32 else double
