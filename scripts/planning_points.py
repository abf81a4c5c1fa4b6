#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forecasts of mica-plan beside published measurements of PyTorch's FSDP; the table of docs/planning.md.

    scripts/planning_points.py [build/release/bin/mica-plan]      prints the table, the median and the worst error

No constant of a hardware file is made from these points. Those marked "aside" serve only to judge: the figure that
counts is theirs.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

MPT = "llm-foundry"  # github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md at commit 061f2c7
PAPER = "FSDP paper"  # PyTorch FSDP, arXiv:2304.11277, 5.4: 2 Tb/s between hosts of 8
# layers, width, heads, vocabulary: MPT's yamls, and the paper's GPT-175B. All heads have 128 columns.
MODELS = {"1b": (24, 2048, 16, 50368), "3b": (32, 2560, 20, 50368), "7b": (32, 4096, 32, 50368), "13b": (40, 5120, 40, 50368),
          "30b": (48, 7168, 56, 50368), "70b": (80, 8192, 64, 50368), "175b": (96, 12288, 96, 50000)}
# source, use, hardware, Gb/s a node, model, GPUs, seq_len, micro-batch, accumulation, checkpointing, reduce_dtype, measured tokens/s a GPU
# (the paper: share of the peak, recomputation included)
POINTS = [
    (MPT, "", "a100-80", 1600, "70b", 64, 2048, 8, 4, True, "bf16", 410),
    (MPT, "aside", "a100-80", 1600, "70b", 32, 2048, 2, 16, True, "bf16", 373),
    (MPT, "", "a100-80", 1600, "30b", 8, 2048, 3, 21, True, "fp32", 916),
    (MPT, "aside", "a100-80", 1600, "13b", 8, 2048, 2, 3, False, "fp32", 2262),
    (MPT, "", "a100-80", 1600, "7b", 8, 2048, 6, 2, False, "fp32", 4641),
    (MPT, "aside", "a100-80", 1600, "7b", 8, 8192, 8, 2, True, "fp32", 3206),
    (MPT, "", "a100-80", 1600, "3b", 8, 2048, 10, 2, False, "fp32", 10811),
    (MPT, "aside", "a100-80", 1600, "1b", 8, 2048, 14, 4, False, "fp32", 20513),
    (MPT, "", "a100-40", 1600, "70b", 128, 2048, 4, 1, True, "bf16", 376),
    (MPT, "aside", "a100-40", 1600, "70b", 64, 2048, 2, 1, True, "bf16", 276),
    (MPT, "", "a100-40", 1600, "30b", 128, 2048, 6, 1, True, "bf16", 865),
    (MPT, "aside", "a100-40", 1600, "30b", 32, 2048, 4, 1, True, "bf16", 857),
    (MPT, "", "a100-40", 1600, "13b", 128, 2048, 16, 1, True, "bf16", 1972),
    (MPT, "aside", "a100-40", 1600, "13b", 16, 2048, 10, 1, True, "bf16", 1993),
    (MPT, "", "a100-40", 1600, "7b", 128, 2048, 18, 1, True, "bf16", 3623),
    (MPT, "aside", "a100-40", 1600, "3b", 128, 2048, 6, 1, False, "bf16", 9538),
    (PAPER, "", "a100-80", 2000, "175b", 512, 2048, 1, 1, True, "bf16", 173 / 312),
    (PAPER, "aside", "a100-80", 2000, "175b", 512, 2048, 2, 1, True, "bf16", 186 / 312),
    (MPT, "", "h100-80", 3200, "7b", 8, 2048, 6, 1, False, "fp32", 10643),
    (MPT, "aside", "h100-80", 3200, "30b", 8, 2048, 3, 21, True, "fp32", 2002),
    (MPT, "aside", "h100-80", 3200, "13b", 8, 2048, 2, 1, False, "fp32", 4792),
    (MPT, "aside", "h100-80", 3200, "1b", 8, 2048, 14, 1, False, "fp32", 45455),
]


def forecast(program, point, folder):
    _, _, hardware, gbps, model, gpus, seq_len, micro_batch, accumulation, checkpointing, reduce_dtype, _ = point
    layers, width, heads, vocab = MODELS[model]
    config = pathlib.Path(folder) / "point.cfg"
    config.write_text(f"""[model]
type = gpt2
layers = {layers}
heads = {heads}
width = {width}
vocab_size = {vocab}
context = {seq_len}
[data]
train = none.bin
[fsdp]
strategy = full_shard
param_dtype = bf16
reduce_dtype = {reduce_dtype}
activation_checkpointing = {"block" if checkpointing else "none"}
[train]
seq_len = {seq_len}
micro_batch = {micro_batch}
global_batch = {micro_batch * accumulation * gpus}
""")
    command = [program, config, f"--ranks={gpus}", "--ranks-per-node=8", f"--hardware={hardware}", f"--node-gbps={gbps}", "--json", "--largest=false"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/bin/mica-plan")
    if not os.access(program, os.X_OK):
        sys.exit(f"mica: error: {program} is not there: give the path of mica-plan")
    print("| source | GPU | Gb/s | model | GPUs | T | batch | recomputed | measured | forecast | error | |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for point in POINTS:
            source, use, hardware, gbps, model, gpus, seq_len, micro_batch, accumulation, checkpointing, _, measured = point
            said = forecast(program, point, folder)
            found = said["hfu"] if source == PAPER else said["tokens_per_s_per_rank"]
            error = found / measured - 1
            errors.append((abs(error), use))
            text = (lambda value: f"{100 * value:.1f} %") if source == PAPER else (lambda value: f"{value:.0f}")
            print(f"| {source} | {hardware} | {gbps} | {model} | {gpus} | {seq_len} | {micro_batch} x {accumulation} | {'yes' if checkpointing else 'no'} "
                  f"| {text(measured)} | {text(found)} | {100 * error:+.1f} % | {use} |", flush=True)
    for name, which in (("all", errors), ("aside", [e for e in errors if e[1]])):
        print(f"{name}: {len(which)} points, median error {100 * statistics.median(e[0] for e in which):.1f} %, "
              f"worst {100 * max(e[0] for e in which):.1f} %")


if __name__ == "__main__":
    main()
