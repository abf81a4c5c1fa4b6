#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how much faster hybrid_shard is than full_shard between slow nodes, and compares that with bytes / bandwidth and compute.

  scripts/cluster/cluster.sh with -- scripts/cluster/hybrid_ratio.py [--bin=build/release/bin]

Trains an MLP on 2 nodes with 2 ranks each (the default of `cluster.sh with`), alternating between both strategies, first at the machine's speed,
then at --rate. A step should take its compute (step - waiting, in the runs at the machine's speed) and the bytes that a node's
interface counts for it, headers included, divided by the rate. Prints all figures and exits with 1 if the measured ratio of the step
times is below 0.9 of the expected one. Needs an idle machine.
"""
import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRATEGIES = ("full_shard", "hybrid_shard")
CONFIG = """[model]
type = mlp
layers = 2
width = {width}
vocab_size = 16
[data]
train = tokens.bin
[train]
micro_batch = {micro_batch}
seq_len = 16
log_interval = 100000
[log]
level = warn
"""


def cluster(*words):
    done = subprocess.run([os.environ["MICA_CLUSTER"], *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def busiest_bytes(before, after):
    """The most that one interface has sent or received."""
    return max(b - a for was, now in zip(before.splitlines(), after.splitlines())
               for a, b in zip(map(int, was.split()[2::2]), map(int, now.split()[2::2])))


class Run:
    """Of `steps` steps: bytes of a step without start and end, which `short`, a run of fewer steps, has as well."""

    def __init__(self, arguments, strategy, steps, short=None):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            before = cluster("counters")
            cluster("mpirun", "2", f"{arguments.bin}/mica-train", "run.cfg", f"--fsdp.strategy={strategy}", f"--run.dir={folder}/run",
                    f"--train.steps={steps}")
            self.steps, self.bytes = steps, busiest_bytes(before, cluster("counters"))
            rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
        rows = [row for row in rows if row["event"] == "step"][1:]  # the first step allocates
        self.step_ms = statistics.median(row["step_ms"] for row in rows)
        self.compute_ms = statistics.median(row["step_ms"] - row["comm_wait_ms"] for row in rows)
        if short:
            self.step_bytes = (self.bytes - short.bytes) / (steps - short.steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"))
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s; 200")
    parser.add_argument("--width", type=int, default=384, help="of the model; 384")
    parser.add_argument("--micro-batch", type=int, default=8, help="8")
    parser.add_argument("--steps", type=int, default=20, help="of each run; 20")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each strategy at --rate; 2")
    arguments = parser.parse_args()
    arguments.bin = os.path.abspath(arguments.bin)
    if "MICA_CLUSTER" not in os.environ:
        sys.exit("not on a cluster: scripts/cluster/cluster.sh with -- scripts/cluster/hybrid_ratio.py")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        state, tokens = 1, []
        for _ in range(20000):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            tokens.append(state >> 28)
        pathlib.Path("tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        pathlib.Path("run.cfg").write_text(CONFIG.format(width=arguments.width, micro_batch=arguments.micro_batch))
        compute_ms = {s: Run(arguments, s, arguments.steps).compute_ms for s in STRATEGIES}
        cluster("rate", f"{arguments.rate}mbit")
        runs = {s: [] for s in STRATEGIES}
        for _ in range(arguments.rounds):
            for strategy in STRATEGIES:
                short = Run(arguments, strategy, 4)
                runs[strategy].append(Run(arguments, strategy, arguments.steps, short))
        os.chdir("/")
    bytes_per_ms = arguments.rate * 1e6 / 8 / 1e3
    measured, expected = {}, {}
    for s in STRATEGIES:
        step_bytes = statistics.median(run.step_bytes for run in runs[s])
        measured[s] = statistics.median(run.step_ms for run in runs[s])
        expected[s] = compute_ms[s] + step_bytes / bytes_per_ms
        print(f"{s:13} {step_bytes / 1e6:7.3f} MB a step and node, compute {compute_ms[s]:6.1f} ms: expected {expected[s]:7.1f} ms,"
              f" measured {measured[s]:7.1f} ms (runs: {', '.join(f'{run.step_ms:.1f}' for run in runs[s])})")
    wanted, seen = (t["full_shard"] / t["hybrid_shard"] for t in (expected, measured))
    print(f"full / hybrid: expected {wanted:.2f}, measured {seen:.2f}: {seen / wanted:.2f} of it at {arguments.rate} Mbit/s")
    return 0 if seen >= 0.9 * wanted else 1


if __name__ == "__main__":
    sys.exit(main())
