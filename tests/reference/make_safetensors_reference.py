# SPDX-License-Identifier: Apache-2.0
"""Writes a small file with the safetensors package: what Mica must read, and write again byte by byte.

    python3 -m venv venv && venv/bin/pip install torch safetensors
    venv/bin/python tests/reference/make_safetensors_reference.py       (rewrites package.safetensors beside this script)

Element i of every tensor is i / 8 - 3, except in "special": numbers at the ends of the 16-bit ranges.
"""
import pathlib

import torch
from safetensors.torch import save_file


def ramp(shape, dtype):
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float32) / 8 - 3).reshape(shape).to(dtype)


SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), 6e-8, 65504.0, -1.5, 1.0009765625]

save_file(
    {
        "matrix": ramp((5, 7), torch.float32),
        "scalar": ramp((), torch.float32),
        "empty": ramp((0, 3), torch.float32),
        "four": ramp((2, 3, 1, 5), torch.bfloat16),
        "odd": ramp((3,), torch.bfloat16),
        "half": ramp((11,), torch.float16),
        "special": torch.tensor(SPECIAL, dtype=torch.float16),
        'a "quoted" \\ name\n': ramp((1,), torch.float16),
        "größe": ramp((2,), torch.float16),
    },
    pathlib.Path(__file__).resolve().parent / "package.safetensors",
    metadata={"format": "pt"},
)
