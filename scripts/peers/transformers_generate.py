#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of transformers' generate(), to run in turns with mica-generate on the same folder, both with one thread:

    python3 -m venv peer && peer/bin/pip install torch transformers
    taskset -c 0 peer/bin/python scripts/peers/transformers_generate.py FOLDER --dtype bf16 --batch 8
    taskset -c 0 build/release/bin/mica-generate FOLDER --prompts=prompts.jsonl --print-ids --ignore-end --threads=1 --dtype=bf16 > ids.txt

--write-model makes FOLDER first: a random gpt2-124m. --write-prompts FILE writes the prompts for mica-generate. Prints one JSON line;
prompts are read in a call of their own, whose time is taken off.
"""
import argparse, json, pathlib, time

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--write-model", action="store_true")
    parser.add_argument("--write-prompts", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=100, help="new tokens of each")
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    torch.manual_seed(1)
    if flags.write_model:
        GPT2LMHeadModel(GPT2Config()).save_pretrained(flags.folder)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[flags.dtype]
    model = AutoModelForCausalLM.from_pretrained(flags.folder, dtype=dtype).eval()
    prompts = torch.randint(model.config.vocab_size, (flags.batch, flags.prompt), generator=torch.Generator().manual_seed(7))
    if flags.write_prompts:
        flags.write_prompts.write_text("".join(json.dumps({"ids": row}) + "\n" for row in prompts.tolist()))

    def seconds(new):
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=new, min_new_tokens=new,
                           pad_token_id=0)
        return time.perf_counter() - start

    seconds(4)  # warms up
    prompt_s, all_s = seconds(1), seconds(flags.new)
    new_s = all_s - prompt_s
    print(json.dumps({"peer": "transformers", "dtype": flags.dtype, "batch": flags.batch, "threads": flags.threads,
                      "prompt_tokens_per_s": flags.batch * flags.prompt / prompt_s,
                      "new_tokens_per_s": flags.batch * (flags.new - 1) / new_s}))


if __name__ == "__main__":
    main()
