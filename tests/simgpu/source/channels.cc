#include "channels.h"

#include <algorithm>
#include <map>
#include <vector>

#include "inner.h"

namespace simgpu {

using namespace tensorflow;  // NOLINT

namespace {

// Where a dimension of channels last is in a list by channels first: [n, c, h, w] -> [n, h, w, c].
int place_of(int dimension, int dimensions) {
  if (dimension == 0) return 0;
  return dimension + 1 < dimensions ? dimension + 1 : 1;
}

// Puts the channels of a list last, which has `wide` numbers for each dimension.
template <class List>
void put_last(List* list, int wide) {
  int dimensions = list->size() / wide;
  if (dimensions < 4) return;
  std::vector<int64_t> old(list->begin(), list->end());
  for (int d = 0; d < dimensions; ++d)
    for (int k = 0; k < wide; ++k) list->Set(d * wide + k, old[place_of(d, dimensions) * wide + k]);
}

TensorShape channels_last(const TensorShape& shape) {
  TensorShape found;
  for (int d = 0; d < shape.dims(); ++d) found.AddDim(shape.dim_size(place_of(d, shape.dims())));
  return found;
}

TensorShape channels_first(const TensorShape& shape) {
  TensorShape found;
  found.AddDim(shape.dim_size(0));
  found.AddDim(shape.dim_size(shape.dims() - 1));
  for (int d = 1; d < shape.dims() - 1; ++d) found.AddDim(shape.dim_size(d));
  return found;
}

// Transposes each of `count` matrices [rows, columns], by blocks that caches hold.
template <class T>
void transpose(const char* from_bytes, char* to_bytes, int64_t count, int64_t rows, int64_t columns) {
  constexpr int64_t kBlock = 16;
  auto* from = reinterpret_cast<const T*>(from_bytes);
  auto* to = reinterpret_cast<T*>(to_bytes);
  for (int64_t i = 0; i < count; ++i, from += rows * columns, to += rows * columns)
    for (int64_t r0 = 0; r0 < rows; r0 += kBlock)
      for (int64_t c0 = 0; c0 < columns; c0 += kBlock)
        for (int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r)
          for (int64_t c = c0; c < std::min(c0 + kBlock, columns); ++c)
            to[c * rows + r] = from[r * columns + c];
}

// Copies a picture so that its channels, which are first or last, come to the other end.
void turn(const Tensor& from, Tensor* to, bool are_first) {
  int64_t count = from.dim_size(0), channels = from.dim_size(are_first ? 1 : from.dims() - 1);
  int64_t pixels = count * channels > 0 ? from.NumElements() / (count * channels) : 0;
  int64_t rows = are_first ? channels : pixels, columns = are_first ? pixels : channels;
  const char* source = from.tensor_data().data();
  char* target = const_cast<char*>(to->tensor_data().data());
  switch (DataTypeSize(from.dtype())) {
    case 1:
      return transpose<uint8_t>(source, target, count, rows, columns);
    case 2:
      return transpose<uint16_t>(source, target, count, rows, columns);
    case 4:
      return transpose<uint32_t>(source, target, count, rows, columns);
    case 8:
      return transpose<uint64_t>(source, target, count, rows, columns);
  }
}

// A shape with channels first, a tensor of the host, as one with channels last.
Tensor turned_shape(const Tensor& shape) {
  Tensor found(cpu_allocator(), shape.dtype(), shape.shape());
  int dimensions = static_cast<int>(shape.NumElements());
  for (int d = 0; d < dimensions; ++d) {
    int from = place_of(d, dimensions);
    if (shape.dtype() == DT_INT32)
      found.flat<int32>()(d) = shape.flat<int32>()(from);
    else
      found.flat<int64_t>()(d) = shape.flat<int64_t>()(from);
  }
  return found;
}

bool is_batch_norm(const OpKernel& kernel) {
  return kernel.type_string().rfind("FusedBatchNorm", 0) == 0;
}

}  // namespace

const Pictures* pictures_of(const std::string& op) {
  static const std::map<std::string, Pictures> all = {
      {"Conv2D", {{0}, {}, {0}}},
      {"_FusedConv2D", {{0}, {}, {0}}},
      {"Conv2DBackpropInput", {{2}, {0}, {0}}},
      {"Conv2DBackpropFilter", {{0, 2}, {}, {}}},
      {"DepthwiseConv2dNative", {{0}, {}, {0}}},
      {"DepthwiseConv2dNativeBackpropInput", {{2}, {0}, {0}}},
      {"DepthwiseConv2dNativeBackpropFilter", {{0, 2}, {}, {}}},
      {"Conv3D", {{0}, {}, {0}}},
      {"Conv3DBackpropInputV2", {{2}, {0}, {0}}},
      {"Conv3DBackpropFilterV2", {{0, 2}, {}, {}}},
      {"MaxPool", {{0}, {}, {0}}},
      {"MaxPoolV2", {{0}, {}, {0}}},
      {"MaxPoolGrad", {{0, 1, 2}, {}, {0}}},
      {"MaxPoolGradGrad", {{0, 1, 2}, {}, {0}}},
      {"AvgPool", {{0}, {}, {0}}},
      {"AvgPoolGrad", {{1}, {0}, {0}}},
      {"MaxPool3D", {{0}, {}, {0}}},
      {"MaxPool3DGrad", {{0, 1, 2}, {}, {0}}},
      {"AvgPool3D", {{0}, {}, {0}}},
      {"AvgPool3DGrad", {{1}, {0}, {0}}},
      // The CPU's kernels take channels first here, but turn them in memory of the device.
      {"FusedBatchNorm", {{0}, {}, {0}}},
      {"FusedBatchNormV2", {{0}, {}, {0}}},
      {"FusedBatchNormV3", {{0}, {}, {0}}},
      {"FusedBatchNormGrad", {{0, 1}, {}, {0}}},
      {"FusedBatchNormGradV2", {{0, 1}, {}, {0}}},
      {"FusedBatchNormGradV3", {{0, 1}, {}, {0}}},
      {"DepthToSpace", {{0}, {}, {0}}},
      {"SpaceToDepth", {{0}, {}, {0}}},
  };
  auto found = all.find(op);
  return found == all.end() ? nullptr : &found->second;
}

bool has_channels_first(const NodeDef& node) {
  auto found = node.attr().find("data_format");
  return found != node.attr().end() && found->second.s().rfind("NC", 0) == 0;
}

void put_channels_last(NodeDef* node) {
  auto& attributes = *node->mutable_attr();
  std::string& format = *attributes["data_format"].mutable_s();
  format = format.size() == 5 ? "NDHWC" : "NHWC";
  for (const char* name : {"strides", "dilations", "ksize"})
    if (attributes.contains(name)) put_last(attributes[name].mutable_list()->mutable_i(), 1);
  if (attributes.contains("explicit_paddings"))
    put_last(attributes["explicit_paddings"].mutable_list()->mutable_i(), 2);
}

void run_channels_last(OpKernel* kernel, const Pictures& pictures, OpKernelContext* ctx) {
  Arguments arguments(ctx);
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    const Tensor& given = ctx->input(i);
    if (pictures.inputs.count(i) && given.dims() >= 4) {
      Tensor turned(cpu_allocator(), given.dtype(), channels_last(given.shape()));
      turn(given, &turned, /*are_first=*/true);
      arguments.replace(i, turned);
    } else if (pictures.shapes.count(i) && given.NumElements() >= 4) {
      arguments.replace(i, turned_shape(given));
    }
  }
  for (int i : pictures.outputs) arguments.to[i].set_on_host(true);
  Inner inner(ctx, kernel, &arguments);
  kernel->Compute(&inner);
  OP_REQUIRES_OK(ctx, inner.status());
  for (int i = 0; i < ctx->num_outputs(); ++i) {
    Tensor* made = inner.mutable_output(i);
    if (made == nullptr) continue;
    if (!pictures.outputs.count(i)) {
      ctx->set_output(i, *made);
      continue;
    }
    Tensor* output = nullptr;
    TensorShape shape = channels_first(made->shape());
    if (is_batch_norm(*kernel))
      OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, i, shape, &output));
    else
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, shape, &output));
    turn(*made, output, /*are_first=*/false);
  }
}

}  // namespace simgpu
