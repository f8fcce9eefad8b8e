// What changed between two artifacts, head by head, in units of the error that quantising costs anyhow.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calib/report/text_chart.h"
#include "formats/store/codebook.h"

namespace kvcc {

/// One head of one tensor. distance^2 is
///     sum F (x^A - x^B)^2  /  (1/2 sum F (x^A - x)^2 + 1/2 sum F (x^B - x)^2),
/// x^A and x^B what the artifacts make of x, over x as both artifacts' histograms and static scales tell (bins taken as
/// even, without histograms x is even over the range) and F as their channels' Fisher means tell (1 where they have
/// none). 0: the same codec. sqrt(2): as far apart as two codecs of that error whose errors have nothing in common.
/// Per-token tensors are compared on the normalised grid, since their scales are made of the data. NaN where the
/// tensors cannot be compared; infinite where the codecs differ and neither has an error.
struct HeadDifference {
  int layer = 0;
  const char* kind = "key";
  int head = 0;
  double distance = 0;
};

struct ValueDifference {
  std::string name;  ///< "provenance.seed", "model.name", "scheme"
  std::string a, b;  ///< "" where it is absent
};

struct DatasetDifference {
  std::string path;    ///< "/key/codebook"
  std::string what;    ///< "only in A", "only in B", "other shape", "12 of 5760 values"
  bool needed = true;  ///< a runtime reads it: no statistic
};

struct CodebookDifference {
  bool equal = false;         ///< content_sha256 is the same
  bool same_decoding = true;  ///< all that a runtime reads is the same: other text, names or statistics at most
  std::vector<ValueDifference> values;
  std::vector<DatasetDifference> datasets;
  std::vector<HeadDifference> heads;  ///< by layer, kind and head; empty where the geometries differ
  std::string no_heads;               ///< why there are none; "" otherwise
};

/// Both as read: their content hashes are set.
CodebookDifference diff_codebooks(const Codebook& a, const Codebook& b);

/// `top` heads of the greatest distance (0: all that differ).
std::string diff_text(const CodebookDifference& difference, int top, const TextStyle& style);
nlohmann::ordered_json diff_json(const CodebookDifference& difference);

}  // namespace kvcc
