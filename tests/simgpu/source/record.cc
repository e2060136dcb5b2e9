#include "record.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <vector>

namespace simgpu {
namespace {

std::mutex record_mutex;
std::vector<Event> events;
std::map<std::string, double> sums;
bool keeps_events = false;

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"kernel", "h2d", "d2h", "d2d"};
  return names[static_cast<int>(kind)];
}

double seconds_of(Moment moment) {
  return std::chrono::duration<double>(moment.time_since_epoch()).count();
}

Clock::duration lasting(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

int64_t unix_ns(Moment moment) {
  static const auto since_1970 = std::chrono::system_clock::now().time_since_epoch() -
                                 Clock::now().time_since_epoch();
  auto at = moment.time_since_epoch() + since_1970;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at).count();
}

void record(Event event) {
  std::lock_guard<std::mutex> lock(record_mutex);
  std::string kind = name_of(event.kind);
  sums[kind + "_count"] += 1;
  sums[kind + "_bytes"] += event.bytes;
  sums[kind + "_seconds"] += seconds_of(event.end) - seconds_of(event.begin);
  sums[kind + "_flops"] += event.flops;
  if (!event.pinned) {
    sums[kind + "_pageable_count"] += 1;
    sums[kind + "_pageable_bytes"] += event.bytes;
  }
  if (keeps_events) events.push_back(std::move(event));
}

void keep_events(bool keeps) {
  std::lock_guard<std::mutex> lock(record_mutex);
  if (keeps) events.clear();
  keeps_events = keeps;
}

void each_event(const std::function<void(const Event&)>& take) {
  std::lock_guard<std::mutex> lock(record_mutex);
  for (const Event& one : events) take(one);
}

}  // namespace simgpu

// For tests, by ctypes.
extern "C" {

// A sum by its name, such as "h2d_bytes", "kernel_seconds", "d2h_pageable_count"; 0 if there is none.
double simgpu_sum(const char* name) {
  std::lock_guard<std::mutex> lock(simgpu::record_mutex);
  auto found = simgpu::sums.find(name);
  return found == simgpu::sums.end() ? 0 : found->second;
}

// Begins all sums anew.
void simgpu_reset() {
  std::lock_guard<std::mutex> lock(simgpu::record_mutex);
  simgpu::sums.clear();
}

void simgpu_keep_events(int keeps) { simgpu::keep_events(keeps != 0); }

// Writes the events that were kept, one in a line: kind, device, stream, begin and end in seconds,
// bytes, flops, whether pinned, node.
int simgpu_write_events(const char* path) {
  FILE* file = std::fopen(path, "w");
  if (file == nullptr) return 1;
  simgpu::each_event([file](const simgpu::Event& one) {
    std::fprintf(file, "%s\t%d\t%d\t%.9f\t%.9f\t%.0f\t%.0f\t%d\t%s\n", simgpu::name_of(one.kind),
                 one.device, one.stream, simgpu::seconds_of(one.begin), simgpu::seconds_of(one.end),
                 one.bytes, one.flops, int(one.pinned), one.node.c_str());
  });
  return std::fclose(file);
}
}
