// Renders of prepared requests on a CUDA device: the device's thread queues them, batch after batch, and the threads of
// their calls wait for the copies to the host.
#pragma once

#include <cstddef>
#include <memory>

#include "serving/cuda/streams.h"
#include "serving/render.h"

namespace lumigrad::serving {

// The size of an output as the kernels write it, and of all outputs: levels of colours, or values of four bytes.
std::size_t device_bytes_of(const Render& render, const Output& output);
std::size_t device_bytes_of(const Render& render);
// Converts the outputs, which follow each other in `from` as the kernels have written them, into a payload. With
// `has_written`, `from` lacks the outputs that the payload already has because they need no conversion.
void encode_all(const Render& render, const char* from, char* payload, bool has_written = false);

std::shared_ptr<Renderer> make_cuda_renderer(const Streams& streams);

}  // namespace lumigrad::serving
