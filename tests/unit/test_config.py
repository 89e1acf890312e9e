"""The shipped configuration loads, and every wrong setting is refused in one sentence before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from rl_cluster.composition import TRAIN, load_config
from rl_cluster.config import Config, bound_settings, tracking_uri
from rl_cluster.errors import ConfigError
from rl_cluster.evaluate import EVALUATE
from rl_cluster.evaluation.settings import ModelSystemConfig, systems_of
from tests.helpers.configuration import load

ROOT = Path(__file__).resolve().parents[2]
HYDRA_CONF = ROOT / "hydra_conf"

# A choice may leave a value open (`???`) or stand only beside others; what else must be said for it to load.
COMPANIONS = {
    "weight_sync=nccl": ["cluster=gpu", "rollout=gpu", "learner=gpu"],
    "weight_sync=ipc": [
        *["cluster=gpu", "rollout=gpu", "learner=gpu"],
        "learner.gpus_per_rank=0.5",
        "rollout.gpus_per_worker=0.5",
    ],
    "algorithm/loss=distillation": ["learner.reference=/models/teacher"],
    "data=tables": ["data.folder=/data/tables"],
    "search=elasticsearch": ["search.external.url=https://search.example/kb/_search"],
    "search=http_json": ["search.external.url=https://search.example/v1/search"],
    "model=hugging_face": ["model.name=/models/policy", "learner.zero_stage=1"],
    "cluster=gpu": ["rollout=gpu", "learner=gpu", "weight_sync=object_store"],
    "rollout=gpu": ["cluster=gpu", "learner=gpu"],
}


def shipped_choices() -> list[str]:
    """`group=choice` of every file below a folder of hydra_conf, experiments included; some groups are of other commands."""
    others = [HYDRA_CONF, *(HYDRA_CONF / group for group in ("dataset", "system", "evaluation/drift"))]
    files = sorted(path for path in HYDRA_CONF.rglob("*.yaml") if path.parent not in others)
    return [f"{path.parent.relative_to(HYDRA_CONF).as_posix()}={path.stem}" for path in files]


def refusal(*overrides: str) -> str:
    """The message of the refusal, checked to be one line and one sentence of readable length."""
    with pytest.raises(ConfigError) as caught:
        load(TRAIN, overrides)
    message = str(caught.value)
    assert message == message.strip()
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def test_shipped_choices_every_group_is_covered() -> None:
    groups = {choice.partition("=")[0] for choice in shipped_choices()}
    assert {"model", "data", "experiment", "algorithm/loss", "algorithm/advantage", "weight_sync"} <= groups


@pytest.mark.slow
@pytest.mark.parametrize("choice", shipped_choices())
def test_load_config_shipped_choice_loads(choice: str) -> None:
    config = load_config([choice, *COMPANIONS.get(choice, [])])
    assert isinstance(config, Config)


@pytest.mark.parametrize("transport", ["nccl", "ipc"])
def test_load_config_device_transport_without_gpu_is_refused(transport: str) -> None:
    message = refusal(f"weight_sync={transport}")
    assert f"weight_sync.transport={transport} moves weights between GPUs, but cluster.device=cpu" in message


@pytest.mark.parametrize("rank", [0, 12])
def test_load_config_adapter_sync_of_a_rank_that_is_not_served_is_refused(rank: int) -> None:
    message = refusal("weight_sync.lora=adapter", f"learner.lora.lora_rank={rank}")
    assert f"learner.lora.lora_rank={rank} and weight_sync.transport=shared_memory" in message
    assert isinstance(load_config(["weight_sync.lora=adapter", "learner.lora.lora_rank=8"]), Config)


def test_load_config_ipc_over_two_gpus_is_refused() -> None:
    message = refusal("weight_sync=ipc", "cluster=gpu", "rollout=gpu", "learner=gpu")
    assert "together they ask for 2 GPUs" in message


@pytest.mark.parametrize("asks", ["algorithm.kl.coefficient=0.1", "algorithm/loss=distillation"])
def test_load_config_reference_missing_says_what_to_set(asks: str) -> None:
    message = refusal(asks)
    assert message.startswith("learner.reference is not set, but algorithm.loss=")
    assert isinstance(load_config([asks, "learner.reference=start"]), Config)


def test_load_config_kl_beta_that_nothing_reads_is_refused() -> None:
    assert "kl_beta=0.1 is read by reinforce_pp only, not by rloo" in refusal(
        "algorithm/advantage=rloo", "algorithm.advantage.kl_beta=0.1", "learner.reference=start"
    )


def test_load_config_no_override_gives_the_documented_defaults() -> None:
    config = load_config([])
    assert config.staleness.max_steps_off_policy == 3
    assert config.staleness.kv_on_update == "keep"
    assert config.rollout.sampling_top_p == 1
    assert config.cluster.device == "cpu"
    assert Path(config.output_dir).is_absolute()
    assert tracking_uri(config) == f"sqlite:///{Path(config.output_dir).parent / 'mlflow.db'}"


def test_load_config_override_after_experiment_wins() -> None:
    config = load_config(["experiment=quickstart", "algorithm/loss=cispo", "staleness.max_steps_off_policy=1"])
    assert config.run_name == "quickstart"
    assert config.algorithm.loss.name == "cispo"
    assert config.staleness.max_steps_off_policy == 1


def test_config_and_composition_import_nothing_heavy() -> None:
    program = (
        "import sys; import rl_cluster.config; from rl_cluster.composition import load_config; load_config([]);"
        "heavy = {'torch', 'ray', 'vllm', 'transformers', 'mlflow', 'deepspeed', 'faiss'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["search.min_replicas=2"], "min_replicas=2 is over max_replicas=1"),
        (["search.host=0.0.0.0"], "host=0.0.0.0 lets other machines ask"),
        (["rollout.kv_cache_gib=null"], "rollout.kv_cache_gib=null does not fit cluster.device=cpu"),
        (
            ["rollout.gpu_memory_utilization=0.5"],
            "rollout.gpu_memory_utilization=0.5 does not fit cluster.device=cpu, whose cache is set by rollout.kv_cache_gib alone",
        ),
        (
            ["cluster=gpu", "rollout=gpu", "learner=gpu", "rollout.kv_cache_gib=4"],
            "rollout.kv_cache_gib=4 does not fit cluster.device=cuda, whose cache is set by rollout.gpu_memory_utilization alone",
        ),
        (["cluster=gpu", "learner=gpu", "rollout.gpus_per_worker=1"], "choose rollout=gpu, and leave the other null"),
        (["environment.tools=[read_document]"], "finds nothing to read"),
        (["search=elasticsearch", "search.external.url=ftp://x"], "url=ftp://x is no HTTP address"),
        (["search=elasticsearch", "search.external.url=https://me:secret@x/_search"], "url holds credentials"),
        (
            ["search=http_json", "search.external.url=http://x", "environment.tools=[hybrid_search]"],
            "search.external.tools has no hybrid_search",
        ),
        (
            ["search=http_json", "search.external.url=http://x", "environment.tools=[bm25_search,read_document]"],
            "search.external.document_url is not set",
        ),
    ],
)
def test_load_config_search_that_contradicts_itself_is_refused(overrides: list[str], says: str) -> None:
    message = refusal(*overrides)
    assert says in message
    assert "secret" not in message


@pytest.mark.parametrize("choice", ["data=tables", "model=hugging_face", "search=elasticsearch", "search=http_json"])
def test_load_config_open_value_is_named(choice: str) -> None:
    setting = COMPANIONS[choice][0].partition("=")[0]
    assert refusal(choice).startswith(f"{setting} is not set; add {setting}=")


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("rollout.sampling_max_token=3", "rollout.sampling_max_tokens"),
        ("staleness.max_step_off_policy=3", "staleness.max_steps_off_policy"),
        ("trainig.group_size=8", "training.group_size"),
        ("training.globl_batch_size=8", "training.global_batch_size"),
        ("+learner.lora.lora_rnk=1", "lora_rank"),
        ("group_size=8", "training.group_size"),
        ("algorithm.loss.clip_hihg=1.2", "algorithm.loss.clip_high"),
    ],
)
def test_load_config_mistyped_setting_suggests_the_right_one(override: str, suggestion: str) -> None:
    message = refusal(override)
    assert message.startswith(f"{override.lstrip('+').partition('=')[0]} is no setting; did you mean {suggestion!r}?")


def test_load_config_mistyped_setting_suggests_the_one_of_the_same_section() -> None:
    assert "did you mean 'learner.learning_rate'?" in refusal("learner.learning_rte=1e-5")


def test_load_config_setting_of_no_such_name_in_its_section_lists_what_the_section_has() -> None:
    message = refusal("algorithm.advantage.k=4")
    assert message.startswith("algorithm.advantage.k is no setting; algorithm.advantage has name, ")


def test_load_config_folder_beside_the_bundled_data_is_refused() -> None:
    assert "data: folder=/data/own is not read by the bundled enterprise_kb; add data=tables" in refusal(
        "data.folder=/data/own"
    )


def test_load_config_temperature_given_twice_is_refused() -> None:
    assert "evaluation: temperatures has 1 twice; give each temperature once" in refusal(
        "evaluation.temperatures=[0.0,1.0,1.0]"
    )


def test_load_config_unknown_name_without_a_near_one_says_where_to_look() -> None:
    assert "lists all settings" in refusal("zzzzqqqq=1")
    assert "known here: " in refusal("+zzzzqqqq=1")


@pytest.mark.parametrize(
    ("override", "available"),
    [
        ("algorithm/loss=pppo", "cispo, cross_entropy, distillation, gspo, importance_sampling, policy_gradient, ppo"),
        ("experiment=nope", "quickstart, search_cpu"),
        ("training=nope", "default"),
    ],
)
def test_load_config_unknown_choice_lists_the_choices(override: str, available: str) -> None:
    assert available in refusal(override)


@pytest.mark.parametrize("override", ["foo", "model.tool_format=[a"])
def test_load_config_unreadable_command_line_is_quoted(override: str) -> None:
    assert repr(override) in refusal(override)


def test_load_config_number_for_a_group_is_refused() -> None:
    assert "training" in refusal("training=3")


@pytest.mark.parametrize("override", ["evaluation.temperatures=[0.0,3.0]", "environment.tools=[bm25_search,grep]"])
def test_load_config_wrong_item_of_a_list_is_named(override: str) -> None:
    message = refusal(override)
    assert message.startswith(f"{override.partition('=')[0]}.1=")


def test_load_config_top_p_below_one_is_refused() -> None:
    message = refusal("rollout.sampling_top_p=0.95", "algorithm/loss=importance_sampling")
    assert message.startswith("rollout.sampling_top_p=0.95: ")
    assert "algorithm.loss=importance_sampling" in message
    assert message.endswith("set rollout.sampling_top_p=1.")


@pytest.mark.parametrize("name", ["bundled:smollm2-135m-instruct", "Qwen/Qwen3-4B"])
def test_load_config_name_of_a_model_that_is_no_path_stays(name: str) -> None:
    assert load_config([f"model.name='{name}'"]).model.name == name


def test_evaluation_settings_paths_from_home_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = EVALUATE.load(["system=model", "systems.model.path='~/run/final'", "output_dir='~/numbers'"])
    assert config.output_dir == "/home/me/numbers"
    assert config.folder == Path("/home/me/numbers")
    (model,) = systems_of(config).values()
    assert isinstance(model, ModelSystemConfig)
    assert model.path == "/home/me/run/final"


def test_shipped_config_hydra_writes_nothing_into_the_runs_folder() -> None:
    """It would take `~` for a folder of that name, and a dry run would leave a folder behind."""
    with initialize_config_module("hydra_conf", version_base="1.3"):
        composed = compose("config", ["hydra.runtime.output_dir=."], return_hydra_config=True)
    assert composed.hydra.run.dir == "."
    assert "handlers" not in composed.hydra.job_logging


@pytest.mark.parametrize(("parallel", "gpus"), [(1, 0.5), (1, 1), (4, 4), (2, 4), (2, 0)])
def test_load_config_gpus_for_each_part_of_a_cut_model_pass(parallel: int, gpus: float) -> None:
    sizes = [f"rollout.tensor_parallel_size={parallel}", f"rollout.gpus_per_worker={gpus}"]
    assert load_config(sizes).rollout.tensor_parallel_size == parallel


@pytest.mark.parametrize(("parallel", "gpus"), [(2, 1), (2, 0.5), (4, 2)])
def test_load_config_fewer_gpus_than_parts_of_a_cut_model_are_refused(parallel: int, gpus: float) -> None:
    message = refusal(f"rollout.tensor_parallel_size={parallel}", f"rollout.gpus_per_worker={gpus}")
    assert message.startswith(f"rollout: tensor_parallel_size={parallel} is over gpus_per_worker={gpus}, but each part")


def test_load_config_crossed_clip_bounds_are_refused() -> None:
    message = refusal("algorithm.loss.clip_low=1.2", "algorithm.loss.clip_high=0.8")
    assert "clip_low=1.2" in message
    assert "clip_high=0.8" in message
    assert "algorithm.loss" in message


def test_load_config_bfloat16_without_float32_masters_is_refused() -> None:
    assert "would sum the gradients" in refusal("model.dtype=bfloat16", "learner.zero_stage=0")
    assert load_config(["model.dtype=bfloat16", "learner.zero_stage=1"]).learner.zero_stage == 1


@pytest.mark.parametrize(("low", "high"), [(1.5, 3.0), (0.1, 0.5)])
def test_load_config_correction_band_without_the_weight_of_agreement_is_refused(low: float, high: float) -> None:
    band = [f"algorithm.correction.low={low}", f"algorithm.correction.high={high}"]
    assert f"low={low} and high={high} leave out the weight 1" in refusal("algorithm/correction=mask", *band)


def test_load_config_correction_beside_gspo_is_refused() -> None:
    assert "a second time" in refusal("algorithm/loss=gspo", "algorithm/correction=truncate")


@pytest.mark.parametrize("advantage", ["group_based_per_turn", "monte_carlo", "reinforce_pp", "reinforce_pp_baseline"])
def test_load_config_dropping_groups_that_an_advantage_learns_from_is_refused(advantage: str) -> None:
    message = refusal(f"algorithm/advantage={advantage}", "training.drop_groups_without_signal=true")
    assert f"algorithm.advantage={advantage} learns from" in message


def test_load_config_trained_part_of_a_group_fits_the_group_and_the_advantage() -> None:
    assert "trained_per_group=5 is over group_size=4" in refusal("training.trained_per_group=5")
    message = refusal("training.trained_per_group=2", "algorithm/advantage=monte_carlo")
    assert "algorithm.advantage=monte_carlo with algorithm.loss=ppo does not compare" in message
    assert load_config(["training.trained_per_group=2"]).training.trained_per_group == 2


def test_load_config_dropping_groups_by_rewards_that_distillation_does_not_read_is_refused() -> None:
    distillation = ["algorithm/loss=distillation", "learner.reference=start"]
    assert "does not read" in refusal(*distillation, "training.drop_groups_without_signal=true")
    load_config(distillation)


def test_load_config_no_reinforcement_learning_needs_a_warm_up() -> None:
    assert load_config(["training.max_steps=0"]).training.max_steps == 0
    for nothing in ("warmup=none", "warmup.steps=0"):
        assert "trains by the warm-up alone, but there is none" in refusal("training.max_steps=0", nothing)
    assert "evaluation.control=true clones" in refusal("training.max_steps=0", "evaluation.control=true")
    assert "warmup.enabled=false has none" in refusal("warmup=none", "evaluation.control=true")
    supervised = ["training.max_steps=0", "algorithm.kl.coefficient=0.1"]
    assert load_config(supervised).learner.reference is None
    assert "training.max_steps=0 has none; leave" in refusal("training.max_steps=0", "learner.reference=start")


def test_load_config_constant_normaliser_can_be_stated_where_it_is_read() -> None:
    stated = "algorithm.loss.max_episode_tokens=900"
    assert load_config(["algorithm.loss.aggregation=const", stated]).algorithm.loss.max_episode_tokens == 900
    assert "is read by aggregation=const only, not by token_mean" in refusal(stated)


def test_load_config_relative_clip_bounds_are_refused() -> None:
    """Bounds written as distances from 1, as other projects have them, must not pass as an odd band."""
    assert "absolute ratios" in refusal("algorithm.loss.clip_low=0.2", "algorithm.loss.clip_high=0.2")
    for bounds in ((0.2, 0.28), (1.01, 1.2)):
        message = refusal(f"algorithm.loss.clip_low={bounds[0]}", f"algorithm.loss.clip_high={bounds[1]}")
        assert "leave no room for the ratio 1" in message


def test_load_config_dual_clip_beside_another_loss_is_refused() -> None:
    assert "dual_clip=3.0 is read by ppo only, not by cispo" in refusal(
        "algorithm/loss=cispo", "algorithm.loss.dual_clip=3.0"
    )
    assert load_config(["algorithm.loss.dual_clip=3.0"]).algorithm.loss.dual_clip == 3.0


def test_load_config_clip_bounds_beside_a_loss_that_does_not_clip_are_refused() -> None:
    assert "clip_low=0.8 and clip_high=1.2 are not read by importance_sampling" in refusal(
        "algorithm/loss=ppo", "algorithm.loss.name=importance_sampling"
    )
    assert "clip_high=2.0 are not read by policy_gradient" in refusal(
        "algorithm/loss=policy_gradient", "algorithm.loss.clip_high=2.0"
    )


def test_load_config_group_over_the_concurrency_is_refused() -> None:
    over = "training.group_size=33"
    assert "training.group_size=33 is over rollout.rollout_max_concurrency=32" in refusal(over)
    assert load_config([over, "rollout.rollout_max_concurrency=33"]).training.group_size == 33


def test_load_config_replies_over_the_sequence_length_are_refused() -> None:
    message = refusal("environment.max_turns=8", "rollout.sampling_max_tokens=128", "rollout.max_sequence_length=1024")
    for part in ("rollout.max_sequence_length=1024", "environment.max_turns=8", "rollout.sampling_max_tokens=128"):
        assert part in message
    load_config(["environment.max_turns=8", "rollout.sampling_max_tokens=127", "rollout.max_sequence_length=1024"])


def test_load_config_bm25_variant_of_the_other_backend_is_refused() -> None:
    assert "method=okapi: bm25s has the variants lucene," in refusal("search.lexical.method=okapi")
    message = refusal("search/lexical=rank_bm25", "search.lexical.method=lucene")
    assert "method=lucene: rank_bm25 has the variants okapi," in message


def test_load_config_hybrid_search_is_off_until_it_is_named() -> None:
    assert load_config([]).environment.tools == ("bm25_search", "vector_search")
    tools = load_config(["environment.tools=[bm25_search,vector_search,hybrid_search]"]).environment.tools
    assert tools[2] == "hybrid_search"


def test_load_config_k_over_max_k_is_refused() -> None:
    assert "k=11 is over max_k=10" in refusal("environment.k=11")


def test_load_config_shared_prefix_with_checkpointing_is_refused() -> None:
    message = refusal("learner.gradient_checkpointing=true")
    assert "share_prefix" in message
    assert "gradient_checkpointing" in message


def test_load_config_gpu_cluster_with_cpu_workers_is_refused() -> None:
    message = refusal("cluster=gpu")
    assert "rollout.gpus_per_worker" in message
    assert "learner.gpus_per_rank" in message


def test_load_config_tables_without_folder_is_refused() -> None:
    assert "folder is missing" in refusal("data.name=tables")


@pytest.mark.parametrize("removed", ["learner.lora", "learner.zero_stage"])
def test_load_config_removed_setting_is_missed(removed: str) -> None:
    assert refusal(f"~{removed}").startswith(f"{removed} is not set; ")


def test_load_config_unresolved_variable_is_refused() -> None:
    assert "SURELY_NOT_SET" in refusal("output_dir=${oc.env:SURELY_NOT_SET}/x")


@pytest.mark.parametrize("override", ["training.max_steps=true", "training.max_steps='8'"])
def test_load_config_value_of_another_type_is_not_converted(override: str) -> None:
    assert "training.max_steps" in refusal(override)


def test_load_config_dropout_with_reinforcement_learning_is_refused() -> None:
    dropout = ["learner.lora.lora_rank=8", "learner.lora.dropout=0.1"]
    assert "learner.lora.dropout=0.1 makes the learner's log-probs differ" in refusal(*dropout)
    assert load_config([*dropout, "training.max_steps=0"]).learner.lora.dropout == 0.1


def test_load_config_k1_as_a_loss_is_refused_and_says_where_it_belongs() -> None:
    assert "estimator=k1 has no gradient" in refusal("algorithm.kl.estimator=k1")


def test_bound_settings_access_to_an_endpoint_may_change_and_what_it_is_asked_may_not() -> None:
    where = ["search=http_json", "search.external.url=https://search.example/v1/search"]
    before = bound_settings(load_config(where).model_dump(mode="json"))
    access = ["search.external.max_concurrency=2", "search.external.retries=9", "search.external.token_env=NEW_TOKEN"]
    assert bound_settings(load_config([*where, *access]).model_dump(mode="json")) == before
    assert bound_settings(load_config([*where, "search.external.max_k=50"]).model_dump(mode="json")) != before


@pytest.mark.parametrize(
    ("kind", "setting", "value"), [("truncate", "low", "0.9"), ("none", "high", "9"), ("none", "level", "episode_sum")]
)
def test_load_config_correction_setting_that_its_kind_does_not_read_is_refused(
    kind: str, setting: str, value: str
) -> None:
    message = refusal(f"algorithm/correction={kind}", f"algorithm.correction.{setting}={value}")
    assert f"is not read by kind={kind}; leave it at" in message


@pytest.mark.parametrize("name", ["", "..", "../../etc", "a/b", "x" * 201])
def test_load_config_run_name_that_is_no_folders_name_is_refused(name: str) -> None:
    message = refusal(f"run_name='{name}'")
    assert message == f"run_name: {name[:80]!r} is no name of a folder; give one of 1 to 200 bytes without a slash."


def test_load_config_tool_named_twice_is_refused() -> None:
    assert "names a tool twice" in refusal("environment.tools=[bm25_search,vector_search,bm25_search]")


def test_load_config_mistyped_name_in_an_optional_section_is_answered_with_the_right_one() -> None:
    asked = ["search=http_json", "search.external.url=http://h/s", "+search.external.toke_env=T"]
    with pytest.raises(ConfigError, match=r"search\.external\.toke_env is no setting; did you mean 'token_env'"):
        load_config(asked)
