#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of llama.cpp, greedy, on a GPT-2 folder of Hugging Face, to run in turns with mica-generate as transformers_generate.py is:

    peer/bin/pip install llama-cpp-python gguf torch transformers        # compiles llama.cpp
    taskset -c 0 peer/bin/python scripts/peers/llama_cpp_generate.py FOLDER --dtype bf16 --batch 8

Writes FOLDER/DTYPE.gguf first, with the folder's weights and a vocabulary of placeholders. The prompts are those of
transformers_generate.py. Prints one JSON line.
"""
import argparse, json, pathlib, time

import gguf
import llama_cpp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

BLOCK_NAMES = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
               "mlp.c_proj": "ffn_down"}
OTHER_NAMES = {"transformer.wte.weight": "token_embd.weight", "transformer.wpe.weight": "position_embd.weight",
               "transformer.ln_f.weight": "output_norm.weight", "transformer.ln_f.bias": "output_norm.bias"}


def gguf_name(name):
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    _, _, layer, *module, kind = name.split(".")
    return f"blk.{layer}.{BLOCK_NAMES['.'.join(module)]}.{kind}"


def write_gguf(path, folder, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"token{i}" for i in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges(["a b"])
    for name, tensor in model.named_parameters():
        values = tensor.detach().numpy()
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            values = np.ascontiguousarray(values.T)  # transformers' Conv1D keeps [in, out]
        is_low = dtype == "bf16" and values.ndim == 2 and "wpe" not in name
        kind = gguf.GGMLQuantizationType.BF16 if is_low else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Generator:
    def __init__(self, path, batch, context, threads):
        llama_cpp.llama_log_set(SILENT, None)
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_seq_max = batch * context, batch * context, batch
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.tokens = llama_cpp.llama_batch_init(batch * context, 0, 1)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def step(self, rows, begin):
        """Greedy next tokens after these [batch][n] ones, which begin at that position."""
        batch, last = self.tokens, []
        batch.n_tokens = 0
        for sequence, row in enumerate(rows):
            for i, token in enumerate(row):
                k = batch.n_tokens
                batch.token[k], batch.pos[k], batch.n_seq_id[k], batch.seq_id[k][0] = token, begin + i, 1, sequence
                batch.logits[k] = i == len(row) - 1
                batch.n_tokens += 1
            last.append(batch.n_tokens - 1)
        assert llama_cpp.llama_decode(self.context, batch) == 0
        return [int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, k), (self.vocab_size,)).argmax()) for k in last]

    def generate(self, prompts, new):
        """@returns the new ids [batch][new], seconds for the prompts, seconds for what follows the first new token"""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        start = time.perf_counter()
        ids = [[token] for token in self.step(prompts, 0)]
        prompt_s = time.perf_counter() - start
        for n in range(new - 1):
            for row, token in zip(ids, self.step([row[-1:] for row in ids], len(prompts[0]) + n)):
                row.append(token)
        return ids, prompt_s, time.perf_counter() - start - prompt_s


SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=100, help="new tokens of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--print-ids", action="store_true")
    flags = parser.parse_args()
    path = flags.folder / f"{flags.dtype}.gguf"
    if not path.exists():
        write_gguf(path, flags.folder, flags.dtype)
    generator = Generator(path, flags.batch, flags.prompt + flags.new, flags.threads)
    prompts = torch.randint(generator.vocab_size, (flags.batch, flags.prompt), generator=torch.Generator().manual_seed(7)).tolist()
    generator.generate(prompts, 4)  # warms up
    ids, prompt_s, new_s = generator.generate(prompts, flags.new)
    if flags.print_ids:
        for row in ids:
            print(*row)
    print(json.dumps({"peer": "llama.cpp", "dtype": flags.dtype, "batch": flags.batch, "threads": flags.threads,
                      "prompt_tokens_per_s": flags.batch * flags.prompt / prompt_s,
                      "new_tokens_per_s": flags.batch * (flags.new - 1) / new_s}))


if __name__ == "__main__":
    main()
