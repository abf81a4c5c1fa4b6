// SPDX-License-Identifier: Apache-2.0
#include "shared_read.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "mica/tensor/host_math.hpp"

#include "block_workers.hpp"
#include "part_reader.hpp"

namespace mica::checkpoint {
namespace {

/// Approximate number of bytes that a rank sends in a round.
constexpr std::int64_t kRoundBytes = std::int64_t{32} << 20;

/// Header of elements in a message: `count` runs of `numel` elements, `stride` apart at their destination. Their bytes follow. A box of
/// a parameter that is cut along an inner dim is one record, not one per row.
struct Record {
  std::int64_t sink, offset, numel, stride, count;
  DType dtype;
};

/// The data that one rank sends to another in a round.
class Message {
 public:
  void add(std::int64_t sink, std::int64_t offset, std::int64_t numel, DType dtype, const std::byte* data) {
    const bool is_alike = last_.count > 0 && last_.sink == sink && last_.numel == numel && last_.dtype == dtype;
    if (is_alike && last_.count == 1) last_.stride = offset - last_.offset;
    if (is_alike && offset == last_.offset + last_.count * last_.stride) {
      ++last_.count;
    } else {
      at_ = text_.size();
      last_ = {sink, offset, numel, 0, 1, dtype};
      text_.resize(at_ + sizeof last_);
    }
    std::memcpy(&text_[at_], &last_, sizeof last_);
    text_.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(numel * dtype_bytes(dtype)));
  }
  [[nodiscard]] std::string take() {
    last_ = {};
    return std::exchange(text_, {});
  }

 private:
  std::string text_;
  Record last_{};
  std::size_t at_ = 0;  // of last_
};

/// A block, or a part of one, in bytes of its dataset.
struct Job {
  const FilePart* part;
  const DatasetEntry* dataset;
  std::int64_t begin, end;
};

class SharedReader {
 public:
  explicit SharedReader(const SharedRead& read) : read_(read) {}

  std::int64_t run() {
    const std::vector<std::string> rounds = read_.comm.all_or_throw([&] {
      index_sinks(read_.make_sinks());
      list_jobs();
      list_rounds();
      read_own();
      return std::to_string(round_ends_.size());
    });
    std::size_t num_rounds = 0;  // of the busiest rank
    for (const std::string& each : rounds) num_rounds = std::max(num_rounds, static_cast<std::size_t>(std::stoull(each)));
    if (num_rounds > 0) read_shared(num_rounds);
    return bytes_;
  }

 private:
  template <class Visit>
  void for_each_destination(const Job& job, Visit visit) const {
    const auto of_kind = by_kind_.find(job.dataset->kind);
    if (of_kind == by_kind_.end()) return;
    const std::vector<const Sink*>& by_unit = of_kind->second;
    const std::int64_t element = dtype_bytes(job.dataset->dtype);
    read_.for_each_destination(*job.part, *job.dataset, job.begin / element, job.end / element, [&](const Destination& to) {
      if (to.unit < by_unit.size() && by_unit[to.unit] != nullptr) visit(to, *by_unit[to.unit]);
    });
  }

  void index_sinks(std::vector<Sink> sinks) {
    sinks_ = std::move(sinks);
    for (const Sink& sink : sinks_) {
      std::vector<const Sink*>& of_kind = by_kind_[sink.kind];
      if (of_kind.size() <= sink.unit) of_kind.resize(sink.unit + 1, nullptr);
      of_kind[sink.unit] = &sink;
    }
  }

  /// Lists blocks that only this rank needs, and blocks that other ranks need, in file order.
  void list_jobs() {
    for (const FilePart& part : read_.parts) {
      std::int64_t at = 0;
      for (const DatasetEntry& dataset : part.file.datasets) {
        for (std::int64_t block = 0; block < dataset.num_blocks(); ++block, ++at) {
          if (at < part.first || at >= part.last) continue;
          const std::int64_t begin = block * kBlockBytes;
          add({&part, &dataset, begin, begin + dataset.block_bytes(block)});
        }
      }
    }
  }

  void add(const Job& job) {
    std::size_t fan_out = 0;
    bool is_own = true;
    for_each_destination(job, [&](const Destination& to, const Sink&) {
      fan_out = std::max(fan_out, to.ranks->size());
      is_own = is_own && to.ranks->size() == 1 && to.ranks->front() == read_.comm.rank();
    });
    if (fan_out == 0) return;
    bytes_ += job.end - job.begin;
    if (is_own) return own_.push_back(job);
    // Bytes for many ranks are sent in small parts, so that a round sends about kRoundBytes in all.
    const std::int64_t part = std::clamp<std::int64_t>(kRoundBytes / static_cast<std::int64_t>(fan_out) / 4096 * 4096, 4096, kBlockBytes);
    for (std::int64_t begin = job.begin; begin < job.end; begin += part) {
      shared_.push_back({job.part, job.dataset, begin, std::min(begin + part, job.end)});
      shared_bytes_.push_back((shared_.back().end - begin) * static_cast<std::int64_t>(fan_out));
    }
  }

  /// The reader of one thread, which reads file after file.
  struct Reader {
    PartReader parts;
    BlockBuffer memory;

    void read(const Job& job, std::byte* to) { parts.read(job.part->file, *job.dataset, {job.begin, job.end - job.begin, to}); }
  };
  [[nodiscard]] Reader make_reader() const { return {PartReader(read_.folder, /*max_open=*/1), BlockBuffer()}; }

  /// Reads directly into place where possible.
  void read_own() {
    std::int64_t bytes = 0;
    for (const Job& job : own_) bytes += job.end - job.begin;
    std::vector<Reader> readers;
    for (int w = 0; w < kNumBlockWorkers; ++w) readers.push_back(make_reader());
    run_block_workers(std::ssize(own_), bytes, [&](int worker, std::int64_t j) {
      const Job& job = own_[static_cast<std::size_t>(j)];
      Reader& reader = readers[static_cast<std::size_t>(worker)];
      if (std::byte* place = memory_of(job)) return reader.read(job, place);
      reader.read(job, reader.memory.data());
      for_each_destination(job, [&](const Destination& to, const Sink& sink) { store(job, reader.memory.data(), to, sink); });
    });
  }

  /// The destination of one of this rank's own blocks, if that is contiguous host memory of the same dtype; else null.
  [[nodiscard]] std::byte* memory_of(const Job& job) const {
    std::byte* memory = nullptr;
    const std::int64_t element = dtype_bytes(job.dataset->dtype);
    for_each_destination(job, [&](const Destination& to, const Sink& sink) {
      const bool is_whole = to.run.numel() * element == job.end - job.begin && sink.to.dtype == job.dataset->dtype &&
                            read_.pool.device_of(sink.to.data) == DeviceKind::cpu;
      if (is_whole) memory = static_cast<std::byte*>(sink.to.data) + to.run.offset * element;
    });
    return memory;
  }

  void store(const Job& job, const std::byte* data, const Destination& to, const Sink& sink) const {
    const DType dtype = job.dataset->dtype;
    store(sink, to.run.offset, to.run.numel(), dtype, data + (to.run.begin * dtype_bytes(dtype) - job.begin));
  }

  void store(const Sink& sink, std::int64_t offset, std::int64_t numel, DType from, const std::byte* data) const {
    invariant(offset >= 0 && numel >= 0 && offset + numel <= sink.to.numel(), "what is read fits its place");
    const TensorView to = sink.to.slice(offset, numel);
    const bool is_on_host = read_.pool.device_of(to.data) == DeviceKind::cpu;
    if (from == to.dtype) {
      if (is_on_host)
        std::memcpy(to.data, data, static_cast<std::size_t>(to.bytes()));
      else
        read_.pool.copy(to.data, data, to.bytes());
      return;
    }
    std::vector<std::byte> aligned(data, data + numel * dtype_bytes(from));
    std::vector<std::byte> converted(static_cast<std::size_t>(to.bytes()));
    convert(aligned.data(), from, converted.data(), to.dtype, numel);
    read_.pool.copy(to.data, converted.data(), to.bytes());
  }

  void list_rounds() {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < shared_.size(); ++i) {
      bytes += shared_bytes_[i];
      if (bytes < kRoundBytes && i + 1 < shared_.size()) continue;
      round_ends_.push_back(i + 1);
      bytes = 0;
    }
  }

  void read_shared(std::size_t num_rounds) {
    std::vector<std::string> received;
    Reader reader = make_reader();
    std::size_t next = 0;
    for (std::size_t round = 0; round < num_rounds; ++round) {
      std::vector<Message> messages(static_cast<std::size_t>(read_.comm.num_ranks()));
      read_.comm.agree([&] {
        take(received);
        for (; round < round_ends_.size() && next < round_ends_[round]; ++next) read_and_send(reader, shared_[next], messages);
      });
      std::vector<std::string> to_each;
      for (Message& message : messages) to_each.push_back(message.take());
      received = read_.comm.exchange_strings(to_each);
    }
    read_.comm.agree([&] { take(received); });
  }

  void read_and_send(Reader& reader, const Job& job, std::vector<Message>& messages) const {
    const std::byte* data = reader.memory.data();
    reader.read(job, reader.memory.data());
    const DType dtype = job.dataset->dtype;
    for_each_destination(job, [&](const Destination& to, const Sink& sink) {
      for (const int rank : *to.ranks) {
        if (rank == read_.comm.rank()) {
          store(job, data, to, sink);
        } else {
          messages[static_cast<std::size_t>(rank)].add(&sink - sinks_.data(), to.run.offset, to.run.numel(), dtype,
                                                       data + (to.run.begin * dtype_bytes(dtype) - job.begin));
        }
      }
    });
  }

  void take(const std::vector<std::string>& received) const {
    for (const std::string& message : received) {
      for (std::size_t at = 0; at < message.size();) {
        Record record{};
        std::memcpy(&record, &message[at], sizeof record);
        at += sizeof record;
        for (std::int64_t i = 0; i < record.count; ++i) {
          store(sinks_.at(static_cast<std::size_t>(record.sink)), record.offset + i * record.stride, record.numel, record.dtype,
                reinterpret_cast<const std::byte*>(&message[at]));
          at += static_cast<std::size_t>(record.numel * dtype_bytes(record.dtype));
        }
      }
    }
  }

  const SharedRead& read_;
  std::vector<Sink> sinks_;
  std::map<std::string, std::vector<const Sink*>, std::less<>> by_kind_;  // by kind, then by unit; null: not needed
  std::vector<Job> own_, shared_;
  std::vector<std::int64_t> shared_bytes_;  // bytes sent, per job of shared_
  std::vector<std::size_t> round_ends_;     // indices into shared_
  std::int64_t bytes_ = 0;
};

}  // namespace

std::int64_t num_blocks(const FileEntry& file) {
  std::int64_t blocks = 0;
  for (const DatasetEntry& dataset : file.datasets) blocks += dataset.num_blocks();
  return blocks;
}

std::int64_t read_together(const SharedRead& read) { return SharedReader(read).run(); }

}  // namespace mica::checkpoint
