// One text to samples: where it comes from, how it is cut, and what is recorded of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calib/text/documents.h"
#include "calib/text/tokenizer.h"

namespace kvcc {

/// How documents become samples: joined and cut, or each one sample, cut where it is longer.
enum class Packing : uint8_t { packed, document };

struct CorpusRequest {
  std::string dataset;             ///< "wikitext-2:calibration", "wikitext-2:evaluation", …, or a file's path; or
  std::vector<std::string> files;  ///< --text FILE…: plain text, each a document; or
  std::string ids;                 ///< --ids FILE.npy (int32 [n, len] or [n])
  /// auto, on, off; auto is the tokenizer's policy for text, off for ids and for conversations, whose template has it
  std::string bos = "auto";
  std::string field;  ///< of JSON lines, as DocumentsRequest says
  Packing packing = Packing::packed;
  std::string cache_dir;  ///< where fetched data sets are; "": the default
  decltype(DocumentsRequest::chat) chat;
  std::function<void(uint64_t done, uint64_t total)> progress;  ///< may be empty; bytes of text tokenised
};

/// A tokenised text with its provenance.
struct Corpus {
  std::vector<int32_t> ids;            ///< the whole text, [n]; empty with documents
  std::vector<std::string> documents;  ///< of packing `document`: tokenised when they are drawn
  int64_t rows = 0, row_length = 0;    ///< for a two-dimensional npy: ids is [rows, row_length]; rows == 0 otherwise
  std::string name, sha256, flavour;   ///< of the text's bytes; flavour "raw", "tokens", "ids", "chat"
  std::string bos;                     ///< resolved: "on" or "off"
  int64_t bos_id = -1;
};

/// Reads and tokenises. A UTF-8 byte-order mark is stripped, CRLF becomes LF, invalid bytes are kept as bytes.
/// Documents (files, and lines of JSON lines) are tokenised one by one and their ids joined; sha256 is that of the
/// files' bytes in a row, as they are on disk. A data set's path that ends in .npy is read as ids. tokenizer may be
/// null when ids are given. Throws Error(bad_input).
Corpus load_corpus(const CorpusRequest& request, const Tokenizer* tokenizer);

struct Samples {
  /// [samples][seqlen], BOS included when the policy is on; documents may be shorter.
  std::vector<std::vector<int32_t>> ids;
  std::vector<int64_t> offsets;  ///< [samples] in the tokenised text; of documents: the document's number
};

/// Calibration samples. From [n, len] ids: the rows in order. Otherwise `samples` windows at offsets drawn by Python's
/// random.seed(seed), randint(0, n - seqlen - 1) (Mersenne Twister, the generator KVQuant's release uses), so they can
/// be reproduced from the record. Throws Error(bad_input) "needs >= N tokens, has M"; n == seqlen is one valid sample.
/// With BOS a sample is the BOS and seqlen - 1 tokens of the text (the draws count with seqlen - 1 then). Rows longer
/// than seqlen are cut, shorter ones are refused; fewer rows than `samples` are all that is returned.
///
/// Of documents: in the order of Python's random.seed(seed), random.shuffle([0, …, n - 1]), each its first seqlen
/// tokens; those of fewer than 2 tokens, which predict nothing, are passed over. The first n samples of a seed are
/// those of any greater number.
Samples draw_samples(const Corpus& corpus, int64_t samples, int64_t seqlen, uint64_t seed,
                     const Tokenizer* tokenizer = nullptr);

/// Evaluation windows: window w is ids[seqlen w : seqlen (w + 1)], with BOS the BOS and ids[(seqlen-1) w : (seqlen-1)
/// (w+1)]; at most `windows` (0: all). What doesn't fill a window is left out. Documents in order, each as one window.
Samples cut_windows(const Corpus& corpus, int64_t windows, int64_t seqlen, const Tokenizer* tokenizer = nullptr);

/// A NumPy .npy file of int32 or int64, one or two dimensions. Throws Error(bad_input).
struct NpyIds {
  std::vector<int32_t> ids;
  std::vector<int64_t> shape;
};
NpyIds read_npy_ids(const std::string& path);

}  // namespace kvcc
