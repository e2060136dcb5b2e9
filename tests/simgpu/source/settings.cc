#include "settings.h"

#include <cstdio>
#include <cstdlib>

namespace simgpu {
namespace {

double number(const std::string& name, double otherwise) {
  const char* text = std::getenv(("SIMGPU_" + name).c_str());
  return text != nullptr && *text != 0 ? std::atof(text) : otherwise;
}

Settings read() {
  Settings found;
  found.memory = number("MEMORY", 4.0 * (1LL << 30));
  double bandwidth = number("BANDWIDTH", 1e9);
  found.to_device = number("TO_DEVICE", bandwidth);
  found.to_host = number("TO_HOST", bandwidth);
  found.latency = number("LATENCY", 1e-5);
  found.both_ways = number("BOTH_WAYS", 1);
  found.flops = number("FLOPS", 2e10);
  found.bytes = number("BYTES", 1e10);
  found.launch = number("LAUNCH", 5e-6);
  found.times_cpu = number("TIMES_CPU", 0);
  found.devices = static_cast<int>(number("DEVICES", 1));
  found.queue = static_cast<int>(number("QUEUE", 1024));
  found.pageable_blocks = number("PAGEABLE_BLOCKS", 1) != 0;
  found.has_layout = number("LAYOUT", 1) != 0;
  found.waits = number("WAITS", 1) != 0;
  found.poisons = number("POISON", 0) != 0;
  return found;
}

std::string described(const Settings& s) {
  char text[200];
  std::snprintf(text, sizeof text, "Simulated GPU (%.3g flop/s, %.3g B/s, link %.3g and %.3g B/s)",
                s.flops, s.bytes, s.to_device, s.to_host);
  return text;
}

}  // namespace

const Settings& settings() {
  static const Settings all = read();
  return all;
}

const std::string& device_name() {
  static const std::string name = described(settings());
  return name;
}

}  // namespace simgpu
