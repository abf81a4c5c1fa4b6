# SPDX-License-Identifier: Apache-2.0
"""How fast nanoGPT's model trains on this machine: one process, its own optimizer settings, clipping at 1, as its train.py does.

    git clone https://github.com/karpathy/nanoGPT
    peer/bin/python nanogpt.py --nanogpt nanoGPT --model gpt2-124m --batch 8 --seq 256 --threads 2

Its bench.py needs a GPU. Prints one JSON line, as torch_fsdp.py does, whose sizes these are.
"""
import argparse, json, statistics, sys, time

from torch_fsdp import MODELS, memory_bytes


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nanogpt", required=True, help="a checkout of it")
    ap.add_argument("--model", default="gpt2-124m", choices=MODELS)
    ap.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    for name, default in dict(threads=1, batch=4, seq=256, steps=6, warmup=2).items():
        ap.add_argument(f"--{name}", type=int, default=default)
    args = ap.parse_args()
    import torch
    sys.path.insert(0, args.nanogpt)
    from model import GPT, GPTConfig
    torch.set_num_threads(args.threads)
    base = memory_bytes("VmRSS")
    torch.manual_seed(1337)
    layers, heads, width, vocab, context = MODELS[args.model]
    model = GPT(GPTConfig(block_size=context, vocab_size=vocab, n_layer=layers, n_head=heads, n_embd=width, dropout=0.0, bias=True))
    optimizer = model.configure_optimizers(weight_decay=0.1, learning_rate=6e-4, betas=(0.9, 0.95), device_type="cpu")
    batches = [torch.randint(0, vocab, (args.batch, args.seq + 1)) for _ in range(2)]
    times, losses = [], []
    for step in range(args.steps + args.warmup):
        ids = batches[step % 2]
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            _, loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= args.warmup:
            times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    print(json.dumps(dict(peer="nanogpt", model=args.model, dtype=args.dtype, ranks=1, threads=args.threads, batch=args.batch, seq=args.seq,
                          step_ms=round(1e3 * seconds, 1), tokens_per_s=round(args.batch * args.seq / seconds, 1),
                          peak_mib=round((memory_bytes("VmHWM") - base) / 2**20), base_mib=round(base / 2**20),
                          first_loss=round(losses[0], 4), last_loss=round(losses[-1], 4))))


if __name__ == "__main__":
    sys.exit(main())
