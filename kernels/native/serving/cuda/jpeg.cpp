#include "serving/cuda/jpeg.h"

#include <dlfcn.h>

#include <stdexcept>
#include <utility>

#include "common/cuda/event.h"
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"

namespace lumigrad::serving {
namespace nvjpeg {
namespace {

void require(int status, const char* function) {
  if (status != kSuccess) throw std::runtime_error(std::string(function) + " returned " + std::to_string(status));
}

}  // namespace

Functions load(const std::string& path) {
  // The library is never unloaded: it may have threads, and functions that run when the process exits.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  Functions functions{};
  for_each_function(functions, [&]<class Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("there is no ") + name);
  });
  int major = 0;
  require(functions.get_property(kMajorVersion, &major), "nvjpegGetProperty");
  if (major != 12 && major != 13)
    throw std::runtime_error("its version is " + std::to_string(major) + ", not 12 or 13");
  return functions;
}

}  // namespace nvjpeg

namespace {

using nvjpeg::require;

// Slots that are kept for further images.
constexpr std::size_t kMostIdle = 4;

// An object of the library.
using Object = std::unique_ptr<void, int (*)(void*)>;

// A stream that does not wait for the kernels on the default stream, as others do.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

class JpegEncoder::Slot {
 public:
  Slot(const nvjpeg::Functions& functions, void* handle)
      : functions_(functions),
        handle_(handle),
        state_(nullptr, functions.destroy_state),
        parameters_(nullptr, functions.destroy_parameters) {
    void* made = nullptr;
    require(functions_.create_state(handle_, &made, stream_.get()), "nvjpegEncoderStateCreate");
    state_.reset(made);
    require(functions_.create_parameters(handle_, &made, stream_.get()), "nvjpegEncoderParamsCreate");
    parameters_.reset(made);
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  // The device may still use the memory, and the caller's, after a failure.
  ~Slot() { cudaStreamSynchronize(stream_.get()); }

  std::string encode(const std::uint8_t* levels, int height, int width, int quality, bool are_colors_halved) {
    const cudaStream_t stream = stream_.get();
    const int sampling = are_colors_halved ? nvjpeg::kHalved : nvjpeg::kFull;
    require(functions_.set_quality(parameters_.get(), quality, stream), "nvjpegEncoderParamsSetQuality");
    require(functions_.set_sampling(parameters_.get(), sampling, stream), "nvjpegEncoderParamsSetSamplingFactors");
    const std::size_t pitch = 3 * static_cast<std::size_t>(width);
    upload(levels, pitch * height);
    const nvjpeg::Image source{{memory_.data()}, {pitch}};
    require(functions_.encode(handle_, state_.get(), parameters_.get(), &source, nvjpeg::kInterleavedRgb, width, height,
                              stream),
            "nvjpegEncodeImage");
    return retrieved();
  }

 private:
  void upload(const std::uint8_t* levels, std::size_t bytes) {
    const cudaStream_t stream = stream_.get();
    if (memory_.size() < bytes) memory_ = DeviceBuffer<unsigned char>(bytes, stream);
    check(cudaMemcpyAsync(memory_.data(), levels, bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
    // The host waits, since hardware engines of nvJPEG are known not to heed the order of a stream.
    DeviceEvent(stream).wait();
  }

  std::string retrieved() {
    const cudaStream_t stream = stream_.get();
    // The library may wait in a loop, so this thread sleeps first.
    DeviceEvent(stream).wait();
    std::size_t length = 0;
    require(functions_.retrieve(handle_, state_.get(), nullptr, &length, stream), "nvjpegEncodeRetrieveBitstream");
    check(cudaStreamSynchronize(stream), "waiting for the length of a JPEG file");
    std::string file(length, '\0');
    auto* data = reinterpret_cast<unsigned char*>(file.data());
    require(functions_.retrieve(handle_, state_.get(), data, &length, stream), "nvjpegEncodeRetrieveBitstream");
    check(cudaStreamSynchronize(stream), "waiting for a JPEG file");
    if (length > file.size() || !file.starts_with("\xFF\xD8")) throw std::runtime_error("nvJPEG wrote no JPEG file");
    file.resize(length);
    return file;
  }

  const nvjpeg::Functions& functions_;
  void* const handle_;
  // The stream is destroyed last.
  const Stream stream_;
  DeviceBuffer<unsigned char> memory_;
  Object state_, parameters_;
};

JpegEncoder::JpegEncoder(const std::string& path, int device)
    : functions_(nvjpeg::load(path)), device_(device), handle_(nullptr, functions_.destroy) {
  idle_.reserve(kMostIdle);
  const DeviceGuard guard(device_);
  void* made = nullptr;
  require(functions_.create(&made), "nvjpegCreateSimple");
  handle_.reset(made);
}

JpegEncoder::~JpegEncoder() = default;

std::string JpegEncoder::encode(const std::uint8_t* levels, int height, int width, int quality,
                                bool are_colors_halved) {
  const DeviceGuard guard(device_);
  std::unique_ptr<Slot> slot = take();
  if (slot == nullptr) slot = std::make_unique<Slot>(functions_, handle_.get());
  // A slot that fails is given to no other image.
  std::string file = slot->encode(levels, height, width, quality, are_colors_halved);
  give(std::move(slot));
  return file;
}

std::unique_ptr<JpegEncoder::Slot> JpegEncoder::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return nullptr;
  std::unique_ptr<Slot> slot = std::move(idle_.back());
  idle_.pop_back();
  return slot;
}

void JpegEncoder::give(std::unique_ptr<Slot> slot) noexcept {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(slot));
}

}  // namespace lumigrad::serving
