"""The README.md of a saved model: what it is, how it was made, and the run's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_cluster.config import Config
from rl_cluster.episodes.formats import detect_format

_CARD = """---
base_model: {base}
library_name: transformers
tags: [rl_cluster, search-agent]
---

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

## Numbers

nDCG@10 counts failed episodes as 0; brackets are 95% intervals over questions.

```json
{numbers}
```
"""

_REWARDS = {"ndcg": "nDCG@10 of the ranking, -1 when it does not finish"}


def write_model_card(folder: Path, config: Config, completed_steps: int, report: dict[str, Any]) -> None:
    """Writes `README.md` into a model folder."""
    template = folder / "chat_template.jinja"
    tool_format = config.model.tool_format
    if tool_format == "auto" and template.is_file():
        tool_format = detect_format(template.read_text(encoding="utf-8"))
    card = _CARD.format(
        base=config.model.name,
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
        numbers=json.dumps({k: report[k] for k in ("before", "after", "paired") if k in report}, indent=2),
    )
    (folder / "README.md").write_text(card)
