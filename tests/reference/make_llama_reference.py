# SPDX-License-Identifier: Apache-2.0
"""Writes what Hugging Face's LlamaForCausalLM says about two small Llamas: logits, loss, gradients.

    python3 -m venv hf && hf/bin/pip install torch transformers
    hf/bin/python tests/reference/make_llama_reference.py            (rewrites the two files beside this script)

llama_tied.safetensors, llama_untied.safetensors, in the layout of make_gpt2_reference.py. Computed in float64 from float32
weights; the library itself goes through float32 in its norms and rotary angles, so that the last digit of the stored
float32 is not exact. Tensors:
    ids, targets          i32 [1, batch, seq_len]; targets of -1 are ignored, the loss is divided by ALL rows
    weight.NAME           Hugging Face's names, every matrix [out, in]
    grad.NAME             of the loss
    logits                f32 [batch * seq_len, vocab_size]
__metadata__: config (in Mica's words), loss, and inv_freq: the rotary frequencies that the library made of the config.
The weights are larger than the usual initial ones, so that no part of the gradient is near zero by accident.
"""
import pathlib

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from make_gpt2_reference import write

BATCH, SEQ_LEN = 2, 21
MODELS = {
    # Of the three frequencies of a head the first is kept, the second interpolated, the last divided by the factor.
    "llama_tied": dict(layers=2, heads=4, kv_heads=2, head_dim=6, width=24, hidden=40, context=128, vocab_size=37, tied=True,
                       rms_eps=1e-5, rope_theta=100.0, rope_scaling="llama3", rope_factor=8.0, rope_low_freq_factor=1.0,
                       rope_high_freq_factor=4.0, rope_original_context=64),
    # A head size of its own, and queries wider than the model.
    "llama_untied": dict(layers=2, heads=6, kv_heads=2, head_dim=8, width=24, hidden=28, context=32, vocab_size=29, tied=False,
                         rms_eps=1e-6, rope_theta=10000.0, rope_scaling="none"),
}


def make_model(config):
    rope = dict(rope_type="default", rope_theta=config["rope_theta"])
    if config["rope_scaling"] == "llama3":
        rope = dict(rope_type="llama3", rope_theta=config["rope_theta"], factor=config["rope_factor"],
                    low_freq_factor=config["rope_low_freq_factor"], high_freq_factor=config["rope_high_freq_factor"],
                    original_max_position_embeddings=config["rope_original_context"])
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=config["vocab_size"], hidden_size=config["width"], intermediate_size=config["hidden"],
        num_hidden_layers=config["layers"], num_attention_heads=config["heads"], num_key_value_heads=config["kv_heads"],
        head_dim=config["head_dim"], max_position_embeddings=config["context"], rms_norm_eps=config["rms_eps"],
        tie_word_embeddings=config["tied"], rope_theta=config["rope_theta"], rope_parameters=rope,
        rope_scaling=None if config["rope_scaling"] == "none" else rope, attn_implementation="sdpa"))
    return model.double()


def main():
    for seed, (name, config) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(4321 + seed)
        model = make_model(config)
        parameters = dict(model.named_parameters())  # a tied head's weight is there once
        with torch.no_grad():
            for parameter_name, p in parameters.items():
                noise = torch.randn(p.shape, generator=generator)
                p.copy_(noise * 0.3 if p.dim() == 2 else noise * 0.2 + 1.0)
        weights = {k: p.detach().clone() for k, p in parameters.items()}
        ids = torch.randint(0, config["vocab_size"], (1, BATCH, SEQ_LEN), generator=generator)
        targets = torch.randint(0, config["vocab_size"], (1, BATCH, SEQ_LEN), generator=generator)
        if not config["tied"]:
            targets[:, 1, 3:6] = -1
        logits = model(ids[0]).logits.flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="sum") / targets.numel()
        loss.backward()
        tensors = {"ids": ids, "targets": targets, "logits": logits}
        tensors.update({f"weight.{k}": v for k, v in weights.items()})
        tensors.update({f"grad.{k}": p.grad for k, p in parameters.items()})
        inv_freq = model.model.rotary_emb.inv_freq.double().tolist()
        path = pathlib.Path(__file__).with_name(name + ".safetensors")
        write(path, tensors, dict(config=config, loss=loss.item(), inv_freq=inv_freq))
        print(f"{path.name}: {path.stat().st_size} bytes, loss {loss.item():.6f}, frequencies {inv_freq}")


if __name__ == "__main__":
    main()
