// kvcc inspect: its options, what it prints of each kind of file, and what these share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calib/report/codebook_report.h"
#include "calib/report/text_page.h"
#include "formats/cli/program.h"
#include "formats/store/tree.h"

namespace kvcc::cli {

struct InspectOptions {
  std::string path, activations, html;
  int layer = -1, head = -1;
  int64_t samples = -1;  ///< of activations; -1: as many as are read at once, 0: all
  bool csv = false;
  HeadFilter filter;
  bool selects() const {
    return layer >= 0 || head >= 0 || !filter.kind.empty() || !filter.sort.empty() || filter.top > 0;
  }
};

/// Each prints what `options.path` holds, as text, JSON or CSV. Throws what reading the file throws, and Error(usage)
/// for options that its kind has no use for.
void inspect_codebook(const InspectOptions& options, const Common& common);
void inspect_activations(const InspectOptions& options, const Common& common);
void inspect_weights(const InspectOptions& options, const Common& common);
void inspect_kernels(const std::string& folder, const Common& common);
/// Any other HDF5 file that kvcc wrote: its objects.
void inspect_tree(const std::string& path, const Tree& tree, const Common& common);

std::string short_hash(const std::string& sha256);
TextStyle text_style();  ///< of the terminal
/// "label       text", folded to the terminal.
void print_line(const char* label, const std::string& text, const TextStyle& style);
/// In one piece, however long, so that it can be copied.
void print_path(const std::string& path);
void print_model(const ModelInfo& model, const TextStyle& style);
/// The heads asked for: layers in one line each, some heads in a line each, or one layer's head in full.
void print_heads(const InspectOptions& options, const ReportData& data, const std::vector<HeadReport>& heads,
                 const TextStyle& style);
/// With --html: the report. `bytes`: of the file or folder.
void write_report(const InspectOptions& options, const ReportData& data, uint64_t bytes);
/// Throws Error(usage) where a report is asked of a file that has no statistics of heads.
void refuse_report(const InspectOptions& options);

}  // namespace kvcc::cli
