// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include <cuda_runtime_api.h>

namespace mica::cuda_emulation {

/// How far a piece of a stream's work came when it was tried.
enum class Progress {
  done,
  waits,  ///< for another thread: where streams work at once, the call tries again until it is done
  hangs,  ///< perhaps for ever: the call comes back, and the stream stays busy
};
using Work = std::function<Progress()>;

/// What a stream has still to do, in order. [Note: queues of streams]
/// Where streams work at once, work is done inside the call that enqueues it, and only what hangs, and what comes
/// behind it, stays here. Where they work late, nothing is done before somebody waits for it, or asks: then whoever
/// waits does pieces of all queues of the process, always of the queue with the highest priority that can go on, and
/// priorities are drawn anew now and then. So streams run far apart, and work that lacks a wait finds memory that was
/// not written yet, or is somebody else's again. Whatever work needs it owns (arguments by value): handles may be gone
/// by then.
class Queue;

[[nodiscard]] std::shared_ptr<Queue> make_queue(int device);
/// What it has left will still be done.
void close(Queue& queue);
/// Of the null stream.
[[nodiscard]] Queue& null_queue(int device);

void enqueue(Queue& queue, Work work);

/// Lets queues go on a little, for a call that asks whether something is over.
void go_on();
[[nodiscard]] bool is_empty(Queue& queue);
/// Does pieces of work until `is_over`; `what` waits, and after 60 s ends the process.
void work_until(const std::function<bool()>& is_over, const char* what);
/// Until all that the queue has now is done.
void finish(Queue& queue, const char* what);
void finish_device(int device, const char* what);

}  // namespace mica::cuda_emulation
