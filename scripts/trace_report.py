#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the communication a traced run hid behind computing.

    scripts/trace_report.py runs/NAME                     every rank of a run
    scripts/trace_report.py runs/NAME/trace-rank0.json    these files

Reads what log.trace wrote (one file a rank). Exposed is the time that the compute stream waited for other streams; the
collectives' own time is that of all streams together, so more than the steps may be hidden behind them.
"""
import json
import pathlib
import re
import sys


def fail(text):
    print(f"mica: error: {text}", file=sys.stderr)
    sys.exit(2)


def files_of(path):
    """A run's folder means its traces, by rank."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("trace-rank*.json"), key=lambda file: int(re.sub(r"\D", "", file.name) or 0))
    if not found:
        fail(f"{path}: no trace-rank*.json there; they are written by a run with --log.trace=FIRST-LAST")
    return found


def report(path):
    try:
        events = json.loads(path.read_text())["traceEvents"]
    except OSError as error:
        fail(f"{path}: {error.strerror}; expected a run's folder or its trace-rank*.json")
    except (ValueError, KeyError, TypeError):
        fail(f"{path}: no trace of log.trace; expected a run's folder or its trace-rank*.json")
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    if not slices:
        fail(f"{path}: no events; was log.trace set to steps that the run did?")
    rank = slices[0]["pid"]
    span = max(e["ts"] + e["dur"] for e in slices) - min(e["ts"] for e in slices)
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "wait_for_written", "wait_for_released")
    collectives = [e for e in slices if e["cat"] == "task" and e["name"].split()[0] in kinds]
    busy = sum(e["dur"] for e in collectives)
    sent = sum(e.get("args", {}).get("bytes", 0) for e in collectives)
    exposed = sum(e["dur"] for e in slices if e["cat"] == "wait" and rows[e["tid"]] == "compute")
    exposed += sum(e["dur"] for e in collectives if rows[e["tid"]] == "compute")
    hidden = 100 * max(0.0, 1 - exposed / busy) if busy else 100
    print(f"rank {rank}: {span / 1e3:.2f} ms traced, {len(collectives)} collectives of {sent / 2**20:.1f} MiB took {busy / 1e3:.2f} ms, "
          f"exposed {exposed / 1e3:.2f} ms ({100 * exposed / span:.1f} % of the time), hidden {hidden:.0f} %")


if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
    print(__doc__)
    sys.exit(0 if len(sys.argv) > 1 else 2)
for argument in sys.argv[1:]:
    for each in files_of(pathlib.Path(argument)):
        report(each)
