# SPDX-License-Identifier: Apache-2.0
"""Compares model.h5 of checkpoints, as h5py sees it, with raw float32 files: read_model_h5.py EXPECTED_FOLDER MODEL_H5...

EXPECTED_FOLDER holds one file for each dataset, "/" in its name as "@"; its first line is the shape.
"""
import os
import sys

import h5py
import numpy


def datasets(file):
    found = {}
    file.visititems(lambda name, item: found.update({"/" + name: item}) if isinstance(item, h5py.Dataset) else None)
    return found


def main():
    expected = {}
    for name in os.listdir(sys.argv[1]):
        with open(os.path.join(sys.argv[1], name), "rb") as file:
            shape = [int(n) for n in file.readline().split()]
            expected[name.replace("@", "/")] = numpy.frombuffer(file.read(), dtype="<f4").reshape(shape)
    for path in sys.argv[2:]:
        with h5py.File(path, "r") as file:
            found = datasets(file)
            assert set(found) == set(expected), (path, set(found) ^ set(expected))
            for name, values in expected.items():
                assert found[name].is_virtual, (path, name)
                assert found[name].dtype == values.dtype, (path, name, found[name].dtype)
                assert found[name].shape == values.shape, (path, name, found[name].shape)
                assert numpy.array_equal(found[name][...], values), (path, name)
                corner = tuple(slice(0, n // 2 + 1) for n in values.shape)
                assert numpy.array_equal(found[name][corner], values[corner]), (path, name, corner)
    print("equal:", len(expected), "datasets in", len(sys.argv) - 2, "files")


main()
