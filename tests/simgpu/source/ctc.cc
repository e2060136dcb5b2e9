#include "ctc.h"

#include <algorithm>

#include "inner.h"

namespace simgpu {

using namespace tensorflow;  // NOLINT

namespace {

enum Input { kLogits, kIndices, kLabels, kLengths };
enum Output { kLoss, kGradient };

// Moves the first class of each row to its end, or the last to its beginning.
void roll(const Tensor& from, Tensor* to, bool to_end) {
  const int64_t classes = from.dim_size(from.dims() - 1);
  const float* source = from.flat<float>().data();
  float* target = to->flat<float>().data();
  for (int64_t i = 0; i < from.NumElements(); i += classes)
    std::rotate_copy(source + i, source + i + (to_end ? 1 : classes - 1), source + i + classes,
                     target + i);
}

}  // namespace

const char* const kCtcOnGpu = "CTCLossV2";
const char* const kCtcOnCpu = "CTCLoss";

void put_on_cpu(NodeDef* node) {
  node->set_op(kCtcOnCpu);
  (*node->mutable_attr())["T"].set_type(DT_FLOAT);
}

void run_ctc(OpKernel* kernel, OpKernelContext* ctx) {
  Arguments arguments(ctx);
  const Tensor &logits = ctx->input(kLogits), &labels = ctx->input(kLabels);
  Tensor rolled(cpu_allocator(), DT_FLOAT, logits.shape());
  if (logits.NumElements() > 0) roll(logits, &rolled, /*to_end=*/true);
  Tensor lower(cpu_allocator(), DT_INT32, labels.shape());
  lower.flat<int32>() = labels.flat<int32>() - 1;
  arguments.replace(kLogits, rolled);
  arguments.replace(kLabels, lower);
  for (AllocatorAttributes& one : arguments.to) one.set_on_host(true);
  Inner inner(ctx, kernel, &arguments);
  kernel->Compute(&inner);
  OP_REQUIRES_OK(ctx, inner.status());
  for (int i : {kLoss, kGradient}) {
    const Tensor& made = *inner.mutable_output(i);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(i, made.shape(), &output));
    if (i == kGradient && made.NumElements() > 0)
      roll(made, output, /*to_end=*/false);
    else
      output->flat<float>() = made.flat<float>();
  }
}

}  // namespace simgpu
