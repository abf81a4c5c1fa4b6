#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forecasts of mica-plan --software beside published measurements of PyTorch's FSDP; the table of docs/planning.md.

    scripts/planning_points.py [build/release/bin/mica-plan]      prints the table, the median and the worst error
    scripts/planning_points.py PROGRAM README.md                  of all bf16 rows of llm-foundry's README, with a row for each kind

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
FMS = "fms-fsdp"  # github.com/foundation-model-stack/fms-fsdp, README.md at commit 4ffb9bd
FMS_COMPILED = "fms-fsdp, compiled"  # ... at commit ed74fd5, with torch.compile
# Whose kernels ran there.
SOFTWARE = {MPT: "llm-foundry-2023", PAPER: "pytorch-2022", FMS: "fms-2024", FMS_COMPILED: "pytorch-compiled"}
FULL, HYBRID = "full_shard", "hybrid_shard"
# type, layers, width, heads, vocabulary, and of a Llama key and value heads, columns inside a block. MPT's yamls, the paper's GPT-175B,
# Llama 2 and Code Llama 34B. All heads have 128 columns.
MODELS = {
    "1b": ("gpt2", 24, 2048, 16, 50368), "3b": ("gpt2", 32, 2560, 20, 50368), "7b": ("gpt2", 32, 4096, 32, 50368),
    "13b": ("gpt2", 40, 5120, 40, 50368), "30b": ("gpt2", 48, 7168, 56, 50368), "70b": ("gpt2", 80, 8192, 64, 50368),
    "175b": ("gpt2", 96, 12288, 96, 50000),
    "llama-7b": ("llama", 32, 4096, 32, 32000, 32, 11008), "llama-34b": ("llama", 48, 8192, 64, 32000, 8, 22016),
    "llama-70b": ("llama", 80, 8192, 64, 32000, 8, 28672),
}
# source, use, hardware, Gb/s a node, strategy, model, GPUs, seq_len, micro-batch, accumulation, checkpointing, reduce_dtype, measured tokens/s a GPU
# (the paper: share of the peak, recomputation included)
POINTS = [
    (MPT, "", "a100-80", 1600, FULL, "70b", 64, 2048, 8, 4, True, "bf16", 410),
    (MPT, "aside", "a100-80", 1600, FULL, "70b", 32, 2048, 2, 16, True, "bf16", 373),
    (MPT, "", "a100-80", 1600, FULL, "30b", 8, 2048, 3, 21, True, "fp32", 916),
    (MPT, "aside", "a100-80", 1600, FULL, "13b", 8, 2048, 2, 3, False, "fp32", 2262),
    (MPT, "", "a100-80", 1600, FULL, "7b", 8, 2048, 6, 2, False, "fp32", 4641),
    (MPT, "aside", "a100-80", 1600, FULL, "7b", 8, 8192, 8, 2, True, "fp32", 3206),
    (MPT, "", "a100-80", 1600, FULL, "3b", 8, 2048, 10, 2, False, "fp32", 10811),
    (MPT, "aside", "a100-80", 1600, FULL, "1b", 8, 2048, 14, 4, False, "fp32", 20513),
    (MPT, "", "a100-40", 1600, FULL, "70b", 128, 2048, 4, 1, True, "bf16", 376),
    (MPT, "aside", "a100-40", 1600, FULL, "70b", 64, 2048, 2, 1, True, "bf16", 276),
    (MPT, "", "a100-40", 1600, FULL, "30b", 128, 2048, 6, 1, True, "bf16", 865),
    (MPT, "aside", "a100-40", 1600, FULL, "30b", 32, 2048, 4, 1, True, "bf16", 857),
    (MPT, "", "a100-40", 1600, FULL, "13b", 128, 2048, 16, 1, True, "bf16", 1972),
    (MPT, "aside", "a100-40", 1600, FULL, "13b", 16, 2048, 10, 1, True, "bf16", 1993),
    (MPT, "", "a100-40", 1600, FULL, "7b", 128, 2048, 18, 1, True, "bf16", 3623),
    (MPT, "aside", "a100-40", 1600, FULL, "3b", 128, 2048, 6, 1, False, "bf16", 9538),
    (PAPER, "", "a100-80", 2000, FULL, "175b", 512, 2048, 1, 1, True, "bf16", 173 / 312),
    (PAPER, "aside", "a100-80", 2000, FULL, "175b", 512, 2048, 2, 1, True, "bf16", 186 / 312),
    (MPT, "", "h100-80", 3200, FULL, "7b", 8, 2048, 6, 1, False, "fp32", 10643),
    (MPT, "aside", "h100-80", 3200, FULL, "30b", 8, 2048, 3, 21, True, "fp32", 2002),
    (MPT, "aside", "h100-80", 3200, FULL, "13b", 8, 2048, 2, 1, False, "fp32", 4792),
    (MPT, "aside", "h100-80", 3200, FULL, "1b", 8, 2048, 14, 1, False, "fp32", 45455),
    (FMS, "aside", "a100-80", 400, HYBRID, "llama-7b", 128, 4096, 2, 1, False, "bf16", 3700),
    (FMS, "aside", "a100-80", 400, FULL, "llama-34b", 128, 4096, 2, 1, True, "bf16", 700),
    (FMS, "aside", "a100-80", 400, FULL, "llama-70b", 128, 4096, 2, 1, True, "bf16", 370),
    (FMS, "aside", "h100-80", 800, HYBRID, "llama-7b", 96, 4096, 2, 1, False, "bf16", 7500),
    (FMS, "aside", "h100-80", 800, FULL, "llama-34b", 96, 4096, 2, 1, True, "bf16", 1550),
    (FMS, "aside", "h100-80", 800, FULL, "llama-70b", 96, 4096, 2, 1, True, "bf16", 800),
    (FMS_COMPILED, "aside", "a100-80", 400, HYBRID, "llama-7b", 128, 4096, 2, 1, False, "bf16", 4550),
    (FMS_COMPILED, "aside", "h100-80", 800, HYBRID, "llama-7b", 96, 4096, 2, 1, False, "bf16", 9600),
]


def forecast(program, point, folder):
    source, _, hardware, gbps, strategy, model, gpus, seq_len, micro_batch, accumulation, checkpointing, reduce_dtype, _ = point
    kind, layers, width, heads, vocab, *llama = MODELS[model]
    config = pathlib.Path(folder) / "point.cfg"
    config.write_text(f"""[model]
type = {kind}
layers = {layers}
heads = {heads}
width = {width}
vocab_size = {vocab}
context = {seq_len}
{"kv_heads = {}{}intermediate_size = {}".format(llama[0], chr(10), llama[1]) if llama else ""}
[data]
train = none.bin
[fsdp]
strategy = {strategy}
param_dtype = bf16
reduce_dtype = {reduce_dtype}
activation_checkpointing = {"block" if checkpointing else "none"}
[train]
seq_len = {seq_len}
micro_batch = {micro_batch}
global_batch = {micro_batch * accumulation * gpus}
""")
    command = [program, config, f"--ranks={gpus}", "--ranks-per-node=8", f"--hardware={hardware}", f"--node-gbps={gbps}", "--json", "--largest=false",
               f"--software={SOFTWARE[source]}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# Only rows of the README have these.
README_MODELS = {"125m": ("gpt2", 12, 768, 12, 50368), "350m": ("gpt2", 24, 1024, 16, 50368), "760m": ("gpt2", 24, 1536, 12, 50368)}
README_HARDWARE = {"a100_80gb": ("a100-80", 1600), "a100_40gb": ("a100-40", 1600), "h100_80gb": ("h100-80", 3200)}


def readme_points(readme):
    """Every row of llm-foundry's tables but those in FP8 and those whose activations are offloaded."""
    for line in pathlib.Path(readme).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 20 or cells[0] not in MODELS or "bf16" not in cells[14] or cells[18] == "True":
            continue
        hardware, gbps = README_HARDWARE[cells[3]]
        yield (MPT, "", hardware, gbps, cells[16].lower(), cells[0], int(cells[2]), int(cells[1]), int(cells[7]), int(cells[8]), cells[17] == "True",
               "bf16" if cells[15] == "PURE" else "fp32", float(cells[12]))


def summarize(program, points):
    with tempfile.TemporaryDirectory() as folder:
        errors = [(point, forecast(program, point, folder)["tokens_per_s_per_rank"] / point[-1] - 1) for point in points]
    print("| rows | number | median of the error | of its size | worst | above 20 % |")
    print("|---|---|---|---|---|---|")
    kinds = [("all", lambda point: True)]
    kinds += [(hardware, lambda point, hardware=hardware: point[2] == hardware) for hardware, _ in README_HARDWARE.values()]
    kinds += [(model, lambda point, model=model: point[5] == model) for model in MODELS]
    kinds += [(f"T = {2**n}", lambda point, n=n: point[7] == 2**n) for n in range(9, 17)]
    for name, belongs in kinds:
        of = [error for point, error in errors if belongs(point)]
        if of:
            print(f"| {name} | {len(of)} | {100 * statistics.median(of):+.1f} % | {100 * statistics.median(map(abs, of)):.1f} % "
                  f"| {100 * max(of, key=abs):+.1f} % | {sum(abs(error) > 0.2 for error in of)} |")


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/bin/mica-plan")
    if not os.access(program, os.X_OK):
        sys.exit(f"mica: error: {program} is not there: give the path of mica-plan")
    if len(sys.argv) > 2:
        MODELS.update(README_MODELS)
        summarize(program, list(readme_points(sys.argv[2])))
        return
    print("| source | GPU | Gb/s | strategy | model | GPUs | T | batch | recomputed | measured | forecast | error | |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for point in POINTS:
            source, use, hardware, gbps, strategy, model, gpus, seq_len, micro_batch, accumulation, checkpointing, _, measured = point
            said = forecast(program, point, folder)
            found = said["hfu"] if source == PAPER else said["tokens_per_s_per_rank"]
            error = found / measured - 1
            errors.append((abs(error), use))
            text = (lambda value: f"{100 * value:.1f} %") if source == PAPER else (lambda value: f"{value:.0f}")
            print(f"| {source} | {hardware} | {gbps} | {strategy} | {model} | {gpus} | {seq_len} | {micro_batch} x {accumulation} | {'yes' if checkpointing else 'no'} "
                  f"| {text(measured)} | {text(found)} | {100 * error:+.1f} % | {use} |", flush=True)
    for name, which in (("all", errors), ("aside", [e for e in errors if e[1]])):
        print(f"{name}: {len(which)} points, median error {100 * statistics.median(e[0] for e in which):.1f} %, "
              f"worst {100 * max(e[0] for e in which):.1f} %")


if __name__ == "__main__":
    main()
