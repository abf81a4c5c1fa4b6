#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorBoard reads the event files that Mica writes: check_tensorboard.py EVENT_FILE MICA_CONVERT REFERENCE_FOLDER"""
import pathlib
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], folder], check=True)
    files = list(pathlib.Path(folder, "tensorboard").iterdir())
    assert len(files) == 2, files
    events = EventAccumulator(str(pathlib.Path(folder, "tensorboard")))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["speed/step_ms", "train/loss"], events.Tags()
    loss = [(e.step, round(e.value, 5), e.wall_time) for e in events.Scalars("train/loss")]
    # The second launch did steps 5 and 6 again.
    expected = [(s, round(10 / s, 5), 1.7e9 + s) for s in range(1, 5)] + [(s, round(20 / s, 5), 1.7e9 + 1000 + s) for s in range(5, 9)]
    assert loss == expected, loss
    assert [e.value for e in events.Scalars("speed/step_ms")] == [100.0 + s for s in range(1, 9)]
print("tensorboard: 16 scalars of two launches")
