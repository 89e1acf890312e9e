"""Wrong input is refused before anything starts, in one sentence that names the place and the mend."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.corpus import write_corpus
from rl_cluster.datasets.tables import write_tasks
from rl_cluster.datasets.task import Document
from rl_cluster.errors import ClusterError, ConfigError, DataError, ModelError
from rl_cluster.preflight import _check_model, asked, check_inputs_apart
from tests.helpers.configuration import load_config
from tests.helpers.job_inputs import SPLITS, Inputs, refusal, task
from tests.helpers.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model("smollm2", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def inputs(tmp_path: Path, tiny_model: Path) -> Inputs:
    return Inputs(tmp_path, tiny_model)


def test_check_inputs_good_folders_pass(inputs: Inputs) -> None:
    inputs.check()


def test_check_inputs_weights_that_are_cut_are_refused(inputs: Inputs, tmp_path: Path) -> None:
    cut = shutil.copytree(inputs.model, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "model.safetensors is cut or damaged" in refusal(ModelError, inputs.check, f"model.name='{cut}'")


def test_check_inputs_embedder_folder_without_a_model_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = refusal(ModelError, inputs.check, f"search.embedder='{tmp_path / 'empty'}'")
    assert "neither modules.json nor config.json is there" in said


def test_check_inputs_corpus_of_the_projects_writer_passes(inputs: Inputs) -> None:
    write_corpus(inputs.data / "corpus.parquet", "kb", [Document("d1", "title", "text")])
    inputs.check()


@pytest.mark.parametrize(
    ("missing", "part"),
    [
        ("tokenizer.json", "tokenizer is missing"),
        ("model.safetensors", "no *.safetensors"),
        ("config.json", "config.json"),
    ],
)
def test_check_inputs_model_folder_without_a_part_is_refused(inputs: Inputs, missing: str, part: str) -> None:
    (inputs.model / missing).unlink()
    message = refusal(ModelError, inputs.check)
    assert message.startswith(f"model.name={inputs.model}: ")
    assert part in message


def test_check_inputs_episode_that_cannot_fit_is_refused(inputs: Inputs) -> None:
    """The sizing rule: turns times (reply and tool answer) and the prompt against the sequence limit."""
    message = refusal(ConfigError, inputs.check, "environment.max_turns=8", "rollout.max_sequence_length=500")
    assert message.startswith("rollout.max_sequence_length=500 is too short: a prompt of ")
    assert "environment.max_turns=8 replies of rollout.sampling_max_tokens=48 and 7 tool answers of about" in message


def test_check_inputs_cache_that_holds_no_sequence_is_refused(inputs: Inputs) -> None:
    message = refusal(ConfigError, inputs.check, "rollout.kv_cache_gib=0.0001")
    assert message.startswith(
        "rollout.kv_cache_gib=0.0001 does not hold one sequence of rollout.max_sequence_length=1536 tokens of "
    )


@pytest.mark.slow
def test_check_inputs_sequences_over_the_models_positions_are_refused(inputs: Inputs) -> None:
    message = refusal(ConfigError, inputs.check, "rollout.max_sequence_length=4096")
    assert message.startswith("rollout.max_sequence_length=4096 is over the 2048 positions of ")


@pytest.mark.slow
def test_check_inputs_reference_with_other_token_ids_is_refused(inputs: Inputs) -> None:
    reference = inputs.model.with_name("teacher")
    shutil.copytree(inputs.model, reference)
    inputs.check("algorithm/loss=distillation", f"learner.reference='{reference}'")
    file = reference / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    words = tokenizer["model"]["vocab"]
    first, second = list(words)[10:12]
    words[first], words[second] = words[second], words[first]
    file.write_text(json.dumps(tokenizer))
    message = refusal(ModelError, inputs.check, "algorithm/loss=distillation", f"learner.reference='{reference}'")
    assert message.startswith(f"learner.reference={reference} has another token id for ")


def test_check_inputs_no_reference_folder_is_refused_by_its_setting(inputs: Inputs) -> None:
    message = refusal(ModelError, inputs.check, "algorithm.kl.coefficient=0.1", "learner.reference=/no/such/teacher")
    assert message.startswith("learner.reference=/no/such/teacher: there is no such folder")


def halve(model: Path) -> int:
    """Writes a model's weights in bfloat16; how many numbers they are."""
    import torch
    from safetensors.torch import load_file, save_file

    file = model / "model.safetensors"
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}
    file.unlink()  # a link to the file that other tests read
    save_file(tensors, file, metadata={"format": "pt"})
    return sum(tensor.numel() for tensor in tensors.values())


def test_check_model_snapshots_are_measured_in_the_dtype_that_is_published(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = halve(inputs.model)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2 * 2 * numbers))
    model = f"model.name='{inputs.model}'"
    _check_model(load_config([model, "model.dtype=bfloat16", "learner.zero_stage=1"]))
    with pytest.raises(ConfigError, match=r"two snapshots of .* in model\.dtype=float32 need .* GB; choose another"):
        _check_model(load_config([model, "model.dtype=float32"]))
    _check_model(load_config([model, "weight_sync.lora=adapter", "learner.lora.lora_rank=8"]))


def test_check_inputs_no_model_folder_is_refused(inputs: Inputs) -> None:
    message = refusal(ModelError, inputs.check, f"model.name='{inputs.model}-gone'")
    assert "there is no such folder" in message


def test_check_inputs_unknown_bundled_model_is_refused(inputs: Inputs) -> None:
    assert "no such bundled model" in refusal(ModelError, inputs.check, "model.name='bundled:gpt'")


def test_check_inputs_unknown_analyzer_or_embedder_is_refused(inputs: Inputs) -> None:
    assert "'klingon'" in refusal(ConfigError, inputs.check, "search.lexical.analyzer=klingon")
    assert "'none'" in refusal(ModelError, inputs.check, "search.embedder='bundled:none'")
    message = refusal(ConfigError, inputs.check, "search.embed_max_tokens=513")
    assert message.startswith("search.embed_max_tokens=513 is over the 512 positions of the embedder bundled:")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("algorithm.loss.name=dpo", "algorithm.loss.name='dpo' is unknown"),
        ("algorithm.advantage.name=best", "algorithm.advantage.name='best' is unknown"),
        ("environment.reward=bleu", "environment.reward='bleu' is unknown"),
        ("warmup.demonstrator=me", "warmup.demonstrator='me' is unknown; choose one of enterprise_kb, judgements"),
        ("model.tool_format=xml", "model.tool_format='xml' is unknown"),
    ],
)
def test_check_inputs_unknown_name_is_refused_with_the_known(inputs: Inputs, override: str, part: str) -> None:
    message = refusal(ConfigError, inputs.check, override)
    assert part in message
    assert "choose " in message


def test_check_inputs_setting_that_the_advantage_does_not_read_is_refused(inputs: Inputs) -> None:
    message = refusal(ConfigError, inputs.check, "algorithm.advantage.whiten=true")
    assert message == (
        "algorithm.advantage.whiten=True is not read by group_based, which reads normalize_std; leave it at False."
    )
    message = refusal(ConfigError, inputs.check, "algorithm/advantage=rloo", "algorithm.advantage.normalize_std=false")
    assert "is not read by rloo, which reads no setting" in message
    salt = ["algorithm/advantage=salt", "algorithm.advantage.normalize_std=false"]
    assert "is not read by salt, which reads base;" in refusal(
        ConfigError, inputs.check, *salt, "algorithm.advantage.base=rloo"
    )
    inputs.check(*salt, "algorithm.advantage.base=group_based")
    inputs.check("algorithm/advantage=monte_carlo", "algorithm.advantage.whiten=true", "algorithm.advantage.gamma=0.9")


@pytest.mark.parametrize("file", ["tasks.parquet", "corpus.parquet"])
def test_check_inputs_missing_file_is_refused(inputs: Inputs, file: str) -> None:
    write_tasks(inputs.data / "tasks.parquet", inputs.tasks)
    (inputs.data / file).unlink()
    message = refusal(DataError, inputs.check, write=False)
    assert message.startswith(f"data.folder={inputs.data}: {file} is missing; ")


@pytest.mark.parametrize("file", ["tasks.parquet", "corpus.parquet"])
def test_check_inputs_file_of_another_kind_is_refused(inputs: Inputs, file: str) -> None:
    write_tasks(inputs.data / "tasks.parquet", inputs.tasks)
    (inputs.data / file).write_text("no parquet")
    message = refusal(DataError, inputs.check, write=False)
    assert message.startswith(f"{inputs.data / file}: it is no Parquet file")


def test_check_inputs_corpus_repeats_an_id_is_refused(inputs: Inputs) -> None:
    inputs.write_corpus(["d1", "d2", "d1"])
    message = refusal(DataError, inputs.check)
    assert message.startswith(f"{inputs.data / 'corpus.parquet'}: row 3 repeats the doc_id 'd1' of row 1; ")


@pytest.mark.parametrize("doc_id", [None, ""])
def test_check_inputs_corpus_lacks_an_id_is_refused(inputs: Inputs, doc_id: str | None) -> None:
    inputs.write_corpus(["d1", doc_id])
    message = refusal(DataError, inputs.check)
    assert message.startswith(f"{inputs.data / 'corpus.parquet'}: row 2 has no doc_id; ")


def test_check_inputs_empty_corpus_is_refused(inputs: Inputs) -> None:
    inputs.write_corpus([])
    message = refusal(DataError, inputs.check)
    assert message.startswith(f"{inputs.data / 'corpus.parquet'}: ")


@pytest.mark.parametrize("split", SPLITS)
def test_check_inputs_gain_for_an_unknown_document_is_refused(inputs: Inputs, split: str) -> None:
    inputs.tasks[split][1] = task("odd", gains={"d1": 1.0, "d99": 2.0})
    message = refusal(DataError, inputs.check)
    assert "'odd'" in message
    assert "'d99'" in message


def test_check_inputs_confidential_folder_is_not_trained_on(inputs: Inputs) -> None:
    (inputs.data / "manifest.json").write_text('{"confidential": false}')
    inputs.check()
    (inputs.data / "manifest.json").write_text('{"confidential": true}')
    assert "is confidential by its manifest" in refusal(DataError, inputs.check)


def test_check_inputs_several_corpora_each_with_its_documents_pass(inputs: Inputs) -> None:
    inputs.add_corpus("bright/biology", "d1")
    inputs.check()


def test_check_inputs_gain_for_a_document_of_another_corpus_is_refused(inputs: Inputs) -> None:
    inputs.add_corpus("other", "o1")
    message = refusal(DataError, inputs.check)
    assert "'asks-other'" in message
    assert "'d1', which the corpus lacks" in message


def test_check_inputs_task_of_an_absent_corpus_is_refused_with_those_there_are(inputs: Inputs) -> None:
    inputs.tasks["test"][2] = task("far", corpus="elsewhere")
    message = refusal(DataError, inputs.check)
    assert "no corpus 'elsewhere'; choose one of: kb" in message


def test_check_inputs_corpora_that_would_share_a_name_are_refused(inputs: Inputs) -> None:
    inputs.add_corpus("a/b", "d1")
    inputs.add_corpus("a b", "d1")
    assert "'a b' and 'a/b' would both be served as 'a-b'" in refusal(DataError, inputs.check)


def test_check_inputs_several_corpora_at_one_endpoint_are_refused(inputs: Inputs) -> None:
    inputs.add_corpus("other", "d1")
    message = refusal(
        ConfigError, inputs.check, "search=elasticsearch", "search.external.url=http://localhost:9200/kb/_search"
    )
    assert "2 corpora (kb, other)" in message


def test_check_inputs_filter_field_that_no_document_has_is_refused(inputs: Inputs) -> None:
    table = pq.read_table(inputs.data / "corpus.parquet")
    rows = pa.array(["{}", '{"kind": "wiki"}', "{}"])
    pq.write_table(table.set_column(4, "metadata", rows), inputs.data / "corpus.parquet")
    inputs.add_corpus("other", "d1")
    inputs.check("environment.filter_fields=[kind]")
    message = refusal(ConfigError, inputs.check, "environment.filter_fields=[kind,knid]")
    assert message == (
        f"environment.filter_fields=['kind', 'knid']: no document of {inputs.data} has 'knid' in its metadata; leave it out."
    )


def test_check_inputs_filter_field_of_an_endpoint_is_not_looked_up(inputs: Inputs) -> None:
    """Its documents are not at hand: the table has those that tasks name."""
    endpoint = ["search=elasticsearch", "search.external.url=http://localhost:9200/kb/_search"]
    inputs.check(*endpoint, "environment.filter_fields=[knid]")


def test_check_inputs_more_results_than_an_endpoint_gives_are_refused(inputs: Inputs) -> None:
    where = ["search=http_json", "search.external.url=http://localhost:9200/search", "search.external.max_k=20"]
    inputs.check(*where, "environment.max_k=20")
    message = refusal(ConfigError, inputs.check, *where, "environment.max_k=21")
    assert message.startswith("environment.max_k=21 is over search.external.max_k=20")


def test_check_inputs_negative_gain_is_refused(inputs: Inputs) -> None:
    inputs.tasks["test"][0] = task("odd", gains={"d1": -1.0})
    assert "-1" in refusal(DataError, inputs.check)


def test_check_inputs_task_without_gain_is_refused(inputs: Inputs) -> None:
    inputs.tasks["validation"][0] = task("odd", gains={"d1": 0.0})
    assert "'odd'" in refusal(DataError, inputs.check)


def test_check_inputs_task_id_twice_in_a_split_is_refused(inputs: Inputs) -> None:
    inputs.tasks["train"][2] = task("train-0")
    message = refusal(DataError, inputs.check)
    assert message.startswith(f"{inputs.data / 'tasks.parquet'}: row 3 repeats the task_id 'train-0' of row 1; ")


def test_check_inputs_task_id_in_two_splits_is_refused(inputs: Inputs) -> None:
    inputs.tasks["test"][0] = task("train-0")
    message = refusal(DataError, inputs.check)
    assert str(inputs.data / "tasks.parquet") in message
    assert "'train-0'" in message


@pytest.mark.parametrize("split", SPLITS)
def test_check_inputs_empty_split_is_refused(inputs: Inputs, split: str) -> None:
    inputs.tasks[split] = []
    message = refusal(DataError, inputs.check)
    assert message.startswith(f"{inputs.data / 'tasks.parquet'}: the split {split!r} has no task; ")


def test_check_inputs_fewer_tasks_than_a_step_needs_is_refused(inputs: Inputs) -> None:
    message = refusal(ConfigError, inputs.check, "training.global_batch_size=5")
    assert message.startswith("training.global_batch_size=5 is over the 4 training tasks of ")


@pytest.mark.parametrize(
    ("column", "value", "part"),
    [
        ("task_id", None, "task_id"),
        ("prompt", "  ", "prompt"),
        ("gains", "{", "gains"),
        ("gains", json.dumps(["d1"]), "gains"),
        ("gains", json.dumps({"d1": "high"}), "'high'"),
        ("excluded", json.dumps("d1"), "excluded"),
    ],
)
def test_check_inputs_malformed_task_is_refused_with_its_row(
    inputs: Inputs, column: str, value: str | None, part: str
) -> None:
    inputs.change_column(column, 1, value)
    message = refusal(DataError, inputs.check, write=False)
    assert message.startswith(f"{inputs.data / 'tasks.parquet'}: row 2 ")
    assert part in message


def test_check_inputs_demonstrations_for_foreign_documents_are_refused(inputs: Inputs) -> None:
    message = refusal(ConfigError, inputs.check, "warmup=demonstrations")
    assert "understands 'enterprise_kb' only" in message
    assert "set warmup=judgements" in message


def test_check_inputs_demonstrations_without_a_tool_that_they_use_are_refused(inputs: Inputs) -> None:
    message = refusal(ConfigError, inputs.check, "warmup=demonstrations", "environment.tools=[bm25_search]")
    assert "searches with vector_search, which environment.tools=['bm25_search'] lacks" in message


def test_check_inputs_embedder_that_no_tool_needs_is_not_looked_at(inputs: Inputs) -> None:
    inputs.check("environment.tools=[bm25_search]", "search.embedder='bundled:none'")


@pytest.mark.parametrize(
    ("tools", "cpus", "gpus"),
    [
        ("[bm25_search,read_document]", 2 * 3 * 0.5, 0.0),
        ("[bm25_search,vector_search]", 2 * (3 + 3) * 0.5, 2 * 3 * 0.25),
        ("[hybrid_search]", 2 * 0.5, 2 * 0.25),
        ("[bm25_search,vector_search,hybrid_search]", 2 * (3 + 3 + 1) * 0.5, 2 * (3 + 1) * 0.25),
    ],
)
def test_asked_of_search_is_what_the_replicas_of_its_tools_take(tools: str, cpus: float, gpus: float) -> None:
    """`hybrid_search` is served whole, the others from each of three shards."""
    search = ["search.shards=3", "search.min_replicas=2", "search.max_replicas=2", "search.cpus_per_replica=0.5"]
    devices = ["search.device=cuda", "search.gpus_per_replica=0.25"]
    config = load_config([f"environment.tools={tools}", *search, *devices])
    replicas = [ask for ask in asked(config) if ask.kind.startswith("replica of ")]
    assert sum(ask.number * ask.cpus for ask in replicas) == cpus
    assert sum(ask.number * ask.gpus for ask in replicas) == gpus


def test_asked_of_an_endpoint_for_search_is_nothing() -> None:
    endpoint = ["search=http_json", "search.external.url=http://localhost:9200/search", "search.cpus_per_replica=2"]
    assert [(ask.kind, ask.number) for ask in asked(load_config(endpoint))] == [
        ("rollout worker", 1),
        ("learner rank", 1),
    ]


def test_check_inputs_demonstrations_by_judgements_take_any_documents(inputs: Inputs) -> None:
    inputs.check("warmup=judgements", "evaluation.control=true")


@pytest.mark.slow
def test_check_inputs_apart_wrong_setting_is_refused_as_in_the_same_process(inputs: Inputs) -> None:
    write_tasks(inputs.data / "tasks.parquet", inputs.tasks)
    config = load_config(
        [f"data.folder={inputs.data}", "data=tables", f"model.name={inputs.model}", "environment.reward=ndgc"]
    )
    with pytest.raises(ConfigError, match="ndgc"):
        check_inputs_apart(config)


class _EndsItsReader:
    """Ends the process that unpickles it, as the kernel does when memory is short."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return os._exit, (137,)


def test_check_inputs_apart_killed_process_is_a_typed_error() -> None:
    with pytest.raises(ClusterError, match="lack of memory"):
        check_inputs_apart(_EndsItsReader())  # type: ignore[arg-type]


def test_check_model_snapshots_in_a_file_are_refused(inputs: Inputs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refusal(ConfigError, inputs.check, f"weight_sync.folder='{tmp_path}/file/below'")
    assert f"weight_sync.folder={tmp_path}/file/below cannot be written ({tmp_path}/file is no folder)" in said
