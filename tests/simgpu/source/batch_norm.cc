#include "batch_norm.h"

#include <algorithm>

namespace simgpu {

using namespace tensorflow;  // NOLINT

namespace {

const std::string kFused = "_FusedBatchNormEx", kAlone = "FusedBatchNormV3";
constexpr int kArguments = 5;  // of the batch norm; the side input comes after them

template <class T>
void finish(const Tensor* side, bool is_relu, Tensor* output) {
  T* y = output->flat<T>().data();
  const T* added = side != nullptr ? side->flat<T>().data() : nullptr;
  for (int64_t i = 0, count = output->NumElements(); i < count; ++i) {
    if (added != nullptr) y[i] = y[i] + added[i];
    if (is_relu) y[i] = std::max(y[i], T(0));
  }
}

}  // namespace

const std::string& unfused(const std::string& op) { return op == kFused ? kAlone : op; }

void take_apart(NodeDef* node) {
  node->set_op(kAlone);
  node->mutable_attr()->erase("num_side_inputs");
  node->mutable_attr()->erase("activation_mode");
  if (node->input_size() > kArguments) node->mutable_input()->DeleteSubrange(kArguments, 1);
}

Fused::Fused(const NodeDef& node) {
  if (node.op() != kFused) return;
  has_side_ = node.attr().at("num_side_inputs").i() > 0;
  is_relu_ = node.attr().at("activation_mode").s() == "Relu";
}

void Fused::run(OpKernelContext* ctx) const {
  if (!ctx->status().ok() || (!has_side_ && !is_relu_)) return;
  const Tensor* side = has_side_ ? &ctx->input(kArguments) : nullptr;
  Tensor* output = ctx->mutable_output(0);
  switch (output->dtype()) {
    case DT_HALF:
      return finish<Eigen::half>(side, is_relu_, output);
    case DT_BFLOAT16:
      return finish<bfloat16>(side, is_relu_, output);
    default:
      return finish<float>(side, is_relu_, output);
  }
}

}  // namespace simgpu
