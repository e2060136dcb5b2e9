// What the device did: sums for tests, and single events for TensorFlow's profiler.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace simgpu {

using Clock = std::chrono::steady_clock;
using Moment = Clock::time_point;

enum class Kind { kKernel, kToDevice, kToHost, kOnDevice };

// "kernel", "h2d", "d2h" or "d2d": the first part of the names of sums, such as "h2d_bytes".
const char* name_of(Kind kind);

struct Event {
  Kind kind;
  int device, stream;
  std::string node;  // "name:op", if somebody listens
  Moment begin, end;
  double bytes = 0, flops = 0;
  bool pinned = true;
};

// Adds an event to the sums, and keeps it while events are kept.
void record(Event event);

// Whether events are kept; those that were are forgotten as it begins.
void keep_events(bool keeps);

void each_event(const std::function<void(const Event&)>& take);

double seconds_of(Moment moment);
Clock::duration lasting(double seconds);

// Nanoseconds since 1970, which is the profiler's time.
int64_t unix_ns(Moment moment);

}  // namespace simgpu
