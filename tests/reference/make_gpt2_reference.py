# SPDX-License-Identifier: Apache-2.0
"""Writes what PyTorch says about two small GPT-2s: losses, gradients, and a few optimizer steps.

    python3 -m venv torch && torch/bin/pip install torch
    torch/bin/python tests/reference/make_gpt2_reference.py            (rewrites the two files beside this script)

gpt2_tied.safetensors, gpt2_untied.safetensors: the safetensors layout (8 bytes header length, JSON header, raw data), so
that anything can read them. Computed in float64 from float32 weights, stored as float32: the reference itself is exact
to its last digit. Tensors:
    ids, targets          i32 [steps, batch, seq_len]; targets of -1 are ignored, the loss is divided by ALL rows
    weight.NAME           the start (names as in Hugging Face's GPT-2, every matrix [out, in])
    grad.NAME             of the first batch's loss
    sgd.NAME              after the SGD steps (tied model only)
__metadata__: config, loss, and for "sgd" and "adamw" the hyperparameters, the loss before each step and its gradient norm.
The weights are larger than GPT-2's initial ones, so that no part of the gradient is near zero by accident.
"""
import json, pathlib, struct

import torch
import torch.nn.functional as F

STEPS, BATCH, SEQ_LEN = 5, 2, 13
MODELS = {
    "gpt2_tied": dict(layers=2, heads=3, width=24, context=16, vocab_size=37, tied=True),
    "gpt2_untied": dict(layers=1, heads=2, width=10, context=13, vocab_size=29, tied=False),
}
SGD = dict(lr=0.05, momentum=0.9, weight_decay=0.1)
ADAMW = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0)


def make_weights(config, generator):
    width, shapes = config["width"], {}
    shapes["transformer.wte.weight"] = (config["vocab_size"], width)
    shapes["transformer.wpe.weight"] = (config["context"], width)
    for i in range(config["layers"]):
        block = f"transformer.h.{i}."
        for name, rows, cols in (("attn.c_attn", 3 * width, width), ("attn.c_proj", width, width),
                                 ("mlp.c_fc", 4 * width, width), ("mlp.c_proj", width, 4 * width)):
            shapes[f"{block}{name}.weight"], shapes[f"{block}{name}.bias"] = (rows, cols), (rows,)
        for name in ("ln_1", "ln_2"):
            shapes[f"{block}{name}.weight"], shapes[f"{block}{name}.bias"] = (width,), (width,)
    shapes["transformer.ln_f.weight"], shapes["transformer.ln_f.bias"] = (width,), (width,)
    if not config["tied"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    weights = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        is_norm = ".ln_" in name
        weights[name] = noise * 0.3 if len(shape) == 2 else noise * 0.2 + (1.0 if is_norm and name.endswith("weight") else 0.0)
    return weights


def loss_of(w, config, ids, targets):
    heads, width = config["heads"], config["width"]
    batch, seq_len = ids.shape

    def norm(x, name):
        return F.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], eps=1e-5)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:seq_len]
    for i in range(config["layers"]):
        block = f"transformer.h.{i}."
        qkv = linear(norm(x, block + "ln_1"), block + "attn.c_attn")
        q, k, v = (t.reshape(batch, seq_len, heads, width // heads).transpose(1, 2) for t in qkv.split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, seq_len, width)
        x = x + linear(y, block + "attn.c_proj")
        h = F.gelu(linear(norm(x, block + "ln_2"), block + "mlp.c_fc"), approximate="tanh")
        x = x + linear(h, block + "mlp.c_proj")
    head = w["transformer.wte.weight"] if config["tied"] else w["lm_head.weight"]
    logits = F.linear(norm(x, "transformer.ln_f"), head)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    return loss / targets.numel()


def as_leaves(weights):
    return {name: value.double().clone().requires_grad_() for name, value in weights.items()}


def run(weights, config, ids, targets, make_optimizer, grad_clip):
    leaves = as_leaves(weights)
    groups = [dict(params=[p for p in leaves.values() if p.dim() == 2]),
              dict(params=[p for p in leaves.values() if p.dim() == 1], weight_decay=0.0)]
    optimizer = make_optimizer(groups)
    losses, norms = [], []
    for step in range(STEPS):
        loss = loss_of(leaves, config, ids[step], targets[step])
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(leaves.values(), grad_clip).item())
        optimizer.step()
        losses.append(loss.item())
    return leaves, losses, norms


def write(path, tensors, metadata):
    header, offset, blobs = {"__metadata__": {k: json.dumps(v) for k, v in metadata.items()}}, 0, []
    for name, tensor in tensors.items():
        dtype, kind = ("I32", torch.int32) if not tensor.dtype.is_floating_point else ("F32", torch.float32)
        blob = tensor.detach().to(kind).contiguous().numpy().tobytes()
        header[name] = dict(dtype=dtype, shape=list(tensor.shape), data_offsets=[offset, offset + len(blob)])
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def main():
    for seed, (name, config) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(1234 + seed)
        weights = make_weights(config, generator)
        ids = torch.randint(0, config["vocab_size"], (STEPS, BATCH, SEQ_LEN), generator=generator)
        targets = torch.randint(0, config["vocab_size"], (STEPS, BATCH, SEQ_LEN), generator=generator)
        if not config["tied"]:
            targets[:, 1, 3:6] = -1
        leaves = as_leaves(weights)
        loss = loss_of(leaves, config, ids[0], targets[0])
        loss.backward()
        sgd, sgd_losses, sgd_norms = run(
            weights, config, ids, targets, lambda g: torch.optim.SGD(g, **SGD), float("inf"))
        adamw = dict(lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"],
                     weight_decay=ADAMW["weight_decay"])
        _, adamw_losses, adamw_norms = run(
            weights, config, ids, targets, lambda g: torch.optim.AdamW(g, **adamw), ADAMW["grad_clip"])
        tensors = {"ids": ids, "targets": targets}
        tensors.update({f"weight.{k}": v for k, v in weights.items()})
        tensors.update({f"grad.{k}": v.grad for k, v in leaves.items()})
        if config["tied"]:
            tensors.update({f"sgd.{k}": v for k, v in sgd.items()})
        metadata = dict(config=config, loss=loss.item(), sgd=dict(SGD, losses=sgd_losses, grad_norms=sgd_norms),
                        adamw=dict(ADAMW, losses=adamw_losses, grad_norms=adamw_norms))
        path = pathlib.Path(__file__).with_name(name + ".safetensors")
        write(path, tensors, metadata)
        print(f"{path.name}: {path.stat().st_size} bytes, loss {loss.item():.6f}, sgd {sgd_losses}, adamw {adamw_losses}")


if __name__ == "__main__":
    main()
