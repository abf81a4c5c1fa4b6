// SPDX-License-Identifier: Apache-2.0
#include "mica/mpi/communicator.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "mica/core/error.hpp"

namespace mica::mpi {
namespace {

int int_count(std::size_t n, const char* what) {
  require<MpiError>(n <= static_cast<std::size_t>(std::numeric_limits<int>::max()), "{} of {} bytes: set-up messages are limited to 2 GiB",
                    what, n);
  return static_cast<int>(n);
}

MakeExchangeRecord make_record;  // NOLINT: one per process, as MPI is

/// Records one exchange, from construction to destruction.
class Recorded {
 public:
  Recorded(ExchangeRecord* record, const char* kind, std::int64_t bytes) : record_(record) {
    if (record_ != nullptr) record_->begin(kind, bytes);
  }
  ~Recorded() {
    if (record_ != nullptr) record_->end(std::uncaught_exceptions() == num_before_);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

 private:
  ExchangeRecord* record_;
  int num_before_ = std::uncaught_exceptions();
};

/// The ranks in MPI_COMM_WORLD of a communicator whose origin is not known. MPI may compare every member with every member.
std::vector<int> translated(MPI_Comm comm) {
  require<MpiError>(comm != MPI_COMM_NULL, "a Communicator was made from MPI_COMM_NULL; expected a valid communicator");
  int num_ranks = 0;
  MPI_Group here = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  check(MPI_Comm_size(comm, &num_ranks), "MPI_Comm_size");
  check(MPI_Comm_group(comm, &here), "MPI_Comm_group");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  std::vector<int> own(static_cast<std::size_t>(num_ranks)), result(own.size());
  std::iota(own.begin(), own.end(), 0);
  check(MPI_Group_translate_ranks(here, num_ranks, own.data(), world, result.data()), "MPI_Group_translate_ranks");
  MPI_Group_free(&here);
  MPI_Group_free(&world);
  return result;
}

}  // namespace

void record_exchanges(MakeExchangeRecord make) { make_record = std::move(make); }

void CommTraits::close(type comm) noexcept {
  int finalized = 0;
  // After MPI_Finalize the handle is invalid. A destructor cannot report a failure.
  if (MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Comm_free(&comm);
}

Communicator::Communicator(MPI_Comm owned) : Communicator(owned, translated(owned)) {}

Communicator::Communicator(MPI_Comm owned, std::vector<int> world_ranks) : comm_(owned), world_ranks_(std::move(world_ranks)) {
  check(MPI_Comm_set_errhandler(owned, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(owned, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(owned, &num_ranks_), "MPI_Comm_size");
  record();
}

Communicator Communicator::world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  int num_ranks = 0;
  check(MPI_Comm_size(copy, &num_ranks), "MPI_Comm_size");
  std::vector<int> world_ranks(static_cast<std::size_t>(num_ranks));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  return {copy, std::move(world_ranks)};
}

Communicator Communicator::duplicate() const {
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(get(), &copy), "MPI_Comm_dup");
  return {copy, world_ranks_};
}

Communicator Communicator::split(int color, int key) const {
  require<MpiError>(color >= 0, "Communicator::split with color {}; expected 0 or more", color);
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(get(), color, key, &part), "MPI_Comm_split");
  return from_part(part);
}

Communicator Communicator::split_node() const {
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split_type(get(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &part), "MPI_Comm_split_type");
  return from_part(part);
}

Communicator Communicator::from_part(MPI_Comm part) const {
  int num_ranks = 0;
  check(MPI_Comm_size(part, &num_ranks), "MPI_Comm_size");
  std::vector<int> world_ranks(static_cast<std::size_t>(num_ranks));
  const int mine = world_ranks_[static_cast<std::size_t>(rank_)];
  check(MPI_Allgather(&mine, 1, MPI_INT, world_ranks.data(), 1, MPI_INT, part), "MPI_Allgather");
  return {part, std::move(world_ranks)};
}

std::vector<int> Communicator::ranks_in(const Communicator& other) const {
  std::unordered_map<int, int> rank_there;
  for (const int world_rank : other.world_ranks_) rank_there.emplace(world_rank, static_cast<int>(rank_there.size()));
  std::vector<int> ranks;
  for (const int world_rank : world_ranks_) ranks.push_back(rank_there.at(world_rank));
  return ranks;
}

void Communicator::record() {
  if (record_ == nullptr && make_record && num_ranks_ > 1) record_ = make_record(world_ranks_);
}

void Communicator::barrier() const {
  const Recorded recorded(record_.get(), "barrier", 0);
  check(MPI_Barrier(get()), "MPI_Barrier");
}

std::vector<std::string> Communicator::gather_strings(const std::string& mine) const {
  const auto n = static_cast<std::size_t>(num_ranks_);
  const int my_bytes = int_count(mine.size(), "a gathered string");
  const Recorded recorded(record_.get(), "all_gather", my_bytes);
  std::vector<int> bytes(n);
  check(MPI_Allgather(&my_bytes, 1, MPI_INT, bytes.data(), 1, MPI_INT, get()), "MPI_Allgather");
  // All ranks see the same sizes, so they all throw.
  const std::size_t total =
      std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}, [](std::size_t sum, int b) { return sum + static_cast<std::size_t>(b); });
  int_count(total, "gathered strings");
  std::vector<int> offsets(n);
  std::exclusive_scan(bytes.begin(), bytes.end(), offsets.begin(), 0);
  std::string joined(total, '\0');
  check(MPI_Allgatherv(mine.data(), my_bytes, MPI_CHAR, joined.data(), bytes.data(), offsets.data(), MPI_CHAR, get()), "MPI_Allgatherv");
  std::vector<std::string> all(n);
  for (std::size_t r = 0; r < n; ++r) {
    all[r] = joined.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(bytes[r]));
  }
  return all;
}

std::vector<std::vector<std::int64_t>> Communicator::gather_numbers(const std::vector<std::int64_t>& mine) const {
  const std::size_t count = mine.size();
  std::vector<std::int64_t> all(count * static_cast<std::size_t>(num_ranks_));
  const Recorded recorded(record_.get(), "all_gather", std::ssize(all) * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const int numbers = int_count(count, "gathered numbers");
  check(MPI_Allgather(mine.data(), numbers, MPI_INT64_T, all.data(), numbers, MPI_INT64_T, get()), "MPI_Allgather");
  std::vector<std::vector<std::int64_t>> by_rank;
  for (auto at = all.begin(); at != all.end(); at += numbers) by_rank.emplace_back(at, at + numbers);
  return by_rank;
}

std::vector<std::string> Communicator::exchange_strings(const std::vector<std::string>& to_each) const {
  const auto n = static_cast<std::size_t>(num_ranks_);
  require<MpiError>(to_each.size() == n, "exchange_strings of {} strings among {} ranks", to_each.size(), n);
  const auto total_of = [](const std::vector<std::int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); };
  std::vector<std::int64_t> sent(n), received(n);
  for (std::size_t r = 0; r < n; ++r) sent[r] = std::ssize(to_each[r]);
  const Recorded recorded(record_.get(), "all_to_all", total_of(sent));
  check(MPI_Alltoall(sent.data(), 1, MPI_INT64_T, received.data(), 1, MPI_INT64_T, get()), "MPI_Alltoall");
  std::int64_t largest = std::max(total_of(sent), total_of(received));
  check(MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_INT64_T, MPI_MAX, get()), "MPI_Allreduce");
  int_count(static_cast<std::size_t>(largest), "exchanged strings");
  std::vector<int> sent_bytes(sent.begin(), sent.end()), received_bytes(received.begin(), received.end());
  std::vector<int> sent_offsets(n), received_offsets(n);
  std::exclusive_scan(sent_bytes.begin(), sent_bytes.end(), sent_offsets.begin(), 0);
  std::exclusive_scan(received_bytes.begin(), received_bytes.end(), received_offsets.begin(), 0);
  std::string out;
  out.reserve(static_cast<std::size_t>(total_of(sent)));
  for (const std::string& each : to_each) out += each;
  std::string in(static_cast<std::size_t>(total_of(received)), '\0');
  check(MPI_Alltoallv(out.data(), sent_bytes.data(), sent_offsets.data(), MPI_CHAR, in.data(), received_bytes.data(),
                      received_offsets.data(), MPI_CHAR, get()),
        "MPI_Alltoallv");
  std::vector<std::string> from_each(n);
  for (std::size_t r = 0; r < n; ++r) {
    from_each[r] = in.substr(static_cast<std::size_t>(received_offsets[r]), static_cast<std::size_t>(received_bytes[r]));
  }
  return from_each;
}

std::string Communicator::broadcast_string(const std::string& mine, int root) const {
  require<MpiError>(root >= 0 && root < num_ranks_, "broadcast_string from rank {} of {}", root, num_ranks_);
  std::int64_t bytes = static_cast<std::int64_t>(mine.size());
  const Recorded recorded(record_.get(), "broadcast", rank_ == root ? bytes : 0);
  check(MPI_Bcast(&bytes, 1, MPI_INT64_T, root, get()), "MPI_Bcast");
  const int count = int_count(static_cast<std::size_t>(bytes), "a broadcast string");
  std::string text = rank_ == root ? mine : std::string(static_cast<std::size_t>(bytes), '\0');
  check(MPI_Bcast(text.data(), count, MPI_CHAR, root, get()), "MPI_Bcast");
  return text;
}

std::int64_t Communicator::all_max(std::int64_t mine) const {
  std::int64_t result = 0;
  const Recorded recorded(record_.get(), "all_reduce", sizeof result);
  check(MPI_Allreduce(&mine, &result, 1, MPI_INT64_T, MPI_MAX, get()), "MPI_Allreduce");
  return result;
}

std::int64_t Communicator::all_sum(std::int64_t mine) const {
  std::int64_t result = 0;
  const Recorded recorded(record_.get(), "all_reduce", sizeof result);
  check(MPI_Allreduce(&mine, &result, 1, MPI_INT64_T, MPI_SUM, get()), "MPI_Allreduce");
  return result;
}

}  // namespace mica::mpi
