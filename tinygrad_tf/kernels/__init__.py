"""Numba kernels: ndarrays in, ndarrays out. They know nothing of Tensors."""
