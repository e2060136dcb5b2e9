#include "copy.h"

#include <atomic>
#include <cstring>

#include "memory.h"
#include "profiler.h"
#include "settings.h"

namespace simgpu {
namespace {

constexpr double kMemcpyBytes = 8e9;  // a second that the host copies, of which a copy's time is left

// When the link of a device is free again, to the device and to the host.
std::atomic<double> busy_until[kMostDevices][2];

double seconds_alone(Kind kind, uint64_t nbytes) {
  const Settings& s = settings();
  switch (kind) {
    case Kind::kToDevice:
      return s.latency + nbytes / s.to_device;
    case Kind::kToHost:
      return s.latency + nbytes / s.to_host;
    default:
      return s.launch + 2 * nbytes / s.bytes;  // read and written
  }
}

// Seconds of a copy that begins at a moment: what goes the other way meanwhile takes its part.
double seconds_of_copy(int device, Kind kind, double seconds, Moment begin) {
  if (kind == Kind::kOnDevice || settings().both_ways <= 1) return seconds;
  int way = kind == Kind::kToHost;
  double other = busy_until[device][1 - way].load() - seconds_of(begin);
  double together = std::min(seconds, std::max(0.0, other));
  double lasts = seconds + together * (settings().both_ways - 1);
  busy_until[device][way] = seconds_of(begin) + lasts;
  return lasts;
}

}  // namespace

void copy(SP_Stream_st& stream, Kind kind, void* to, const void* from, uint64_t nbytes) {
  const bool pinned =
      kind == Kind::kOnDevice || is_pinned(kind == Kind::kToDevice ? from : to);
  const bool blocks = !pinned && settings().pageable_blocks;
  const bool at_once = stream.is_compute();
  if (at_once)
    std::memcpy(to, from, nbytes);
  else if (settings().poisons)
    std::memset(to, kPoison, nbytes);
  const double alone = seconds_alone(kind, nbytes);
  const std::string node = annotation();
  auto done = blocks ? std::make_shared<Mark>() : nullptr;
  stream.add([=](SP_Stream_st& self, Moment queued) {
    double seconds = seconds_of_copy(self.device, kind, alone, std::max(self.clock, queued));
    double early = at_once ? 0 : std::min(seconds, nbytes / kMemcpyBytes);
    auto [begin, end] = self.pass(queued, seconds, early);
    if (!at_once) {
      std::memcpy(to, from, nbytes);
      self.sleep_until(end);
    }
    record({kind, self.device, self.number, node, begin, end, double(nbytes), 0, pinned});
    if (done != nullptr) done->reach(end);
  });
  if (done != nullptr) done->wait();
}

void fill(SP_Stream_st& stream, std::function<void()> work) {
  const bool at_once = stream.is_compute();
  if (at_once) work();
  stream.add([=](SP_Stream_st& self, Moment queued) {
    self.pass(queued, settings().launch);
    if (!at_once) work();
  });
}

}  // namespace simgpu
