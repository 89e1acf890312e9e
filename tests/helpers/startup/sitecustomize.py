"""What each Python process of the tests does first.

Dozens of them import torch, vLLM or DeepSpeed, and up to a fifth of that is collections of garbage that find none.
"""

import gc

gc.set_threshold(50_000, 20, 20)
