# SPDX-License-Identifier: Apache-2.0
"""How fast llm.c's train_gpt2.c trains GPT-2 124M in fp32 on this machine: one process, OpenMP.

    git clone https://github.com/karpathy/llm.c
    python3 llmc.py --llmc llm.c --batch 8 --seq 256 --threads 2

Compiled as its Makefile does. A model of random weights and random tokens stand for the files that it would download; batch and sequence
length, constants there, are replaced in a copy. It neither clips nor decays weights. It is ended after the timed steps. Prints one JSON
line, as torch_fsdp.py does.
"""
import argparse, array, json, os, pathlib, random, re, shutil, statistics, subprocess, sys, tempfile

LAYERS, HEADS, WIDTH, VOCAB, PADDED_VOCAB, CONTEXT = 12, 12, 768, 50257, 50304, 1024


def header(*values):
    return array.array("i", list(values) + [0] * (256 - len(values))).tobytes()


def write_model(path):
    """Layout: fill_in_parameter_sizes() of train_gpt2.c. Norms' weights are 1, biases 0."""
    numbers = random.Random(0)
    some = array.array("f", (numbers.gauss(0, 0.02) for _ in range(1 << 20)))

    def fill(file, count, value=None):
        block = some if value is None else array.array("f", [value]) * (1 << 20)
        while count > 0:
            file.write(block[:min(count, len(block))].tobytes())
            count -= len(block)

    layer = [(LAYERS * WIDTH, 1.0), (LAYERS * WIDTH, 0.0), (LAYERS * 3 * WIDTH * WIDTH, None), (LAYERS * 3 * WIDTH, 0.0),
             (LAYERS * WIDTH * WIDTH, None), (LAYERS * WIDTH, 0.0), (LAYERS * WIDTH, 1.0), (LAYERS * WIDTH, 0.0),
             (LAYERS * 4 * WIDTH * WIDTH, None), (LAYERS * 4 * WIDTH, 0.0), (LAYERS * 4 * WIDTH * WIDTH, None), (LAYERS * WIDTH, 0.0)]
    with open(path, "wb") as file:
        file.write(header(20240326, 3, CONTEXT, VOCAB, LAYERS, HEADS, WIDTH, PADDED_VOCAB))
        for count, value in [(PADDED_VOCAB * WIDTH, None), (CONTEXT * WIDTH, None), *layer, (WIDTH, 1.0), (WIDTH, 0.0)]:
            fill(file, count, value)


def write_tokens(path, count):
    numbers = random.Random(1)
    with open(path, "wb") as file:
        file.write(header(20240520, 1, count))
        file.write(array.array("H", (numbers.randrange(VOCAB) for _ in range(count))).tobytes())


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--llmc", required=True, help="a checkout of it")
    for name, default in dict(threads=1, batch=4, seq=64, steps=6, warmup=2).items():
        ap.add_argument(f"--{name}", type=int, default=default)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmc-") as name:
        folder = pathlib.Path(name)
        shutil.copytree(pathlib.Path(args.llmc) / "llmc", folder / "llmc")
        source = (pathlib.Path(args.llmc) / "train_gpt2.c").read_text()
        for variable, value in (("B", args.batch), ("T", args.seq)):
            source, num = re.subn(rf"\bint {variable} = \d+;", f"int {variable} = {value};", source)
            if num != 1:
                sys.exit(f"llmc.py: {args.llmc}/train_gpt2.c has {num} lines 'int {variable} = ...;', expected one: another version of it?")
        (folder / "train_gpt2.c").write_text(source)
        subprocess.run(["cc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-Wno-unused-result", "train_gpt2.c", "-lm", "-o", "train"], cwd=folder,
                       check=True)
        write_model(folder / "gpt2_124M.bin")
        data = folder / "dev" / "data" / "tinyshakespeare"
        data.mkdir(parents=True)
        for part in ("train", "val"):
            write_tokens(data / f"tiny_shakespeare_{part}.bin", 64 * args.batch * args.seq)
        job = subprocess.Popen(["stdbuf", "-oL", "./train"], cwd=folder, env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
                               stdout=subprocess.PIPE, text=True)
        steps = []
        for line in job.stdout:
            if found := re.match(r"step \d+: train loss ([\d.]+) \(took ([\d.]+) ms\)", line):
                steps.append((float(found.group(1)), float(found.group(2))))
            if len(steps) == args.warmup + args.steps:
                break
        peak = next((int(line.split()[1]) for line in open(f"/proc/{job.pid}/status") if line.startswith("VmHWM")), 0)
        job.kill()
        job.wait()
    if len(steps) < args.warmup + args.steps:
        sys.exit("llmc.py: it ended before the timed steps")
    ms = statistics.median(took for _, took in steps[args.warmup:])
    print(json.dumps(dict(peer="llm.c", model="gpt2-124m", dtype="fp32", ranks=1, threads=args.threads, batch=args.batch, seq=args.seq,
                          step_ms=round(ms, 1), tokens_per_s=round(1e3 * args.batch * args.seq / ms, 1), peak_mib=round(peak / 1024), base_mib=0,
                          first_loss=steps[0][0], last_loss=steps[-1][0])))


if __name__ == "__main__":
    sys.exit(main())
