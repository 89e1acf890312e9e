"""Which library multiplies float32 matrices on a CPU.

PyTorch's wheels send float32 products to MKL, which takes its AVX2 kernels on CPUs that are not Intel's; oneDNN's
AVX-512 kernels are about twice as fast there. PyTorch routes to oneDNN when products in bfloat16 are allowed; whether
oneDNN then really rounds its inputs depends on the CPU (it does where there are matrix units for it). So the route is
taken only where a product is measured to be as exact as MKL's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

ALLOWED_ERROR = 4.0
"""The product through oneDNN may be this many times less exact than through MKL: rounding order differs, precision must
not. Inputs rounded to bfloat16 are more than a thousand times less exact."""
SHAPES = ((512, 576, 1536), (64, 1536, 576), (3, 576, 49))


def use_onednn_for_float32() -> bool:
    """Sends this process's float32 products through oneDNN if that costs no precision; returns whether it does."""
    if not torch.backends.mkldnn.is_available():
        return False
    settings: Any = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = settings.fp32_precision
    exact = [_error(shape) for shape in SHAPES]
    settings.fp32_precision = "bf16"
    if all(_error(shape) <= ALLOWED_ERROR * error for shape, error in zip(SHAPES, exact, strict=True)):
        return True
    settings.fp32_precision = before
    return False


def ask_mkl_for_steady_products() -> None:
    """Lets a row of a product through MKL be the same however many rows there are, and on any number of threads.

    Otherwise MKL divides the sums of some products among threads. It reads the variable at its first product in a process; set
    later it does nothing, so whoever relies on steady products tries them. On CPUs that are not Intel's it would take MKL's slowest
    kernels.
    """
    if _is_intel():
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _error(shape: tuple[int, int, int]) -> float:
    """Largest absolute error of x [M, K] times w [N, K] transposed, and of the two products of its backward pass."""
    m, k, n = shape
    generator = torch.Generator().manual_seed(0)
    x_MK = torch.randn(m, k, generator=generator)
    w_NK = torch.randn(n, k, generator=generator)
    y_MN = x_MK @ w_NK.T
    errors = [
        (y_MN - x_MK.double() @ w_NK.double().T).abs().max(),
        (y_MN @ w_NK - y_MN.double() @ w_NK.double()).abs().max() / y_MN.abs().max(),
        (y_MN.T @ x_MK - y_MN.double().T @ x_MK.double()).abs().max() / y_MN.abs().max(),
    ]
    return float(max(errors))
