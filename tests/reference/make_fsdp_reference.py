# SPDX-License-Identifier: Apache-2.0
"""Makes tests/reference/fsdp.json with PyTorch's own FullyShardedDataParallel, on 2 processes over gloo.

    python tests/reference/make_fsdp_reference.py tests/reference/fsdp.json

The model: body.up Linear(6, 10), GELU (tanh), body.down Linear(10, 8), head.weight [5, 8] without bias, mean
cross-entropy in fp32. body.extra Linear(8, 2) is never called. Lists are flattened tensors; floats read back exactly.
  uneven   3x3 Linear without bias over 2 ranks (5 + 4 elements), loss = sum of outputs, one SGD step
  clip     norms and clipped gradients: body.up FULL_SHARD, body.down NO_SHARD, the rest FULL_SHARD
  mixed    losses of each rank over a few SGD steps, by param_dtype and reduce_dtype
  optim    keys, kinds and groups of full_optim_state_dict, by name and by id
"""

import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, OptimStateKeyType, ShardingStrategy

WORLD = 2
ROWS = 4
CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Module()
        self.body.up = nn.Linear(6, 10)
        self.body.down = nn.Linear(10, 8)
        self.body.extra = nn.Linear(8, 2)
        self.head = nn.Linear(8, 5, bias=False)

    def forward(self, x, targets):
        h = self.body.down(nn.functional.gelu(self.body.up(x), approximate="tanh"))
        return nn.functional.cross_entropy(self.head(h).float(), targets)


def make_model():
    torch.manual_seed(5)
    return Model()


def inputs(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 6, generator=generator), torch.randint(0, 5, (ROWS,), generator=generator)


def flat(tensor):
    return tensor.detach().float().reshape(-1).tolist()


def shard(model, strategies=None, **options):
    options = {"device_id": CPU, "use_orig_params": True, **options}
    for name, strategy in (strategies or {"up": ShardingStrategy.FULL_SHARD}).items():
        setattr(model.body, name, FSDP(getattr(model.body, name), sharding_strategy=strategy, **options))
    return FSDP(model, **options)


def clean(name):
    return name.replace("_fsdp_wrapped_module.", "")


def full_gradients(model):
    with FSDP.summon_full_params(model, with_grads=True):
        return {clean(n): flat(p.grad) for n, p in model.named_parameters() if p.grad is not None}


def uneven(rank):
    torch.manual_seed(9)
    linear = nn.Linear(3, 3, bias=False)
    result = {"lr": 0.1, "weight": flat(linear.weight)}
    xs = [torch.randn(2, 3, generator=torch.Generator().manual_seed(r)) for r in range(WORLD)]
    result["inputs"] = [flat(x) for x in xs]
    model = FSDP(linear, device_id=CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=result["lr"])
    model(xs[rank]).sum().backward()
    optimizer.step()
    with FSDP.summon_full_params(model):
        result["stepped"] = flat(linear.weight)
    return result


def clip(rank):
    cases = []
    for p in (1.0, 2.0, 3.0, float("inf")):
        for max_norm in (0.05, 100.0):
            strategies = {"up": ShardingStrategy.FULL_SHARD, "down": ShardingStrategy.NO_SHARD}
            model = shard(make_model(), strategies)
            model(*inputs(0, rank)).backward()
            norm = model.clip_grad_norm_(max_norm, norm_type=p)
            cases.append({"p": str(p), "max_norm": max_norm, "norm": norm.item(), "gradients": full_gradients(model)})
    return cases


def mixed(rank):
    cases = []
    for param, reduce in (("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp16")):
        precision = MixedPrecision(param_dtype=DTYPES[param], reduce_dtype=DTYPES[reduce])
        model = shard(make_model(), mixed_precision=precision)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        losses = []
        for step in range(6):
            optimizer.zero_grad()
            loss = model(*inputs(step, rank))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().reshape(1))
        mine = torch.cat(losses)
        everyone = [torch.zeros_like(mine) for _ in range(WORLD)]
        dist.all_gather(everyone, mine)
        cases.append({"param_dtype": param, "reduce_dtype": reduce, "losses": [flat(each) for each in everyone]})
    return cases


def optimizer_groups(model, by_bias):
    named = list(model.named_parameters())
    if not by_bias:
        return [p for _, p in named]
    return [{"params": [p for n, p in named if n.endswith("weight")]},
            {"params": [p for n, p in named if n.endswith("bias")], "weight_decay": 0.0}]


def optim(rank):
    cases = []
    for name, kind, by_bias, frozen in (("adam", "adam", False, []), ("momentum in two groups", "momentum", True, []),
                                        ("adam with frozen", "adam", True, ["body.down.bias"]), ("sgd", "sgd", False, [])):
        module = make_model()
        for n, p in module.named_parameters():
            p.requires_grad_(n not in frozen)
        model = shard(module)
        groups = optimizer_groups(model, by_bias)
        optimizer = (torch.optim.AdamW(groups, lr=0.01) if kind == "adam" else
                     torch.optim.SGD(groups, lr=0.01, momentum=0.9 if kind == "momentum" else 0.0))
        for step in range(3):
            optimizer.zero_grad()
            model(*inputs(step, rank)).backward()
            optimizer.step()
        full = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
        by_id = FSDP.rekey_optim_state_dict(full, OptimStateKeyType.PARAM_ID, model, optim=optimizer)
        state = {}
        for key, kinds in full["state"].items():
            state[key] = {k: (v.item() if v.dim() == 0 else list(v.shape)) for k, v in kinds.items() if v is not None}
        cases.append({"name": name, "kind": kind, "by_bias": by_bias, "frozen": frozen, "state": state,
                      "groups": [g["params"] for g in full["param_groups"]],
                      "ids": list(by_id["state"].keys()), "id_groups": [g["params"] for g in by_id["param_groups"]]})
    return cases


def run(rank, path):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29617", RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    module = make_model()
    result = {
        "pytorch": torch.__version__,
        "parameters": {n: flat(p) for n, p in module.named_parameters()},
        "inputs": [[{"x": flat(x), "targets": t.tolist()} for x, t in (inputs(s, r) for r in range(WORLD))] for s in range(6)],
        "uneven": uneven(rank),
        "clip": clip(rank),
        "mixed": mixed(rank),
        "optim": optim(rank),
    }
    if rank == 0:
        with open(path, "w") as file:
            json.dump(result, file, separators=(",", ":"))
            file.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1],), nprocs=WORLD)
