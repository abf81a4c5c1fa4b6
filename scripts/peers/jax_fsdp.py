# SPDX-License-Identifier: Apache-2.0
"""How fast JAX trains a GPT-2 on this machine: one process, a CPU device for each rank, one jitted step.

    python3 -m venv peer && peer/bin/pip install jax torch numpy
    peer/bin/python jax_fsdp.py --ranks 2 --model gpt2-124m --batch 4 --seq 256

Parameters and AdamW's state are sharded over the devices by annotations, batches by sequence; the rest is XLA's. Random tokens, clipping
at 1. Prints one JSON line, as torch_fsdp.py does, whose models these are.
"""
import argparse, json, os, statistics, sys, time

from torch_fsdp import MODELS, memory_bytes


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="gpt2-124m", choices=MODELS)
    ap.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    for name, default in dict(ranks=2, batch=4, seq=256, steps=6, warmup=2).items():
        ap.add_argument(f"--{name}", type=int, default=default)
    args = ap.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={args.ranks}"
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    layers, heads, width, vocab, context = MODELS[args.model]
    mesh = Mesh(np.array(jax.devices()[:args.ranks]), ("ranks",))
    base = memory_bytes("VmRSS")
    numbers = np.random.default_rng(0)

    def sharded(array):
        """Along the first dim that the devices divide; vectors are replicated."""
        cut = next((i for i, size in enumerate(array.shape) if array.ndim > 1 and size % args.ranks == 0), None)
        spec = PartitionSpec(*["ranks" if i == cut else None for i in range(array.ndim)])
        return jax.device_put(array, NamedSharding(mesh, spec))

    def normal(*shape):
        return sharded((numbers.standard_normal(shape) * 0.02).astype("f"))

    def linear_of(rows, columns):
        return {"w": normal(rows, columns), "b": sharded(np.zeros(columns, "f"))}

    def norm_of():
        return {"g": sharded(np.ones(width, "f")), "b": sharded(np.zeros(width, "f"))}

    blocks = [{"ln_1": norm_of(), "qkv": linear_of(width, 3 * width), "proj": linear_of(width, width), "ln_2": norm_of(),
               "up": linear_of(width, 4 * width), "down": linear_of(4 * width, width)} for _ in range(layers)]
    params = {"wte": normal(vocab, width), "wpe": normal(context, width), "ln_f": norm_of(), "blocks": blocks}

    def norm(x, p):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * p["g"] + p["b"]

    def linear(x, p):
        return x @ p["w"] + p["b"]

    def loss_of(p, ids, targets):
        if args.dtype == "bf16":
            p = jax.tree.map(lambda x: x.astype(jnp.bfloat16), p)
        batch, seq = ids.shape
        x = p["wte"][ids] + p["wpe"][:seq]
        causal = jnp.tril(jnp.ones((seq, seq), bool))
        for block in p["blocks"]:
            q, k, v = (y.reshape(batch, seq, heads, width // heads).transpose(0, 2, 1, 3)
                       for y in jnp.split(linear(norm(x, block["ln_1"]), block["qkv"]), 3, -1))
            scores = (q @ k.transpose(0, 1, 3, 2)).astype(jnp.float32) * (width // heads) ** -0.5
            y = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), -1).astype(x.dtype) @ v
            x = x + linear(y.transpose(0, 2, 1, 3).reshape(batch, seq, width), block["proj"])
            x = x + linear(jax.nn.gelu(linear(norm(x, block["ln_2"]), block["up"])), block["down"])
        logits = (norm(x, p["ln_f"]) @ p["wte"].T).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()

    def train(state, ids, targets):
        p, first, second, count = state
        loss, grads = jax.value_and_grad(loss_of)(p, ids, targets)
        clip = jnp.minimum(1, 1 / (jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads))) + 1e-6))
        grads = jax.tree.map(lambda g: g * clip, grads)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, grads)
        step = lambda w, m, v: w - 3e-4 * (m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.95**count)) + 1e-8) + 0.1 * w)
        return (jax.tree.map(step, p, first, second), first, second, count), loss

    zeros = lambda: jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, "f"), x.sharding), params)
    state = (params, zeros(), zeros(), jnp.float32(0))
    tokens = numbers.integers(0, vocab, (2, args.ranks * args.batch, args.seq + 1)).astype("i")
    by_sequence = NamedSharding(mesh, PartitionSpec("ranks", None))
    batches = [(jax.device_put(t[:, :-1], by_sequence), jax.device_put(t[:, 1:], by_sequence)) for t in tokens]
    jitted = jax.jit(train, donate_argnums=0)
    times, losses = [], []
    for step in range(args.steps + args.warmup):
        begin = time.perf_counter()
        state, loss = jitted(state, *batches[step % 2])
        losses.append(float(loss))
        if step >= args.warmup:
            times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    print(json.dumps(dict(peer="jax", version=jax.__version__, model=args.model, dtype=args.dtype, ranks=args.ranks, batch=args.batch,
                          seq=args.seq, step_ms=round(1e3 * seconds, 1), tokens_per_s=round(args.ranks * args.batch * args.seq / seconds, 1),
                          peak_mib=round((memory_bytes("VmHWM") - base) / 2**20), base_mib=round(base / 2**20),
                          first_loss=round(losses[0], 4), last_loss=round(losses[-1], 4))))


if __name__ == "__main__":
    sys.exit(main())
