#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory that mica-plan forecasts beside what mica-train's pool counted and what the operating system saw; a table of docs/planning.md.

    scripts/memory_points.py [--bin=build/release/bin]      takes a few minutes on two cores, and 3 GiB

Each training is ended after its second step. A rank's memory is the highest resident size of its process (VmHWM), where a page that ranks
share counts for one of them; the rank that is farthest from the forecast counts.
"""
import array
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = {"model.layers": 4, "model.width": 768, "model.heads": 12}
# ranks, what is told apart, keys
POINTS = [
    (1, "no_shard", {"fsdp.strategy": "no_shard"}),
    (2, "full_shard", {"fsdp.strategy": "full_shard"}),
    (2, "shard_grad_op", {"fsdp.strategy": "shard_grad_op"}),
    (2, "full_shard, bf16", {"fsdp.strategy": "full_shard", "fsdp.param_dtype": "bf16"}),
    (2, "full_shard, cpu_offload=parameters", {"fsdp.strategy": "full_shard", "fsdp.cpu_offload": "parameters"}),
    (2, "full_shard, checkpointing", {"fsdp.strategy": "full_shard", "fsdp.activation_checkpointing": "block", "train.micro_batch": 8}),
    (2, "shard_optim, 2 micro-batches", {"fsdp.strategy": "shard_optim", "train.global_batch": 8}),
    (3, "full_shard", {"fsdp.strategy": "full_shard"}),
    (4, "full_shard, bf16, checkpointing",
     {"fsdp.strategy": "full_shard", "fsdp.param_dtype": "bf16", "fsdp.activation_checkpointing": "block"}),
    (4, "hybrid_shard over 2", {"fsdp.strategy": "hybrid_shard", "mesh.shard_size": 2}),
]


def flags_of(keys):
    return [f"--{key}={value}" for key, value in keys.items()]


def resident_peak(pid):
    """The most resident memory of a process so far, in bytes."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def bytes_of_neighbours(pid):
    """The resident memory that a process has only because its neighbours' masters are shared, in bytes."""
    found, is_shared = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            is_shared = len(words) > 5 and words[5].startswith("/dev/shm/")
        elif is_shared and words[0] in ("Rss:", "Pss:"):
            found += int(words[1]) * 1024 * (1 if words[0] == "Rss:" else -1)
    return found


def run_rank(command, run):
    """What mpirun starts for each rank: mica-train until its second step is done, and then a file with the most memory that it had."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", "0")
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE", "1"))
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    metrics = pathlib.Path(run) / "metrics.jsonl"
    while child.poll() is None:
        if metrics.exists() and any(row.get("event") == "step" and row["step"] >= 2 for row in rows_of(metrics)):
            (pathlib.Path(run) / f"rss.{rank}").write_text(str(resident_peak(child.pid) - bytes_of_neighbours(child.pid)))
            while len(list(pathlib.Path(run).glob("rss.*"))) < ranks:  # one that loses another ends
                time.sleep(0.01)
            child.kill()  # before it saves
            child.wait()
        time.sleep(0.05)
    sys.exit(0 if child.returncode < 0 else 1)


def rows_of(metrics):
    """All whole lines."""
    return [json.loads(line) for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Machine:
    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        tokens = array.array("H", (i * 7 % 251 for i in range(1 << 16)))
        (folder / "tokens.bin").write_bytes(tokens.tobytes())
        self.config = folder / "point.cfg"
        self.config.write_text(f"""[model]
type = gpt2
vocab_size = 8192
context = 128
[data]
train = {folder}/tokens.bin
[train]
steps = 100
log_interval = 1
seq_len = 128
micro_batch = 2
[checkpoint]
emergency = false
""")
        # One thread a rank, as below: kernels' scratch memory is by thread.
        text = subprocess.run([programs / "mica-plan", "--hardware=cpu-epyc-9654", "--print-hardware"], check=True, capture_output=True, text=True).stdout
        self.hardware = folder / "cpu.json"
        self.hardware.write_text(json.dumps(json.loads(text) | {"threads": 1}))

    def planned(self, ranks, keys):
        """By mica-plan: of the pool, with the offload tier, and of the process."""
        command = [self.programs / "mica-plan", self.config, f"--ranks={ranks}", f"--ranks-per-node={ranks}", f"--hardware={self.hardware}", "--json",
                   "--largest=false", *flags_of(keys)]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return said["peak_bytes"], said["peak_bytes"] + said["offload_bytes"], said["resident_bytes"]

    def run(self, ranks, keys):
        """@return what mica-train planned, what its pools had at most, and resident bytes by rank"""
        with tempfile.TemporaryDirectory(dir=self.folder) as run:
            command = ["mpirun", "-np", str(ranks), sys.executable, __file__, "--rank", run, str(self.programs / "mica-train"), str(self.config),
                       f"--run.dir={run}", "--log.level=error", *flags_of(keys)]
            # mpirun tells at length that its ranks were ended.
            said = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}).stderr
            if not all((pathlib.Path(run) / f"rss.{rank}").exists() for rank in range(ranks)):
                sys.exit(f"mica: error: a rank ended before its second step: {' '.join(command)}\n{said}")
            rows = rows_of(pathlib.Path(run) / "metrics.jsonl")
            planned = next(row["planned_bytes"] for row in rows if row.get("event") == "started")
            peak = max(row["peak_bytes"] for row in rows if "peak_bytes" in row)
            return planned, peak, [int((pathlib.Path(run) / f"rss.{rank}").read_text()) for rank in range(ranks)]


def main():
    programs = ROOT / "build/release/bin"
    for argument in sys.argv[1:]:
        if not argument.startswith("--bin="):
            sys.exit(f"mica: error: unknown argument {argument}; see the top of {__file__}")
        programs = pathlib.Path(argument.removeprefix("--bin=")).resolve()
    mib = lambda value: f"{value / 2**20:.1f}"
    print("| ranks | | mica-plan, MiB | mica-train's plan | its pool | mica-plan, resident | seen | difference |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(programs, pathlib.Path(folder))
        for ranks, name, keys in POINTS:
            pool, everything, expected = machine.planned(ranks, MODEL | keys)
            planned, peak, resident = machine.run(ranks, MODEL | keys)
            seen = max(resident, key=lambda value: abs(value - expected))
            print(f"| {ranks} | {name} | {mib(everything)} | {'the same' if planned == pool else f'{planned - pool:+,} B'} "
                  f"| {'the same' if peak == pool else f'{peak - pool:+,} B'} "
                  f"| {mib(expected)} | {mib(seen)} | {100 * (expected / seen - 1):+.1f} % |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--rank":
        run_rank(sys.argv[3:], sys.argv[2])
    main()
