#include "price.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "settings.h"
#include "stream.h"
#include "tensorflow/c/kernels.h"

namespace simgpu {

using namespace tensorflow;  // NOLINT

namespace {

// Multiplications of each output of a filter [..., in, out].
double per_output(const Tensor& filter) {
  int last = filter.dims() - 1;
  if (last < 0 || filter.dim_size(last) == 0) return 0;
  return double(filter.NumElements()) / filter.dim_size(last);
}

// Elements of the space that an Einsum's labels span: one multiplication and addition for each. The
// axes of its dots are counted from their last one.
double spanned(const std::string& equation, OpKernelContext& ctx) {
  std::map<int, double> sizes;
  std::istringstream terms(equation.substr(0, equation.find("->")));
  std::string term;
  for (int i = 0; i < ctx.num_inputs() && std::getline(terms, term, ','); ++i) {
    const Tensor& operand = ctx.input(i);
    const int dots = term.find('.') == std::string::npos ? 0 : operand.dims() - (term.size() - 3);
    int axis = 0;
    for (size_t at = 0; at < term.size() && axis < operand.dims(); ++at) {
      if (term[at] == '.') {
        for (int left = dots; left > 0; --left, ++axis)
          sizes[-left] = std::max(sizes[-left], double(operand.dim_size(axis)));
        at += 2;
      } else {
        sizes[term[at]] = operand.dim_size(axis++);
      }
    }
  }
  double product = 1;
  for (const auto& size : sizes) product *= size.second;
  return product;
}

// Bytes of the device that a kernel reads and writes; less than 0 if it has nothing there.
double nbytes_moved(OpKernelContext& ctx, const OpKernel& kernel) {
  double read = 0, written = 0;
  int variables = 0;
  bool is_there = false;
  for (int i = 0; i < ctx.num_inputs(); ++i) {
    if (!ctx.has_input(i) || kernel.input_type(i) == DT_VARIANT) continue;
    if (kernel.input_type(i) == DT_RESOURCE) {
      ++variables;
    } else if (kernel.input_memory_types()[i] == DEVICE_MEMORY) {
      is_there = true;
      if (!ctx.input_is_ref(i)) read += ctx.input(i).TotalBytes();
    }
  }
  for (int i = 0; i < ctx.num_outputs(); ++i) {
    bool is_on_host = kernel.output_memory_types()[i] != DEVICE_MEMORY;
    if (is_on_host || kernel.output_type(i) == DT_VARIANT) continue;
    is_there = true;
    if (const Tensor* output = ctx.mutable_output(i)) written += output->TotalBytes();
  }
  if (!is_there && variables == 0) return -1;
  const std::string& op = kernel.type_string();
  if (op == "AddN") return read + written * (1 + 2 * ((ctx.num_inputs() - 2) / 8));  // by eights
  if (op == "ResourceStridedSliceAssign") return 2 * read;
  return read * (1 + 2 * variables) + written;  // a variable, as large as what is read, both ways
}

bool is_part_of_its_input(OpKernelContext& ctx) {
  const Tensor* whole = nullptr;
  for (int i = 0; i < ctx.num_inputs() && whole == nullptr; ++i)
    if (ctx.has_input(i) && ctx.input_memory_type(i) == DEVICE_MEMORY) whole = &ctx.input(i);
  const Tensor* part = ctx.num_outputs() > 0 ? ctx.mutable_output(0) : nullptr;
  return whole != nullptr && part != nullptr && part->SharesBufferWith(*whole);
}

SP_Stream_st* stream_of(OpKernelContext& ctx) {
  if (ctx.op_device_context() == nullptr) return compute_stream(0);
  TF_Status* status = TF_NewStatus();
  SP_Stream_st* found = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(&ctx), status);
  TF_DeleteStatus(status);
  return found;
}

}  // namespace

Price::Work Price::work_of(const NodeDef& node) {
  static const std::map<std::string, Work> works = {
      {"AssignVariableOp", Work::kNothing},  // which takes its value's buffer over
      {"Slice", Work::kPart},
      {"Split", Work::kPart},
      {"SplitV", Work::kPart},
      {"Unpack", Work::kPart},
      {"MatMul", Work::kMatMul},
      {"_FusedMatMul", Work::kMatMul},
      {"BatchMatMul", Work::kMatMul},
      {"BatchMatMulV2", Work::kMatMul},
      {"BatchMatMulV3", Work::kMatMul},
      {"Einsum", Work::kEinsum},
      {"Conv2D", Work::kConv},
      {"Conv3D", Work::kConv},
      {"_FusedConv2D", Work::kConv},
      {"Conv2DBackpropInput", Work::kConvInput},
      {"Conv3DBackpropInputV2", Work::kConvInput},
      {"Conv2DBackpropFilter", Work::kConvFilter},
      {"Conv3DBackpropFilterV2", Work::kConvFilter},
      {"DepthwiseConv2dNative", Work::kDepthwise},
  };
  if (node.op() == "Empty" && !node.attr().at("init").b()) return Work::kNothing;
  auto found = works.find(node.op());
  return found == works.end() ? Work::kMemory : found->second;
}

Price::Price(const NodeDef& node) : work_(work_of(node)) {
  for (const char* name : {"transpose_a", "adj_x"}) {
    auto found = node.attr().find(name);
    if (found != node.attr().end()) is_transposed_ = found->second.b();
  }
  if (work_ == Work::kEinsum)
    for (char one : node.attr().at("equation").s())
      if (one != ' ') equation_ += one;
}

double Price::flops(OpKernelContext& ctx) const {
  if (work_ <= Work::kMemory || ctx.num_outputs() == 0 || ctx.mutable_output(0) == nullptr) return 0;
  const Tensor& output = *ctx.mutable_output(0);
  const double made = output.NumElements();
  switch (work_) {
    case Work::kMatMul: {
      const Tensor& first = ctx.input(0);
      if (first.dims() < 2) return 0;
      return 2 * made * first.dim_size(first.dims() - (is_transposed_ ? 2 : 1));
    }
    case Work::kEinsum:
      return ctx.num_inputs() < 2 ? 0 : 2 * spanned(equation_, ctx);
    case Work::kConv:
      return 2 * made * per_output(ctx.input(1));
    case Work::kConvInput:
      return 2.0 * ctx.input(2).NumElements() * per_output(ctx.input(1));
    case Work::kConvFilter:
      return 2.0 * ctx.input(2).NumElements() * per_output(output);
    case Work::kDepthwise:
      return 2 * made * ctx.input(1).dim_size(0) * ctx.input(1).dim_size(1);
    default:
      return 0;
  }
}

void Price::charge(OpKernelContext& ctx, const OpKernel& kernel, Moment launched) const {
  if (!ctx.status().ok() || work_ == Work::kNothing) return;
  if (work_ == Work::kPart && is_part_of_its_input(ctx)) return;
  const double nbytes = nbytes_moved(ctx, kernel);
  if (nbytes < 0) return;
  const Settings& s = settings();
  const double arithmetic = flops(ctx);
  const double modelled = std::max(arithmetic / s.flops, nbytes / s.bytes);
  const double cpu_seconds = seconds_of(Clock::now()) - seconds_of(launched);
  const double seconds = s.launch + (s.times_cpu != 0 ? s.times_cpu * cpu_seconds : modelled);
  if (SP_Stream_st* stream = stream_of(ctx))
    run_kernel(*stream, launched, seconds, kernel.name() + ":" + kernel.type_string(), nbytes,
               arithmetic);
}

}  // namespace simgpu
