#include "copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "memory.h"
#include "profiler.h"
#include "settings.h"

namespace simgpu {
namespace {

constexpr uint64_t kPiece = 1 << 20;  // bytes that arrive together
constexpr uint64_t kStaged = 1 << 16;  // bytes that CUDA takes from pageable memory at once
constexpr double kMemcpyBytes = 8e9;  // a second that the host copies, from its caches

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

// Copies piece by piece, as the link brings them.
void deliver(char* to, const char* from, uint64_t nbytes, Moment begin, Moment end) {
  for (uint64_t offset = 0; offset < nbytes; offset += kPiece) {
    uint64_t size = std::min(kPiece, nbytes - offset);
    double part = double(offset + size) / nbytes;
    auto arrives = begin + std::chrono::duration_cast<Clock::duration>((end - begin) * part);
    SP_Stream_st::sleep_until(arrives - lasting(size / kMemcpyBytes));
    std::memcpy(to + offset, from + offset, size);
  }
  SP_Stream_st::sleep_until(end);
}

}  // namespace

void copy(SP_Stream_st& stream, Kind kind, void* to, const void* from, uint64_t nbytes) {
  const bool pinned =
      kind == Kind::kOnDevice || is_pinned(kind == Kind::kToDevice ? from : to);
  const bool staged = !pinned && kind == Kind::kToDevice && nbytes <= kStaged;
  const bool blocks = !pinned && !staged && settings().pageable_blocks;
  const bool at_once = stream.is_compute();
  if (at_once)
    std::memcpy(to, from, nbytes);
  else if (settings().poisons)
    std::memset(to, kPoison, nbytes);
  std::shared_ptr<char[]> buffer;
  if (staged && !at_once) {
    buffer.reset(new char[nbytes]);
    std::memcpy(buffer.get(), from, nbytes);
    from = buffer.get();
  }
  const double alone = seconds_alone(kind, nbytes);
  const std::string node = annotation();
  auto done = blocks ? std::make_shared<Mark>() : nullptr;
  stream.add([=, buffer = std::move(buffer)](SP_Stream_st& self, Moment queued) {
    double seconds = seconds_of_copy(self.device, kind, alone, std::max(self.clock, queued));
    auto [begin, end] = self.take_up(queued, seconds);
    if (at_once)
      self.sleep_until(end);
    else
      deliver(static_cast<char*>(to), static_cast<const char*>(from), nbytes, begin, end);
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
