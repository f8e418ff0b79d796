"""Looking inside a model: the identity path through its Residuals, and the two paths of the gradient at each of them."""

from .identity import Certificate, ResidualIdentity, identity_path
from .paths import GradientPaths, PathSplit, draw_paths, gradient_paths

__all__ = [
    "Certificate",
    "GradientPaths",
    "PathSplit",
    "ResidualIdentity",
    "draw_paths",
    "gradient_paths",
    "identity_path",
]
