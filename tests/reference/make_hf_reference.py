# SPDX-License-Identifier: Apache-2.0
"""Makes small random models with Hugging Face's transformers, and what they compute: for conversion and model tests.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/reference/make_hf_reference.py            (rewrites the folders hf_* beside this script)

hf_NAME/                    as save_pretrained() writes it: config.json, model*.safetensors (fp32)
hf_NAME.safetensors         ids, targets i32 [2, T]; logits f32 [2*T, vocab_size], computed in float64;
                            __metadata__: loss, the mean cross-entropy over all rows
Weights are larger than initial ones, and biases and norms are random too, so that nothing is near zero by accident.
"""
import json, pathlib, shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent

MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=61, n_positions=17, n_embd=24, n_layer=2, n_head=3,
                                         bos_token_id=None, eos_token_id=None), None),
    "gpt2_untied": (GPT2LMHeadModel, GPT2Config(vocab_size=37, n_positions=13, n_embd=20, n_layer=1, n_head=2,
                                                tie_word_embeddings=False, bos_token_id=None, eos_token_id=None), "9KB"),
    # Of the three frequencies of a head the first is kept, the second interpolated, the last divided by the factor.
    "llama": (LlamaForCausalLM, LlamaConfig(vocab_size=41, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                            num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=128,
                                            rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
                                            rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0,
                                                                 high_freq_factor=4.0, original_max_position_embeddings=64)), None),
    # A head size of its own, and queries wider than the model.
    "llama_untied": (LlamaForCausalLM, LlamaConfig(vocab_size=29, hidden_size=24, intermediate_size=28, num_hidden_layers=1,
                                                   num_attention_heads=6, num_key_value_heads=3, head_dim=8,
                                                   max_position_embeddings=16, rms_norm_eps=1e-6, tie_word_embeddings=False,
                                                   bos_token_id=None, eos_token_id=None), "9KB"),
}


def randomize(model, generator):
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.3 if parameter.dim() == 2 else noise * 0.2 + parameter)


def main():
    for seed, (name, (make, config, max_shard_size)) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(4321 + seed)
        model = make(config).eval()
        randomize(model, generator)
        folder = HERE / f"hf_{name}"
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, **({"max_shard_size": max_shard_size} if max_shard_size else {}))
        (folder / "generation_config.json").unlink(missing_ok=True)
        seq_len = min(40, config.max_position_embeddings - 1)
        text = torch.randint(config.vocab_size, (2, seq_len + 1), generator=generator)
        ids, targets = text[:, :-1], text[:, 1:]
        with torch.no_grad():
            logits = model.double()(ids).logits.flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten())
        save_file({"ids": ids.int().contiguous(), "targets": targets.int().contiguous(), "logits": logits.float()},
                  HERE / f"hf_{name}.safetensors", metadata={"loss": json.dumps(loss.item())})
        print(f"{name}: loss {loss.item():.6f}")
    for path in HERE.glob("hf_*/*"):
        path.chmod(0o644)
    for path in HERE.glob("hf_*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
