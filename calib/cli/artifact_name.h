// Names of the artifacts that one run makes for several schemes. Programs only.
#pragma once

#include <algorithm>
#include <string>

namespace kvcc::cli {

/// `output` itself for a single scheme; for several NAME.SCHEME.kvcb, where NAME is `output` without ".kvcb" and SCHEME
/// the scheme's short name with '/' (of spelt-out schemes) as '_'.
inline std::string artifact_name(std::string output, std::string short_name, bool several) {
  if (!several) return output;
  if (output.ends_with(".kvcb")) output.resize(output.size() - 5);
  std::replace(short_name.begin(), short_name.end(), '/', '_');
  return output + "." + short_name + ".kvcb";
}

}  // namespace kvcc::cli
