// What TensorFlow calls as it loads the library, and the two of its functions that ask CUDA whatever
// device there is: each is replaced in memory by one that answers for the simulated GPU.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstring>

#include "devices.h"
#include "kernels.h"
#include "memory.h"
#include "settings.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device_process_state.h"
#include "tensorflow/core/grappler/clusters/utils.h"

namespace simgpu {

using namespace tensorflow;  // NOLINT

namespace {

// In the place of grappler::GetLocalGPUInfo: what Grappler's layout optimizer decides by. With
// compute capability 9.0 it puts channels first, except for half, as on an H100.
DeviceProperties gpu_info(tsl::PlatformDeviceId id) {
  DeviceProperties found;
  found.set_type("GPU");
  found.set_vendor("NVIDIA");
  found.set_model("Simulated GPU");
  found.set_frequency(1000);
  found.set_num_cores(100);
  found.set_num_registers(65536);
  found.set_l1_cache_size(24 << 10);
  found.set_l2_cache_size(4 << 20);
  found.set_shared_memory_size_per_multiprocessor(96 << 10);
  found.set_memory_size(memory_of(id.value()));
  found.set_bandwidth(static_cast<int64_t>(settings().bytes / 1000));
  auto& environment = *found.mutable_environment();
  environment["architecture"] = "9.0";
  environment["cuda"] = "12050";
  environment["cudnn"] = "9030";
  return found;
}

// In the place of GPUProcessState::GetGpuHostAllocator, a member function: where the CPU's device
// takes memory for what a GPU reads or writes.
Allocator* pinned_memory(void*, const GPUOptions&, int) {
  auto* state = PluggableDeviceProcessState::singleton("GPU", "SIMGPU");
  return state->GetPluggableDeviceHostAllocator(0);
}

constexpr const char* kPinnedMemory =
    "_ZN10tensorflow15GPUProcessState19GetGpuHostAllocatorERKNS_10GPUOptionsEi";

// Writes a jump to another function over the beginning of one (x86-64: jmp *0(%rip), an address).
void replace(void* function, void* by) {
  unsigned char jump[14] = {0xff, 0x25, 0, 0, 0, 0};
  std::memcpy(jump + 6, &by, sizeof by);
  auto begin = reinterpret_cast<uintptr_t>(function);
  auto page = begin & ~uintptr_t{4095};
  size_t nbytes = begin + sizeof jump - page;
  auto* pages = reinterpret_cast<void*>(page);
  if (mprotect(pages, nbytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return;
  std::memcpy(function, jump, sizeof jump);
  mprotect(pages, nbytes, PROT_READ | PROT_EXEC);
}

}  // namespace
}  // namespace simgpu

extern "C" void TF_InitKernel() {
  simgpu::register_kernels();
  simgpu::register_devices();
  if (void* asked = dlsym(RTLD_DEFAULT, simgpu::kPinnedMemory))
    simgpu::replace(asked, reinterpret_cast<void*>(&simgpu::pinned_memory));
  if (simgpu::settings().has_layout)
    simgpu::replace(reinterpret_cast<void*>(&tensorflow::grappler::GetLocalGPUInfo),
                    reinterpret_cast<void*>(&simgpu::gpu_info));
}
