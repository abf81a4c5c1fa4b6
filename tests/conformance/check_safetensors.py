# SPDX-License-Identifier: Apache-2.0
"""Mica's safetensors files beside the safetensors package, bit for bit, in both directions.

    check_safetensors.py SAFETENSORS_COPY MICA_CONVERT tests/reference
"""
import json, pathlib, random, subprocess, sys, tempfile

import numpy
import safetensors

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "F32": 4, "BF16": 2, "F16": 2}


def random_tensor(generator, dtype):
    """Any bits in 32; in 16 no NaN, whose payload a conversion may change."""
    shape = [generator.randint(1, 9) for _ in range(generator.randint(0, 4))]
    if generator.random() < 0.1:
        shape = shape + [0]
    if generator.random() < 0.1:
        shape = [generator.randint(1000, 4000)]
    numel = 1
    for dim in shape:
        numel *= dim
    data = bytearray(generator.randbytes(numel * WIDTH[dtype]))
    if dtype != "float32":
        for i in range(1, len(data), 2):
            data[i] &= 0xBF  # the highest bit of the exponent
    return dtype, shape, numpy.frombuffer(bytes(data), dtype=numpy.uint8)


def random_name(generator):
    return "".join(generator.choice('ab./_"\\\n é☃') for _ in range(generator.randint(1, 12)))


def as_dict(path):
    return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(path.read_bytes())}


def check_copies(copy, folder):
    """The package writes, Mica reads and writes, the package reads; both files have the same bytes."""
    for seed in range(60):
        generator = random.Random(seed)
        tensors = {random_name(generator): random_tensor(generator, generator.choice(["float32", "bfloat16", "float16"]))
                   for _ in range(generator.randint(0, 8))}
        metadata = {random_name(generator): random_name(generator)} if generator.random() < 0.5 else None
        theirs, ours = folder / f"{seed}.theirs", folder / f"{seed}.ours"
        safetensors.serialize_file(
            {name: safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=data.ctypes.data, data_len=data.nbytes)
             for name, (dtype, shape, data) in tensors.items()}, str(theirs), metadata)
        subprocess.run([copy, theirs, ours], check=True)
        assert as_dict(ours) == as_dict(theirs), f"seed {seed}: other tensors"
        assert ours.read_bytes() == theirs.read_bytes(), f"seed {seed}: other bytes"


def check_export(convert, reference, folder):
    """A folder of transformers' goes through a checkpoint and comes back."""
    for name in ("gpt2", "llama_untied"):
        original = {}
        for path in sorted((reference / f"hf_{name}").glob("*.safetensors")):
            original.update(as_dict(path))
        checkpoint, exported = folder / f"{name}.checkpoint", folder / f"{name}.hf"
        subprocess.run([convert, "hf-import", reference / f"hf_{name}", checkpoint], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([convert, "hf-export", checkpoint, exported, "--max-shard=8KB"], check=True, stdout=subprocess.DEVNULL)
        index = json.loads((exported / "model.safetensors.index.json").read_text())
        files = {file: as_dict(exported / file) for file in set(index["weight_map"].values())}
        assert len(files) > 1
        assert {tensor: files[file][tensor] for tensor, file in index["weight_map"].items()} == original, name
        assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in original.values()), name


def main():
    copy, convert, reference = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_copies(copy, pathlib.Path(folder))
        check_export(convert, pathlib.Path(reference), pathlib.Path(folder))
    print(f"equal to safetensors {safetensors.__version__}")


if __name__ == "__main__":
    main()
