// SPDX-License-Identifier: Apache-2.0
#include "hf_source.hpp"

#include <algorithm>
#include <cstring>

#include "mica/checkpoint/manifest.hpp"
#include "mica/core/error.hpp"
#include "mica/io/quoted_name.hpp"

#include "transpose.hpp"

namespace mica::checkpoint {

HfSource::HfSource(HfModel model, HfTensors tensors, std::int64_t panel_numel)
    : panel_numel_(panel_numel), model_(std::move(model)), tensors_(std::move(tensors)), match_(match_tensors(model_, tensors_)) {
  for (std::size_t i = 0; i < model_.tensors.size(); ++i) index_[model_.tensors[i].parameter] = i;
}

bool HfSource::has(const std::string& parameter, const std::string& kind) const {
  return kind == kMasterKind && index_.contains(parameter);
}

void HfSource::read(const std::string&, std::span<const Range> ranges) {
  for (const Range& range : ranges) {
    auto* data = static_cast<float*>(range.data);
    const std::size_t index = index_.at(*range.parameter);
    const HfTensors::Location& found = match_.tensors[index];
    if (model_.tensors[index].is_transposed) {
      read_transposed(index, range.begin, range.numel, data);
    } else {
      found.file->read(*found.entry, range.begin, range.numel, data);
    }
  }
}

void HfSource::read_transposed(std::size_t index, std::int64_t begin, std::int64_t numel, float* data) {
  const std::int64_t cols = model_.tensors[index].shape[1];
  for (std::int64_t at = begin; at < begin + numel;) {
    const Panel& panel = panel_with(index, at / cols);
    const std::int64_t end = std::min(begin + numel, panel.end * cols);
    std::memcpy(data + (at - begin), panel.rows.data() + (at - panel.begin * cols), static_cast<std::size_t>(end - at) * sizeof(float));
    at = end;
  }
}

const HfSource::Panel& HfSource::panel_with(std::size_t index, std::int64_t row) {
  for (const Panel& panel : panels_) {
    if (panel.index == index && row >= panel.begin && row < panel.end) return panel;
  }
  newest_ = 1 - newest_;
  load(panels_[newest_], index, row);
  return panels_[newest_];
}

void HfSource::load(Panel& panel, std::size_t index, std::int64_t row) {
  const HfTensors::Location& found = match_.tensors[index];
  const std::int64_t rows = model_.tensors[index].shape[0];  // the file's columns
  const std::int64_t cols = model_.tensors[index].shape[1];  // the file's rows
  const std::int64_t most = panel_rows(rows, cols, panel_numel_);
  const std::int64_t begin = row / most * most;
  const std::int64_t count = std::min(most, rows - begin);
  panel.end = 0;  // holds nothing until it is read
  panel.rows.resize(static_cast<std::size_t>(count * cols));
  std::vector<float> columns(panel.rows.size());
  if (count == rows) {
    found.file->read(*found.entry, 0, rows * cols, columns.data());
  } else {
    for (std::int64_t c = 0; c < cols; ++c) found.file->read(*found.entry, c * rows + begin, count, columns.data() + c * count);
  }
  transpose(columns.data(), cols, count, panel.rows.data());
  panel.index = index;
  panel.begin = begin;
  panel.end = begin + count;
}

void HfSource::check_tied_head() {
  const HfTensors::Location& head = match_.tied_head;
  if (head.file == nullptr) return;
  const HfTensors::Location& embedding = match_.tensors.front();  // of both architectures
  const std::string what = fmt::format("{}: tensor {} differs from {}", head.file->path(), io::quoted_name(head.entry->name),
                                       io::quoted_name(embedding.entry->name));
  constexpr const char* kBut = "but config.json says that they are tied (tie_word_embeddings)";
  require<CheckpointError>(head.entry->dims == embedding.entry->dims, "{} in its shape, {}", what, kBut);
  constexpr std::int64_t kChunk = 1 << 20;
  std::vector<float> a(kChunk), b(kChunk);
  for (std::int64_t at = 0; at < head.entry->numel; at += kChunk) {
    const std::int64_t count = std::min(kChunk, head.entry->numel - at);
    head.file->read(*head.entry, at, count, a.data());
    embedding.file->read(*embedding.entry, at, count, b.data());
    require<CheckpointError>(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(count) * sizeof(float)) == 0,
                             "{} among the elements {} to {}, {}", what, at, at + count - 1, kBut);
  }
}

}  // namespace mica::checkpoint
