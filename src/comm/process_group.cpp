// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/process_group.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "mica/core/error.hpp"

namespace mica {
namespace {

const char* text_of(const char* label) { return label ? label : ""; }

bool overlaps(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + static_cast<std::uintptr_t>(b_bytes) && y < x + static_cast<std::uintptr_t>(a_bytes);
}

}  // namespace

ProcessGroup::ProcessGroup(int rank, int num_ranks, std::string name, bool communicates_alone)
    : rank_(rank), num_ranks_(num_ranks), name_(std::move(name)), is_alone_(num_ranks == 1 && !communicates_alone), recorder_(name_) {
  require<ConfigError>(num_ranks >= 1 && rank >= 0 && rank < num_ranks,
                       "group '{}' was made with rank {} of {} ranks; expected 0 <= rank < ranks", name_, rank, num_ranks);
}

// --- arguments -----------------------------------------------------------------------------------------------------

void ProcessGroup::check_data(Collective kind, const char* label, ConstTensorView data) const {
  require<ConfigError>(data.data != nullptr || data.numel() == 0,
                       "{} '{}' in group '{}': a tensor {} of {} has no memory; allocate it first", collective_name(kind), text_of(label),
                       name_, data.shape.to_string(), dtype_name(data.dtype));
}

void ProcessGroup::check_summable(Collective kind, const char* label, DType dtype) const {
  require<ConfigError>(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
                       "{} '{}' in group '{}' of {}: only fp32, bf16 and fp16 can be reduced", collective_name(kind), text_of(label), name_,
                       dtype_name(dtype));
}

void ProcessGroup::check_shards(Collective kind, const char* label, ConstTensorView shard, ConstTensorView full) const {
  check_data(kind, label, shard);
  check_data(kind, label, full);
  require<ConfigError>(shard.dtype == full.dtype, "{} '{}' in group '{}': the shard is {}, the unsharded tensor {}; expected one dtype",
                       collective_name(kind), text_of(label), name_, dtype_name(shard.dtype), dtype_name(full.dtype));
  require<ConfigError>(
      shard.numel() * num_ranks_ == full.numel(),
      "{} '{}' in group '{}': {} ranks x shard of {} elements = {}, but the unsharded tensor has {}; pad it to a multiple of the ranks",
      collective_name(kind), text_of(label), name_, num_ranks_, shard.numel(), shard.numel() * num_ranks_, full.numel());
  if (full.numel() == 0) return;
  const void* own = full.slice(rank_ * shard.numel(), shard.numel()).data;
  require<ConfigError>(shard.data == own || !overlaps(shard.data, shard.bytes(), full.data, full.bytes()),
                       "{} '{}' in group '{}': the shard overlaps the unsharded tensor; that is allowed only at this rank's own slice "
                       "(element {})",
                       collective_name(kind), text_of(label), name_, rank_ * shard.numel());
}

void ProcessGroup::begin(Collective kind, const char* label, std::int64_t bytes) {
  call_.kind = kind;
  call_.label = text_of(label);
  call_.bytes = bytes;
  call_.sequence = recorder_.enqueue(kind, call_.label, bytes);
  ++counts_.calls[static_cast<std::size_t>(kind)];
  counts_.bytes[static_cast<std::size_t>(kind)] += bytes;
}

// --- collectives ---------------------------------------------------------------------------------------------------

void ProcessGroup::copy_single(Stream& s, Collective kind, ConstTensorView src, TensorView dst) const {
  if (src.data != dst.data && src.numel() != 0) enqueue_copy(s, collective_name(kind), src, dst);
}

void ProcessGroup::enqueue_copy(Stream& s, const char* what, ConstTensorView src, TensorView dst) const {
  s.submit(what, {reads(src), writes(dst)}, [src, dst] { std::memcpy(dst.data, src.data, static_cast<std::size_t>(src.bytes())); });
}

void ProcessGroup::all_gather(Stream& s, const char* label, ConstTensorView shard, TensorView full) {
  check_shards(Collective::all_gather, label, shard, full);
  if (is_alone()) return copy_single(s, Collective::all_gather, shard, full);
  if (full.numel() == 0) return;
  begin(Collective::all_gather, label, full.bytes());
  enqueue_all_gather(s, shard, full);
}

void ProcessGroup::reduce_scatter(Stream& s, const char* label, ConstTensorView full, TensorView shard) {
  check_shards(Collective::reduce_scatter, label, shard, full);
  check_summable(Collective::reduce_scatter, label, full.dtype);
  if (is_alone()) return copy_single(s, Collective::reduce_scatter, full, shard);
  if (full.numel() == 0) return;
  begin(Collective::reduce_scatter, label, full.bytes());
  enqueue_reduce_scatter(s, full, shard);
}

void ProcessGroup::all_reduce(Stream& s, const char* label, TensorView data, ReduceOp op) {
  check_data(Collective::all_reduce, label, data);
  check_summable(Collective::all_reduce, label, data.dtype);
  if (is_alone() || data.numel() == 0) return;
  begin(Collective::all_reduce, label, data.bytes());
  enqueue_all_reduce(s, data, op);
}

void ProcessGroup::all_to_all(Stream& s, const char* label, ConstTensorView sent, TensorView received) {
  constexpr Collective kKind = Collective::all_to_all;
  check_data(kKind, label, sent);
  check_data(kKind, label, received);
  require<ConfigError>(sent.dtype == received.dtype && sent.numel() == received.numel(),
                       "{} '{}' in group '{}': {} elements of {} are sent, {} of {} received; expected the same", collective_name(kKind),
                       text_of(label), name_, sent.numel(), dtype_name(sent.dtype), received.numel(), dtype_name(received.dtype));
  require<ConfigError>(sent.numel() % num_ranks_ == 0,
                       "{} '{}' in group '{}': {} elements do not divide into {} equal slices; pad them to a multiple of the ranks",
                       collective_name(kKind), text_of(label), name_, sent.numel(), num_ranks_);
  require<ConfigError>(!overlaps(sent.data, sent.bytes(), received.data, received.bytes()),
                       "{} '{}' in group '{}': the received tensor overlaps the sent one; expected separate memory", collective_name(kKind),
                       text_of(label), name_);
  if (is_alone()) return copy_single(s, kKind, sent, received);
  if (sent.numel() == 0) return;
  begin(kKind, label, sent.bytes());
  enqueue_all_to_all(s, sent, received);
}

void ProcessGroup::broadcast(Stream& s, const char* label, TensorView data, int root) {
  check_data(Collective::broadcast, label, data);
  require<ConfigError>(root >= 0 && root < num_ranks_, "broadcast '{}' in group '{}' from rank {}; expected 0 to {}", text_of(label), name_,
                       root, num_ranks_ - 1);
  if (is_alone() || data.numel() == 0) return;
  begin(Collective::broadcast, label, data.bytes());
  enqueue_broadcast(s, data, root);
}

void ProcessGroup::barrier(Stream& s, const char* label) {
  if (is_alone()) return;
  begin(Collective::barrier, label, 0);
  enqueue_barrier(s);
}

// --- shared memory -------------------------------------------------------------------------------------------------

SharedParts ProcessGroup::allocate_parts(Pool& pool, std::int64_t numel, DType dtype, MemoryRole role, Stream& home) {
  SharedParts parts;
  parts.memory = allocate(pool, numel * dtype_bytes(dtype), role, home);
  parts.own = {parts.memory.data(), Shape{numel}, dtype};
  parts.rank = rank_;
  return parts;
}

void ProcessGroup::wait_for_written(Stream& s, const char* label, const SharedParts& parts, std::uint64_t round) {
  begin(Collective::wait_for_written, label, 0);
  submit(s, {reads(parts.own)},
         [this, members = parts.members, round](const Call& call) { wait_until_written(members, round, [&] { require_peers(call); }); });
}

void ProcessGroup::wait_for_turn(Stream& s, const char* label, const SharedParts& parts, const PartTurn& turn) {
  begin(Collective::wait_for_written, label, 0);
  submit(s, {}, [this, members = parts.members, turn](const Call& call) { wait_until_turn(members, turn, [&] { require_peers(call); }); });
}

void ProcessGroup::wait_for_released(Stream& s, const char* label, const SharedParts& parts, std::uint64_t round) {
  begin(Collective::wait_for_released, label, 0);
  submit(s, {}, [this, members = parts.members, rank = parts.rank, round](const Call& call) {
    wait_until_released(members, rank, round, [&] { require_peers(call); });
  });
}

void ProcessGroup::require_peers(const Call& call) const {
  require(!is_aborted_, "the wait was aborted");
  while_waiting(call);
}

// --- running -------------------------------------------------------------------------------------------------------

void ProcessGroup::submit(Stream& s, std::initializer_list<Access> accesses, std::function<void(const Call&)> work) {
  s.annotate(call_.label, call_.bytes);
  s.submit(collective_name(call_.kind), accesses, [this, call = call_, work = std::move(work)] { run(call, work); });
}

void ProcessGroup::run(const Call& call, const std::function<void(const Call&)>& work) {
  const auto begin = std::chrono::steady_clock::now();
  bool succeeded = false;
  const auto account = [&] {
    note_end(call, succeeded, std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
  };
  recorder_.start(call.sequence);
  try {
    require(!is_aborted_, "it was not started");
    work(call);
    succeeded = true;
    account();
  } catch (const std::exception& e) {
    account();
    if (is_aborted_) throw Error(fmt::format("{}: the group was aborted: {}", describe(call), why_aborted_));
    if (dynamic_cast<const MpiError*>(&e)) throw MpiError(fmt::format("{}: {}", describe(call), e.what()));
    throw;
  } catch (...) {
    account();
    throw;
  }
}

void ProcessGroup::abort(const std::string& why) {
  {
    const std::lock_guard lock(abort_mutex_);
    if (is_aborted_) return;
    why_aborted_ = why;
    is_aborted_ = true;
  }
  end_waiting(why);
}

void ProcessGroup::note_end(const Call& call, bool succeeded, std::int64_t busy_ns) {
  recorder_.end(call.sequence, succeeded);
  busy_ns_ += busy_ns;
}

std::string ProcessGroup::describe(const Call& call) const {
  return fmt::format("group '{}' (rank {} of {}), {} '{}' of {} bytes", name_, rank_, num_ranks_, collective_name(call.kind), call.label,
                     call.bytes);
}

std::string ProcessGroup::describe_pending() const {
  return fmt::format("group '{}' (rank {} of {}): {}", name_, rank_, num_ranks_, recorder_.describe_pending());
}

// --- groups of groups ------------------------------------------------------------------------------------------------

std::unique_ptr<ProcessGroup> ProcessGroup::subgroup(std::span<const int> members, std::string name) {
  const auto me = std::find(members.begin(), members.end(), rank_);
  require<ConfigError>(me != members.end(), "subgroup '{}' of group '{}': rank {} is not among the members that it names", name, name_,
                       rank_);
  for (const int member : members) {
    require<ConfigError>(member >= 0 && member < num_ranks_, "subgroup '{}' of group '{}': member {}; expected 0 to {}", name, name_,
                         member, num_ranks_ - 1);
    require<ConfigError>(std::count(members.begin(), members.end(), member) == 1, "subgroup '{}' of group '{}': member {} is named twice",
                         name, name_, member);
  }
  return make_subgroup(static_cast<int>(me - members.begin()), members, std::move(name));
}

std::unique_ptr<ProcessGroup> ProcessGroup::make_subgroup(int index, std::span<const int> members, std::string name) {
  return split(*std::min_element(members.begin(), members.end()), index, std::move(name));
}

}  // namespace mica
