#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mica beside the other ways to train a GPT-2 on this machine's CPUs; scripts/versus.sh runs it.

    peer/bin/python scripts/peers/versus.py --mica build/release/bin/mica-bench [--rounds 5] [--work gpt2-124m/bf16/4x256 ...]

Every contestant has all cores: a rank of one thread on each (Mica, FSDP2), a device on each (JAX), or one process with a thread on each,
which gets all ranks' sequences as one batch. Random tokens, AdamW, clipping at 1 (llm.c: neither clipping nor decay). In each round all
contestants run in turns, in an order of its own; each run is a fresh process. Figures are medians over the rounds.
  tokens/s         over all ranks, from the median step of a run
  % of the machine machine_percent of mica-bench train in the same round, times the ratio of tokens/s
  beside Mica      the median of Mica's tokens/s over the contestant's, round by round
  MiB              peak PSS of the whole job (node_memory.py) in a run of its own, less interpreter and imports of Python's
"""
import argparse, json, os, pathlib, random, statistics, subprocess, sys
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent


@dataclass(frozen=True)
class Work:
    model: str
    dtype: str
    batch: int  # sequences a rank
    seq: int

    @staticmethod
    def parse(text):
        try:
            model, dtype, size = text.split("/")
            batch, seq = map(int, size.split("x"))
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is no MODEL/DTYPE/BATCHxSEQ, such as gpt2-124m/bf16/4x256") from None
        return Work(model, dtype, batch, seq)

    def __str__(self):
        return f"{self.model}, {self.dtype}, B{self.batch} T{self.seq}"

    @property
    def is_small(self):
        return self.model.startswith("char")


DEFAULT = [Work("gpt2-124m", "fp32", 4, 256), Work("gpt2-124m", "bf16", 4, 256), Work("gpt2-124m", "fp32", 1, 1024),
           Work("gpt2-124m", "bf16", 1, 1024), Work("gpt2-124m", "fp32", 4, 64), Work("char-tiny", "fp32", 12, 64)]


def contestants(args):
    """Name -> function of (work, steps) to a command, or to None where it cannot do the work."""
    ranks, python = args.ranks, sys.executable
    peer = lambda name: [python, str(HERE / name)]
    size = lambda work, steps: ["--model", work.model, "--dtype", work.dtype, "--seq", str(work.seq), "--steps", str(steps), "--warmup", "2"]
    each = lambda work: ["--batch", str(work.batch)]
    all_in_one = lambda work: ["--batch", str(work.batch * ranks), "--threads", str(ranks)]
    found = {
        "Mica": lambda w, n: ["mpirun", "-np", str(ranks), args.mica, "train", *size(w, n), *each(w)],
        "PyTorch FSDP2": lambda w, n: [*peer("torch_fsdp.py"), "--ranks", str(ranks), "--threads", "1", *size(w, n), *each(w)],
        "PyTorch, one process": lambda w, n: [*peer("torch_fsdp.py"), "--mode", "plain", *size(w, n), *all_in_one(w)],
        "PyTorch, one process, compiled": lambda w, n: [*peer("torch_fsdp.py"), "--mode", "plain", "--compile", *size(w, n), *all_in_one(w)],
        "JAX": lambda w, n: [*peer("jax_fsdp.py"), "--ranks", str(ranks), *size(w, n), *each(w)],
    }
    if args.nanogpt:
        found["nanoGPT"] = lambda w, n: [*peer("nanogpt.py"), "--nanogpt", args.nanogpt, *size(w, n), *all_in_one(w)]
    if args.llmc:
        found["llm.c"] = lambda w, n: None if (w.model, w.dtype) != ("gpt2-124m", "fp32") else [
            *peer("llmc.py"), "--llmc", args.llmc, "--seq", str(w.seq), "--steps", str(n), "--warmup", "2", *all_in_one(w)]
    return found


def run(command):
    """The JSON lines that a command prints; none, with a message, if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"versus.py: '{' '.join(command)}' failed: {done.stderr[-500:]}", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def weigh(command):
    rows = run([sys.executable, str(HERE / "node_memory.py"), *command])
    if len(rows) < 2:
        return None
    return rows[1]["peak_pss_mib"] - rows[0].get("base_mib", 0)


def measure(work, args):
    """The table's rows of one work: (name, tokens/s, % of the machine, beside Mica, MiB)."""
    candidates = {name: make for name, make in contestants(args).items() if make(work, 1)}
    speeds, machine = {name: [] for name in candidates}, []
    for number in range(args.rounds):
        order = list(candidates)
        random.Random(number).shuffle(order)
        of_round = {}
        for name in order:
            rows = run(candidates[name](work, 40 if work.is_small else 4))
            if rows:
                of_round[name] = rows[0]
                print(json.dumps(dict(work=str(work), round=number + 1, contestant=name) | rows[0]), flush=True)
        if "Mica" not in of_round:
            sys.exit("versus.py: without Mica's figures there is nothing to compare with")
        machine.append(of_round["Mica"]["tokens_per_s"] / of_round["Mica"]["machine_percent"])
        for name, speed in speeds.items():
            speed.append(of_round[name]["tokens_per_s"] if name in of_round else None)
    table = []
    for name, make in candidates.items():
        counted = [(speed, limit, mica) for speed, limit, mica in zip(speeds[name], machine, speeds["Mica"]) if speed]
        if not counted:
            continue
        median = lambda values: statistics.median(list(values))
        command = make(work, 2)
        if name == "Mica":
            command.append("--no-bound")
        memory = weigh(command) if args.memory else None
        table.append((name, f"{median(s for s, _, _ in counted):,.0f}", f"{median(s / limit for s, limit, _ in counted):.0f}",
                      f"{median(mica / s for s, _, mica in counted):.2f}", f"{memory:,}" if memory else ""))
    return table


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--mica", required=True, help="mica-bench")
    ap.add_argument("--ranks", type=int, default=os.cpu_count(), help="cores to use; default: all")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--work", type=Work.parse, action="append", help="MODEL/DTYPE/BATCHxSEQ, a rank's batch; again for more; default: six")
    ap.add_argument("--llmc", default="", help="a checkout of llm.c")
    ap.add_argument("--nanogpt", default="", help="a checkout of nanoGPT")
    ap.add_argument("--no-memory", dest="memory", action="store_false", help="do not weigh, which takes a run more of each")
    args = ap.parse_args()
    for work in args.work or DEFAULT:
        table = measure(work, args)
        print(f"\n**{work}** ({args.ranks} cores, {args.rounds} rounds)\n\n| | tokens/s | % of the machine | beside Mica | MiB |\n|---|---|---|---|---|")
        for row in table:
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
