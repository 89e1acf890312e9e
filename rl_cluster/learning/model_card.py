"""The README.md of a saved model: what it is, how it was made, and the run's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rl_cluster.config import Config
from rl_cluster.episodes.formats import detect_format
from rl_cluster.models.source import BUNDLED_POLICY, BUNDLED_PREFIX

_CARD = """---
{head}---

# {name}

A search agent trained with rl_cluster from `{base}`.

It plays in at most {max_turns} turns with the tools {tools}, in the `{tool_format}` tool format, and ends with a line
`answer: IDS`. Reward: {reward}.

| setting | value |
| --- | --- |
| steps of reinforcement learning | {steps} |
| loss | {loss} |
| advantage | {advantage} |
| groups a step x samples | {batch} x {group} |
| learning rate | {rate} |
| warm-up demonstrations | {demonstrations} |
| max_steps_off_policy | {staleness} |
{validation}{numbers}"""

_VALIDATION = """
## Validation

nDCG@10 of {score} on {n} questions of the validation split, at temperature {temperature:g}, after step {step:.0f}: the largest of the
run's validations, for which this model was chosen. A score that was chosen for its size flatters; brackets are its 95% interval over
questions as if it had not been.
"""

_NUMBERS = """
## Numbers

On the test split of `{data}`, at temperature {temperature:g}. nDCG@10 counts failed episodes as 0; brackets are 95% intervals over
questions.

| system | nDCG@10 | failed | turns | questions |
| --- | --- | --- | --- | --- |
{systems}
"""
_REWARDS = {"ndcg": "nDCG@10 of the ranking, -1 when it does not finish"}
_SYSTEMS = {"before": "before reinforcement learning", "after": "this model"}
_PUBLISHED = {BUNDLED_PREFIX + BUNDLED_POLICY: ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}
"""Under which name, and which licence, a bundled model is published."""


def write_model_card(
    folder: Path,
    config: Config,
    completed_steps: int,
    report: Mapping[str, Any],
    validation: Mapping[str, Any] | None = None,
) -> None:
    """Writes `README.md` into a model folder. `report`: as `RunReport.as_json`; what it lacks is left out. `validation`: for what the
    model was chosen, `step`, `ndcg@10`, `ci95` and `n`."""
    template = folder / "chat_template.jinja"
    tool_format = config.model.tool_format
    if tool_format == "auto" and template.is_file():
        tool_format = detect_format(template.read_text(encoding="utf-8"))
    card = _CARD.format(
        head=yaml.safe_dump(_head(config.model.name), sort_keys=False),
        base=_shown(config.model.name),
        name=config.run_name,
        max_turns=config.environment.max_turns,
        tools=", ".join(config.environment.tools),
        tool_format=tool_format,
        reward=_REWARDS.get(config.environment.reward, f"`{config.environment.reward}`"),
        steps=completed_steps,
        loss=config.algorithm.loss.name,
        advantage=config.algorithm.advantage.name,
        batch=config.training.global_batch_size,
        group=config.training.group_size,
        rate=config.learner.learning_rate,
        demonstrations=config.warmup.demonstrations if config.warmup.enabled else 0,
        staleness=config.staleness.max_steps_off_policy,
        validation=_validation(config, validation) if validation else "",
        numbers=_numbers(config, report),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _shown(name: str) -> str:
    """A folder by its last part: where it lies says nothing to those who get the model."""
    path = Path(name).expanduser()
    return path.name if path.is_dir() else name


def _head(base: str) -> dict[str, Any]:
    """What a hub reads; `base_model` only where the base has a name that a hub knows, since a folder is refused there."""
    name, licence = _PUBLISHED.get(base, (base, None))
    head: dict[str, Any] = {"library_name": "transformers", "tags": ["rl_cluster", "search-agent"]}
    if Path(base).expanduser().is_dir():
        licence = _licence(Path(base).expanduser())
    else:
        head["base_model"] = name
    return head | ({"license": licence} if licence else {})


def _licence(folder: Path) -> str | None:
    """The licence that the card of a model folder states."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    _, found, rest = card.read_text(encoding="utf-8", errors="replace").partition("---\n")
    try:
        head = yaml.safe_load(rest.partition("\n---")[0]) if found else None
    except yaml.YAMLError:
        return None
    licence = head.get("license") if isinstance(head, dict) else None
    return licence if isinstance(licence, str) else None


def _validation(config: Config, found: Mapping[str, Any]) -> str:
    temperature = config.evaluation.validation_temperature
    return _VALIDATION.format(score=_bounds(found, "{:.3f}"), n=found["n"], temperature=temperature, step=found["step"])


def _numbers(config: Config, report: Mapping[str, Any]) -> str:
    rows = [
        f"| {title} | {_bounds(report[name], '{:.3f}')} | {report[name]['failure_rate']:.1%} | {report[name]['turns']:.1f} "
        f"| {report[name]['n']} |"
        for name, title in _SYSTEMS.items()
        if report.get(name) and report[name]["turns"] is not None
    ]
    if not rows:
        return ""
    if paired := report.get("paired"):
        rows.append(f"| difference, same questions | {_bounds(paired, '{:+.3f}')} | | | {paired['n']} |")
    data = _shown(config.data.folder or config.data.name)
    return _NUMBERS.format(data=data, temperature=report["serving_temperature"], systems="\n".join(rows))


def _bounds(found: Mapping[str, Any], form: str) -> str:
    interval = found["ci95"]
    bounds = f" [{form.format(interval[0])}, {form.format(interval[1])}]" if interval else ""
    return form.format(found["ndcg@10"]) + bounds
