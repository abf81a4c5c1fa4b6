#pragma once

#include <memory>
#include <vector>

#include "mica/tensor/tensor.hpp"

namespace mica::nn {

/// Whatever a module wants to keep beside tensors.
struct RecordExtra {
  virtual ~RecordExtra() = default;
};

/// What one forward leaves for its backward. Move-only; the caller of forward owns it. [Note: records]
/// A null Record* means that no gradient is wanted: nothing is saved. A module may have several Records at once
/// (several forwards before a backward). Backward consumes the Record, unless keep() was called.
class Record {
 public:
  Record() = default;
  Record(Record&&) noexcept = default;
  Record& operator=(Record&&) noexcept = default;

  /// Tensors saved by the module itself, in its own order.
  std::vector<Tensor> saved;
  std::unique_ptr<RecordExtra> extra;

  /// A Record for the next child's forward; children are numbered in call order.
  [[nodiscard]] Record* add_child() {
    children_.push_back(std::make_unique<Record>());
    return children_.back().get();
  }
  [[nodiscard]] std::size_t num_children() const { return children_.size(); }
  [[nodiscard]] Record& child(std::size_t i) { return *children_.at(i); }

  /// Lets backward be called again with this Record (several backwards after one forward).
  void keep(bool on = true) { keep_ = on; }
  [[nodiscard]] bool is_kept() const { return keep_; }

  /// Set by the unit that owns the module: destroying it lowers the unit's count of outstanding Records.
  std::shared_ptr<void> unit_ticket;
  /// Inputs of a checkpointed module: its forward runs again in backward.
  std::vector<Tensor> checkpoint_inputs;

  /// Drops everything saved; backward has run.
  void clear() { *this = Record(); }

 private:
  std::vector<std::unique_ptr<Record>> children_;
  bool keep_ = false;
};

/// The Record to pass to a child's forward: null when the parent has none.
[[nodiscard]] inline Record* child_record(Record* record) { return record ? record->add_child() : nullptr; }

}  // namespace mica::nn
