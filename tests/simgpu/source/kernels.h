// The device's kernels.
#pragma once

namespace simgpu {

// Registers one for every kernel that TensorFlow has for GPUs.
void register_kernels();

}  // namespace simgpu
