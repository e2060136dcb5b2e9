// What the simulated GPU is like. Each setting is an environment variable, SIMGPU_<NAME>: README.md.
#pragma once

#include <cstdint>
#include <string>

namespace simgpu {

constexpr int kMostDevices = 16;

struct Settings {
  double memory;         // bytes of a device
  double to_device;      // bytes a second of the link, to the device
  double to_host;        // and from it
  double latency;        // seconds of a copy before its first byte
  double both_ways;      // 1: each way is a link of its own; 2: copies that meet share one
  double flops;          // floating-point operations a second
  double bytes;          // bytes a second of the device's memory
  double launch;         // seconds that each kernel takes at least
  double times_cpu;      // if not 0, a kernel takes as long as on the CPU, times this
  int devices;           // how many there are
  int queue;             // kernels that may be queued before a caller waits
  bool pageable_blocks;  // copies of memory that is not pinned block the caller
  bool has_layout;       // Grappler is told of a GPU, and puts channels first
  bool waits;            // 0 breaks it: all events have come, and streams do not wait for each other
  bool poisons;          // what is not there yet, and what is there no more, reads as NaN
};

const Settings& settings();

// The device's name, by which tfmem keeps what it measured: other rates, another name.
const std::string& device_name();

}  // namespace simgpu
