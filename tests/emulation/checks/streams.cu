// Work that is queued on streams correctly if `right`, and otherwise with a fault.
#include <optional>

#include "checks/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/staging.h"
#include "common/math/exp.h"

namespace lumigrad::checks {
namespace {

__global__ void fill_kernel(int* values, int value) { values[threadIdx.x] = value; }

__global__ void copy_kernel(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x]; }

__global__ void add_kernel(const int* terms, int* sum) {
  for (int i = 0; i < 4; ++i) *sum += terms[i];
}

__global__ void approximate_kernel(const float* values, int count, float* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  out[i] = quick_inverse(values[i]);
  out[count + i] = quick_inverse_sqrt(values[i]);
  out[2 * count + i] = exp2_bounded(-values[i]);
}

cudaStream_t stream(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }

// Pinned host memory.
struct Pinned {
  int* values = nullptr;
  explicit Pinned(std::size_t count) { check(cudaMallocHost(&values, count * sizeof(int)), "allocating host memory"); }
  ~Pinned() { cudaFreeHost(values); }
};

int on_host(const int* value) {
  int copied = 0;
  check(cudaDeviceSynchronize(), "waiting for the device");
  check(cudaMemcpyAsync(&copied, value, sizeof(int), cudaMemcpyDeviceToHost, nullptr), "copying a value");
  check(cudaStreamSynchronize(nullptr), "waiting for a copy");
  return copied;
}

}  // namespace

// Copies 1 and 2 through one host buffer; returns 12. The second value must not be written before the first is copied.
int copy_twice_from_one_place(bool right) {
  const DeviceBuffer<int> to(2, nullptr);
  DeviceStaging staging;
  const Pinned place(1);
  for (int i = 0; i < 2; ++i) {
    const int value = i + 1;
    if (right) {
      staging.copy(to.data() + i, &value, sizeof(int), nullptr);
    } else {
      *place.values = value;
      check(cudaMemcpyAsync(to.data() + i, place.values, sizeof(int), cudaMemcpyHostToDevice, nullptr), "copying");
    }
  }
  return 10 * on_host(to.data()) + on_host(to.data() + 1);
}

// Returns a kernel's count, 7, which must not be read before the host has waited for it.
int read_count(bool right) {
  const DeviceBuffer<int> count(1, nullptr);
  const Pinned place(1);
  *place.values = 0;
  launch(fill_kernel, 1, 1, 0, nullptr, count.data(), 7);
  check(cudaMemcpyAsync(place.values, count.data(), sizeof(int), cudaMemcpyDeviceToHost, nullptr), "copying a count");
  if (right) check(cudaStreamSynchronize(nullptr), "waiting for a count");
  const int read = *place.values;
  check(cudaStreamSynchronize(nullptr), "waiting for a count");
  return read;
}

// Returns 5, copied from host memory that must not be freed before the copy is done.
int free_during_copy(bool right) {
  const DeviceBuffer<int> to(1, nullptr);
  std::optional<Pinned> place(1);
  *place->values = 5;
  check(cudaMemcpyAsync(to.data(), place->values, sizeof(int), cudaMemcpyHostToDevice, nullptr), "copying");
  if (right) check(cudaStreamSynchronize(nullptr), "waiting for a copy");
  check(cudaFreeHost(std::exchange(place->values, nullptr)), "freeing host memory");
  return on_host(to.data());
}

// Returns 3, written on one stream and read on another stream, which must wait for an event.
int read_from_other_stream(bool right) {
  const DeviceBuffer<int> from(1, stream(1)), to(1, stream(2));
  check(cudaMemsetAsync(from.data(), 0, sizeof(int), stream(1)), "clearing");
  check(cudaStreamSynchronize(stream(1)), "waiting for a stream");
  cudaEvent_t written = nullptr;
  check(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), "creating an event");
  launch(fill_kernel, 1, 1, 0, stream(1), from.data(), 3);
  check(cudaEventRecord(written, stream(1)), "recording an event");
  if (right) check(cudaStreamWaitEvent(stream(2), written), "waiting for an event");
  launch(copy_kernel, 1, 1, 0, stream(2), from.data(), to.data());
  check(cudaStreamSynchronize(stream(2)), "waiting for a stream");
  cudaEventDestroy(written);
  return on_host(to.data());
}

// Returns 4, read on stream 2 from a block of stream 1 that must not be released before.
int give_back_to_other_stream(bool right) {
  const DeviceBuffer<int> to(1, stream(2));
  {
    const DeviceBuffer<int> lent(1, stream(1));
    launch(fill_kernel, 1, 1, 0, stream(1), lent.data(), 4);
    check(cudaStreamSynchronize(stream(1)), "waiting for a stream");
    launch(copy_kernel, 1, 1, 0, stream(2), lent.data(), to.data());
    if (right) check(cudaStreamSynchronize(stream(2)), "waiting for a stream");
  }
  const DeviceBuffer<int> next(1, stream(1));
  launch(fill_kernel, 1, 1, 0, stream(1), next.data(), 9);
  check(cudaStreamSynchronize(stream(1)), "waiting for a stream");
  check(cudaStreamSynchronize(stream(2)), "waiting for a stream");
  return on_host(to.data());
}

// Returns 10, the sum of an array that is local to this function: DeviceStaging copies it, or the kernel gets its host
// address, where the values have changed by the time that it runs.
int pass_local_array(bool right) {
  const DeviceBuffer<int> sum(1, nullptr), copies(4, nullptr);
  DeviceStaging staging;
  check(cudaMemsetAsync(sum.data(), 0, sizeof(int), nullptr), "clearing");
  int terms[] = {1, 2, 3, 4};
  staging.copy(copies.data(), terms, sizeof(terms), nullptr);
  launch(add_kernel, 1, 1, 0, nullptr, right ? copies.data() : terms, sum.data());
  for (int& term : terms) term = -1;
  return on_host(sum.data());
}

void approximate(const float* values, int count, float* out) {
  launch(approximate_kernel, 1, 128, 0, nullptr, values, count, out);
}

}  // namespace lumigrad::checks
