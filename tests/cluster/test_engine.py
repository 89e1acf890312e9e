"""A real vLLM engine on CPU: tokens in, tokens out, and weight updates while requests are in flight (invariants 1, 3, 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.episodes.sampling import Sample, SamplingSettings
from rl_cluster.errors import DigestMismatchError, EngineError, ProbeMismatchError
from rl_cluster.inference.engine import EngineSettings, InferenceEngine
from rl_cluster.learning.weight_version import Probe, WeightVersion, tensor_digest
from tests.helpers.tiny_models import write_tiny_model

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROMPT = list(range(100, 400))
"""Longer than two blocks of 128 tokens, in which the prefix cache of a CPU engine keeps keys and values: those that older weights
left must not be found by requests after an update."""


class Reference:
    """The same model in plain transformers, whose weights a test changes and publishes."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def logprobs(self, ids: list[int]) -> list[float]:
        with self.torch.no_grad():
            logits = self.model(self.torch.tensor([ids])).logits[0].log_softmax(-1)
        return [float(logits[i, ids[i + 1]]) for i in range(len(ids) - 1)]

    def perturb(self, scale: float) -> None:
        with self.torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(scale * self.torch.randn_like(parameter))

    def snapshot(self, version: int, path: Path) -> WeightVersion:
        from safetensors.torch import save_file

        tensors = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        save_file(tensors, str(path))
        digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
        probe = Probe(tuple(PROMPT), tuple(self.logprobs(PROMPT)))
        return WeightVersion(version, str(path), "", path.stat().st_size, digests, probe)


def settings(folder: Path) -> EngineSettings:
    return EngineSettings(
        model_path=str(folder), max_model_len=1024, max_num_seqs=16, cpu_threads=1, kv_cache_gib=0.125
    )


def sampling(tokens: int, temperature: float = 1.0) -> SamplingSettings:
    return SamplingSettings(temperature, 1.0, tokens, (), ignore_eos=True)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


async def samples_of_an_update_in_flight(engine: InferenceEngine, reference: Reference, folder: Path) -> list[Sample]:
    """Long replies that were under way while version 1 was loaded, by an engine that has sampled before: a first request would
    take longer than the update waits."""
    in_flight = [asyncio.ensure_future(engine.sample(PROMPT, sampling(400))) for _ in range(4)]
    await asyncio.sleep(0.3)
    reference.perturb(0.02)
    weights = reference.snapshot(1, folder / "v1.safetensors")
    await engine.update(weights, lambda: engine.deliver_file(weights, weights.path))
    return list(await asyncio.gather(*in_flight))


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_engine_updated_in_flight_keeps_requests_and_proves_weights(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it runs eagerly, it also compiles nothing, for which a machine may lack the compiler."""
    compiled = tmp_path / "compiled"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    folder = write_tiny_model(family, tmp_path / "model")

    async def scenario() -> None:
        engine = await InferenceEngine.start(settings(folder))
        try:
            reference = Reference(folder)
            first = await engine.sample(PROMPT, sampling(24))
            assert first.weight_versions == [0] * 24
            expected = reference.logprobs(PROMPT + first.token_ids)[len(PROMPT) - 1 :]
            assert first.logprobs == pytest.approx(expected, abs=1e-3)

            greedy_before = await engine.sample(PROMPT, sampling(16, 0.0))
            for sample in await samples_of_an_update_in_flight(engine, reference, tmp_path):
                assert len(sample.token_ids) == len(sample.logprobs) == len(sample.weight_versions) == 400
                assert set(sample.weight_versions) == {0, 1}
                assert sample.weight_versions == sorted(sample.weight_versions)
                assert sample.mixed_cache_tokens == sample.weight_versions.count(1)

            after = await engine.sample(PROMPT, sampling(24))
            assert after.weight_versions == [1] * 24
            expected = reference.logprobs(PROMPT + after.token_ids)[len(PROMPT) - 1 :]
            assert after.logprobs == pytest.approx(expected, abs=1e-3)
            ids = list(PROMPT)
            for _ in range(16):
                with reference.torch.no_grad():
                    ids.append(int(reference.model(reference.torch.tensor([ids])).logits[0, -1].argmax()))
            greedy_after = await engine.sample(PROMPT, sampling(16, 0.0))
            assert greedy_after.token_ids == ids[len(PROMPT) :]
            assert greedy_after.logprobs != pytest.approx(greedy_before.logprobs, abs=1e-2)
        finally:
            await engine.close()

    run(scenario())
    assert list(compiled.rglob("*.so")) == []


def test_engine_that_recomputes_samples_the_rest_from_the_new_weights_alone(tmp_path: Path) -> None:
    folder = write_tiny_model("qwen3", tmp_path / "model")

    async def scenario() -> None:
        engine = await InferenceEngine.start(replace(settings(folder), kv_on_update="recompute"))
        try:
            reference = Reference(folder)
            await engine.sample(PROMPT, sampling(24))
            for sample in await samples_of_an_update_in_flight(engine, reference, tmp_path):
                assert set(sample.weight_versions) == {0, 1}
                assert sample.mixed_cache_tokens == 0
                changed = sample.weight_versions.index(1)
                expected = reference.logprobs(PROMPT + sample.token_ids)[len(PROMPT) - 1 :]
                assert sample.logprobs[changed:] == pytest.approx(expected[changed:], abs=1e-3)
        finally:
            await engine.close()

    run(scenario())


def test_engine_with_corrupted_tensor_in_transit_fails_the_sync_and_is_never_resumed(tmp_path: Path) -> None:
    folder = write_tiny_model("smollm2", tmp_path / "model")

    async def scenario() -> None:
        engine = await InferenceEngine.start(settings(folder))
        try:
            reference = Reference(folder)
            reference.perturb(0.02)
            weights = reference.snapshot(1, tmp_path / "v1.safetensors")
            data = bytearray(Path(weights.path).read_bytes())
            data[-5] ^= 0x40
            Path(weights.path).write_bytes(bytes(data))
            waiting = asyncio.ensure_future(engine.sample(PROMPT, sampling(800)))
            await asyncio.sleep(0.2)
            with pytest.raises(DigestMismatchError, match="digest"):
                await engine.update(weights, lambda: engine.deliver_file(weights, weights.path))
            with pytest.raises(EngineError, match="broken"):
                await engine.sample(PROMPT, sampling(4))
            waiting.cancel()
        finally:
            await engine.close()

    run(scenario())


def test_engine_with_probe_that_disagrees_hands_out_nothing_sampled_since(tmp_path: Path) -> None:
    folder = write_tiny_model("smollm2", tmp_path / "model")

    async def scenario() -> None:
        engine = await InferenceEngine.start(settings(folder))
        try:
            reference = Reference(folder)
            weights = reference.snapshot(1, tmp_path / "v1.safetensors")
            assert weights.probe is not None
            wrong = Probe(weights.probe.token_ids, tuple(value - 0.5 for value in weights.probe.logprobs))
            claimed = WeightVersion(1, weights.path, "", weights.num_bytes, weights.digests, wrong)
            waiting = asyncio.ensure_future(engine.sample(PROMPT, sampling(300)))
            await asyncio.sleep(0.2)
            with pytest.raises(ProbeMismatchError, match="probe"):
                await engine.update(claimed, lambda: engine.deliver_file(claimed, claimed.path))
            with pytest.raises(EngineError, match="broken"):
                await waiting
        finally:
            await engine.close()

    run(scenario())
