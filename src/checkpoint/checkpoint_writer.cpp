// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_writer.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "mica/fsdp/layout_by_name.hpp"
#include "mica/io/atomic_file.hpp"

#include "model_index.hpp"
#include "shard_file.hpp"
#include "tokenizer_files.hpp"

namespace mica::checkpoint {
namespace {

class Writer {
 public:
  Writer(const std::string& folder, Manifest& header, ParameterSource& source,
         const std::function<void(std::int64_t, std::int64_t)>& progress)
      : folder_(folder), header_(header), source_(source), progress_(progress) {
    for (UnitEntry& unit : header_.units) {
      layouts_.push_back(fsdp::make_layout(unit.layout, unit.parameters, unit.shard_size));
      units_.push_back({unit.name, layouts_.back(), unit.role, unit.dtype});
      unit = entry_of(units_.back());
    }
    for (int r = 0; r < header_.shard_size; ++r) {
      for (std::size_t u = 0; u < units_.size(); ++u) {
        if (!is_in_file(u, r)) continue;
        for (const std::string& kind : kinds_of(u)) {
          total_bytes_ += layouts_[u]->shard_numel() * dtype_bytes(header_.dtype_of(header_.units[u], kind));
        }
      }
    }
  }

  void run() {
    for (int r = 0; r < header_.shard_size; ++r) header_.files.push_back(write_shard_file(folder_, contents_of(r), {}));
    source_.finish();
    header_.index = write_model_index(folder_, contents_of(0));
    write_manifest(folder_, manifest_text(header_));
  }

 private:
  /// Units that are not sharded are only in the first file.
  [[nodiscard]] bool is_in_file(std::size_t unit, int shard_rank) const { return shard_rank == 0 || layouts_[unit]->shard_size() > 1; }

  [[nodiscard]] std::vector<std::string> kinds_of(std::size_t unit) const {
    std::vector<std::string> kinds{std::string(kMasterKind)};
    for (const std::string& kind : header_.state_kinds) {
      const auto& parameters = layouts_[unit]->parameters();
      if (std::ranges::any_of(parameters, [&](const fsdp::ParameterSpec& p) { return source_.has(p.name, kind); })) {
        kinds.push_back(kind);
      }
    }
    return kinds;
  }

  ShardContents contents_of(int shard_rank) {
    ShardContents contents{header_.run_id, header_.step, shard_rank, units_, {}, {}};
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!is_in_file(u, shard_rank)) continue;
      const fsdp::ShardLayout& layout = *layouts_[u];
      for (const std::string& kind : kinds_of(u)) {
        const DType dtype = header_.dtype_of(header_.units[u], kind);
        contents.sources.push_back(
            {static_cast<std::int64_t>(u), kind, layout.shard_numel(), dtype, nullptr,
             [this, &layout, pieces = layout.pieces(shard_rank), kind, dtype](std::int64_t begin, std::int64_t numel, std::byte* to) {
               fill(layout, pieces, kind, dtype, begin, numel, to);
             }});
      }
    }
    return contents;
  }

  /// Elements [begin, begin + numel) of a shard; elements in no piece are padding.
  void fill(const fsdp::ShardLayout& layout, const std::vector<fsdp::Piece>& pieces, const std::string& kind, DType dtype,
            std::int64_t begin, std::int64_t numel, std::byte* to) {
    const std::int64_t element = dtype_bytes(dtype);
    std::memset(to, 0, static_cast<std::size_t>(numel * element));
    std::vector<ParameterSource::Range> ranges;
    for (const fsdp::Piece& piece : pieces) {
      if (piece.offset >= begin + numel || piece.offset + piece.numel() <= begin) continue;
      const std::string& name = layout.parameters()[piece.parameter].name;
      if (!source_.has(name, kind)) continue;
      fsdp::for_each_stored(piece, begin, begin + numel, [&](const fsdp::Run& run) {
        ranges.push_back({&name, run.begin, run.numel(), to + (run.offset - begin) * element});
      });
    }
    const std::lock_guard lock(mutex_);  // one worker reads while the other computes a checksum and writes
    source_.read(kind, ranges);
    done_bytes_ += numel * element;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const std::string& folder_;
  Manifest& header_;
  ParameterSource& source_;
  const std::function<void(std::int64_t, std::int64_t)>& progress_;
  std::vector<std::shared_ptr<const fsdp::ShardLayout>> layouts_;
  std::vector<SavedUnit> units_;
  std::int64_t total_bytes_ = 0;
  std::mutex mutex_;  // source_, done_bytes_
  std::int64_t done_bytes_ = 0;
};

}  // namespace

void write_checkpoint(const std::string& folder, Manifest header, ParameterSource& source, const HfTokenizer& tokenizer,
                      const std::function<void(std::int64_t, std::int64_t)>& progress) {
  io::Publication output = io::new_folder(folder);
  header.tokenizer = write_tokenizer(output.temporary(), tokenizer);
  Writer(output.temporary(), header, source, progress).run();
  output.publish();
}

}  // namespace mica::checkpoint
