// The devices: TensorFlow's own factory of plugged devices, made to do what its factory of GPUs does
// beyond that: limits of logical devices, and the allocators' names.
#include "devices.h"

#include <memory>
#include <string>
#include <vector>

#include "freed.h"
#include "memory.h"
#include "settings.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/gpu/gpu_id_manager.h"
#include "tensorflow/core/common_runtime/pluggable_device/pluggable_device_factory.h"
#include "tensorflow/core/public/session_options.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace simgpu {

using namespace tensorflow;  // NOLINT

// An allocator's name is private. An explicit instantiation may name it all the same.
template <std::string tsl::BFCAllocator::*name>
struct Private {
  friend std::string& name_of(tsl::BFCAllocator& allocator) { return allocator.*name; }
};
std::string& name_of(tsl::BFCAllocator& allocator);
template struct Private<&tsl::BFCAllocator::name_>;

namespace {

// The limits that `set_logical_device_configuration` asks for become the devices' memory.
SessionOptions with_limits(const SessionOptions& options) {
  SessionOptions found = options;
  const auto& wanted = options.config.gpu_options().experimental().virtual_devices();
  for (int i = 0; i < wanted.size(); ++i) {
    if (wanted.Get(i).memory_limit_mb_size() == 0) continue;
    set_memory_of(i, static_cast<int64_t>(wanted.Get(i).memory_limit_mb(0)) << 20);
    auto* config = &found.config;
    for (auto* one : {config->mutable_gpu_options(), config->mutable_pluggable_device_options()})
      one->set_per_process_gpu_memory_fraction(1.0);
  }
  return found;
}

class Factory : public DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    return plugged_.ListPhysicalDevices(devices);
  }

  absl::Status GetDeviceDetails(int index,
                                std::unordered_map<std::string, std::string>* details) override {
    TF_RETURN_IF_ERROR(plugged_.GetDeviceDetails(index, details));
    (*details)["compute_capability"] = "9.0";
    (*details)["device_name"] = device_name();
    return absl::OkStatus();
  }

  absl::Status CreateDevices(const SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<Device>>* devices) override {
    const size_t before = devices->size();
    TF_RETURN_IF_ERROR(plugged_.CreateDevices(with_limits(options), prefix, devices));
    for (size_t i = before; i < devices->size(); ++i) {
      Allocator* allocator = (*devices)[i]->GetAllocator(AllocatorAttributes());
      const int number = static_cast<int>(i - before);
      if (auto* bfc = dynamic_cast<tsl::BFCAllocator*>(allocator))
        name_of(*bfc) = "GPU_" + std::to_string(number) + "_bfc";
      if (settings().poisons) poison_what_is_freed(allocator);
      if (settings().has_layout)  // Grappler asks for the physical device of each
        GpuIdManager::InsertTfPlatformDeviceIdPair(tsl::TfDeviceId(number),
                                                   tsl::PlatformDeviceId(number))
            .IgnoreError();
    }
    return absl::OkStatus();
  }

 private:
  PluggableDeviceFactory plugged_{"GPU", "SIMGPU"};
};

constexpr int kPriority = 230;  // above that of TensorFlow's factory of GPUs, which finds no CUDA

}  // namespace

void register_devices() {
  DeviceFactory::Register("GPU", std::make_unique<Factory>(), kPriority,
                          /*is_pluggable_device=*/true);
}

}  // namespace simgpu
