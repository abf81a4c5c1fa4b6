#include "mica/checkpoint/host_comm.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "mica/checkpoint/manifest.hpp"
#include "mica/comm/agree.hpp"
#include "mica/core/error_text.hpp"

namespace mica::checkpoint {
namespace {

// What travels is one letter and a text: kDone and a result, kDamaged and what is damaged, or another error's text
// (core/error_text.hpp).
constexpr char kDone = '+', kDamaged = '!';

[[noreturn]] void throw_encoded(const std::string& encoded, const std::string& prefix) {
  if (encoded[0] == kDamaged) throw DamagedCheckpointError(prefix + encoded.substr(1));
  throw_error_of(encoded, prefix);
}

std::string rank_prefix(int rank, int num_ranks) { return num_ranks > 1 ? fmt::format("rank {}: ", rank) : ""; }

class SingleComm final : public HostComm {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int num_ranks() const override { return 1; }
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override { return {mine}; }
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int) const override { return mine; }
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    return to_each;
  }
};

class MpiComm final : public HostComm {
 public:
  explicit MpiComm(const mpi::Communicator& comm) : comm_(comm) {}
  [[nodiscard]] int rank() const override { return comm_.rank(); }
  [[nodiscard]] int num_ranks() const override { return comm_.num_ranks(); }
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override {
    return comm_.gather_strings(mine);
  }
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const override {
    return comm_.broadcast_string(mine, root);
  }
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    return comm_.exchange_strings(to_each);
  }

 private:
  const mpi::Communicator& comm_;
};

class GroupComm final : public HostComm {
 public:
  GroupComm(ProcessGroup& group, Stream& stream) : group_(group), stream_(stream) {}
  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int num_ranks() const override { return group_.num_ranks(); }

  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override {
    return mica::gather_strings(group_, stream_, "checkpoint", mine);
  }

  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const override {
    std::int64_t bytes = static_cast<std::int64_t>(mine.size());
    group_.broadcast(stream_, "checkpoint", {&bytes, Shape{1}, DType::i64}, root);
    stream_.synchronize();
    std::string text = rank() == root ? mine : std::string(static_cast<std::size_t>(bytes), '\0');
    if (bytes == 0) return text;
    group_.broadcast(stream_, "checkpoint", {text.data(), Shape{bytes}, DType::u8}, root);
    stream_.synchronize();
    return text;
  }

  /// Every pair's text takes as much room as the longest: a process group exchanges equal parts.
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    const auto n = static_cast<std::size_t>(num_ranks());
    std::vector<std::int64_t> sizes;
    for (const std::string& each : to_each) sizes.push_back(std::ssize(each));
    const std::vector<std::vector<std::int64_t>> sent = gather_numbers(group_, stream_, "checkpoint", sizes);
    std::int64_t longest = 0;
    for (const std::vector<std::int64_t>& row : sent) longest = std::max(longest, std::ranges::max(row));
    if (longest == 0 || n == 1) return to_each;
    const auto part = static_cast<std::size_t>(longest);
    std::string out(n * part, '\0'), in(n * part, '\0');
    for (std::size_t r = 0; r < n; ++r) to_each[r].copy(&out[r * part], part);
    const Shape shape{static_cast<std::int64_t>(out.size())};
    group_.all_to_all(stream_, "checkpoint", {out.data(), shape, DType::u8}, {in.data(), shape, DType::u8});
    stream_.synchronize();
    std::vector<std::string> from_each(n);
    for (std::size_t r = 0; r < n; ++r) {
      from_each[r] = in.substr(r * part, static_cast<std::size_t>(sent[r][static_cast<std::size_t>(rank())]));
    }
    return from_each;
  }

 private:
  ProcessGroup& group_;
  Stream& stream_;
};

}  // namespace

std::string HostComm::describe_current_exception() {
  try {
    throw;
  } catch (const DamagedCheckpointError& error) {
    return kDamaged + std::string(error.what());
  } catch (const std::exception& error) {
    return text_of_error(error);
  } catch (...) {
    return text_of_error(Error("an exception of unknown type"));
  }
}

std::vector<std::string> HostComm::settle(const std::string& result, const std::string& error) const {
  std::vector<std::string> all = gather_strings(error.empty() ? kDone + result : error);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r][0] != kDone) throw_encoded(all[r], rank_prefix(static_cast<int>(r), num_ranks()));
  }
  for (std::string& each : all) each.erase(0, 1);
  return all;
}

std::string HostComm::settle_root(const std::string& result, const std::string& error, int root) const {
  const std::string sent = broadcast_string(error.empty() ? kDone + result : error, root);
  if (sent[0] != kDone) throw_encoded(sent, rank_prefix(root, num_ranks()));
  return sent.substr(1);
}

std::vector<std::string> HostComm::gather_to_first_rank(std::string mine) const {
  std::vector<std::string> to_each(static_cast<std::size_t>(num_ranks()));
  to_each.front() = std::move(mine);
  std::vector<std::string> all = exchange_strings(to_each);
  if (rank() != 0) all.clear();
  return all;
}

std::string HostComm::settle_first_rank(std::vector<std::string> to_each, const std::string& error) const {
  if (!error.empty() || rank() != 0) {
    to_each.assign(static_cast<std::size_t>(num_ranks()), error);
  } else {
    for (std::string& each : to_each) each.insert(each.begin(), kDone);
  }
  const std::string sent = exchange_strings(to_each).front();
  if (sent[0] != kDone) throw_encoded(sent, rank_prefix(0, num_ranks()));
  return sent.substr(1);
}

std::unique_ptr<HostComm> make_single_comm() { return std::make_unique<SingleComm>(); }

std::unique_ptr<HostComm> make_mpi_comm(const mpi::Communicator& comm) { return std::make_unique<MpiComm>(comm); }

std::unique_ptr<HostComm> make_group_comm(ProcessGroup& group, Stream& stream) {
  return std::make_unique<GroupComm>(group, stream);
}

}  // namespace mica::checkpoint
