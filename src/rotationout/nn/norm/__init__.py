"""BatchNorm for small batches (appendix B of the paper), and conversion from and to ``nn.BatchNorm``."""

from .convert import convert_batchnorm, to_batchnorm
from .cross import CrossNorm1d, CrossNorm2d, CrossNorm3d
from .expectation import f_poly, poly_coefficients
from .ghost import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from .poly import PolyBatchNorm1d, PolyBatchNorm2d, PolyBatchNorm3d

__all__ = [
    "CrossNorm1d",
    "CrossNorm2d",
    "CrossNorm3d",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "PolyBatchNorm1d",
    "PolyBatchNorm2d",
    "PolyBatchNorm3d",
    "convert_batchnorm",
    "f_poly",
    "poly_coefficients",
    "to_batchnorm",
]
