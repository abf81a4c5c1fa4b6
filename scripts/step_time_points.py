#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step times that mica-plan forecasts beside those of mica-train; a table of docs/planning.md. Needs an idle machine, and a quarter of an hour.

    scripts/step_time_points.py [--bin=build/release/bin]                                             on this machine
    scripts/cluster/cluster.sh with --nodes=2 -- scripts/step_time_points.py [--bin=...]              on two nodes, at two speeds of the link

The forecasts' only input is a hardware file of the medians of what mica-bench measured before, between and after the trainings: one for all
of them, on a cluster one for each speed. A training's step time is the median of means of three steps, from its fourth step on. One thread a
rank.
"""
import argparse
import array
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = {"model.layers": 4, "model.width": 768, "model.heads": 12, "model.vocab_size": 8192, "train.seq_len": 256, "train.micro_batch": 4}
LLAMA = SMALL | {"model.type": "llama", "model.kv_heads": 4, "model.intermediate_size": 2048}
NARROW = SMALL | {"model.width": 384, "model.heads": 6, "train.seq_len": 128, "train.micro_batch": 12}
# ranks, what is told apart, keys
ON_THE_MACHINE = [
    (1, "no_shard", SMALL | {"fsdp.strategy": "no_shard"}),
    (2, "full_shard", SMALL),
    (2, "full_shard, 64 tokens", SMALL | {"train.seq_len": 64}),
    (2, "full_shard, mesh.backend=mpi", SMALL | {"mesh.backend": "mpi"}),
    (2, "shard_grad_op, 2 micro-batches", SMALL | {"fsdp.strategy": "shard_grad_op", "train.global_batch": 16}),
    (2, "full_shard, bf16", SMALL | {"fsdp.param_dtype": "bf16"}),
    (2, "full_shard, checkpointing", SMALL | {"fsdp.activation_checkpointing": "block"}),
    (2, "full_shard, 1,024 tokens", SMALL | {"train.seq_len": 1024, "train.micro_batch": 1}),
    (2, "full_shard, Llama", LLAMA),
    (2, "full_shard, 384 columns", NARROW),
]
SHORT = SMALL | {"train.seq_len": 128}
ON_TWO_NODES = [
    (2, "full_shard", SHORT),
    (2, "shard_grad_op", SHORT | {"fsdp.strategy": "shard_grad_op"}),
    (2, "no_shard", SHORT | {"fsdp.strategy": "no_shard"}),
    (2, "full_shard, bf16", SHORT | {"fsdp.param_dtype": "bf16"}),
]
RATES = ["5gbit", "1gbit"]


def done(command):
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if finished.returncode != 0:
        sys.exit(f"mica: error: {' '.join(map(str, command))}: status {finished.returncode}\n{finished.stdout}{finished.stderr}")
    return finished.stdout


class Bench:
    """@param launcher  the words before a program, for a number of ranks"""

    def __init__(self, programs, folder, launcher, ranks_per_node):
        self.programs, self.folder, self.launcher, self.ranks_per_node = programs, folder, launcher, ranks_per_node
        numbers = random.Random(1)
        (folder / "tokens.bin").write_bytes(array.array("H", (numbers.randrange(8192) for _ in range(1 << 17))).tobytes())
        self.config = folder / "point.cfg"
        self.config.write_text(f"""[data]
train = {folder}/tokens.bin
[model]
context = 1024
[train]
steps = 15
log_interval = 3
[checkpoint]
emergency = false
""")

    def measured(self):
        """@return what mica-bench says of the machine, three times of its links, which take less than a second"""
        file = self.folder / "measured.json"
        done([*self.launcher(2), self.programs / "mica-bench", "gemm", f"--hardware-out={file}"])
        found = []
        for _ in range(3):
            done([*self.launcher(2), self.programs / "mica-bench", "comm", "--mib=16", f"--hardware-out={file}"])
            found.append(json.loads(file.read_text()))
        return found

    def expected_ms(self, ranks, keys, hardware):
        return json.loads(done([self.programs / "mica-plan", self.config, f"--ranks={ranks}", f"--ranks-per-node={self.ranks_per_node}",
                                f"--hardware={hardware}", "--json", "--largest=false", *keys]))["step_ms"]

    def seen_ms(self, ranks, keys):
        with tempfile.TemporaryDirectory(dir=self.folder) as run:
            done([*self.launcher(ranks), self.programs / "mica-train", self.config, f"--run.dir={run}/run", "--log.level=error", *keys])
            rows = map(json.loads, (pathlib.Path(run) / "run/metrics.jsonl").read_text().splitlines())
            return statistics.median(row["step_ms"] for row in rows if row["event"] == "step" and row["step"] > 3)

    def compare(self, where, points):
        """@return the size of each error"""
        samples, seen = self.measured(), []
        for i, (ranks, name, keys) in enumerate(points):
            seen.append(self.seen_ms(ranks, flags_of(keys)))
            print(f"{where}, {name}: {seen[-1]:.1f} ms a step", file=sys.stderr)
            if i % 2 == 1:
                samples += self.measured()
        hardware = self.folder / "this.json"
        hardware.write_text(json.dumps(medians(samples)))
        errors = []
        for (ranks, name, keys), ms in zip(points, seen):
            expected = self.expected_ms(ranks, flags_of(keys), hardware)
            errors.append(abs(expected / ms - 1))
            print(f"| {where} | {ranks} | {name} | {expected:.1f} | {ms:.1f} | {100 * (expected / ms - 1):+.1f} % |", flush=True)
        return errors


def flags_of(keys):
    return [f"--{key}={value}" for key, value in keys.items()]


def medians(samples):
    """Of JSON values of one form: each number is the median of theirs; the rest is the first one's."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: medians([each[key] for each in samples]) for key in first}
    if isinstance(first, list):
        return [medians(list(each)) for each in zip(*samples)]
    return statistics.median_low(samples) if isinstance(first, (int, float)) else first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs; build/release/bin")
    programs = parser.parse_args().bin.resolve()
    for name in ("mica-bench", "mica-plan", "mica-train"):
        if not (programs / name).exists():
            sys.exit(f"mica: error: there is no {programs / name}; build it: cmake --build {programs.parent} --target {name}")
    print("| where | ranks | | forecast, ms | seen, ms | difference |")
    print("|---|---|---|---|---|---|")
    cluster = os.environ.get("MICA_CLUSTER")
    errors = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if cluster:
            bench = Bench(programs, folder, lambda ranks: [cluster, "mpirun", ranks // 2], ranks_per_node=1)
            for rate in RATES:
                done([cluster, "rate", rate])
                errors += bench.compare(f"two nodes, {rate}", ON_TWO_NODES)
        else:
            bench = Bench(programs, folder, lambda ranks: ["mpirun", "-np", ranks], ranks_per_node=2)
            errors += bench.compare("one node", ON_THE_MACHINE)
    print(f"median of the differences' size {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %")


if __name__ == "__main__":
    main()
