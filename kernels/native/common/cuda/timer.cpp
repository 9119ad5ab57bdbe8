#include "common/cuda/timer.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "common/cuda/launch.h"

namespace lumigrad {
namespace {

// Events for reuse, by device: creating an event costs more than recording it.
struct Events {
  std::mutex mutex;
  std::map<int, std::vector<cudaEvent_t>> kept;
};

// Never destroyed: timers may end while the interpreter is shutting down.
Events& events() {
  static Events* instance = new Events;
  return *instance;
}

cudaEvent_t take_event(int device) {
  {
    std::lock_guard lock(events().mutex);
    auto& kept = events().kept[device];
    if (!kept.empty()) {
      cudaEvent_t event = kept.back();
      kept.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "creating an event");
  return event;
}

}  // namespace

DeviceTimer::DeviceTimer(cudaStream_t stream) : stream_(stream) {
  check(cudaGetDevice(&device_), "asking for the current device");
  mark("");
}

DeviceTimer::~DeviceTimer() {
  std::lock_guard lock(events().mutex);
  auto& kept = events().kept[device_];
  for (const Mark& mark : marks_) kept.push_back(mark.event);
}

void DeviceTimer::mark(const char* stage) {
  marks_.push_back({stage, take_event(device_)});
  check(cudaEventRecord(marks_.back().event, stream_), "recording an event");
}

bool DeviceTimer::finished() const {
  if (marks_.empty()) return true;
  const cudaError_t status = cudaEventQuery(marks_.back().event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, "asking whether a kernel has finished");
  return true;
}

std::vector<std::pair<std::string, double>> DeviceTimer::milliseconds() const {
  std::vector<std::pair<std::string, double>> stages;
  if (!finished()) return stages;
  for (std::size_t i = 1; i < marks_.size(); ++i) {
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, marks_[i - 1].event, marks_[i].event), "reading an event");
    const auto same = [&](const auto& stage) { return stage.first == marks_[i].stage; };
    const auto found = std::find_if(stages.begin(), stages.end(), same);
    if (found != stages.end()) {
      found->second += elapsed;
    } else {
      stages.emplace_back(marks_[i].stage, elapsed);
    }
  }
  return stages;
}

}  // namespace lumigrad
