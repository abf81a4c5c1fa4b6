# SPDX-License-Identifier: Apache-2.0
"""Writes what PyTorch says about whole runs of mica-train: losses, gradient norms, learning rates, validation losses.

    python3 -m venv torch && torch/bin/pip install numpy torch
    torch/bin/python tests/reference/make_training_reference.py            (rewrites training.json beside this script)

The runs start from the folder hf_gpt2 beside this script, read their sequences in order and are computed in float64.
    seq_len, train, val        tokens; sequence i is tokens [i * seq_len, i * seq_len + seq_len], the last one a target only
    start.train, start.val     each sequence's loss before the first step
    runs                       flags of mica-train; of each step lr, loss and grad_norm (before clipping);
                               val[step]: each validation sequence's loss after that step
Learning rates are computed here once more, by the formulas that docs and --help give. Gradients are clipped by
torch.nn.utils.clip_grad_norm_, steps are those of torch.optim.
"""
import json, math, pathlib, struct

import torch

from make_gpt2_reference import loss_of

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = dict(layers=2, heads=3, width=24, context=17, vocab_size=61, tied=True)
SEQ_LEN, GLOBAL_BATCH, STEPS, EVAL_INTERVAL = 12, 8, 6, 4
TRAIN_SEQUENCES, VAL_SEQUENCES = 40, 20  # 6 steps of 8 go past an epoch
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # Hugging Face's Conv1D is [in, out]
RUNS = {
    "sgd, clipped": {"optim.type": "sgd", "optim.lr": 0.05, "optim.momentum": 0.9, "optim.nesterov": "true",
                     "optim.weight_decay": 0.1, "optim.grad_clip": 0.75, "optim.schedule": "cosine",
                     "optim.warmup_steps": 2, "optim.min_lr": 0.01},
    "sgd, not clipped": {"optim.type": "sgd", "optim.lr": 0.02, "optim.momentum": 0, "optim.weight_decay": 0.3,
                         "optim.grad_clip": 0, "optim.schedule": "linear", "optim.warmup_steps": 0, "optim.min_lr": 0.002},
    "adamw": {"optim.type": "adamw", "optim.lr": 3e-3, "optim.beta1": 0.8, "optim.beta2": 0.95, "optim.eps": 1e-6,
              "optim.weight_decay": 0.2, "optim.grad_clip": 1, "optim.schedule": "cosine", "optim.warmup_steps": 3,
              "optim.min_lr": 3e-4},
    "adam": {"optim.type": "adam", "optim.lr": 2e-3, "optim.beta1": 0.9, "optim.beta2": 0.99, "optim.eps": 1e-5,
             "optim.weight_decay": 0.1, "optim.grad_clip": 0, "optim.schedule": "constant", "optim.warmup_steps": 2},
}


def read_weights(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    weights = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensor = torch.frombuffer(bytearray(raw[8 + size + begin:8 + size + end]), dtype=torch.float32)
        tensor = tensor.reshape(entry["shape"])
        weights[name] = (tensor.t() if name.endswith(TRANSPOSED) else tensor).double().contiguous()
    return weights


def make_tokens(num_sequences, generator):
    # A walk through the vocabulary with some noise: there is something to learn, and sequences differ.
    steps = torch.randint(1, 6, (num_sequences * SEQ_LEN + 1,), generator=generator)
    return (torch.cumsum(steps, 0) % CONFIG["vocab_size"]).tolist()


def batch(tokens, sequences):
    rows = torch.tensor([tokens[i * SEQ_LEN:(i + 1) * SEQ_LEN + 1] for i in sequences])
    return rows[:, :-1], rows[:, 1:]


def losses_of_each(weights, tokens):
    with torch.no_grad():
        return [loss_of(weights, CONFIG, *batch(tokens, [i])).item() for i in range((len(tokens) - 1) // SEQ_LEN)]


def lr_of(step, o):
    warmup, lr, low = o["optim.warmup_steps"], o["optim.lr"], o.get("optim.min_lr", 0.0)
    if step <= warmup:
        return lr * step / warmup
    x = (step - warmup) / (STEPS - warmup)
    shape = o["optim.schedule"]
    if shape == "cosine":
        return low + (lr - low) * 0.5 * (1 + math.cos(math.pi * x))
    return lr - (lr - low) * x if shape == "linear" else lr


def make_optimizer(leaves, o):
    decay = o["optim.weight_decay"]
    groups = [dict(params=[p for p in leaves.values() if p.dim() == 2], weight_decay=decay),
              dict(params=[p for p in leaves.values() if p.dim() == 1], weight_decay=0.0)]
    if o["optim.type"] == "sgd":
        return torch.optim.SGD(groups, lr=1.0, momentum=o["optim.momentum"], nesterov=o.get("optim.nesterov") == "true")
    make = torch.optim.AdamW if o["optim.type"] == "adamw" else torch.optim.Adam
    return make(groups, lr=1.0, betas=(o["optim.beta1"], o["optim.beta2"]), eps=o["optim.eps"])


def run(weights, train, val, o):
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimizer = make_optimizer(leaves, o)
    result = {"flags": o, "lr": [], "loss": [], "grad_norm": [], "val": {}}
    for step in range(1, STEPS + 1):
        sequences = [((step - 1) * GLOBAL_BATCH + j) % TRAIN_SEQUENCES for j in range(GLOBAL_BATCH)]
        loss = loss_of(leaves, CONFIG, *batch(train, sequences))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(leaves.values(), o["optim.grad_clip"] or float("inf"))
        lr = lr_of(step, o)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        result["lr"].append(lr)
        result["loss"].append(loss.item())
        result["grad_norm"].append(norm.item())
        if step % EVAL_INTERVAL == 0 or step == STEPS:
            result["val"][str(step)] = losses_of_each(leaves, val)
    return result


def main():
    generator = torch.Generator().manual_seed(77)
    weights = read_weights(HERE / "hf_gpt2" / "model.safetensors")
    train, val = make_tokens(TRAIN_SEQUENCES, generator), make_tokens(VAL_SEQUENCES, generator)
    runs = {name: run(weights, train, val, options) for name, options in RUNS.items()}
    with open(HERE / "training.json", "w") as file:
        json.dump({"seq_len": SEQ_LEN, "global_batch": GLOBAL_BATCH, "steps": STEPS, "eval_interval": EVAL_INTERVAL,
                   "train": train, "val": val,
                   "start": {"train": losses_of_each(weights, train), "val": losses_of_each(weights, val)}, "runs": runs},
                  file, indent=1)
        file.write("\n")
    for name, result in runs.items():
        print(name, "loss", [round(x, 4) for x in result["loss"]], "norm", [round(x, 3) for x in result["grad_norm"]])


if __name__ == "__main__":
    main()
