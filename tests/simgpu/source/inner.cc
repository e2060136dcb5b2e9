#include "inner.h"

#include <utility>

namespace simgpu {

using namespace tensorflow;  // NOLINT

namespace {

std::unique_ptr<OpKernelContext::Params> params_like(OpKernelContext* outer, OpKernel* kernel,
                                                     Arguments* arguments) {
  auto found = std::make_unique<OpKernelContext::Params>();
  found->step_id = outer->step_id();
  found->op_kernel = kernel;
  found->device = outer->device();
  found->resource_manager = outer->resource_manager();
  found->step_container = outer->step_container();
  found->function_library = outer->function_library();
  found->runner = outer->runner();
  found->cancellation_manager = outer->cancellation_manager();
  found->op_device_context = outer->op_device_context();
  found->inputs = arguments->inputs;
  found->input_alloc_attrs = arguments->from;
  found->output_attr_array = arguments->to.data();
  return found;
}

}  // namespace

Arguments::Arguments(OpKernelContext* ctx)
    : own(ctx->num_inputs()),
      inputs(ctx->num_inputs()),
      from(ctx->num_inputs()),
      to(ctx->num_outputs()) {
  for (int i = 0; i < ctx->num_inputs(); ++i) {  // the very tensors: buffers can be taken over
    inputs[i] = TensorValue(const_cast<Tensor*>(&ctx->input(i)));
    from[i] = ctx->input_alloc_attr(i);
  }
  for (int i = 0; i < ctx->num_outputs(); ++i) to[i] = ctx->output_alloc_attr(i);
}

void Arguments::replace(int input, Tensor tensor) {
  own[input] = std::move(tensor);
  inputs[input] = TensorValue(&own[input]);
  from[input].set_on_host(true);
}

Inner::Inner(OpKernelContext* outer, OpKernel* kernel, Arguments* arguments)
    : Inner(params_like(outer, kernel, arguments), outer->num_outputs()) {}

Inner::Inner(std::unique_ptr<Params> params, int outputs)
    : OpKernelContext(params.get(), outputs), params_(std::move(params)) {}

absl::Status Inner::allocate_temp(DataType type, const TensorShape& shape, Tensor* made,
                                  AllocatorAttributes attributes,
                                  const AllocationAttributes& more) {
  attributes.set_on_host(true);
  return OpKernelContext::allocate_temp(type, shape, made, attributes, more);
}

}  // namespace simgpu
