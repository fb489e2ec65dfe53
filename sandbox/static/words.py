"""Names that the static layer knows, by what they mean."""

from __future__ import annotations


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


ATEN_PLUMBING = _set(
    """Tensor TensorOptions ScalarType IntArrayRef ArrayRef Half BFloat16 cuda kFloat kFloat32 kHalf
    kBFloat16 kCUDA kCPU kInt kLong kBool kDouble kStrided empty empty_like empty_strided zeros
    zeros_like full full_like dtype device Device DeviceGuard optional nullopt TensorList
    PackedTensorAccessor32 PackedTensorAccessor64 RestrictPtrTraits DefaultPtrTraits opmath_type
    acc_type ceil_div from_blob MemoryFormat Scalar OptionalTensorRef NoGradGuard AutoGradMode
    parallel_for get_num_threads autograd nn data jit Layout IValue Library Generator"""
)
"""Of `at::` and `torch::`: types and allocation, which compute nothing."""
PLUMBING = _set(
    """empty empty_like empty_strided zeros zeros_like ones full full_like tensor as_tensor device
    dtype no_grad inference_mode set_grad_enabled is_tensor manual_seed compile jit Size arange
    current_stream cuda set_num_threads get_num_threads set_float32_matmul_precision
    promote_types finfo iinfo set_default_dtype typename numel"""
)
"""Of Python's torch, likewise."""
CONTAINERS = _set("Module Parameter ParameterList ParameterDict ModuleList ModuleDict")
METHODS = _set(
    """matmul mm bmm addmm softmax log_softmax sum mean var std cumsum cumprod sort topk argmax
    argmin max min exp log sqrt rsqrt pow sigmoid tanh relu norm einsum clamp amax amin prod
    scatter gather index_select masked_fill square"""
)
"""Of tensors: operators; views and copies are not listed."""
