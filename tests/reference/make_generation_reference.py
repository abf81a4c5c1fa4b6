# SPDX-License-Identifier: Apache-2.0
"""Has Hugging Face's transformers continue prompts with the models of make_hf_reference.py: for tests of mica-generate.

    venv/bin/python tests/reference/make_generation_reference.py            (rewrites generation.json beside this script)

generation.json: for each model, prompts, and for each prompt the greedy continuation, the one with a repetition penalty of 1.3, and
the log-likelihood of the greedy one and of another of as many tokens, computed in float64.
"""
import json, pathlib

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
NEW_TOKENS = {"gpt2": 9, "gpt2_untied": 7, "llama": 60, "llama_untied": 9}


def log_likelihood(model, context, continuation):
    ids = torch.tensor([context + continuation])
    with torch.no_grad():
        rows = torch.log_softmax(model(ids[:, :-1]).logits[0, len(context) - 1:], -1)
    return rows.gather(1, torch.tensor(continuation)[:, None]).sum().item()


def main():
    reference = {}
    for seed, (name, count) in enumerate(NEW_TOKENS.items()):
        model = AutoModelForCausalLM.from_pretrained(HERE / f"hf_{name}", dtype=torch.float64).eval()
        generator = torch.Generator().manual_seed(99 + seed)
        draw = lambda n: torch.randint(model.config.vocab_size, (n,), generator=generator).tolist()
        cases = reference[name] = []
        for length in (1, 3, 7):
            prompt = draw(length)
            generate = lambda **options: model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, length), do_sample=False,
                                                        max_new_tokens=count - (length - 1) * (count < 20), **options)[0, length:].tolist()
            greedy, other = generate(), draw(5)
            cases.append({"prompt": prompt, "greedy": greedy, "penalised": generate(repetition_penalty=1.3), "other": other,
                          "greedy_log_likelihood": log_likelihood(model, prompt, greedy),
                          "other_log_likelihood": log_likelihood(model, prompt, other)})
    lines = ",\n".join(f' "{name}": [\n' + ",\n".join("  " + json.dumps(case) for case in cases) + "]" for name, cases in reference.items())
    (HERE / "generation.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
