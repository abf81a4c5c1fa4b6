#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the launch to the end of the first optimizer step: Mica beside PyTorch FSDP2, in turns.

    source scripts/environment.sh
    python3 scripts/peers/start.py --python peer/bin/python                                  # the quickstart's model on 4 ranks
    python3 scripts/peers/start.py --python peer/bin/python --model gpt2-124m --ranks 2 --batch 1 --seq 64 --checkpoint

Mica: from mpirun to the line of step 1. PyTorch: from the start of its ranks (no launcher, which would import torch once more) to
the return of the first optimizer step. Same sizes, fp32, one thread a rank, fresh processes, warm page cache: the first pair is not
counted. --checkpoint: both go on from a checkpoint of their own, with AdamW's state, made before. Prints a JSON line for each pair and
one with the medians. Both sides need the machine to themselves, at the same priority.
"""
import argparse, json, os, pathlib, random, signal, statistics, subprocess, sys, tempfile, threading, time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))
from docs_checks.session import end_session
from torch_fsdp import MODELS

LIMIT_S = 600


def seconds_to(text, commands, folder):
    """Starts the commands together; seconds until one of them writes a line with the text. Then all are killed."""
    begin = time.perf_counter()
    seen, output, lock = threading.Event(), [], threading.Lock()
    processes = [subprocess.Popen(command, cwd=folder, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
                 for command, variables in commands]
    end = [None]

    def read(process):
        for line in process.stdout:
            now = time.perf_counter()
            with lock:
                output.append(line)
                if text in line and end[0] is None:
                    end[0] = now
                    seen.set()
        seen.set()

    readers = [threading.Thread(target=read, args=(process,)) for process in processes]
    for reader in readers:
        reader.start()
    try:
        seen.wait(LIMIT_S)
    finally:
        for process in processes:
            end_session(process.pid)
            process.wait()
    for reader in readers:
        reader.join()
    if end[0] is None:
        sys.exit(f"start.py: no '{text}' from {commands[0][0]}:\n{''.join(output)[-3000:]}")
    return end[0] - begin


class Mica:
    def __init__(self, args, folder):
        self.ranks, self.folder = args.ranks, folder
        layers, heads, width, vocabulary, context = MODELS[args.model]
        generator = random.Random(1)
        tokens = [generator.randrange(vocabulary) for _ in range(200 * args.seq * args.batch * args.ranks + 1)]
        (folder / "tokens.bin").write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))
        sizes = {"model.type": "gpt2", "model.layers": layers, "model.heads": heads, "model.width": width, "model.vocab_size": vocabulary,
                 "model.context": context, "model.tie_embeddings": "true", "train.micro_batch": args.batch, "train.seq_len": args.seq,
                 "train.eval_interval": 0, "train.log_interval": 1, "checkpoint.interval": 0, "optim.warmup_steps": 0,
                 "optim.schedule": "constant", "data.train": "tokens.bin", "run.dir": "run"}
        (folder / "run.cfg").write_text("")
        self.command = ["mpirun", "-np", str(args.ranks), str(pathlib.Path(args.bin).resolve() / "mica-train"), "run.cfg",
                        *(f"--{key}={value}" for key, value in sizes.items())]
        self.checkpoint = args.checkpoint
        if args.checkpoint:
            made = subprocess.run([*self.command, "--train.steps=1"], cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            if made.returncode != 0:
                sys.exit(f"start.py: mica-train made no checkpoint:\n{made.stdout[-3000:]}")

    def start(self, number):
        # A run of its own, unless it goes on from the checkpoint.
        command = [*self.command, "--train.steps=1000", *([] if self.checkpoint else [f"--run.dir=run-{number}"])]
        (self.folder / "run/starts.json").unlink(missing_ok=True)  # mica-train refuses a third start in a row that saved nothing
        text = f"step {2 if self.checkpoint else 1:>6}/"
        return seconds_to(text, [(command, {"OMP_NUM_THREADS": "1"})], self.folder)


class Torch:
    def __init__(self, args, folder):
        self.ranks, self.folder = args.ranks, folder
        self.command = [args.python, str(HERE / "torch_fsdp.py"), "--mode", "fsdp2", "--model", args.model, "--ranks", str(args.ranks),
                        "--threads", "1", "--batch", str(args.batch), "--seq", str(args.seq)]
        if args.checkpoint:
            self.command += ["--checkpoint", str(folder / "dcp")]
            subprocess.run([*self.command, "--steps", "1", "--warmup", "0"], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
                           stdout=subprocess.DEVNULL)

    def start(self, number):
        ranks = [([*self.command, "--steps", "1000", "--warmup", "0"],
                  {"OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(self.ranks), "MASTER_PORT": str(29800 + number)})
                 for rank in range(self.ranks)]
        return seconds_to("first step", ranks, self.folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with torch")
    parser.add_argument("--bin", default="build/release/bin", help="Mica's programs")
    parser.add_argument("--model", default="quickstart", choices=MODELS)
    for name, default in dict(ranks=4, batch=8, seq=128, pairs=5).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--dir", help="where checkpoints and runs lie meanwhile; default: TMPDIR")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends, too
    with tempfile.TemporaryDirectory(prefix="mica-start-", dir=args.dir) as folder:
        sides = {"mica": Mica(args, pathlib.Path(folder)), "fsdp2": Torch(args, pathlib.Path(folder))}
        pairs = []
        for number in range(args.pairs + 1):
            pair = {name: round(side.start(number), 3) for name, side in sides.items()}
            print(json.dumps({"pair": number, "counts": number > 0, **pair}), flush=True)
            pairs += [pair] if number > 0 else []
    ratios = [pair["fsdp2"] / pair["mica"] for pair in pairs]
    print(json.dumps({"model": args.model, "ranks": args.ranks, "batch": args.batch, "seq": args.seq, "checkpoint": args.checkpoint,
                      **{f"{name}_s": round(statistics.median(pair[name] for pair in pairs), 3) for name in sides},
                      "ratio": round(statistics.median(ratios), 1), "ratios": [round(min(ratios), 1), round(max(ratios), 1)]}))


if __name__ == "__main__":
    main()
