#!/usr/bin/env python3
"""Records the token ids of the mixed corpus by independent implementations.

Usage: make_goldens.py TOKIDS MODEL_GGUF VOCABS_DIR [GEMMA_GGUF]
       (needs: pip install tokenizers sentencepiece protobuf gguf)

TOKIDS is the program beside this script, which prints the corpus; its own ids are used only to report
the first difference. Byte-level BPE is recorded from Hugging Face tokenizers, SPM from sentencepiece
itself, each built from the GGUF's own vocabulary. Output: NAME.txt beside this script, a line a segment:
number of ids, first 16 digits of the SHA-256 over the ids as little-endian u32.
"""
import hashlib
import os
import struct
import subprocess
import sys

import sentencepiece
from gguf import GGUFReader
from sentencepiece import sentencepiece_model_pb2 as spm_pb
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = os.path.join(HERE, "corpus_seed.txt")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
# %s: what may follow a word; how many digits a piece has.
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(after)s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(after)s"
         r"|\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(*regexes):
    return [pre_tokenizers.Split(Regex(r), "isolated") for r in regexes] + [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


PRE = {
    "smollm": [pre_tokenizers.Digits(individual_digits=True),
               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)],
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)],
    "llama-bpe": split(LLAMA3 % 3),
    "qwen2": split(LLAMA3 % 1),
    "dbrx": split(LLAMA3 % 3),
    "gpt-4o": split(CASED % {"after": "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "digits": "{1,3}"}),
    "tekken": split(CASED % {"after": "", "digits": ""}),
    # llama.cpp's own, for files whose true one its converter did not know.
    "default": split(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}


def field(path, key):
    f = GGUFReader(path).fields.get("tokenizer.ggml." + key)
    return None if f is None else f.contents()


def hugging_face(path, pre):
    tokens, types = field(path, "tokens"), field(path, "token_type")
    vocab = {t: i for i, t in enumerate(tokens) if types[i] == 1}
    merges = []
    for m in field(path, "merges"):
        cut = m.index(" ", 1)
        merges.append((m[:cut], m[cut + 1:]))
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in ("llama-bpe", "tekken")))
    t.pre_tokenizer = pre_tokenizers.Sequence(PRE[pre])
    return lambda text: t.encode(text, add_special_tokens=False).ids


def sentence_piece(path):
    m = spm_pb.ModelProto()
    kinds = {1: m.SentencePiece.NORMAL, 2: m.SentencePiece.UNKNOWN, 3: m.SentencePiece.CONTROL,
             4: m.SentencePiece.USER_DEFINED, 5: m.SentencePiece.UNUSED, 6: m.SentencePiece.BYTE}
    types, unk = field(path, "token_type"), field(path, "unknown_token_id")
    for i, (t, s, k) in enumerate(zip(field(path, "tokens"), field(path, "scores"), types)):
        # The converter to GGUF wrote user-defined pieces as they look in text.
        if k == 4:
            t = t.replace(" ", "\u2581")
        # sentencepiece insists on an unknown piece; Gemma's file calls it a control token.
        m.pieces.add(piece=t, score=s, type=kinds[2 if i == unk else k])
    m.trainer_spec.model_type = m.trainer_spec.BPE
    m.trainer_spec.byte_fallback = True
    m.trainer_spec.vocab_size = len(m.pieces)
    m.trainer_spec.unk_id = unk
    m.normalizer_spec.name = "identity"
    m.normalizer_spec.add_dummy_prefix = field(path, "add_space_prefix") is not False
    m.normalizer_spec.remove_extra_whitespaces = False
    sp = sentencepiece.SentencePieceProcessor()
    sp.LoadFromSerializedProto(m.SerializeToString())
    return sp.EncodeAsIds


def corpus(tokids):
    data = subprocess.run([tokids, "corpus", SEED], check=True, stdout=subprocess.PIPE).stdout
    at = 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        yield data[at + 4:at + 4 + n].decode("utf-8")
        at += 4 + n


def report(tokids, path, pre, segment, text, theirs, pieces):
    cmd = [tokids, "ids", SEED, path, str(segment)] + ([pre] if pre else [])
    ours = [int(x) for x in subprocess.run(cmd, check=True, stdout=subprocess.PIPE).stdout.split()]
    for k, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            near = "".join(pieces[i] for i in theirs[max(0, k - 6):k + 6])
            print(f"  segment {segment} id {k}: ours {[pieces[i] for i in ours[k:k+4]]} "
                  f"theirs {[pieces[i] for i in theirs[k:k+4]]} near {near!r}")
            return
    print(f"  segment {segment}: {len(ours)} ids against {len(theirs)}")


def record(tokids, name, path, pre, encode):
    cmd = [tokids, "golden", SEED, path] + ([pre] if pre else [])
    ours = subprocess.run(cmd, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    pieces = field(path, "tokens")
    bad = 0
    with open(os.path.join(HERE, name + ".txt"), "w") as f:
        for i, text in enumerate(corpus(tokids)):
            ids = encode(text)
            line = f"{len(ids)} {hashlib.sha256(struct.pack(f'<{len(ids)}I', *ids)).hexdigest()[:16]}"
            f.write(line + "\n")
            if line != ours[i]:
                bad += 1
                if bad <= 4:
                    report(tokids, path, pre, i, text, ids, pieces)
    print(f"{name}: {len(ours)} segments, {bad} differ from ours")


def main():
    tokids, model, vocabs = sys.argv[1:4]
    for pre in PRE:
        record(tokids, "smollm2-" + pre, model, pre, hugging_face(model, pre))
    llama3 = os.path.join(vocabs, "llama3.gguf")
    record(tokids, "llama3", llama3, None, hugging_face(llama3, "llama-bpe"))
    llama2 = os.path.join(vocabs, "llama2.gguf")
    record(tokids, "llama2", llama2, None, sentence_piece(llama2))
    if len(sys.argv) > 4:
        record(tokids, "gemma", sys.argv[4], None, sentence_piece(sys.argv[4]))


main()
