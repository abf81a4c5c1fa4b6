// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/host_comm.hpp"

#include <algorithm>
#include <utility>

#include "mica/comm/gpu_groups.hpp"
#include "mica/core/error_text.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica {
namespace {

// --- outcomes of work: kDone and its result, or its error's text (core/error_text.hpp) -------------------------------

constexpr char kDone = '+';

/// Empty: it succeeded.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::exception& error) {
    return text_of_error(error);
  } catch (...) {
    return text_of_error(Error("an exception of unknown type"));
  }
}

std::string outcome_of(const std::function<std::string()>& work) {
  std::string outcome;
  const std::string error = error_of([&] { outcome = kDone + work(); });
  return error.empty() ? outcome : error;
}

std::string rank_prefix(std::int64_t rank) { return fmt::format("rank {}: ", rank); }

/// @param errors  by rank, empty where the work succeeded
void throw_first(const std::vector<std::string>& errors) {
  const auto first = std::ranges::find_if(errors, [](const std::string& each) { return !each.empty(); });
  if (first == errors.end()) return;
  const bool all_alike = std::ranges::all_of(errors, [&](const std::string& each) { return each == *first; });
  throw_error_of(*first, all_alike ? "" : rank_prefix(first - errors.begin()), static_cast<int>(errors.size()));
}

/// Of one rank's outcome.
std::string result_of(const std::string& outcome, const std::string& prefix, int num_ranks) {
  if (outcome[0] != kDone) throw_error_of(outcome, num_ranks > 1 ? prefix : "", num_ranks);
  return outcome.substr(1);
}

// --- implementations -------------------------------------------------------------------------------------------------

class SingleComm final : public HostComm {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int num_ranks() const override { return 1; }
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override { return {mine}; }
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int) const override { return mine; }
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override { return to_each; }
};

class MpiComm final : public HostComm {
 public:
  explicit MpiComm(const mpi::Communicator& comm) : comm_(comm) {}
  [[nodiscard]] int rank() const override { return comm_.rank(); }
  [[nodiscard]] int num_ranks() const override { return comm_.num_ranks(); }
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override { return comm_.gather_strings(mine); }
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const override {
    return comm_.broadcast_string(mine, root);
  }
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    return comm_.exchange_strings(to_each);
  }

 private:
  /// If no rank has an error, this is one small reduction.
  [[nodiscard]] std::vector<std::string> gather_errors(const std::string& mine) const override {
    if (comm_.all_max(mine.empty() ? 0 : 1) == 0) return {};
    return comm_.gather_strings(mine);
  }

  const mpi::Communicator& comm_;
};

/// Runs a collective on host memory, and waits for it.
void on_host(ProcessGroup& group, Stream& stream, const std::function<void(ProcessGroup&, Stream&)>& collective) {
  if (stream.device() == DeviceKind::cpu) {
    collective(group, stream);
  } else {
    const std::unique_ptr<Stream> host = make_cpu_stream("agree", StreamMode::inlined);
    collective(host_group_of(group), *host);
    host->synchronize();
  }
  stream.synchronize();
}

void gather_bytes(ProcessGroup& group, Stream& stream, const char* label, const void* mine, void* all, std::int64_t bytes) {
  const ConstTensorView sent{mine, Shape{bytes}, DType::u8};
  const TensorView received{all, Shape{bytes * group.num_ranks()}, DType::u8};
  on_host(group, stream, [&](ProcessGroup& g, Stream& s) { g.all_gather(s, label, sent, received); });
}

class GroupComm final : public HostComm {
 public:
  GroupComm(ProcessGroup& group, Stream& stream, std::string label) : group_(group), stream_(stream), label_(std::move(label)) {}
  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int num_ranks() const override { return group_.num_ranks(); }

  /// Texts are padded to the longest.
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override {
    const auto n = static_cast<std::size_t>(num_ranks());
    const std::vector<std::vector<std::int64_t>> bytes = gather_numbers(group_, stream_, label(), {std::ssize(mine)});
    const std::int64_t longest = std::ranges::max(bytes)[0];
    std::string padded = mine;
    padded.resize(static_cast<std::size_t>(longest));
    std::string joined;
    for (std::size_t r = 0; r < n; ++r) joined += padded;  // a fake group keeps this
    if (longest > 0) gather_bytes(group_, stream_, label(), padded.data(), joined.data(), longest);
    std::vector<std::string> all(n);
    for (std::size_t r = 0; r < n; ++r) {
      all[r] = joined.substr(r * padded.size(), static_cast<std::size_t>(bytes[r][0]));
    }
    return all;
  }

  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const override {
    std::int64_t bytes = std::ssize(mine);
    const auto broadcast = [&](TensorView view) {
      on_host(group_, stream_, [&](ProcessGroup& group, Stream& stream) { group.broadcast(stream, label(), view, root); });
    };
    broadcast({&bytes, Shape{1}, DType::i64});
    std::string text = mine;
    text.resize(static_cast<std::size_t>(bytes));
    if (bytes > 0) broadcast({text.data(), Shape{bytes}, DType::u8});
    return text;
  }

  /// Texts are padded to the longest of all: all_to_all exchanges equal parts.
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    const auto n = static_cast<std::size_t>(num_ranks());
    std::vector<std::int64_t> sizes;
    for (const std::string& each : to_each) sizes.push_back(std::ssize(each));
    std::vector<std::int64_t> received_sizes(n, sizes[static_cast<std::size_t>(rank())]);  // a fake group keeps this
    exchange(sizes.data(), received_sizes.data(), static_cast<std::int64_t>(n), DType::i64);
    const std::int64_t longest = std::ranges::max(gather_numbers(group_, stream_, label(), {std::ranges::max(sizes)}))[0];
    if (longest == 0 || n == 1) return to_each;
    const auto part = static_cast<std::size_t>(longest);
    std::string out(n * part, '\0');
    for (std::size_t r = 0; r < n; ++r) to_each[r].copy(&out[r * part], part);
    std::string in;
    for (std::size_t r = 0; r < n; ++r) in += out.substr(static_cast<std::size_t>(rank()) * part, part);  // a fake group keeps this
    exchange(out.data(), in.data(), std::ssize(out), DType::u8);
    std::vector<std::string> from_each(n);
    for (std::size_t r = 0; r < n; ++r) {
      from_each[r] = in.substr(r * part, static_cast<std::size_t>(received_sizes[r]));
    }
    return from_each;
  }

 private:
  [[nodiscard]] const char* label() const { return label_.c_str(); }
  void exchange(const void* sent, void* received, std::int64_t numel, DType dtype) const {
    on_host(group_, stream_, [&](ProcessGroup& group, Stream& stream) {
      group.all_to_all(stream, label(), {sent, Shape{numel}, dtype}, {received, Shape{numel}, dtype});
    });
  }

  ProcessGroup& group_;
  Stream& stream_;
  std::string label_;
};

}  // namespace

void HostComm::agree(const std::function<void()>& work) const { throw_first(gather_errors(error_of(work))); }

std::vector<std::string> HostComm::all_or_throw(const std::function<std::string()>& work) const {
  std::vector<std::string> outcomes = gather_strings(outcome_of(work));
  std::vector<std::string> errors;
  for (const std::string& each : outcomes) errors.push_back(each[0] == kDone ? "" : each);
  throw_first(errors);
  for (std::string& each : outcomes) each.erase(0, 1);
  return outcomes;
}

std::vector<std::string> HostComm::to_first_rank(const std::function<std::string()>& work) const {
  std::vector<std::string> to_each(static_cast<std::size_t>(num_ranks()));
  agree([&] { to_each.front() = work(); });
  std::vector<std::string> results = exchange_strings(to_each);
  if (rank() != 0) results.clear();
  return results;
}

std::string HostComm::from_root(int root, const std::function<std::string()>& work) const {
  return result_of(broadcast_outcome(root, work), rank_prefix(root), num_ranks());
}

std::string HostComm::from_first_rank(const std::function<std::string()>& work) const {
  return result_of(broadcast_outcome(0, work), "", num_ranks());
}

std::string HostComm::broadcast_outcome(int root, const std::function<std::string()>& work) const {
  return broadcast_string(rank() == root ? outcome_of(work) : std::string(1, kDone), root);
}

std::string HostComm::from_first_rank_to_each(const std::function<std::vector<std::string>()>& work) const {
  std::vector<std::string> outcomes(static_cast<std::size_t>(num_ranks()));
  if (rank() == 0) {
    const std::string error = error_of([&] {
      outcomes = work();
      for (std::string& each : outcomes) each.insert(each.begin(), kDone);
    });
    if (!error.empty()) outcomes.assign(static_cast<std::size_t>(num_ranks()), error);
  }
  return result_of(exchange_strings(outcomes).front(), rank_prefix(0), num_ranks());
}

bool HostComm::is_shared(const std::exception& error) const {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr && ours->num_sharers() == num_ranks();
}

std::unique_ptr<HostComm> make_single_comm() { return std::make_unique<SingleComm>(); }

std::unique_ptr<HostComm> make_mpi_comm(const mpi::Communicator& comm) { return std::make_unique<MpiComm>(comm); }

std::unique_ptr<HostComm> make_group_comm(ProcessGroup& group, Stream& stream, std::string label) {
  return std::make_unique<GroupComm>(group, stream, std::move(label));
}

std::vector<std::vector<std::int64_t>> gather_numbers(ProcessGroup& group, Stream& stream, const char* label,
                                                      const std::vector<std::int64_t>& mine) {
  const std::size_t n = mine.size();
  std::vector<std::int64_t> all;
  for (int r = 0; r < group.num_ranks(); ++r) all.insert(all.end(), mine.begin(), mine.end());
  gather_bytes(group, stream, label, mine.data(), all.data(), static_cast<std::int64_t>(n * sizeof(std::int64_t)));
  std::vector<std::vector<std::int64_t>> by_rank;
  for (auto at = all.begin(); by_rank.size() < static_cast<std::size_t>(group.num_ranks()); at += static_cast<std::ptrdiff_t>(n)) {
    by_rank.emplace_back(at, at + static_cast<std::ptrdiff_t>(n));
  }
  return by_rank;
}

}  // namespace mica
