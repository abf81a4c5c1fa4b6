// SPDX-License-Identifier: Apache-2.0
#include "mpi_broadcast_within.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"

namespace mica::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kArrivalTag = 2, kAnswerTag = 3;
/// The root's answer begins with an error text; all zeros: no error.
constexpr std::size_t kTextBytes = 512;
constexpr auto kPollEvery = std::chrono::microseconds(200);

std::string seconds(milliseconds timeout) { return fmt::format("{:g} s", std::chrono::duration<double>(timeout).count()); }

/// Messages in progress. The destructor cancels receives that have not completed.
class Messages {
 public:
  Messages() = default;
  ~Messages() {
    for (MPI_Request& request : sends_) {
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
    for (MPI_Request& request : receives_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);  // returns soon: the message is cancelled or matched
    }
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void send(const mpi::Communicator& comm, std::span<const std::byte> data, int to, int tag) {
    mpi::check(MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, tag, comm.get(), &sends_.emplace_back()), "MPI_Isend");
  }
  void receive(const mpi::Communicator& comm, std::span<std::byte> data, int from, int tag) {
    mpi::check(MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, from, tag, comm.get(), &receives_.emplace_back()),
               "MPI_Irecv");
  }
  /// Waits until all are done, or for the deadline. @return indexes of the receives that are not done, in the order of receive()
  [[nodiscard]] std::vector<std::size_t> wait_until(Clock::time_point deadline) {
    for (;;) {
      std::vector<std::size_t> missing;
      for (std::size_t i = 0; i < receives_.size(); ++i) {
        if (!is_done(receives_[i])) missing.push_back(i);
      }
      const bool all_sent = std::ranges::all_of(sends_, is_done);
      if ((missing.empty() && all_sent) || Clock::now() >= deadline) return missing;
      std::this_thread::sleep_for(kPollEvery);
    }
  }

 private:
  static bool is_done(MPI_Request& request) {
    int flag = 0;
    mpi::check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    return flag != 0;
  }
  std::vector<MPI_Request> sends_, receives_;
};

void give(const mpi::Communicator& comm, std::span<std::byte> data, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::vector<int> others;
  for (int r = 0; r < comm.num_ranks(); ++r) {
    if (r != comm.rank()) others.push_back(r);
  }
  std::vector<std::byte> arrivals(others.size());
  std::vector<int> missing;
  {
    Messages requests;
    for (std::size_t i = 0; i < others.size(); ++i) requests.receive(comm, std::span(arrivals).subspan(i, 1), others[i], kArrivalTag);
    for (const std::size_t i : requests.wait_until(deadline)) missing.push_back(others[i]);
  }
  std::string text;
  if (!missing.empty()) {
    std::vector<int> named;
    for (const int r : missing) named.push_back(comm.world_ranks()[static_cast<std::size_t>(r)]);
    std::ranges::sort(named);
    text = fmt::format("rank{} {} of the job did not connect within {}", named.size() == 1 ? "" : "s", fmt::join(named, ", "),
                       seconds(timeout));
    text.resize(std::min(text.size(), kTextBytes - 1));
  }
  std::vector<std::byte> answer(kTextBytes + data.size());
  std::memcpy(answer.data(), text.data(), text.size());
  std::memcpy(answer.data() + kTextBytes, data.data(), data.size());
  Messages answers;
  for (const int r : others) {
    if (std::ranges::find(missing, r) == missing.end()) answers.send(comm, answer, r, kAnswerTag);
  }
  static_cast<void>(answers.wait_until(Clock::now() + std::chrono::seconds(1)));  // those ranks have posted their receives
  if (!text.empty()) throw MpiError(text);
}

void take(const mpi::Communicator& comm, std::span<std::byte> data, int root, milliseconds timeout) {
  std::vector<std::byte> answer(kTextBytes + data.size());
  const std::array<std::byte, 1> here{};
  Messages requests;
  requests.send(comm, here, root, kArrivalTag);
  requests.receive(comm, answer, root, kAnswerTag);
  // Longer than the root waits for the others, since the root's answer names the missing ones.
  const auto patience = timeout + std::min<milliseconds>(timeout / 4, std::chrono::seconds(2));
  require<MpiError>(requests.wait_until(Clock::now() + patience).empty(), "rank {} of the job did not connect within {}",
                    comm.world_ranks()[static_cast<std::size_t>(root)], seconds(timeout));
  const std::string text(reinterpret_cast<const char*>(answer.data()));
  if (!text.empty()) throw MpiError(text);
  std::memcpy(data.data(), answer.data() + kTextBytes, data.size());
}

}  // namespace

void broadcast_within(const mpi::Communicator& comm, std::span<std::byte> data, int root, milliseconds timeout) {
  comm.rank() == root ? give(comm, data, timeout) : take(comm, data, root, timeout);
}

}  // namespace mica::detail
