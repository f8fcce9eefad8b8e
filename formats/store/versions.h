// The latest version of each format that is written; formats/spec says what each has (a test compares the titles).
// kernels.json's is in kernels_manifest.h.
#pragma once

namespace kvcc {

constexpr const char* kCodebookVersion = "1.6";
constexpr int kActivationsVersion = 3;
constexpr const char* kWeightsVersion = "1.0";

}  // namespace kvcc
