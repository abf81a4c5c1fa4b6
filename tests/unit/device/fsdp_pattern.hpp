// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "mica/device/pool.hpp"

namespace mica::test {

/// The allocations of training a GPT-2 with fully sharded units, without the arithmetic: what a pool has to bear.
struct FsdpPattern {
  int num_blocks = 12;
  std::int64_t block_numel = 7'087'872;  // GPT-2 124m
  std::int64_t root_numel = 39'385'344;  // embeddings and final norm
  int shard_size = 2;
  std::int64_t tokens = 1024;
  std::int64_t width = 768;
  bool prefetch = true;
  bool frees_grads = true;  // zero_grad frees
  bool activation_checkpointing = false;
  bool low_precision = false;  // bf16 unsharded parameters, cast shards
  bool touch = false;          // write one byte per page, as the kernels would
};

/// Runs steps of the pattern on three streams.
class FsdpModel {
 public:
  FsdpModel(const FsdpPattern& pattern, Pool& pool, StreamMode mode)
      : p_(pattern),
        pool_(pool),
        compute_(make_cpu_stream("compute", mode)),
        unshard_(make_cpu_stream("unshard", mode)),
        post_backward_(make_cpu_stream("post_backward", mode)),
        units_(static_cast<std::size_t>(pattern.num_blocks) + 1) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      units_[u].shard = take(shard_numel(u) * 4, MemoryRole::sharded_param, *compute_);
    }
  }
  /// Buffers go before their streams, and a stream may still wait for another.
  ~FsdpModel() { units_.clear(); }

  void step() {
    const auto num_blocks = units_.size() - 1;
    const std::size_t root = num_blocks;
    if (p_.frees_grads) {
      for (Unit& unit : units_) unit.grad.reset();
    }
    unshard_->wait(compute_->record());

    unshard(root);
    std::vector<std::vector<Buffer>> saved(num_blocks);
    std::vector<Buffer> inputs;
    inputs.push_back(activation(1));
    if (p_.prefetch) unshard(0);
    for (std::size_t b = 0; b < num_blocks; ++b) {
      unshard(b);
      if (p_.prefetch && b + 1 < num_blocks) unshard(b + 1);
      compute_->wait(units_[b].ready);
      saved[b] = block_forward();
      inputs.push_back(activation(1));
      if (p_.activation_checkpointing) saved[b].clear();
      reshard(b);
    }
    head(root);

    Buffer dy = activation(1);
    for (std::size_t b = num_blocks; b-- > 0;) {
      inputs.pop_back();
      unshard(b);
      compute_->wait(units_[b].ready);
      if (p_.prefetch && b > 0) unshard(b - 1);
      if (p_.activation_checkpointing) saved[b] = block_forward();
      block_backward(b, saved[b], dy);
      reshard(b);
      reduce(b);
    }
    dy.reset();
    inputs.clear();
    reshard(root);
    reduce(root);
    compute_->wait(post_backward_->record());
    for (Unit& unit : units_) {
      if (unit.optimizer.empty()) {
        const auto u = static_cast<std::size_t>(&unit - units_.data());
        for (int i = 0; i < 2; ++i) unit.optimizer.push_back(take(shard_numel(u) * 4, MemoryRole::optimizer, *compute_));
      }
    }
  }

  void synchronize() {
    for (Stream* s : {compute_.get(), unshard_.get(), post_backward_.get()}) s->synchronize();
  }

 private:
  struct Unit {
    Buffer shard, unsharded, unsharded_grad, grad;
    std::vector<Buffer> optimizer;
    Event ready;
  };

  [[nodiscard]] std::int64_t numel(std::size_t u) const { return u + 1 == units_.size() ? p_.root_numel : p_.block_numel; }
  [[nodiscard]] std::int64_t shard_numel(std::size_t u) const { return (numel(u) + p_.shard_size - 1) / p_.shard_size; }
  [[nodiscard]] std::int64_t full_numel(std::size_t u) const { return shard_numel(u) * p_.shard_size; }

  Buffer take(std::int64_t bytes, MemoryRole role, Stream& home) {
    Buffer buffer = pool_.allocate(bytes, role, home);
    if (p_.touch) {
      home.submit("touch", {writes(buffer.data(), bytes)}, [data = static_cast<volatile char*>(buffer.data()), bytes] {
        for (std::int64_t i = 0; i < bytes; i += 4096) data[i] = 1;
      });
    }
    return buffer;
  }
  Buffer activation(std::int64_t widths) { return take(p_.tokens * p_.width * 4 * widths, MemoryRole::activation, *compute_); }

  void unshard(std::size_t u) {
    Unit& unit = units_[u];
    if (unit.unsharded) return;
    const std::int64_t bytes = p_.low_precision ? 2 : 4;
    Buffer cast;
    if (p_.low_precision) cast = take(shard_numel(u) * 2, MemoryRole::low_precision_shard, *unshard_);
    unit.unsharded = take(full_numel(u) * bytes, MemoryRole::unsharded_param, *unshard_);
    unshard_->submit("all_gather", {}, [] {});
    unit.ready = unshard_->record();
  }
  void reshard(std::size_t u) {
    units_[u].unsharded.used_until(compute_->record());
    units_[u].unsharded.reset();
  }

  /// What a pre-norm block keeps for its backward; some temporaries come and go between.
  std::vector<Buffer> block_forward() {
    std::vector<Buffer> kept;
    kept.push_back(activation(1));                                            // norm 1
    kept.push_back(take(p_.tokens * 8, MemoryRole::activation, *compute_));   // its statistics
    kept.push_back(activation(3));                                            // qkv
    kept.push_back(activation(1));                                            // attention
    kept.push_back(take(p_.tokens * 48, MemoryRole::activation, *compute_));  // lse
    Buffer projected = activation(1);
    kept.push_back(activation(1));  // residual
    projected.reset();
    kept.push_back(activation(1));  // norm 2
    kept.push_back(take(p_.tokens * 8, MemoryRole::activation, *compute_));
    kept.push_back(activation(4));  // fc
    kept.push_back(activation(4));  // gelu
    Buffer out = activation(1);
    return kept;
  }
  void block_backward(std::size_t b, std::vector<Buffer>& kept, Buffer& dy) {
    units_[b].unsharded_grad = take(full_numel(b) * 4, MemoryRole::unsharded_grad, *compute_);
    Buffer dx = activation(4);
    kept.pop_back();
    Buffer dgelu = activation(4);
    dx = std::move(dgelu);
    kept.pop_back();
    dx = activation(1);
    while (kept.size() > 4) kept.pop_back();
    Buffer dqkv = activation(3);
    kept.clear();
    dx = activation(1);
    dqkv.reset();
    Buffer sum = activation(1);
    dy = std::move(sum);
  }
  void head(std::size_t root) {
    compute_->wait(units_[root].ready);
    units_[root].unsharded_grad = take(full_numel(root) * 4, MemoryRole::unsharded_grad, *compute_);
    for (int chunk = 0; chunk < 4; ++chunk) {
      Buffer logits = take(p_.tokens / 4 * 50257 * 4, MemoryRole::workspace, *compute_);
    }
  }
  void reduce(std::size_t u) {
    post_backward_->wait(compute_->record());
    if (!units_[u].grad) units_[u].grad = take(shard_numel(u) * 4, MemoryRole::sharded_grad, *post_backward_);
    post_backward_->submit("reduce_scatter", {}, [] {});
    units_[u].unsharded_grad.used_until(post_backward_->record());
    units_[u].unsharded_grad.reset();
  }

  FsdpPattern p_;
  Pool& pool_;
  std::unique_ptr<Stream> compute_, unshard_, post_backward_;
  std::vector<Unit> units_;
};

}  // namespace mica::test
