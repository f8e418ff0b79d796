"""GELU and SiLU: each forward beside its backward."""

from .runtime import contiguous, empty, kernel, share, tasks
from .vector_math import normal_tail, sigmoid

ERF, TANH, SILU = 0, 1, 2  # the kinds of activation

# Beyond +-LARGE every factor is exactly 0 or 1, in both types; x is held inside, so that no inf * 0 arises.
LARGE = 1000.0


@kernel
def _activation(t, n_tasks, x, kind, y):
    first, end = share(t, n_tasks, len(x))
    xs, ys = x[first:end], y[first:end]
    number = x.dtype.type
    low = number(-LARGE)
    if kind == ERF:
        for i in range(len(xs)):
            v = low if xs[i] < low else xs[i]
            tail = normal_tail(v)[0]
            ys[i] = v * (tail if v < number(0) else number(1) - tail)
    elif kind == TANH:
        a, b = number(2 * 0.7978845608028654), number(2 * 0.7978845608028654 * 0.044715)
        for i in range(len(xs)):
            v = low if xs[i] < low else xs[i]
            ys[i] = v * sigmoid(v * (a + b * (v * v)))  # (1 + tanh u) / 2 = sigmoid(2u)
    else:
        for i in range(len(xs)):
            v = low if xs[i] < low else xs[i]
            ys[i] = v * sigmoid(v)


@kernel
def _activation_backward(t, n_tasks, g, x, kind, dx):
    first, end = share(t, n_tasks, len(x))
    gs, xs, ds = g[first:end], x[first:end], dx[first:end]
    number = x.dtype.type
    low, high, one = number(-LARGE), number(LARGE), number(1)
    if kind == ERF:
        density = number(0.3989422804014327)  # 1 / sqrt(2 pi)
        for i in range(len(xs)):
            v = low if xs[i] < low else xs[i]
            v = high if v > high else v
            tail, bell = normal_tail(v)
            ds[i] = gs[i] * ((tail if v < number(0) else one - tail) + v * (density * bell))
    elif kind == TANH:
        a, b = number(2 * 0.7978845608028654), number(2 * 0.7978845608028654 * 0.044715)
        c = number(3) * b
        for i in range(len(xs)):
            v = low if xs[i] < low else xs[i]
            v = high if v > high else v
            s = sigmoid(v * (a + b * (v * v)))
            ds[i] = gs[i] * (s + v * (s * (one - s)) * (a + c * (v * v)))
    else:
        for i in range(len(xs)):
            v = low if xs[i] < low else xs[i]
            v = high if v > high else v
            s = sigmoid(v)
            ds[i] = gs[i] * (s + v * (s * (one - s)))


def _forward(x, kind):
    flat = contiguous(x).reshape(-1)
    y = empty(x.shape, flat.dtype)
    _activation(tasks(flat.size * 4), flat, kind, y.reshape(-1))
    return y


def _backward(g, x, kind):
    flat = contiguous(x).reshape(-1)
    dx = empty(flat.shape, flat.dtype)
    _activation_backward(tasks(flat.size * 4), contiguous(g).reshape(-1), flat, kind, dx)
    return dx.reshape(x.shape)


def gelu(x, tanh=False):
    """x P(X <= x) for a standard normal X, or with tanh: x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2.

    Hendrycks & Gimpel 2016, section 2. gelu(-inf) is 0, the limit.
    """
    return _forward(x, TANH if tanh else ERF)


def gelu_backward(g, x, tanh=False):
    """g times the derivative of `gelu` at x."""
    return _backward(g, x, TANH if tanh else ERF)


def silu(x):
    """x sigmoid(x). silu(-inf) is 0, the limit."""
    return _forward(x, SILU)


def silu_backward(g, x):
    """g times the derivative of `silu` at x: with s = sigmoid(x), s + x s (1 - s)."""
    return _backward(g, x, SILU)
