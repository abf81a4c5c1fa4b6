# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a model that has been through a checkpoint, as transformers loads it: the same ids as before and as Mica's own.

    check_tokenizer.py TOKEN_IDS MICA_CONVERT tests/reference
"""
import json, os, pathlib, shutil, subprocess, sys, tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

# Model, tokenizer, what tokenizer_config.json says of its class.
CASES = [("gpt2", "gpt2", "GPT2Tokenizer"), ("gpt2_untied", "gpt2_prefix", "PreTrainedTokenizerFast"),
         ("llama", "llama3", "PreTrainedTokenizerFast")]


def end_of_text(reference, tokenizer):
    """<|endoftext|>, or the first special token that there is."""
    added = json.loads((reference / "tokenizers" / f"{tokenizer}.tokenizer.json").read_text())["added_tokens"]
    special = [token for token in added if token["special"]]
    return next((token for token in special if token["content"] == "<|endoftext|>"), special[0])


def make_source(reference, folder, model, tokenizer, tokenizer_class):
    shutil.copytree(reference / f"hf_{model}", folder)
    end = end_of_text(reference, tokenizer)
    shutil.copy(reference / "tokenizers" / f"{tokenizer}.tokenizer.json", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class, "eos_token": end["content"],
                                                              "bos_token": end["content"]}))
    config = json.loads((folder / "config.json").read_text())
    config["bos_token_id"] = config["eos_token_id"] = end["id"]
    (folder / "config.json").write_text(json.dumps(config))
    return end["id"]


def check(token_ids, convert, reference, folder, model, tokenizer, tokenizer_class):
    source, exported = folder / f"{model}.source", folder / f"{model}.exported"
    end = make_source(reference, source, model, tokenizer, tokenizer_class)
    subprocess.run([convert, "hf-import", source, folder / f"{model}.checkpoint"], check=True, stdout=subprocess.DEVNULL)
    shutil.move(source, folder / f"{model}.kept")  # what is exported comes out of the checkpoint
    subprocess.run([convert, "hf-export", folder / f"{model}.checkpoint", exported], check=True, stdout=subprocess.DEVNULL)

    before, after = AutoTokenizer.from_pretrained(folder / f"{model}.kept"), AutoTokenizer.from_pretrained(exported)
    assert type(after) is type(before), f"{model}: {type(after)}, before {type(before)}"
    for name, config in (("config.json", AutoConfig.from_pretrained(exported)),
                         ("generation_config.json", GenerationConfig.from_pretrained(exported))):
        assert (config.bos_token_id, config.eos_token_id) == (end, end), f"{model}: {name} has other bos and eos than {end}"
    assert (after.bos_token_id, after.eos_token_id) == (end, end), f"{model}: the tokenizer has other bos and eos than {end}"

    cases = json.loads((reference / "tokenizers" / "ids.json").read_text())["files"][f"{tokenizer}.tokenizer.json"]["cases"]
    texts = [case["text"] for case in cases]
    said = subprocess.run([token_ids, exported / "tokenizer.json"], input="".join(text + "\n" for text in texts), check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    ours = [[int(word) for word in line.split()] for line in said.split("\n")[:-1]]
    assert len(ours) == len(texts) > 100
    for text, ids in zip(texts, ours):
        text = bytes.fromhex(text).decode()
        theirs = after(text, add_special_tokens=False)["input_ids"]
        assert theirs == before(text, add_special_tokens=False)["input_ids"], f"{model}: other ids after the export: {text!r}"
        assert theirs == ids, f"{model}: {text!r} is {ids} here and {theirs} there"
    return len(texts)


def main():
    token_ids, convert, reference = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        count = sum(check(token_ids, convert, pathlib.Path(reference), pathlib.Path(folder), *case) for case in CASES)
    print(f"{count} texts: the ids of transformers {transformers.__version__}")


main()
