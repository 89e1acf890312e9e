"""TRL's GRPOTrainer on the benchmark's workload; runs in TRL's own environment, reads its prompts as JSON from its standard input
and prints one JSON line."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    for name in ("steps", "trajectories", "group-size", "new-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    texts = json.load(sys.stdin)
    rewards = random.Random(0)
    moments: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            moments.append(time.monotonic())

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **kwargs: [rewards.random() for _ in completions],
        train_dataset=Dataset.from_dict({"prompt": texts}),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir="/tmp/trl-benchmark",
            per_device_train_batch_size=arguments.trajectories,
            num_generations=arguments.group_size,
            max_completion_length=arguments.new_tokens,
            generation_kwargs={"min_new_tokens": arguments.new_tokens},
            max_steps=arguments.steps + 1,
            beta=0.0,
            learning_rate=5e-6,
            temperature=1.0,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            dataloader_pin_memory=False,
        ),
    )
    trainer.train()
    wall = moments[-1] - moments[0]
    print(json.dumps({"trajectories_per_s": arguments.steps * arguments.trajectories / wall, "wall_s": wall}))


if __name__ == "__main__":
    main()
