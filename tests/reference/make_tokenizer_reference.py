# SPDX-License-Identifier: Apache-2.0
"""Makes tests/reference/tokenizers/ with Hugging Face's tokenizers and with sentencepiece: small vocabularies, and the
ids that these packages give to texts that are easy to get wrong.

    pip install tokenizers sentencepiece
    python tests/reference/make_tokenizer_reference.py TEXT...

TEXT: files to learn the vocabularies from (any English text of a megabyte or so). In ids.json each text stands in hex,
for its odd characters; "bytes" beside "ids" is what the tokenizer itself decodes them to, where that differs. words.json
holds how long (in bytes) the words are into which the two patterns cut texts, and a checksum of what the patterns take for
letters, numbers and spaces among all code points below 0x40000.

    python tests/reference/make_tokenizer_reference.py --compare tokenizer.json|X.model TOKENS.train.h5 TEXT

compares a token file that `mica-tokenize --val-fraction=0` made with what the packages say of the whole text; for
SentencePiece, of its words one by one, since scores of a long text are rounded (a few tokens of unigram models).
"""
import json
import pathlib
import random
import re
import sys

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent / "tokenizers"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", "\r\n", "\t", "a", "Hello, world!", "Hello  world", "Hello   world  ", "  indented\n    more\n",
    "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T", "'s'S's's '' 'x 'r 're'", "rock 'n' roll''ll",
    "it'\u017f a long s, it'\u017fs", "1 12 123 1234 12345 1234567890", "3.14159, -2e10, 0x1F, 1st 2nd", "\u0661\u0662\u0663\u0664 \u00bd\u00b2 \u2167\u3007",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m", "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6f22\u5b57\u3000\u304b\u306a",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22", "\U0001f389 party \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd\u2764\ufe0f!!",
    "a\u00a0b \u2003c\u3000\u3000d\u2028e\u0085f\u200bg\ufeffh", "tabs\t\tand\x0bvertical\x0cfeeds \x1c\x1d\x1e\x1f end", "\x00\x01\x02\x7f control", "line one\r\nline two\r\n\r\nline four\r",
    "trailing spaces   \n   \n  x  \n\n\n   y", "a\n b\n  c\n\td\n \te", "!!! ??? ... --- === ###\n\n###", "#include <x>\nint main() { return 0; }  // end\n",
    "https://example.org/a?b=c&d=e#f user@host", "\u1c89\U00010d40\U000105c0 new in Unicode 15 and 16 \U000323b0 and 17", "x" * 300, "ab" * 200, " " * 100 + "x", "=" * 130 + "\n",
    "<|endoftext|>", "a<|endoftext|>b", "a <|endoftext|> b", "<|endoftext|><|endoftext|>", "<|endoftext", "x<mask>y", "x  <mask> \n y", "<mask><mask>  <mask>",
    "<tool>call</tool>", "<tool>", "<tool>s", "x <b> y<b>z", "<|eot|>< |eot|>", "\U0010ffff\ue000\ufffd", "\ufb06\u00df\u0130\u0131",
]


def random_texts(count):
    """Mixtures of what the patterns tell apart."""
    rng = random.Random(7)
    parts = ["'", "s", "S", "ll", "re", "x", "Zq", "\u00e9", "\u4e16", "\u0301", " ", "  ", "\t", "\n", "\r", "\u00a0", "\u3000", "1", "23", "\u00bd", ".", "!?",
             "\U0001f389", "\u200d", "<|endoftext|>", "<mask>", "<b>", "\u017f", "_", "-", "\x00", "\x85"]
    return ["".join(rng.choice(parts) for _ in range(rng.randint(2, 24))) for _ in range(count)]


def save(tokenizer, name, legacy_merges=False):
    path = OUT / f"{name}.tokenizer.json"
    data = json.loads(tokenizer.to_str())
    if legacy_merges:  # as files before tokenizers 0.20 spell them
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
        del data["model"]["type"]
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    return Tokenizer.from_file(str(path))


def train(files, pre_tokenizer, size, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train(files, trainer)
    return tokenizer


def make_gpt2(files):
    tokenizer = train(files, pre_tokenizers.ByteLevel(add_prefix_space=False), 3000, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return save(tokenizer, "gpt2", legacy_merges=True)


def make_gpt2_prefix(files):
    """A space before each text, and added tokens of every kind."""
    tokenizer = train(files, pre_tokenizers.ByteLevel(add_prefix_space=True), 600, ["<s>", "</s>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), "<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("<tool>call", normalized=True), AddedToken("<b>", rstrip=True, normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return save(tokenizer, "gpt2_prefix")


def make_llama3(files):
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    tokenizer = train(files, pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 3000, [])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>", "<|eot|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    # A word that merges cannot make: only ignore_merges finds it.
    data["model"]["merges"] = [pair for pair in data["model"]["merges"] if "".join(pair) != "\u0120which"]
    return save(Tokenizer.from_str(json.dumps(data)), "llama3")


def make_sentencepiece(files, name, **options):
    lines = [line for file in files for line in pathlib.Path(file).read_text(errors="replace").splitlines() if line]
    random.Random(1).shuffle(lines)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines[:20000]), model_prefix=str(OUT / name), vocab_size=1500, minloglevel=2,
                                             num_threads=1, **options)
    (OUT / f"{name}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(OUT / f"{name}.model"))


def main(files):
    OUT.mkdir(exist_ok=True)
    texts = TEXTS + ["of which the world; which is" + t for t in ("", " which")] + random_texts(80)
    reference = {}
    for make in (make_gpt2, make_gpt2_prefix, make_llama3):
        tokenizer = make(files)
        cases = []
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text.encode().hex(), "ids": " ".join(map(str, ids))})
        whole = tokenizer.encode("text").ids
        reference[make.__name__[5:] + ".tokenizer.json"] = {"vocab_size": tokenizer.get_vocab_size(), "text": " ".join(map(str, whole)), "cases": cases}
    models_ = {
        "llama_bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                          split_digits=True),
        "unigram": dict(model_type="unigram", normalization_rule_name="identity"),
    }
    for name, options in models_.items():
        processor = make_sentencepiece(files, name, **options)
        cases = [{"text": t.encode().hex(), "ids": " ".join(map(str, processor.encode(t))), "bytes": processor.decode(processor.encode(t)).encode().hex()} for t in texts]
        reference[name + ".model"] = {"vocab_size": processor.get_piece_size(), "cases": cases}
    make_words()
    made_with = f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}"
    (OUT / "ids.json").write_text(json.dumps({"made_with": made_with, "files": reference}, indent=0) + "\n")


def word_lengths(pattern, text):
    return [len(word.encode()) for word, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]


def classes_checksum():
    """FNV-1a, 64 bits, over one letter a code point: L, N, S (space) or O (other)."""
    splits = {kind: pre_tokenizers.Split(Regex(regex), "isolated") for kind, regex in (("L", r"\p{L}"), ("N", r"\p{N}"), ("S", r"\s"))}
    checksum = 0xCBF29CE484222325
    for code in range(0x40000):
        if 0xD800 <= code < 0xE000:
            continue
        kind = "O"
        for name, split in splits.items():
            if len(split.pre_tokenize_str("\x01" + chr(code) + "\x01")) == 3:
                kind = name
        checksum = (checksum ^ ord(kind)) * 0x100000001B3 % 2**64
    return checksum


def make_words():
    texts = sorted({t for t in TEXTS + random_texts(250) if 0 < len(t.encode()) <= 60 and "<|" not in t})
    cases = {name: [[t.encode().hex()] + word_lengths(regex, t) for t in texts] for name, regex in (("gpt2", GPT2), ("llama3", LLAMA3))}
    lines = [f'"{name}": [\n' + ",\n".join(json.dumps(case, separators=(",", ":")) for case in each) + "\n]" for name, each in cases.items()]
    (OUT / "words.json").write_text("{\n" + f'"classes": "{classes_checksum():016x}",\n' + ",\n".join(lines) + "\n}\n")


def compare(vocabulary, tokens, text):
    import h5py  # not needed otherwise

    ours = h5py.File(tokens)["tokens"][()].tolist()
    content = pathlib.Path(text).read_bytes().decode()
    if vocabulary.endswith(".model"):
        processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
        words = re.split(r"(?<=[^ ]) (?=[^ ])", content)
        theirs = [i for word in words for i in processor.encode(word)] + ([processor.eos_id()] if processor.eos_id() >= 0 else [])
    else:
        tokenizer = Tokenizer.from_file(vocabulary)
        theirs = tokenizer.encode(content).ids
        if len(ours) == len(theirs) + 1:  # the end of the document, which the packages leave to their users
            print("the last token is", tokenizer.id_to_token(ours.pop()))
    same = ours == theirs
    differing = sum(a != b for a, b in zip(ours, theirs)) + abs(len(ours) - len(theirs))
    print(f"{len(content.encode())} bytes, {len(ours)} and {len(theirs)} tokens:", "equal" if same else f"{differing} places differ")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        compare(*sys.argv[2:])
    main(sys.argv[1:])
