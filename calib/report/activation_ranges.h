// Ranges of activations per channel, of keys before and after RoPE. Not for other folders: report_data.h has the whole.
#pragma once

#include "calib/report/layer_data.h"
#include "calib/report/report_data.h"
#include "kernels/host/rope_table.h"

namespace kvcc {

class RangeReader {
 public:
  explicit RangeReader(const ActivationsReader& reader);
  /// Layers in order, each with the samples that are to count.
  void add_layer(const LayerData& data, int threads);
  const ActivationRanges& result() const { return out_; }

 private:
  const ActivationsSettings& settings_;
  host::RopeTables tables_;
  ActivationRanges out_;
};

}  // namespace kvcc
