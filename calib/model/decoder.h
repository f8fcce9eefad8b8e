// One decoder, described by data (formats/weights/architecture.h), in f32. What is tested is the CPU.
// Letters: B batch, T tokens, H key/value heads, D head dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calib/model/attention.h"
#include "calib/model/decoder_layer.h"
#include "calib/model/linear.h"
#include "calib/model/rope.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// Sees, and may replace, what a layer's attention reads. Called in the forward pass, layer after layer.
class KvTap {
 public:
  virtual ~KvTap() = default;
  /// Keys after projection, bias and norm, before RoPE [B, T, H, D]; values after projection and bias [B, T, H, Dv].
  /// Under latent attention the rotary key and the normed latent (LatentConfig). Layers without a cache don't call.
  virtual void before_rope(int layer, at::Tensor& key, at::Tensor& value);
  /// Keys after RoPE [B, T, H, D].
  virtual void after_rope(int layer, at::Tensor& key);
  /// Attention in the decoder's place: query [B, T, Hq, D] after RoPE, key and value as the calls above left them. They
  /// may have put more rows along B there (a second version of each key, say), which RoPE turns alike. Returns
  /// [B, T, Hq, Dv] (of what the rule expands to, where it does); an undefined tensor, as this one does, for the
  /// decoder's own attention. Not called with a KvCache.
  virtual at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule);
};

/// Keys (after RoPE) and values of the tokens so far, for decoding token by token.
class KvCache {
 public:
  /// Room for `capacity` tokens, allocated at the first append of each layer.
  KvCache(int64_t layers, int64_t capacity);
  int64_t length() const { return length_; }
  /// Bytes of the whole cache at `batch` sequences, when full.
  static uint64_t bytes(const DecoderConfig& config, int64_t batch, int64_t capacity);

 private:
  friend class Decoder;
  std::vector<at::Tensor> key_, value_;  ///< [B, H, capacity, D]; of a convolution its state, as key
  int64_t capacity_, length_ = 0;
};

/// A cache that is not the decoder's own, for decoding: it is given a layer's new rows and answers what the attention
/// of the new tokens is. Rows are contiguous f32 of positions `first` on, which follow those that the layer has seen:
/// query [T, Hq, D] after RoPE, key [T, H, D] before RoPE, value [T, H, Dv].
class AttentionCache {
 public:
  virtual ~AttentionCache() = default;
  /// Appends keys and values; returns the mix of values of each token over all up to itself, [T, Hq, Dv].
  virtual at::Tensor attend(int layer, int64_t first, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value) = 0;
  /// Appends alone.
  virtual void append(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) = 0;
  /// The first `count` rows of a layer as attention sees them: key after RoPE [count, H, D], value [count, H, Dv].
  virtual std::pair<at::Tensor, at::Tensor> read(int layer, int64_t count) const = 0;
};

/// How a decoder has its weights.
struct DecoderOptions {
  bool streamed = false;         ///< matrices stay in the files and are converted to the same values for each product
  bool bf16 = false;             ///< products of the layers and the head in bf16; norms, attention and routers stay f32
  int layers = 0;                ///< the first ones alone; 0: all
  at::Device device = at::kCPU;  ///< of weights and of all that is computed
};

class Decoder {
 public:
  /// Maps or converts all weights. `files` must outlive the decoder. Throws Error(bad_input) for an architecture, RoPE
  /// kind or scaling that is not known.
  explicit Decoder(const ModelFiles& files, DecoderOptions options = {});

  /// The same with other values of one of the projections (formats/weights/projections.h) [out, in], f32.
  void replace(const ExpectedTensor& projection, const at::Tensor& weight);
  /// Of a decoder that is not streamed.
  const at::Tensor& weight(const ExpectedTensor& projection) const;
  /// Whom the products of all projections tell of their gradients; null: nobody. Must outlive the backward passes.
  void watch(ProductGradients* watcher);

  const DecoderConfig& config() const { return files_.config; }
  int layers() const { return static_cast<int>(layers_.size()); }
  const Rope& rope() const { return rope_; }
  at::Device device() const { return options_.device; }

  /// ids [B, T] int32 or int64 on the CPU to hidden states [B, T, hidden]. Throws Error(bad_input) for an id outside
  /// the vocabulary.
  at::Tensor embed(const at::Tensor& ids) const;
  /// One layer, x [B, T, hidden] at the positions of `angles`. tap and cache may be null. With a cache, x attends to
  /// what the cache holds of this layer and is appended to it; the caller calls advance() after the last layer.
  at::Tensor layer(int layer, const at::Tensor& x, const Rope::Angles& angles, KvTap* tap = nullptr,
                   KvCache* cache = nullptr) const;
  /// The same for a layer whose output is known: what is returned has its gradient, but need not be its value.
  at::Tensor layer_again(int layer, const at::Tensor& x, const Rope::Angles& angles, KvTap* tap) const;
  /// One layer of one sequence, x [1, T, hidden] at positions `first` on, those of `angles`, whose attention is the
  /// cache's. Throws Error(usage) in a layer whose attention is none that an AttentionCache has (latent, capped,
  /// convolution, a window that is shorter than the sequence).
  at::Tensor layer(int layer, const at::Tensor& x, const Rope::Angles& angles, int64_t first,
                   AttentionCache& cache) const;
  void advance(KvCache& cache, int64_t tokens) const { cache.length_ += tokens; }
  at::Tensor final_norm(const at::Tensor& x) const;
  /// The output head [vocab, hidden] for what follows: of a streamed decoder converted now.
  at::Tensor head() const { return head_.matrix(); }
  /// [rows, hidden], normed, to [rows, vocab].
  at::Tensor logits(const at::Tensor& normed) const { return logits(normed, head()); }
  at::Tensor logits(const at::Tensor& normed, const at::Tensor& head) const;
  /// Gradient of the normed hidden states [rows, hidden] from that of the logits [rows, vocab], which are `logits`.
  at::Tensor logits_backward(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& head) const;
  /// The process no longer holds what it read of the files (TensorSource::release).
  void release() const { files_.tensors->release(); }

  /// Embeddings, all layers and the final norm, without a gradient.
  at::Tensor forward(const at::Tensor& ids, KvTap* tap = nullptr) const;

  /// Weight tensors of a layer (-1: embedding, final norm, head) that hold NaN or infinity: "NAME row R", for messages.
  std::string nonfinite_weights(int layer) const;

 private:
  void load_all();
  void load(const ExpectedTensor& tensor);
  Linear& linear_of(const ExpectedTensor& tensor);
  at::Tensor run(int layer, const at::Tensor& x, const Rope::Angles& angles, KvTap* tap, KvCache* cache,
                 Want want) const;
  /// What follows attention or convolution: `added` [B, T, hidden] to the layer's output.
  at::Tensor finish(const DecoderLayer& w, const at::Tensor& x, const at::Tensor& added, Want want) const;
  AttentionRule rule_of(int layer) const;
  at::Tensor rotate_query(const at::Tensor& query, const Rope::Angles& angles, int layer) const;

  const ModelFiles& files_;
  DecoderOptions options_;
  Rope rope_;
  DecoderLayer ends_;  ///< embedding, final norm, head
  Linear head_;        ///< the embedding where it is tied
  std::vector<DecoderLayer> layers_;
};

/// Attention of T tokens that are the last of `key` and `value`: query [T, Hq, D], key [H, N, D], value [H, N, Dv],
/// token i over the first N - T + i + 1 rows. [T, Hq, Dv].
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

/// Rows of the chunks in which logits are made, so that they take tens of MiB whatever the vocabulary.
int64_t logits_chunk_rows(const DecoderConfig& config);

/// Estimate of the resident bytes of a program that has loaded the model and done nothing with it.
uint64_t loaded_bytes(const ModelFiles& files);

/// int32 ids [T] as a batch of one, [1, T] int64.
at::Tensor ids_tensor(const std::vector<int32_t>& ids);

}  // namespace kvcc
