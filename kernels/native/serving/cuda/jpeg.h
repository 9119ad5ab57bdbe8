// JPEG files that a CUDA device encodes, by nvJPEG.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/math/number.h"
#include "serving/cuda/nvjpeg.h"

// One namespace per build, so that nanobind does not confuse the emulation's class with that of a GPU.
LG_BEGIN_ENGINE(serving)

// Encodes images from the host's memory, on streams of its own. Thread-safe. Throws std::runtime_error or
// std::bad_alloc if the library or the device fails.
class JpegEncoder {
 public:
  // Loads the library at `path`.
  JpegEncoder(const std::string& path, int device);
  JpegEncoder(const JpegEncoder&) = delete;
  JpegEncoder& operator=(const JpegEncoder&) = delete;
  ~JpegEncoder();

  // Returns the file of an image, [height, width, 3]. A failure has no effect on other images. Callers limit how many
  // they encode at the same time.
  std::string encode(const std::uint8_t* levels, int height, int width, int quality, bool are_colors_halved);

 private:
  // The state for one image at a time.
  class Slot;

  // Returns an idle slot, or null if there is none.
  std::unique_ptr<Slot> take();
  void give(std::unique_ptr<Slot> slot) noexcept;

  const nvjpeg::Functions functions_;
  const int device_;
  std::unique_ptr<void, int (*)(void*)> handle_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slot>> idle_;
};

LG_END
