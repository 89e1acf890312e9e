"""Every number, word and name out of its range is refused in one sentence that names the setting and the value."""

from __future__ import annotations

import re

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from rl_cluster.composition import to_config
from rl_cluster.errors import ConfigError

OUT_OF_RANGE = [
    "environment.max_turns=1",
    "environment.max_turns=101",
    "environment.k=0",
    "environment.k=51",
    "environment.max_k=101",
    "environment.tools=[]",
    "environment.name=chess",
    "search.lexical.method=bm42",
    "search.lexical.k1=-0.1",
    "search.lexical.b=1.1",
    "search.lexical.backend=lucene",
    "search.lexical.delta=-0.1",
    "search.vector.kind=annoy",
    "search.vector.links=1",
    "search.vector.build_breadth=0",
    "search.vector.search_breadth=-1",
    "search.vector.lists=-1",
    "search.vector.probes=-1",
    "search.vector.code_bytes=0",
    "search.vector.refine=0",
    "search.vector.device=gpu",
    "search.fusion.method=borda",
    "search.fusion.depth=0",
    "search.fusion.rrf_k=-1.0",
    "search.fusion.lexical_weight=1.1",
    "search.fusion.rerank_depth=0",
    "evaluation.success_threshold=0.0",
    "evaluation.success_threshold=1.1",
    "learner.adam_beta1=1.0",
    "learner.adam_beta2=1.0",
    "search.embed_max_tokens=0",
    "search.snippet_words=0",
    "search.shards=0",
    "search.min_replicas=0",
    "search.max_replicas=0",
    "search.max_queued_requests=0",
    "search.max_batch=0",
    "search.memory_gib=0.0",
    "search.timeout_s=0.0",
    "search.port=80",
    "search.port=65536",
    "search.max_ongoing_requests=0",
    "search.cpus_per_replica=-1.0",
    "search.threads_per_replica=0",
    "search.gpus_per_replica=-1.0",
    "search.device=mps",
    "search.start_timeout_s=-1.0",
    "rollout.num_workers=0",
    "rollout.rollout_max_concurrency=0",
    "rollout.rollout_timeout=0.0",
    "rollout.rollout_max_retries=-1",
    "rollout.sampling_max_tokens=0",
    "rollout.max_sequence_length=0",
    "rollout.temperature=0.0",
    "rollout.temperature=2.1",
    "rollout.sampling_top_p=0.0",
    "rollout.sampling_top_p=1.1",
    "rollout.kv_cache_gib=0.0",
    "rollout.cpus_per_worker=-1.0",
    "rollout.gpus_per_worker=-1.0",
    "rollout.tensor_parallel_size=0",
    "rollout.gpu_memory_utilization=1.0",
    "rollout.max_restarts=-1",
    "rollout.start_timeout_s=nan",
    "algorithm.loss.clip_low=-0.1",
    "algorithm.loss.dual_clip=1.0",
    "algorithm.loss.aggregation=median",
    "training.global_batch_size=0",
    "training.group_size=1",
    "training.group_size=129",
    "training.group_size=2.5",
    "training.group_size=many",
    "training.max_steps=-1",
    "training.max_epochs=0",
    "training.save_every=-1",
    "training.keep_checkpoints=0",
    "training.val_every=-1",
    "training.straggler_timeout_s=0.0",
    "training.step_timeout_s=0.0",
    "learner.num_ranks=0",
    "learner.zero_stage=4",
    "learner.zero_stage=-1",
    "learner.learning_rate=0.0",
    "learner.learning_rate=0.1",
    "learner.learning_rate=nan",
    "learner.schedule=exponential",
    "learner.lr_warmup_steps=-1",
    "learner.adam_beta1=1.1",
    "learner.adam_beta2=-0.1",
    "learner.adam_eps=0.0",
    "learner.adam_weight_decay=-0.1",
    "learner.adam_grad_clip_norm=-1.0",
    "learner.adam_grad_clip_norm=101.0",
    "learner.micro_batch_tokens=0",
    "learner.lora.lora_rank=-1",
    "learner.lora.lora_alpha=0",
    "learner.lora.dropout=1.1",
    "learner.num_threads=0",
    "learner.drift_alarm=0.0",
    "algorithm.entropy_coefficient=-0.1",
    "algorithm.kl.coefficient=-1.0",
    "algorithm.correction.kind=clip",
    "algorithm.advantage.gamma=0.0",
    "algorithm.advantage.gamma=1.1",
    "algorithm.advantage.base=gpg",
    "weight_sync.transport=pigeon",
    "weight_sync.timeout_s=0.0",
    "weight_sync.probe_tolerance=0.0",
    "staleness.max_steps_off_policy=-1",
    "staleness.max_steps_off_policy=11",
    "staleness.kv_on_update=burn",
    "warmup.demonstrations=0",
    "warmup.demonstrations=101",
    "warmup.steps=-1",
    "warmup.batch_size=0",
    "warmup.learning_rate=0.1",
    "data.num_documents=1999",
    "data.num_documents=500001",
    "data.seed=-1",
    "data.train_tasks=0",
    "data.validation_tasks=0",
    "data.test_tasks=0",
    "data.name=msmarco",
    "evaluation.temperatures=[]",
    "evaluation.validation_temperature=-0.1",
    "evaluation.test_limit=0",
    "evaluation.bootstrap_resamples=999",
    "tracking.traces_per_step=-1",
    "cluster.device=tpu",
    "cluster.object_store_gib=0.0",
    "model.dtype=float8",
    "seed=-1",
    "resume=maybe",
    "dry_run=perhaps",
]


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    """The defaults, composed once: composing anew for each of many values would take most of the time."""
    with initialize_config_module("hydra_conf", version_base="1.3"):
        settings = compose("config")
    OmegaConf.set_struct(settings, True)
    return settings


@pytest.mark.parametrize("override", OUT_OF_RANGE)
def test_to_config_value_out_of_range_names_setting_and_value(composed: DictConfig, override: str) -> None:
    setting, _, value = override.partition("=")
    settings = OmegaConf.merge(composed, OmegaConf.from_dotlist([override]))
    assert isinstance(settings, DictConfig)
    with pytest.raises(ConfigError) as caught:
        to_config(settings)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith((f"{setting}={value} is refused; ", f"{setting}={value!r} is refused; "))
    assert re.search(r"; (give|choose) .+\.$", message)


@pytest.mark.parametrize(
    ("override", "mend"),
    [
        ("training.group_size=1", "give at least 2"),
        ("training.group_size=many", "give a whole number"),
        ("rollout.num_workers=2.5", "give a whole number"),
        ("weight_sync.probe_tolerance=0", "give more than 0.0"),
        ("rollout.temperature=.nan", "give a finite number"),
        ("learner.learning_rate=1.0", "give at most 0.01"),
        ("rollout.temperature=0.005", "give at least 0.01"),
        ("seed=4294967296", "give less than 4294967296"),
        ("search.port=70000", "give at most 65535"),
        ("rollout.gpu_memory_utilization=1.0", "give less than 1.0"),
        ("training.curriculum=hard", "choose 'none' or 'difficulty'"),
        ("environment.reward=3", "give a text"),
        ("environment.tools=bm25", "give a list"),
        ("search.fusion=3", "give its settings by name"),
    ],
)
def test_to_config_wrong_value_says_what_to_give(composed: DictConfig, override: str, mend: str) -> None:
    settings = composed.copy()
    OmegaConf.set_struct(settings, False)
    setting, _, value = override.partition("=")
    OmegaConf.update(settings, setting, yaml.safe_load(value), merge=False)
    with pytest.raises(ConfigError, match=f"^{re.escape(setting)}=.* is refused; {re.escape(mend)}\\.$"):
        to_config(settings)


@pytest.mark.parametrize("override", ["evaluation.validation_temperature=0.005", "evaluation.temperatures=[0.0,0.005]"])
def test_to_config_temperature_that_the_engine_would_raise_is_refused(composed: DictConfig, override: str) -> None:
    settings = OmegaConf.merge(composed, OmegaConf.from_dotlist([override]))
    assert isinstance(settings, DictConfig)
    with pytest.raises(
        ConfigError, match=r"temperatures?(\.1)?: 0\.005 is under 0\.01, .*; give 0 for greedy replies, or more"
    ):
        to_config(settings)


@pytest.mark.parametrize("setting", ["model.name", "output_dir", "search.embedder"])
@pytest.mark.parametrize("blank", ["", " "])
def test_to_config_name_that_is_blank_is_refused(composed: DictConfig, setting: str, blank: str) -> None:
    settings = composed.copy()
    OmegaConf.update(settings, setting, blank)
    with pytest.raises(ConfigError, match=f"{re.escape(setting)}: '{blank}' names nothing; give a path or a name"):
        to_config(settings)
