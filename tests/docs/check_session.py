#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/docs_checks runs leaves nothing behind when its time is up.  check_session.py MPIRUN"""
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from docs_checks.session import run_session


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # The ranks ignore what mpirun and shells send first.
        rank = 'trap "" TERM HUP INT; echo $$ >> pids; echo begun; while :; do sleep 1; done'
        script = f"'{sys.argv[1]}' -np 2 sh -c '{rank}' & wait"
        limit_s = 2
        while not (folder / "pids").exists() or len((folder / "pids").read_text().split()) < 2:
            (folder / "pids").unlink(missing_ok=True)
            output, status = run_session(["bash", "-c", script], folder, os.environ, limit_s)
            limit_s *= 2  # a machine with other work
            assert limit_s < 200, f"mpirun starts no ranks here: {output}"
        pids = (folder / "pids").read_text().split()
        assert status is None and output.count("begun") == 2, f"status {status}: {output}"
        # MPICH gives ranks sessions of their own, and the kernel ends them with their launcher: soon, but not before run_session() returns.
        until = time.monotonic() + 20
        while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < until:
            time.sleep(0.01)
        assert not left, f"still running: {left}"
        assert run_session(["sh", "-c", "echo out; echo err >&2; exit 3"], folder, os.environ, 60) == ("out\nerr\n", 3)


main()
