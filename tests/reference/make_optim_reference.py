# SPDX-License-Identifier: Apache-2.0
"""Makes tests/reference/optim.txt with PyTorch: optimizers over five steps, and clipping by the global norm.

    python tests/reference/make_optim_reference.py > tests/reference/optim.txt

Lines: "case NAME key=value...", then "init", and for every step "grad" and "param", each followed by the two tensors of
the model, flattened: a 5x3 matrix that decays, then a vector of 4 that does not. Then "clip p=P max_norm=M norm=N
coefficient=C" lines, on the gradients "clip_grad". Numbers are float32, printed so that they read back exactly.
"""

import torch

STEPS = 5
SHAPES = [(5, 3), (4,)]

CASES = [
    ("adamw", dict(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)),
    ("adamw", dict(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0)),
    ("adamw", dict(beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=1.5)),
    ("adam", dict(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0)),
    ("adam", dict(beta1=0.9, beta2=0.95, eps=1e-6, weight_decay=0.3)),
    ("sgd", dict(momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=0)),
    ("sgd", dict(momentum=0.0, dampening=0.0, weight_decay=0.2, nesterov=0)),
    ("sgd", dict(momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=0)),
    ("sgd", dict(momentum=0.9, dampening=0.25, weight_decay=0.1, nesterov=0)),
    ("sgd", dict(momentum=0.8, dampening=0.0, weight_decay=0.1, nesterov=1)),
]


def make_optimizer(kind, options, params, lr):
    options = dict(options)
    weight_decay = options.pop("weight_decay")
    groups = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0},
    ]
    if kind == "sgd":
        options["nesterov"] = bool(options["nesterov"])
        return torch.optim.SGD(groups, lr=lr, **options)
    betas = (options.pop("beta1"), options.pop("beta2"))
    make = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    return make(groups, lr=lr, betas=betas, **options)


def line(name, tensors):
    values = torch.cat([t.detach().reshape(-1) for t in tensors]).tolist()
    print(name, " ".join(f"{v:.9g}" for v in values))


def main():
    generator = torch.Generator().manual_seed(20240607)
    for kind, options in CASES:
        lr = 0.1 if kind == "sgd" else 0.02
        print("case", kind, f"lr={lr}", *(f"{k}={v}" for k, v in options.items()))
        params = [torch.randn(s, generator=generator).requires_grad_() for s in SHAPES]
        optimizer = make_optimizer(kind, options, params, lr)
        line("init", params)
        for _ in range(STEPS):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            line("grad", [p.grad for p in params])
            optimizer.step()
            line("param", params)

    params = [torch.zeros(s).requires_grad_() for s in SHAPES]
    grads = [torch.randn(s, generator=generator) for s in SHAPES]
    line("clip_grad", grads)
    for p_norm in (1.0, 2.0, 3.0, float("inf")):
        for max_norm in (0.5, 100.0):
            for p, g in zip(params, grads):
                p.grad = g.clone()
            norm = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type=p_norm)
            coefficient = min(1.0, max_norm / (norm.item() + 1e-6))
            torch.testing.assert_close(params[0].grad, grads[0] * coefficient)
            print(f"clip p={p_norm} max_norm={max_norm} norm={norm.item():.9g} coefficient={coefficient:.9g}")


main()
