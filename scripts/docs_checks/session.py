# SPDX-License-Identifier: Apache-2.0
"""Runs a command and, when its time is up, ends all that it started: mpirun's ranks have process groups of their own."""
import os
import pathlib
import signal
import subprocess
import tempfile


def processes_of(session):
    """Process ids in a session. Programs leave process groups behind, but seldom their session."""
    members = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        state, session_of_process = fields[0], int(fields[3])
        if session_of_process == session and state not in "ZX":
            members.append(int(folder.name))
    return members


def end_session(session):
    while members := processes_of(session):  # one that is killed may just have started another
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_session(command, folder, environment, limit_s):
    """@returns what it wrote, and its exit status; None for a status when it had to be killed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            status = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_session(process.pid)
            process.wait()
        output.seek(0)
        return output.read().decode(errors="replace"), status
