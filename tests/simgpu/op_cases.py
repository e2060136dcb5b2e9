"""Arguments for one op of each type: small tensors of a type and a size, drawn by the op's name.

A case is a function of `Draw` that returns the op's inputs, in its order, and its attributes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
WIDE = (tf.float32, tf.float64)
SINGLE = (tf.float32,)
COMPLEX = (tf.complex64, tf.complex128)
INTEGERS = (tf.int32, tf.int64, tf.int8, tf.uint8, tf.int16)
NUMBERS = (*FLOATS, *INTEGERS, *COMPLEX)
BOOLS = (tf.bool,)

Inputs = list[Any]
Made = tuple[Inputs, dict[str, Any]]


@dataclass
class Draw:
    """Draws arguments.

    Attributes:
      op: the op's type, which seeds the numbers.
      dtype: of those that `Draw` itself makes when it is called.
      n: a size, in the place of which a case may take it.
    """

    op: str
    dtype: tf.DType
    n: int
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(zlib.crc32(f"{self.op} {self.n}".encode()))

    def __call__(self, *shape: int, dtype: tf.DType | None = None) -> tf.Tensor:
        """Numbers from 0.1 to 0.9, where the domains of nearly all functions meet; or 1 to 8."""
        dtype = dtype or self.dtype
        if dtype == tf.bool:
            return tf.constant(self.random.random(shape) < 0.5)
        if dtype.is_integer:
            return tf.cast(self.random.integers(1, 8, shape), dtype)
        values = self.random.uniform(0.1, 0.9, shape)
        if dtype.is_complex:
            values = values + 1j * self.random.uniform(0.1, 0.9, shape)
        return tf.cast(tf.constant(values), dtype)

    def signed(self, *shape: int) -> tf.Tensor:
        """Numbers from -0.8 to 0.8."""
        return 2 * (self(*shape) - tf.cast(0.5, self.dtype))

    def index(self, below: int, *shape: int, dtype: tf.DType = tf.int32) -> tf.Tensor:
        """Integers from 0 on."""
        return tf.constant(self.random.integers(0, below, shape), dtype)

    def regular(self, *shape: int) -> tf.Tensor:
        """Matrices that have inverses, and are positive definite."""
        x = self(*shape)
        return x @ tf.linalg.adjoint(x) + tf.cast(shape[-1], self.dtype) * tf.eye(
            shape[-1], dtype=self.dtype
        )


@dataclass(frozen=True)
class Case:
    """How an op is called, and with which types."""

    make: Callable[[Draw], Made]
    dtypes: Sequence[tf.DType] = FLOATS


CASES: dict[str, Case] = {}


def case(ops: str, make: Callable[[Draw], Any], dtypes: Sequence[tf.DType] = FLOATS) -> None:
    """Adds cases of ops, whose names are separated by blanks."""

    def made(draw: Draw) -> Made:
        found = make(draw)
        return found if isinstance(found, tuple) else (found, {})

    for op in ops.split():
        assert op not in CASES, op
        CASES[op] = Case(made, dtypes)


def ints(*values: int, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """A vector of the host, such as a shape."""
    return tf.constant(values, dtype)


def square(d: Draw) -> Inputs:
    """One argument."""
    return [d(d.n, d.n + 1)]


def alike(d: Draw) -> Inputs:
    """Two arguments of one shape."""
    return [d(d.n, d.n + 1), d(d.n, d.n + 1)]


def broadcast(d: Draw) -> Inputs:
    """Two arguments, one of which is a column."""
    return [d(d.n, d.n + 1), d(d.n, 1)]


# --- elementwise

case(
    "Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor "
    "IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p Ndtri Relu6 Rint Rsqrt Selu Sigmoid Sin Sinh "
    "Softplus Softsign Sqrt Tan Tanh L2Loss LogSoftmax Softmax BesselI0e BesselI1e",
    square,
)
case(
    "BesselI0 BesselI1 BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 "
    "Dawsn Expint FresnelCos FresnelSin Spence",
    square,
)
case("Abs Neg OnesLike Round Sign Square ZerosLike Snapshot", square, NUMBERS)
case("Relu Reciprocal Inv", square)
case("Conj", square, COMPLEX)
case("Angle ComplexAbs Imag Real", lambda d: ([d(d.n, 3)], {"Tout": d.dtype.real_dtype}), COMPLEX)
case("Invert PopulationCount", square, INTEGERS)
case("LogicalNot", square, BOOLS)
case("Add AddV2 Sub Mul Div RealDiv Pow Equal NotEqual", broadcast, NUMBERS)
case("DivNoNan MulNoNan Xdivy Xlog1py Xlogy SquaredDifference", broadcast, (*FLOATS, *COMPLEX))
case("Atan2 Igamma Igammac IgammaGradA Polygamma Zeta NextAfter RandomGammaGrad", broadcast, WIDE)
case("Greater GreaterEqual Less LessEqual Maximum Minimum", broadcast, (*FLOATS, *INTEGERS))
case("FloorDiv FloorMod Mod TruncateDiv TruncateMod", broadcast, (*FLOATS, *INTEGERS))
case("BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift", broadcast, INTEGERS)
case("LogicalAnd LogicalOr", broadcast, BOOLS)
case("ApproximateEqual", alike, (*FLOATS, tf.int32))
case("Complex", broadcast, WIDE)
case(
    "EluGrad InvGrad LeakyReluGrad ReciprocalGrad ReluGrad Relu6Grad RsqrtGrad SeluGrad "
    "SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad",
    alike,
)
case("Betainc", lambda d: [d(d.n), d(d.n), d(d.n)], WIDE)
case("ClipByValue", lambda d: [d(d.n, 3), d() / 2, d() + d.dtype.as_numpy_dtype(0.5)])
case("Select", lambda d: [d(d.n, 3, dtype=tf.bool), *(d(d.n, 3) for _ in range(2))], NUMBERS)
case("SelectV2", lambda d: [d(d.n, 1, dtype=tf.bool), d(d.n, 3), d(1, 3)], NUMBERS)
case("AddN", lambda d: [[d(d.n, 3) for _ in range(3)]], NUMBERS)
case("Cast", lambda d: ([d(d.n, 3)], {"DstT": tf.float32}), (*FLOATS, *INTEGERS, tf.bool))
case("CheckNumerics", lambda d: ([d(d.n)], {"message": "at"}))
case("CheckNumericsV2", lambda d: ([d(d.n)], {"message": "at"}))

# --- reductions and scans

case("Max Min", lambda d: [d(d.n, 3, 4), ints(0, 2)], (*FLOATS, *INTEGERS))
case("Mean Prod Sum EuclideanNorm", lambda d: [d(d.n, 3, 4), ints(0, 2)], NUMBERS)
case("All Any", lambda d: [d(d.n, 3), ints(1)], BOOLS)
case("ArgMax ArgMin", lambda d: [d(d.n, 3), tf.constant(1)], (*FLOATS, *INTEGERS))
case("Cumsum Cumprod", lambda d: ([d(d.n, 3), tf.constant(1)], {"reverse": True}), NUMBERS)
case("CumulativeLogsumexp", lambda d: [d(d.n, 3), tf.constant(0)])

# --- matrices

case("MatMul", lambda d: ([d(d.n, 3), d(5, 3)], {"transpose_b": True}), (*FLOATS, *COMPLEX))
case("BatchMatMul", lambda d: ([d(2, d.n, 3), d(2, d.n, 4)], {"adj_x": True}), (*FLOATS, *COMPLEX))
case("BatchMatMulV2", lambda d: [d(2, d.n, 3), d(3, 4)], (*FLOATS, *COMPLEX, tf.int32))
case("BatchMatMulV3", lambda d: ([d(2, d.n, 3), d(2, 3, 4)], {"Tout": d.dtype}))
case("Einsum", lambda d: ([[d(2, d.n, 3), d(2, 3, 4)]], {"equation": "bij,bjk->bki"}))
case("Cholesky", lambda d: [d.regular(2, d.n, d.n)], (*WIDE, *COMPLEX))
case(
    "MatrixDeterminant LogMatrixDeterminant MatrixInverse Lu Qr",
    lambda d: [d.regular(2, d.n, d.n)],
    (*WIDE, *COMPLEX),
)
case("SelfAdjointEigV2 Svd", lambda d: [d.regular(2, d.n, d.n)], WIDE)
case(
    "MatrixSolve MatrixTriangularSolve",
    lambda d: [d.regular(2, d.n, d.n), d(2, d.n, 3)],
    (*WIDE, *COMPLEX),
)
case("MatrixDiag MatrixDiagPart", lambda d: [d(2, d.n, d.n)], NUMBERS)
case("MatrixSetDiag", lambda d: [d(2, d.n, 3), d(2, min(d.n, 3))], NUMBERS)
case(
    "MatrixSetDiagV2 MatrixSetDiagV3",
    lambda d: [d(2, d.n, 3), d(2, min(d.n, 3)), tf.constant(0)],
    NUMBERS,
)
case("MatrixDiagPartV2 MatrixDiagPartV3", lambda d: [d(2, d.n, 4), ints(-1, 0), d()], NUMBERS)
case(
    "MatrixDiagV2 MatrixDiagV3",
    lambda d: [d(2, d.n), ints(0), tf.constant(-1), tf.constant(-1), d()],
    NUMBERS,
)
case(
    "MatrixBandPart",
    lambda d: [d(2, d.n, d.n), tf.constant(1, tf.int64), tf.constant(0, tf.int64)],
    NUMBERS,
)
case("Diag", lambda d: [d(d.n)], NUMBERS)
case("DiagPart", lambda d: [d(d.n, d.n)], NUMBERS)
case("TridiagonalMatMul", lambda d: [d(1, d.n), d(1, d.n), d(1, d.n), d(d.n, 3)], WIDE)
case("TridiagonalSolve", lambda d: [d(3, d.n) + d.dtype.as_numpy_dtype(2), d(d.n, 2)], WIDE)
case("Cross", lambda d: [d(d.n, 3), d(d.n, 3)], (*FLOATS, *INTEGERS))

case("FFT IFFT", lambda d: [d(d.n, 8)], COMPLEX)
case("FFT2D IFFT2D", lambda d: [d(d.n, 4, 8)], COMPLEX)
case("FFT3D IFFT3D", lambda d: [d(d.n, 2, 4, 8)], COMPLEX)
case("RFFT", lambda d: ([d(d.n, 8), ints(8)], {"Tcomplex": tf.complex64}), SINGLE)
case("RFFT2D", lambda d: ([d(d.n, 4, 8), ints(4, 8)], {"Tcomplex": tf.complex64}), SINGLE)
case("RFFT3D", lambda d: ([d(2, d.n, 4, 8), ints(d.n, 4, 8)], {}), SINGLE)
case("IRFFT", lambda d: [d(d.n, 5), ints(8)], COMPLEX[:1])
case("IRFFT2D", lambda d: [d(d.n, 4, 5), ints(4, 8)], COMPLEX[:1])
case("IRFFT3D", lambda d: [d(2, d.n, 4, 5), ints(d.n, 4, 8)], COMPLEX[:1])

# --- arrays

case("BroadcastTo", lambda d: [d(d.n, 1), ints(2, d.n, 3)], NUMBERS)
case("Concat", lambda d: [tf.constant(1), [d(d.n, 2), d(d.n, 3)]], NUMBERS)
case("ConcatV2", lambda d: [[d(d.n, 2), d(d.n, 3)], tf.constant(1)], NUMBERS)
case("ConjugateTranspose Transpose", lambda d: [d(2, d.n, 3), ints(2, 0, 1)], NUMBERS)
case("DynamicPartition", lambda d: ([d(d.n, 3), d.index(3, d.n)], {"num_partitions": 3}), NUMBERS)
case("DynamicStitch", lambda d: [[ints(0, 2), ints(1, 3)], [d(2, d.n), d(2, d.n)]], NUMBERS)
case("Fill", lambda d: [ints(d.n, 3), d()], NUMBERS)
case("Gather", lambda d: [d(d.n, 3), d.index(d.n, 5)], NUMBERS)
case("GatherV2", lambda d: [d(3, d.n), d.index(d.n, 5), tf.constant(1)], NUMBERS)
case("GatherNd", lambda d: [d(d.n, 3), d.index(2, 5, 2)], NUMBERS)
case("MirrorPad", lambda d: ([d(d.n, 3), [[1, 1], [0, 2]]], {"mode": "REFLECT"}), FLOATS)
case("MirrorPadGrad", lambda d: ([d(d.n + 2, 5), [[1, 1], [0, 2]]], {"mode": "REFLECT"}), FLOATS)
case("OneHot", lambda d: [d.index(4, d.n), tf.constant(4), d(), d()], NUMBERS)
case("Pack", lambda d: ([[d(d.n, 3), d(d.n, 3)]], {"axis": 1}), NUMBERS)
case("Unpack", lambda d: ([d(d.n, 3)], {"num": 3, "axis": 1}), NUMBERS)
case("Pad", lambda d: [d(d.n, 3), [[1, 1], [0, 2]]], NUMBERS)
case("PadV2", lambda d: [d(d.n, 3), [[1, 1], [0, 2]], d()], NUMBERS)
case("Range", lambda d: [tf.cast(x, d.dtype) for x in (1, 20, 3)], (*WIDE, tf.int32, tf.int64))
case("Reverse", lambda d: [d(d.n, 3), tf.constant([True, False])], NUMBERS)
case("ReverseV2", lambda d: [d(d.n, 3), ints(0)], NUMBERS)
case("ReverseSequence", lambda d: ([d(3, d.n), 1 + d.index(d.n, 3)], {"seq_dim": 1}), NUMBERS)
case("Roll", lambda d: [d(d.n, 3), ints(2), ints(0)], NUMBERS)
case("Slice", lambda d: [d(d.n, 4), ints(1, 1), ints(d.n - 1, 2)], NUMBERS)
case("Split", lambda d: ([tf.constant(1), d(d.n, 4)], {"num_split": 2}), NUMBERS)
case("SplitV", lambda d: ([d(d.n, 4), ints(1, 3), tf.constant(1)], {"num_split": 2}), NUMBERS)
case("StridedSlice", lambda d: [d(d.n, 4), ints(0, 3), ints(d.n, 0), ints(2, -1)], NUMBERS)
case(
    "StridedSliceGrad",
    lambda d: [ints(d.n, 4), ints(0, 0), ints(d.n, 2), ints(1, 1), d(d.n, 2)],
    NUMBERS,
)
case(
    "TensorStridedSliceUpdate",
    lambda d: [d(d.n, 4), ints(0, 0), ints(d.n, 2), ints(1, 1), d(d.n, 2)],
    NUMBERS,
)
case("ScatterNd", lambda d: [tf.range(d.n)[:, None], d(d.n, 3), ints(d.n + 2, 3)], NUMBERS)
case(
    "ScatterNdNonAliasingAdd TensorScatterAdd TensorScatterSub TensorScatterUpdate",
    lambda d: [d(d.n + 2, 3), tf.range(d.n)[:, None], d(d.n, 3)],
    NUMBERS,
)
case(
    "TensorScatterMax TensorScatterMin",
    lambda d: [d(d.n + 2, 3), tf.range(d.n)[:, None], d(d.n, 3)],
    (*FLOATS, tf.int32),
)
case("Tile", lambda d: [d(d.n, 3), ints(2, 3)], NUMBERS)
case("TopKV2", lambda d: [d(3, d.n), tf.constant(2)], (*FLOATS, *INTEGERS))
case("Unique UniqueWithCounts", lambda d: [d(5 * d.n)], (*FLOATS, *INTEGERS))
case("Where", square, NUMBERS)
case("LowerBound UpperBound", lambda d: [tf.sort(d(2, d.n)), d(2, 5)], (*WIDE, tf.int32, tf.int64))
case("Bincount", lambda d: [d.index(5, 9), tf.constant(5), d(9)], (*WIDE, tf.int32, tf.int64))
case("DenseBincount", lambda d: [d.index(5, d.n, 9), tf.constant(5), d(d.n, 9)], (*WIDE, tf.int32))
case("Bucketize", lambda d: ([d(d.n, 3)], {"boundaries": [0.3, 0.6]}), (*WIDE, tf.int32, tf.int64))
case("InTopKV2", lambda d: [d(d.n, 5, dtype=tf.float32), d.index(5, d.n), tf.constant(2)], SINGLE)
case(
    "HistogramFixedWidth",
    lambda d: [d(d.n, 5), tf.cast([0, 1], d.dtype), tf.constant(4)],
    (*WIDE, tf.int32, tf.int64),
)
case("SpaceToBatch", lambda d: ([d(1, 4, 6, d.n), [[0, 0], [0, 0]]], {"block_size": 2}), FLOATS)
case("SpaceToBatchND", lambda d: [d(1, 4, 6, d.n), ints(2, 3), [[0, 0], [0, 0]]])
case("BatchToSpace", lambda d: ([d(4, 2, 3, d.n), [[0, 0], [1, 0]]], {"block_size": 2}), FLOATS)
case("BatchToSpaceND", lambda d: [d(6, 2, 3, d.n), ints(2, 3), [[0, 0], [1, 0]]])
case("SpaceToDepth", lambda d: ([d(2, 4, 6, d.n)], {"block_size": 2}), FLOATS)
case("DepthToSpace", lambda d: ([d(2, 4, 6, 4 * d.n)], {"block_size": 2}), FLOATS)
case("DataFormatDimMap", lambda d: [d.index(4, d.n, dtype=d.dtype)], (tf.int32, tf.int64))
case("DataFormatVecPermute", lambda d: [d(4)], (tf.int32, tf.int64))

# --- segments

case("SegmentMax SegmentMin", lambda d: [d(6, d.n), ints(0, 0, 1, 1, 2, 2)], (*FLOATS, tf.int32))
case("SegmentMean SegmentProd SegmentSum", lambda d: [d(6, d.n), ints(0, 0, 1, 1, 2, 2)], FLOATS)
case(
    "UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum",
    lambda d: [d(6, d.n), d.index(4, 6), tf.constant(4)],
    (*FLOATS, tf.int32),
)
case(
    "SparseSegmentMean SparseSegmentSqrtN SparseSegmentSum",
    lambda d: [d(6, d.n), d.index(6, 4), ints(0, 0, 1, 2)],
)
case(
    "SparseSegmentMeanWithNumSegments SparseSegmentSqrtNWithNumSegments "
    "SparseSegmentSumWithNumSegments",
    lambda d: [d(6, d.n), d.index(6, 4), ints(0, 0, 1, 2), tf.constant(4)],
)
case(
    "SparseSegmentMeanGrad SparseSegmentSqrtNGrad SparseSegmentSumGrad",
    lambda d: [d(3, d.n), d.index(6, 4), ints(0, 0, 1, 2), tf.constant(6)],
)
