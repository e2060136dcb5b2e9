// TensorFlow's profiler, as the device sees it.
#pragma once

#include <string>

namespace simgpu {

// The node that this thread runs, as "name:op"; "" if the profiler does not listen.
std::string annotation();

}  // namespace simgpu
