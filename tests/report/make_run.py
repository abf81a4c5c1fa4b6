#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the folder of a run that never was, as large as asked for: metrics.jsonl, log.txt and traces, with known figures.

    tests/report/make_run.py FOLDER [--steps=N] [--ranks=N] [--trace-mb=N] [--seed=N]

For the tests of mica-report. Rank 5 of steps 40 % to 60 % takes a third longer than the others; step 70 % is one slow step and a spike
of the loss; after 80 % the run was killed and resumed 5 % earlier. All else is smooth.
"""
import argparse
import json
import math
import pathlib
import random


def rows(args, rng):
    """metrics.jsonl, line by line."""
    time, every = 1.7e9, 10
    planned = {"sharded_param": 250 << 20, "unsharded_param": 90 << 20, "sharded_grad": 250 << 20, "optimizer": 500 << 20, "activation": 700 << 20}

    def row(**fields):
        return json.dumps(fields | {"time": round(time, 3)}, separators=(",", ":"))

    def launch(step):
        return row(event="started", step=step, version="0.1.0 (made up)", ranks=args.ranks, steps=args.steps, device="CPU, 4 OpenMP threads a rank",
                   planned_bytes=1600 << 20, planned_by_role=planned)

    def part(first, last):
        nonlocal time
        for step in range(first, last + 1):
            if (step - 1) % every == 0:
                own = [100 + rng.random() * 4 for _ in range(args.ranks)]
                if args.ranks > 5 and 0.4 * args.steps <= step < 0.6 * args.steps:
                    own[5] *= 1.33
            spike = step == round(0.7 * args.steps)
            step_ms = max(own) + 30 + (400 if spike else 0)
            time += step_ms / 1e3
            loss = 3 + 7 * math.exp(-8 * step / args.steps) + rng.gauss(0, 0.05) + (5 if spike else 0)
            yield row(event="step", step=step, loss=loss, lr=3e-4, grad_norm=1 + rng.random(), tokens=65536, tokens_per_s=round(65536e3 / step_ms, 1),
                      step_ms=round(step_ms, 3), comm_wait_ms=55.5, compute_ms=round(step_ms - 47, 3), exposed_comm_ms=28.0, optimizer_ms=15.0, data_ms=4.0,
                      gflop_per_s=round(5200 / step_ms * 10, 2), peak_bytes=1590 << 20)
            if step % every == 0:
                ordered = sorted(own)
                yield row(event="ranks", step=step, min_ms=round(ordered[0], 3), median_ms=round(ordered[len(own) // 2], 3), max_ms=round(ordered[-1], 3),
                          slowest_rank=own.index(ordered[-1]), own_ms=[round(ms, 2) for ms in own])
            if step % max(1, args.steps // 20) == 0:
                yield row(event="eval", step=step, val_loss=3.1 + 7 * math.exp(-8 * step / args.steps), eval_ms=2500.0)
            if step % max(1, args.steps // 10) == 0:
                yield row(event="checkpoint", step=step, bytes=3 << 30, stall_ms=1800.0, write_ms=1500.0)

    yield launch(0)
    yield row(event="memory", step=10, peak_bytes=1580 << 20, peak_by_role={name: int(bytes * 0.99) for name, bytes in planned.items()})
    killed, again = round(0.8 * args.steps), round(0.75 * args.steps)
    yield from part(1, killed)
    yield row(event="resumed", **{"from": again}, checkpoint=f"checkpoints/step-{again:08}", ranks=args.ranks)
    yield launch(again)
    yield from part(again + 1, args.steps)
    yield '{"event":"step","st'  # a line that a kill cut short


def trace(path, rank, bytes_wanted, rng):
    """As src/device/tracer.cpp writes it: steps 10 to 12, streams compute, unshard, post_backward."""
    streams = ["compute", "unshard", "post_backward"]
    with path.open("w") as file:
        file.write('{"displayTimeUnit":"ms","metadata":{"first_ns":1000},"traceEvents":[\n')
        file.write(f'{{"ph":"M","pid":{rank},"name":"process_name","args":{{"name":"rank {rank}"}}}}')
        for row, name in enumerate(streams):
            file.write(f',\n{{"ph":"M","pid":{rank},"tid":{row},"name":"thread_name","args":{{"name":"{name}"}}}}')

        def event(row, name, kind, begin, length, bytes=0):
            args = f',"args":{{"bytes":{bytes}}}' if bytes else ""
            file.write(f',\n{{"ph":"X","pid":{rank},"tid":{row},"name":"{name}","cat":"{kind}","ts":{begin:.3f},"dur":{length:.3f}{args}}}')

        units, tasks = 24, max(4, bytes_wanted // 3 // 2 // 24 // 95)
        for step in (10, 11, 12):
            start, now = (step - 10) * 2e5, (step - 10) * 2e5
            for phase, length in (("forward", 2500), ("backward", 5000)):
                for i in range(units):
                    unit = f"h.{i if phase == 'forward' else units - 1 - i}"
                    event(1, f"all_gather {unit}", "task", max(start, now - 2000), 1900, 4 << 20)
                    wait = 300 if i == 0 else 40 + (200 if rank == 1 else 0)
                    event(0, "wait", "wait", now, wait)
                    for task in range(tasks):
                        event(0, f"matmul {unit}" if task % 2 else f"gelu {unit}", "task", now + wait + task * length / tasks, 0.9 * length / tasks)
                    event(0, f"{unit} {phase}", "range", now, wait + length)
                    now += wait + length
                    if phase == "backward":
                        event(2, f"reduce_scatter {unit}", "task", now, 2100 + rng.random() * 100, 4 << 20)
            event(0, "wait", "wait", now, 2300)
            event(0, "adamw", "task", now + 2300, 4000)
            event(0, f"step {step} whole", "range", start, now + 6300 - start)
        file.write("\n]}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--trace-mb", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    args.folder.mkdir(parents=True, exist_ok=True)
    with (args.folder / "metrics.jsonl").open("w") as file:
        for line in rows(args, rng):
            file.write(line + "\n")
    with (args.folder / "log.txt").open("w") as file:
        file.write("mica-train 0.1.0\n" + f"step {10:>6}/{args.steps}  loss 9.9000  lr 3.00e-04\n")
        file.write("warning: rank 5 has fewer cores than threads </script><b>not bold</b>\n" * 3 + "mica: error: rank 3 was lost\n")
    for rank in range(args.ranks if args.trace_mb else 0):
        trace(args.folder / f"trace-rank{rank}.json", rank, int(args.trace_mb * 1e6 / args.ranks), rng)


if __name__ == "__main__":
    main()
