// TensorFlow's StreamExecutor C API, which a plugged device answers: what CUDA's driver is to a GPU.
//
// TensorFlow asks it for memory in regions (its BFC allocator does the rest), for streams, events,
// copies and timers. It is found by SE_InitPlugin.
#include <algorithm>
#include <cstring>
#include <vector>

#include "copy.h"
#include "memory.h"
#include "settings.h"
#include "stream.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

// The name that TensorFlow's C API declares: what was last recorded as it.
struct SP_Event_st {
  std::mutex mutex;
  std::shared_ptr<simgpu::Mark> mark;

  std::shared_ptr<simgpu::Mark> last() {
    std::lock_guard<std::mutex> lock(mutex);
    return mark;
  }
};

struct SP_Timer_st {
  std::shared_ptr<simgpu::Mark> begin, end;
};

namespace simgpu {
namespace {

void ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

// Memory.

void allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = take(device->ordinal, size);
  memory->size = memory->opaque == nullptr ? 0 : size;
}

void deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  give_back(device->ordinal, memory->opaque);
  memory->opaque = nullptr;
  memory->size = 0;
}

void* host_memory_allocate(const SP_Device*, uint64_t size) { return take_pinned(size); }

void host_memory_deallocate(const SP_Device*, void* memory) { give_back_pinned(memory); }

TF_Bool get_allocator_stats(const SP_Device* device, SP_AllocatorStats* stats) {
  stats->struct_size = SP_ALLOCATORSTATS_STRUCT_SIZE;
  stats->bytes_in_use = memory_in_use(device->ordinal);
  return true;
}

TF_Bool device_memory_usage(const SP_Device* device, int64_t* free, int64_t* total) {
  *total = memory_of(device->ordinal);
  *free = *total - memory_in_use(device->ordinal);
  return true;
}

// Streams. The devices' streams in the order in which they were made; a deleted one leaves its place.

std::mutex streams_mutex;
std::vector<SP_Stream> streams[kMostDevices];

void create_stream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  auto& own = streams[device->ordinal];
  *stream = new SP_Stream_st(device->ordinal, static_cast<int>(own.size()));
  own.push_back(*stream);
  ok(status);
}

void destroy_stream(const SP_Device* device, SP_Stream stream) {
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    streams[device->ordinal][stream->number] = nullptr;
  }
  delete stream;
}

void create_stream_dependency(const SP_Device*, SP_Stream dependent, SP_Stream other,
                              TF_Status* status) {
  if (settings().waits) dependent->wait_for(other->mark());
  ok(status);
}

void get_stream_status(const SP_Device*, SP_Stream, TF_Status* status) { ok(status); }

void block_host_until_done(const SP_Device*, SP_Stream stream, TF_Status* status) {
  stream->mark()->wait();
  ok(status);
}

void synchronize_all_activity(const SP_Device* device, TF_Status* status) {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    for (SP_Stream one : streams[device->ordinal])
      if (one != nullptr) marks.push_back(one->mark());
  }
  for (auto& one : marks) one->wait();
  ok(status);
}

TF_Bool host_callback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn function,
                      void* argument) {
  stream->add([=](SP_Stream_st& self, Moment queued) {
    self.clock = std::max(self.clock, queued);
    TF_Status* status = TF_NewStatus();
    function(argument, status);
    TF_DeleteStatus(status);
  });
  return true;
}

// Events: by them TensorFlow knows when a copy has been done and what it read may be freed.

void create_event(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  ok(status);
}

void destroy_event(const SP_Device*, SP_Event event) { delete event; }

SE_EventStatus get_event_status(const SP_Device*, SP_Event event) {
  auto mark = event->last();
  return mark == nullptr || mark->is_reached() || !settings().waits ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

void record_event(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  auto mark = stream->mark();
  std::lock_guard<std::mutex> lock(event->mutex);
  event->mark = mark;
  ok(status);
}

void wait_for_event(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  if (settings().waits) stream->wait_for(event->last());
  ok(status);
}

void block_host_for_event(const SP_Device*, SP_Event event, TF_Status* status) {
  if (auto mark = event->last()) mark->wait();
  ok(status);
}

// Timers.

void create_timer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  ok(status);
}

void destroy_timer(const SP_Device*, SP_Timer timer) { delete timer; }

void start_timer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->begin = stream->mark();
  ok(status);
}

void stop_timer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  timer->end = stream->mark();
  ok(status);
}

uint64_t nanoseconds(SP_Timer timer) {
  auto lasted = timer->end->wait() - timer->begin->wait();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(lasted).count();
}

// Copies. The blocking ones are for constants and the like, not for what a step moves.

void memcpy_dtoh(const SP_Device*, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from,
                 uint64_t size, TF_Status* status) {
  copy(*stream, Kind::kToHost, to, from->opaque, size);
  ok(status);
}

void memcpy_htod(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from,
                 uint64_t size, TF_Status* status) {
  copy(*stream, Kind::kToDevice, to->opaque, from, size);
  ok(status);
}

void memcpy_dtod(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                 const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  copy(*stream, Kind::kOnDevice, to->opaque, from->opaque, size);
  ok(status);
}

void sync_memcpy_dtoh(const SP_Device*, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                      TF_Status* status) {
  std::memcpy(to, from->opaque, size);
  ok(status);
}

void sync_memcpy_htod(const SP_Device*, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                      TF_Status* status) {
  std::memcpy(to->opaque, from, size);
  ok(status);
}

void sync_memcpy_dtod(const SP_Device*, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                      uint64_t size, TF_Status* status) {
  std::memcpy(to->opaque, from->opaque, size);
  ok(status);
}

void mem_zero(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint64_t size,
              TF_Status* status) {
  fill(*stream, [to = at->opaque, size] { std::memset(to, 0, size); });
  ok(status);
}

void memset(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint8_t pattern,
            uint64_t size, TF_Status* status) {
  fill(*stream, [to = at->opaque, pattern, size] { std::memset(to, pattern, size); });
  ok(status);
}

void memset32(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint32_t pattern,
              uint64_t size, TF_Status* status) {
  auto* to = static_cast<uint32_t*>(at->opaque);
  fill(*stream, [to, pattern, size] { std::fill(to, to + size / 4, pattern); });
  ok(status);
}

// The platform.

void get_device_count(const SP_Platform*, int* count, TF_Status* status) {
  *count = settings().devices;
  ok(status);
}

void create_device(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status* status) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->device_handle = nullptr;
  params->device->hardware_name = device_name().c_str();
  params->device->device_vendor = "none";
  params->device->pci_bus_id = "0000:00:00.0";
  ok(status);
}

void destroy_device(const SP_Platform*, SP_Device*) {}

int32_t get_numa_node(const SP_Device*) { return 0; }
int64_t get_memory_bandwidth(const SP_Device*) { return static_cast<int64_t>(settings().bytes); }
double get_gflops(const SP_Device*) { return settings().flops * 1e-9; }

void create_device_fns(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status* status) {
  params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  params->device_fns->get_numa_node = get_numa_node;
  params->device_fns->get_memory_bandwidth = get_memory_bandwidth;
  params->device_fns->get_gflops = get_gflops;
  ok(status);
}

void destroy_device_fns(const SP_Platform*, SP_DeviceFns*) {}

void create_stream_executor(const SP_Platform*, SE_CreateStreamExecutorParams* params,
                            TF_Status* status) {
  SP_StreamExecutor* executor = params->stream_executor;
  executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  executor->allocate = allocate;
  executor->deallocate = deallocate;
  executor->host_memory_allocate = host_memory_allocate;
  executor->host_memory_deallocate = host_memory_deallocate;
  executor->get_allocator_stats = get_allocator_stats;
  executor->device_memory_usage = device_memory_usage;
  executor->create_stream = create_stream;
  executor->destroy_stream = destroy_stream;
  executor->create_stream_dependency = create_stream_dependency;
  executor->get_stream_status = get_stream_status;
  executor->create_event = create_event;
  executor->destroy_event = destroy_event;
  executor->get_event_status = get_event_status;
  executor->record_event = record_event;
  executor->wait_for_event = wait_for_event;
  executor->create_timer = create_timer;
  executor->destroy_timer = destroy_timer;
  executor->start_timer = start_timer;
  executor->stop_timer = stop_timer;
  executor->memcpy_dtoh = memcpy_dtoh;
  executor->memcpy_htod = memcpy_htod;
  executor->memcpy_dtod = memcpy_dtod;
  executor->sync_memcpy_dtoh = sync_memcpy_dtoh;
  executor->sync_memcpy_htod = sync_memcpy_htod;
  executor->sync_memcpy_dtod = sync_memcpy_dtod;
  executor->block_host_for_event = block_host_for_event;
  executor->block_host_until_done = block_host_until_done;
  executor->synchronize_all_activity = synchronize_all_activity;
  executor->mem_zero = mem_zero;
  executor->memset = memset;
  executor->memset32 = memset32;
  executor->host_callback = host_callback;
  ok(status);
}

void destroy_stream_executor(const SP_Platform*, SP_StreamExecutor*) {}

void create_timer_fns(const SP_Platform*, SP_TimerFns* fns, TF_Status* status) {
  fns->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  fns->nanoseconds = nanoseconds;
  ok(status);
}

void destroy_timer_fns(const SP_Platform*, SP_TimerFns*) {}
void destroy_platform(SP_Platform*) {}
void destroy_platform_fns(SP_PlatformFns*) {}

}  // namespace

SP_Stream_st* compute_stream(int device) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  return streams[device].empty() ? nullptr : streams[device].front();
}

}  // namespace simgpu

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  using namespace simgpu;  // NOLINT
  params->struct_size = SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  SP_Platform* platform = params->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "SIMGPU";
  platform->type = "GPU";
  platform->supports_unified_memory = false;
  platform->use_bfc_allocator = true;
  platform->force_memory_growth = false;
  SP_PlatformFns* fns = params->platform_fns;
  fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  fns->get_device_count = get_device_count;
  fns->create_device = create_device;
  fns->destroy_device = destroy_device;
  fns->create_device_fns = create_device_fns;
  fns->destroy_device_fns = destroy_device_fns;
  fns->create_stream_executor = create_stream_executor;
  fns->destroy_stream_executor = destroy_stream_executor;
  fns->create_timer_fns = create_timer_fns;
  fns->destroy_timer_fns = destroy_timer_fns;
  params->destroy_platform = destroy_platform;
  params->destroy_platform_fns = destroy_platform_fns;
  TF_SetStatus(status, TF_OK, "");
}
