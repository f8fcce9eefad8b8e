#include "calib/text/tokenizer_kinds.h"

#include "calib/text/gguf_pre_tokenizers.h"

namespace kvcc {

const std::vector<TokenizerKind>& tokenizer_kinds() {
  static const std::vector<TokenizerKind> kKinds = {
      {"byte-level BPE", "tokenizer.json, GGUF (gpt2)",
       "pre-tokenizers ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Sequence; in GGUF " +
           gguf_pre_tokenizer_names(),
       "ids of PyPI tokenizers on evaluation.txt and hard texts"},
      {"BPE of characters, byte fallback", "tokenizer.json",
       "normalizers NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Nmt, Prepend, Replace, Precompiled, "
       "Sequence; "
       "pre-tokenizers as above but ByteLevel, and Metaspace",
       "ids of PyPI tokenizers on evaluation.txt and hard texts"},
      {"Unigram, byte fallback", "tokenizer.json", "normalizers and pre-tokenizers as above",
       "ids of PyPI tokenizers on evaluation.txt and hard texts"},
      {"SentencePiece BPE", "tokenizer.model, GGUF (llama)", "all that sentencepiece's library reads",
       "ids of PyPI sentencepiece on evaluation.txt and hard texts"},
      {"SentencePiece Unigram", "tokenizer.model, GGUF (t5)", "all that sentencepiece's library reads",
       "ids of PyPI sentencepiece on evaluation.txt and hard texts"},
  };
  return kKinds;
}

}  // namespace kvcc
