"""Routing float32 products to oneDNN must never cost precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_cluster.models import cpu_matmul
from rl_cluster.models.cpu_matmul import use_onednn_for_float32

MATMUL: Any = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture(autouse=True)
def precision() -> Any:
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "none"  # whatever a test before this one in the same process has chosen
    yield
    MATMUL.fp32_precision = before


def test_use_onednn_products_stay_exact():
    use_onednn_for_float32()
    x, w = torch.randn(100, 300), torch.randn(200, 300)
    gap = (x @ w.T - x.double() @ w.double().T).abs().max()
    assert gap < 1e-4  # inputs rounded to bfloat16 would be off by about 0.1


def test_use_onednn_cpu_that_rounds_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    honest = cpu_matmul._error
    monkeypatch.setattr(
        cpu_matmul, "_error", lambda shape: honest(shape) * (1000 if MATMUL.fp32_precision == "bf16" else 1)
    )
    before = MATMUL.fp32_precision
    assert use_onednn_for_float32() is False
    assert MATMUL.fp32_precision == before
