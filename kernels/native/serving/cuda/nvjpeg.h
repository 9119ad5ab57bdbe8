// The part of nvJPEG's interface that is used, which the headers of its versions 12.4 and 13.3 declare alike. The
// library is loaded at run time, where it is installed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

namespace lumigrad::serving::nvjpeg {

constexpr int kSuccess = 0;
constexpr int kMajorVersion = 0;
// Subsampling of colours: none, or by two in both directions.
constexpr int kFull = 0;
constexpr int kHalved = 2;
constexpr int kInterleavedRgb = 5;

struct Image {
  unsigned char* channel[4];
  std::size_t pitch[4];
};

// Enumerations are passed as int, and handles as void*.
struct Functions {
  int (*get_property)(int property, int* value);
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*create_state)(void* handle, void** state, cudaStream_t stream);
  int (*destroy_state)(void* state);
  int (*create_parameters)(void* handle, void** parameters, cudaStream_t stream);
  int (*destroy_parameters)(void* parameters);
  int (*set_quality)(void* parameters, int quality, cudaStream_t stream);
  int (*set_sampling)(void* parameters, int sampling, cudaStream_t stream);
  int (*encode)(void* handle, void* state, void* parameters, const Image* source, int format, int width, int height,
                cudaStream_t stream);
  int (*retrieve)(void* handle, void* state, unsigned char* data, std::size_t* length, cudaStream_t stream);
};

// Calls `use` with the name of each function and its pointer.
template <class Use>
void for_each_function(Functions& functions, Use&& use) {
  use("nvjpegGetProperty", functions.get_property);
  use("nvjpegCreateSimple", functions.create);
  use("nvjpegDestroy", functions.destroy);
  use("nvjpegEncoderStateCreate", functions.create_state);
  use("nvjpegEncoderStateDestroy", functions.destroy_state);
  use("nvjpegEncoderParamsCreate", functions.create_parameters);
  use("nvjpegEncoderParamsDestroy", functions.destroy_parameters);
  use("nvjpegEncoderParamsSetQuality", functions.set_quality);
  use("nvjpegEncoderParamsSetSamplingFactors", functions.set_sampling);
  use("nvjpegEncodeImage", functions.encode);
  use("nvjpegEncodeRetrieveBitstream", functions.retrieve);
}

// Loads the library at `path`, for as long as the process lives. Throws std::runtime_error if it is another one.
Functions load(const std::string& path);

}  // namespace lumigrad::serving::nvjpeg
