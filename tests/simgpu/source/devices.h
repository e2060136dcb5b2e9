// How TensorFlow finds the devices.
#pragma once

namespace simgpu {

// Registers what makes "GPU" devices of a session or context.
void register_devices();

}  // namespace simgpu
