// What the device did, as TensorFlow's profiler tells it of a GPU (where CUPTI tells it): a plane for
// each device, a line for each stream, and with each event the node that it was for.
#include "profiler.h"

#include <map>

#include "record.h"
#include "tensorflow/c/experimental/pluggable_profiler/pluggable_profiler.h"
#include "tsl/profiler/protobuf/xplane.pb.h"
#include "xla/tsl/profiler/backends/cpu/annotation_stack.h"

namespace simgpu {

std::string annotation() {
  if (!tsl::profiler::AnnotationStack::IsEnabled()) return "";
  std::string text = tsl::profiler::AnnotationStack::Get();
  size_t last = text.rfind("::");  // of nested ones the innermost
  if (last != std::string::npos && last + 2 < text.size()) text = text.substr(last + 2);
  return text.substr(0, text.find('#'));
}

namespace {

using tensorflow::profiler::XLine;
using tensorflow::profiler::XPlane;
using tensorflow::profiler::XSpace;

constexpr int kNode = 1, kDetails = 2;  // numbers of what is told with an event

class Planes {
 public:
  void add(const Event& event) {
    XPlane& plane = plane_of(event.device);
    XLine& line = line_of(plane, event);
    auto* told = line.add_events();
    int64_t begin = unix_ns(event.begin);
    told->set_metadata_id(name_in(plane, event));
    told->set_offset_ps((begin - line.timestamp_ns()) * 1000);
    told->set_duration_ps((unix_ns(event.end) - begin) * 1000);
    if (!event.node.empty()) add_stat(told, kNode, event.node);
    if (event.kind != Kind::kKernel)
      add_stat(told, kDetails, "size:" + std::to_string(static_cast<int64_t>(event.bytes)));
  }

  std::string serialized() const { return space_.SerializeAsString(); }

 private:
  XPlane& plane_of(int device) {
    XPlane*& plane = planes_[device];
    if (plane != nullptr) return *plane;
    plane = space_.add_planes();
    plane->set_id(device);
    plane->set_name("/device:GPU:" + std::to_string(device));
    add_name(plane->mutable_stat_metadata(), kNode, "tf_op");
    add_name(plane->mutable_stat_metadata(), kDetails, "memcpy_details");
    return *plane;
  }

  XLine& line_of(XPlane& plane, const Event& event) {
    XLine*& line = lines_[{event.device, event.stream}];
    if (line != nullptr) return *line;
    line = plane.add_lines();
    line->set_id(event.stream + 1);
    line->set_name("Stream #" + std::to_string(event.stream + 1));
    line->set_timestamp_ns(unix_ns(event.begin));
    return *line;
  }

  int64_t name_in(XPlane& plane, const Event& event) {
    static const std::map<Kind, std::string> copies = {
        {Kind::kToDevice, "MemcpyH2D"}, {Kind::kToHost, "MemcpyD2H"}, {Kind::kOnDevice, "MemcpyD2D"}};
    auto copy = copies.find(event.kind);
    std::string op = event.node.substr(event.node.find(':') + 1);
    std::string name = copy == copies.end() ? "simulated_" + op : copy->second;
    int64_t& number = names_[{event.device, name}];
    if (number == 0) {
      number = plane.event_metadata_size() + 1;
      add_name(plane.mutable_event_metadata(), number, name);
    }
    return number;
  }

  template <class Names>
  static void add_name(Names* names, int64_t number, const std::string& name) {
    (*names)[number].set_id(number);
    (*names)[number].set_name(name);
  }

  template <class Told>
  static void add_stat(Told* told, int64_t number, const std::string& text) {
    auto* stat = told->add_stats();
    stat->set_metadata_id(number);
    stat->set_str_value(text);
  }

  XSpace space_;
  std::map<int, XPlane*> planes_;
  std::map<std::pair<int, int>, XLine*> lines_;
  std::map<std::pair<int, std::string>, int64_t> names_;
};

std::string collected;

void start(const TP_Profiler*, TF_Status* status) {
  keep_events(true);
  tsl::profiler::AnnotationStack::Enable(true);
  TF_SetStatus(status, TF_OK, "");
}

void stop(const TP_Profiler*, TF_Status* status) {
  tsl::profiler::AnnotationStack::Enable(false);
  keep_events(false);
  Planes planes;
  each_event([&planes](const Event& one) { planes.add(one); });
  collected = planes.serialized();
  TF_SetStatus(status, TF_OK, "");
}

// Asked twice: for the size, and for as many bytes.
void collect(const TP_Profiler*, uint8_t* buffer, size_t* size, TF_Status* status) {
  TF_SetStatus(status, TF_OK, "");
  if (buffer == nullptr) {
    *size = collected.size();
    return;
  }
  std::copy(collected.begin(), collected.end(), buffer);
  collected.clear();
}

void destroy(TP_Profiler*) {}
void destroy(TP_ProfilerFns*) {}

}  // namespace
}  // namespace simgpu

extern "C" void TF_InitProfiler(TF_ProfilerRegistrationParams* params, TF_Status* status) {
  params->struct_size = TF_PROFILER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = TP_MAJOR;
  params->minor_version = TP_MINOR;
  params->patch_version = TP_PATCH;
  params->profiler->struct_size = TP_PROFILER_STRUCT_SIZE;
  params->profiler->device_type = "GPU";
  params->profiler_fns->struct_size = TP_PROFILER_FNS_STRUCT_SIZE;
  params->profiler_fns->start = simgpu::start;
  params->profiler_fns->stop = simgpu::stop;
  params->profiler_fns->collect_data_xspace = simgpu::collect;
  params->destroy_profiler = simgpu::destroy;
  params->destroy_profiler_fns = simgpu::destroy;
  TF_SetStatus(status, TF_OK, "");
}
