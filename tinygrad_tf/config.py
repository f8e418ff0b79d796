"""Settings of this process."""

from __future__ import annotations


class Config:
    """`tg.config.matmul`: "numba" (the project's own kernels, the default) or "blas" (numpy's, for comparison)."""

    def __init__(self) -> None:
        self._matmul = "numba"

    @property
    def matmul(self) -> str:
        return self._matmul

    @matmul.setter
    def matmul(self, value: str) -> None:
        if value not in ("numba", "blas"):
            raise ValueError(f'config.matmul: expected "numba" or "blas", got {value!r}')
        self._matmul = value


config = Config()
