"""Weights that travel as LoRA adapters: one per version, proven before use, and no request under two of them (invariants 3, 8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rl_cluster.episodes.sampling import SamplingSettings
from rl_cluster.errors import DigestMismatchError, ProbeMismatchError, WeightSyncError
from rl_cluster.inference.engine import EngineSettings, InferenceEngine
from rl_cluster.learning.export import adapter_config_json, adapter_modules, adapter_tensors
from rl_cluster.learning.weight_version import Probe, WeightVersion, tensor_digest
from tests.helpers.tiny_models import write_tiny_model

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROMPT = list(range(100, 140))


class AdaptedReference:
    """The model with a LoRA adapter of rank 8 in peft, whose adapter a test changes and publishes."""

    def __init__(self, folder: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        self.torch = torch
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model = get_peft_model(base, config).eval()

    def logprobs(self, ids: list[int]) -> list[float]:
        with self.torch.no_grad():
            logits = self.model(self.torch.tensor([ids])).logits[0].log_softmax(-1)
        return [float(logits[i, ids[i + 1]]) for i in range(len(ids) - 1)]

    def snapshot(self, version: int, path: Path) -> WeightVersion:
        """Changes the adapter and writes it."""
        from safetensors.torch import save_file

        with self.torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "lora_B" in name:
                    parameter.add_(0.05 * self.torch.randn_like(parameter))
        tensors = adapter_tensors(self.model, 0)
        save_file(tensors, str(path))
        digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
        probe = Probe(tuple(PROMPT), tuple(self.logprobs(PROMPT)))
        config = adapter_config_json(self.model)
        return WeightVersion(version, str(path), "", path.stat().st_size, digests, probe, config)


async def start(folder: Path, reference: AdaptedReference) -> InferenceEngine:
    modules = tuple(adapter_modules(reference.model))
    settings = EngineSettings(
        str(folder),
        max_model_len=1024,
        max_num_seqs=16,
        cpu_threads=1,
        kv_cache_gib=0.125,
        adapter_rank=8,
        adapter_modules=modules,
    )
    return await InferenceEngine.start(settings)


def sampling(tokens: int) -> SamplingSettings:
    return SamplingSettings(1.0, 1.0, tokens, (), ignore_eos=True)


def test_adapter_loaded_in_flight_leaves_running_requests_with_the_old_one(tmp_path: Path) -> None:
    folder = write_tiny_model("qwen3", tmp_path / "model")

    async def scenario() -> None:
        reference = AdaptedReference(folder)
        engine = await start(folder, reference)
        try:
            for version in (1, 2, 3):
                before = engine.version
                old = reference.logprobs
                running = asyncio.ensure_future(engine.sample(PROMPT, sampling(400)))
                await asyncio.sleep(0.2)
                sampled_by_old = await engine.sample(PROMPT, sampling(8))
                assert sampled_by_old.logprobs == pytest.approx(
                    old(PROMPT + sampled_by_old.token_ids)[len(PROMPT) - 1 :], abs=1e-4
                )
                weights = reference.snapshot(version, tmp_path / f"v{version}.safetensors")
                await engine.update(weights, lambda weights=weights: engine.deliver_file(weights, weights.path))
                after = await engine.sample(PROMPT, sampling(24))
                assert after.weight_versions == [version] * 24
                expected = reference.logprobs(PROMPT + after.token_ids)[len(PROMPT) - 1 :]
                assert after.logprobs == pytest.approx(expected, abs=1e-4)
                kept = await running
                assert kept.weight_versions == [before] * 400
                assert kept.mixed_cache_tokens == 0
            assert engine.counters.max_probe_gap < 1e-4
            assert engine.counters.pause_s == 0
            assert len(await engine.llm.list_loras()) <= 2
        finally:
            await engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["tensor", "probe", "kind"])
def test_adapter_that_is_not_the_learners_is_never_given_to_a_request(fault: str, tmp_path: Path) -> None:
    folder = write_tiny_model("smollm2", tmp_path / "model")

    async def scenario() -> None:
        reference = AdaptedReference(folder)
        engine = await start(folder, reference)
        try:
            weights = reference.snapshot(1, tmp_path / "v1.safetensors")
            error: type[WeightSyncError] = WeightSyncError
            if fault == "tensor":
                data = bytearray(Path(weights.path).read_bytes())
                data[-5] ^= 0x40
                Path(weights.path).write_bytes(bytes(data))
                error = DigestMismatchError
            probe, config = weights.probe, weights.adapter_config
            assert probe is not None
            if fault == "probe":
                probe = Probe(probe.token_ids, tuple(value - 0.5 for value in probe.logprobs))
                error = ProbeMismatchError
            if fault == "kind":
                config = ""
            claimed = WeightVersion(1, weights.path, "", weights.num_bytes, weights.digests, probe, config)
            with pytest.raises(error):
                await engine.update(claimed, lambda: engine.deliver_file(claimed, claimed.path))
            assert engine.adapters.current is None
            assert engine.broken
        finally:
            await engine.close()

    asyncio.run(scenario())
