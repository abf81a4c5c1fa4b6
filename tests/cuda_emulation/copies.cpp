// SPDX-License-Identifier: Apache-2.0
// Memory and copies of the runtime API.
#include <cstring>
#include <vector>

#include <cuda_runtime_api.h>

#include "api.hpp"
#include "memory.hpp"
#include "streams.hpp"

using namespace mica::cuda_emulation;

namespace {

Memory& memory() { return Memory::instance(); }

cudaError_t allocate(void** address, std::size_t bytes) {
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  if (address == nullptr) return failed(cudaErrorInvalidValue);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  *address = memory().allocate(bytes, current_device());
  return *address == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t allocate_pinned(void** address, std::size_t bytes) {
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  *address = bytes == 0 ? nullptr : memory().allocate_pinned(bytes);
  return cudaSuccess;
}

/// A copy of lines of memory.
struct Copy {
  void* dst = nullptr;
  std::size_t dst_pitch = 0;
  const void* src = nullptr;
  std::size_t src_pitch = 0, width = 0, height = 1;

  [[nodiscard]] std::size_t dst_bytes() const { return dst_pitch * (height - 1) + width; }
  [[nodiscard]] std::size_t src_bytes() const { return src_pitch * (height - 1) + width; }
  void run() const {
    const DeviceWork work;
    for (std::size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(dst) + row * dst_pitch, static_cast<const char*>(src) + row * src_pitch, width);
    }
  }
};

/// Whether source and target are what `kind` says, all of them, and then copies in the stream's order. What comes from
/// pageable memory is read at once, and for what goes there the host waits; both are counted.
cudaError_t enqueue_copy(Copy copy, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!is_stream(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  const auto to = memory().find(copy.dst, copy.dst_bytes());
  const auto from = memory().find(copy.src, copy.src_bytes());
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault) {
    if ((to.place == Place::device) != to_device || (from.place == Place::device) != from_device) {
      return failed(cudaErrorInvalidValue);
    }
  }
  for (const auto& side : {to, from}) {
    if (side.place == Place::device && !side.whole) return failed(cudaErrorInvalidValue);
  }
  if ((to.place == Place::device) != (from.place == Place::device) && (to.place == Place::pageable || from.place == Place::pageable)) {
    static auto& api = Api::named("pageable copy").waits();
    api.enter();
  }
  if (to.place == Place::pageable) {
    finish(queue_of(stream), "a copy to pageable memory");
    copy.run();
    return cudaSuccess;
  }
  if (from.place != Place::pageable) {
    enqueue_action(stream, [copy] { copy.run(); });
    return cudaSuccess;
  }
  const auto* bytes = static_cast<const char*>(copy.src);
  enqueue_action(stream, [copy, staged = std::vector<char>(bytes, bytes + copy.src_bytes())]() mutable {
    copy.src = staged.data();
    copy.run();
  });
  return cudaSuccess;
}

cudaError_t copy(void* dst, const void* src, std::size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  return enqueue_copy({dst, count, src, count, count}, kind, stream);
}

cudaError_t set(void* devPtr, int value, std::size_t count, cudaStream_t stream) {
  if (!is_stream(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (count == 0) return cudaSuccess;
  const auto found = memory().find(devPtr, count);
  if (found.place == Place::pageable || !found.whole) return failed(cudaErrorInvalidValue);
  enqueue_action(stream, [=] {
    const DeviceWork work;
    std::memset(devPtr, value, count);
  });
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** devPtr, std::size_t size) {
  MICA_EMULATED_ENTER(cudaMalloc);
  return allocate(devPtr, size);
}
cudaError_t cudaFree(void* devPtr) {
  MICA_EMULATED_ENTER(cudaFree, .waits());
  if (devPtr != nullptr) finish_device(current_device(), "cudaFree");
  return devPtr == nullptr || memory().free(devPtr) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void** devPtr, std::size_t size, cudaStream_t hStream) {
  MICA_EMULATED_ENTER(cudaMallocAsync);
  return is_stream(hStream) ? allocate(devPtr, size) : failed(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream) {
  MICA_EMULATED_ENTER(cudaFreeAsync);
  if (!is_stream(hStream)) return failed(cudaErrorInvalidResourceHandle);
  if (devPtr == nullptr) return cudaSuccess;
  if (memory().find(devPtr).place != Place::device) return failed(cudaErrorInvalidValue);
  enqueue_action(hStream, [devPtr] { (void)memory().free(devPtr); });
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pHost, std::size_t size, unsigned int) {
  MICA_EMULATED_ENTER(cudaHostAlloc);
  return allocate_pinned(pHost, size);
}
cudaError_t cudaMallocHost(void** ptr, std::size_t size) {
  MICA_EMULATED_ENTER(cudaMallocHost);
  return allocate_pinned(ptr, size);
}
cudaError_t cudaFreeHost(void* ptr) {
  MICA_EMULATED_ENTER(cudaFreeHost, .waits());
  return ptr == nullptr || memory().free_pinned(ptr) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* ptr, std::size_t size, unsigned int) {
  MICA_EMULATED_ENTER(cudaHostRegister);
  if (ptr == nullptr || size == 0) return failed(cudaErrorInvalidValue);
  return memory().add_pinned(ptr, size) ? cudaSuccess : failed(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void* ptr) {
  MICA_EMULATED_ENTER(cudaHostUnregister);
  return memory().remove_pinned(ptr) ? cudaSuccess : failed(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void** pDevice, void* pHost, unsigned int) {
  MICA_EMULATED_ENTER(cudaHostGetDevicePointer);
  if (memory().find(pHost).place != Place::pinned) return failed(cudaErrorInvalidValue);
  *pDevice = pHost;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  MICA_EMULATED_ENTER(cudaMemGetInfo);
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  const std::int64_t left = memory_bytes() - memory().in_use(current_device());
  *free = static_cast<std::size_t>(left < 0 ? 0 : left);
  *total = static_cast<std::size_t>(memory_bytes());
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* ptr) {
  MICA_EMULATED_ENTER(cudaPointerGetAttributes);
  const auto found = memory().find(ptr);
  void* address = const_cast<void*>(ptr);
  switch (found.place) {
    case Place::pageable:
      *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, address};
      break;
    case Place::pinned:
      *attributes = {cudaMemoryTypeHost, current_device(), address, address};
      break;
    case Place::device:
      *attributes = {cudaMemoryTypeDevice, found.device, address, nullptr};
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t count, enum cudaMemcpyKind kind) {
  MICA_EMULATED_ENTER(cudaMemcpy, .waits());
  const auto error = copy(dst, src, count, kind, nullptr);
  if (error == cudaSuccess && kind != cudaMemcpyDeviceToDevice) finish(queue_of(nullptr), "cudaMemcpy");
  return error;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t count, enum cudaMemcpyKind kind, cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaMemcpyAsync);
  return copy(dst, src, count, kind, stream);
}
cudaError_t cudaMemcpy2DAsync(void* dst, std::size_t dpitch, const void* src, std::size_t spitch, std::size_t width, std::size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaMemcpy2DAsync);
  if (width > dpitch || width > spitch) return failed(cudaErrorInvalidPitchValue);
  return enqueue_copy({dst, dpitch, src, spitch, width, height}, kind, stream);
}
cudaError_t cudaMemset(void* devPtr, int value, std::size_t count) {
  MICA_EMULATED_ENTER(cudaMemset);
  return set(devPtr, value, count, nullptr);
}
cudaError_t cudaMemsetAsync(void* devPtr, int value, std::size_t count, cudaStream_t stream) {
  MICA_EMULATED_ENTER(cudaMemsetAsync);
  return set(devPtr, value, count, stream);
}
