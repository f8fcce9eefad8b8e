// Text to samples: where the text comes from, how it is cut, and what is recorded of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calib/text/tokenizer.h"

namespace kvcc {

struct CorpusRequest {
  std::string dataset;             ///< "wikitext-2:calibration", "wikitext-2:evaluation", …; or
  std::vector<std::string> files;  ///< --text FILE…; or
  std::string ids;                 ///< --ids FILE.npy (int32 [n, len] or [n])
  std::string bos = "auto";        ///< auto, on, off; auto is the tokenizer's policy for text, off for ids
  std::string cache_dir;           ///< where fetched data sets are; "": the default
  std::function<void(uint64_t done, uint64_t total)> progress;  ///< may be empty; bytes of text tokenised
};

/// A tokenised text with its provenance.
struct Corpus {
  std::vector<int32_t> ids;           ///< the whole text, [n]
  int64_t rows = 0, row_length = 0;   ///< for a two-dimensional npy: ids is [rows, row_length]; rows == 0 otherwise
  std::string name, sha256, flavour;  ///< of the text's bytes; flavour "raw", "tokens", "ids"
  std::string bos;                    ///< resolved: "on" or "off"
  int64_t bos_id = -1;
};

/// Reads and tokenises. A UTF-8 byte-order mark is stripped, CRLF becomes LF, invalid bytes are kept as bytes. Several
/// files are tokenised one by one and their ids joined; sha256 is that of their bytes in a row, as they are on disk.
/// tokenizer may be null when ids are given. Throws Error(bad_input).
Corpus load_corpus(const CorpusRequest& request, const Tokenizer* tokenizer);

struct Samples {
  std::vector<std::vector<int32_t>> ids;  ///< [samples][seqlen], BOS included when the policy is on
  std::vector<int64_t> offsets;           ///< [samples] in the tokenised text
};

/// Calibration samples. From [n, len] ids: the rows in order. Otherwise `samples` windows at offsets drawn by Python's
/// random.seed(seed), randint(0, n - seqlen - 1) (Mersenne Twister, the generator KVQuant's release uses), so they can
/// be reproduced from the record. Throws Error(bad_input) "needs >= N tokens, has M"; n == seqlen is one valid sample.
/// With BOS a sample is the BOS and seqlen - 1 tokens of the text (the draws count with seqlen - 1 then). Rows longer
/// than seqlen are cut, shorter ones are refused; fewer rows than `samples` are all that is returned.
Samples draw_samples(const Corpus& corpus, int64_t samples, int64_t seqlen, uint64_t seed);

/// Evaluation windows: window w is ids[seqlen w : seqlen (w + 1)], with BOS the BOS and ids[(seqlen-1) w : (seqlen-1)
/// (w+1)]; at most `windows` (0: all). What doesn't fill a window is left out.
Samples cut_windows(const Corpus& corpus, int64_t windows, int64_t seqlen);

/// A NumPy .npy file of int32 or int64, one or two dimensions. Throws Error(bad_input).
struct NpyIds {
  std::vector<int32_t> ids;
  std::vector<int64_t> shape;
};
NpyIds read_npy_ids(const std::string& path);

}  // namespace kvcc
