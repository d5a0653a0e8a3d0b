# SPDX-License-Identifier: Apache-2.0 - tolerances wider than PyTorch's and what cannot be compared, with reasons.
"""Three tables, keyed by the OpInfo's full name. Everything here has a reason that users may read:
docs/operators.md repeats it."""

from torch_tpu.conformance.compare import Tolerance

# Values are drawn from the device's own generator, so only form can be compared: all samples, or those
# of whose arguments the function says so. tests/ops/test_random.py looks at the distributions.
RANDOM = {
    "bernoulli": None,
    "cauchy": None,
    "exponential": None,
    "geometric": None,
    "log_normal": None,
    "multinomial": None,
    "nn.functional.alpha_dropout": lambda args, kwargs: kwargs.get("training"),
    "nn.functional.dropout": lambda args, kwargs: kwargs.get("training", True),
    "nn.functional.dropout2d": lambda args, kwargs: kwargs.get("training", True),
    "nn.functional.dropout3d": lambda args, kwargs: kwargs.get("training", True),
    "nn.functional.feature_alpha_dropout.with_train": None,
    "nn.functional.fractional_max_pool2d": lambda args, kwargs: (
        kwargs.get("_random_samples") is None
    ),
    "nn.functional.fractional_max_pool3d": lambda args, kwargs: (
        kwargs.get("_random_samples") is None
    ),
    "nn.functional.rrelu": lambda args, kwargs: kwargs.get("training"),
    "nn.functional.scaled_dot_product_attention": lambda args, kwargs: (
        kwargs.get("dropout_p", 0.0) > 0
    ),
    "nn.functional.multi_head_attention_forward": lambda args, kwargs: (
        args[9] > 0 and kwargs.get("training", True)
    ),
    "normal": None,
    "normal.in_place": None,
    "normal.number_mean": None,
    "pca_lowrank": None,
    "rand_like": None,
    "randint": None,
    "randint_like": None,
    "randn": None,
    "randn_like": None,
    "svd_lowrank": None,
    "uniform": None,
}

# The same for modules in training.
RANDOM_MODULES = {
    "nn.AlphaDropout",
    "nn.Dropout",
    "nn.Dropout1d",
    "nn.Dropout2d",
    "nn.Dropout3d",
    "nn.FeatureAlphaDropout",
    "nn.FractionalMaxPool2d",
    "nn.FractionalMaxPool3d",
    "nn.RReLU",
}

# Which of several equal elements an index names is anybody's choice: what it picks is compared instead.
# The names of the arguments after the input; those not given have the default.
TIES = {
    "argsort": ("dim", "descending"),
    "kthvalue": ("k", "dim", "keepdim"),
    "median": ("dim", "keepdim"),
    "mode": ("dim", "keepdim"),
    "nanmedian": ("dim", "keepdim"),
    "sort": ("dim", "descending", "stable"),
    "topk": ("k", "dim", "largest", "sorted"),
}

# Tensors after the first that PyTorch wants on the CPU whatever the device.
HOST_ARGUMENTS = {"tensor_split"}

# Memory that nobody has written.
UNINITIALIZED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}

# (name, dtype or "", check or "") -> (rtol, atol, reason). "nn.*" is every module.
_ORDER = "Long sums in another order than CPU's; PyTorch asks 1e-3 between CPU and CUDA."
_SOLVE = "A solve multiplies the errors by the matrix's condition."
_STEEP = "The slope is steep: a last digit of the value is several of the gradient's."
TOLERANCES: dict[tuple[str, str, str], tuple[float, float, str]] = {
    ("nn.*", "float32", ""): (
        1e-4,
        2e-4,
        "Every module. PyTorch's own test of modules between CPU and CUDA (test_cpu_gpu_parity) allows 5e-2.",
    ),
    ("models", "float32", ""): (
        1e-4,
        1e-5,
        "Every model of docs/models.md: layers upon layers of sums in another order.",
    ),
    ("cdist", "float32", ""): (0, 3e-5, "Distances through a matrix product cancel."),
    ("cholesky_solve", "float32", "gradgrad"): (2e-5, 3e-5, _ORDER),
    ("erfinv", "float32", "backward"): (1e-5, 0, _STEEP),
    ("erfinv", "float32", "forward_ad"): (1e-5, 0, _STEEP),
    ("erfinv", "float32", "gradgrad"): (2e-5, 0, _STEEP),
    ("grid_sampler_2d", "float32", "backward"): (0, 5e-5, _ORDER),
    ("grid_sampler_3d", "float32", "backward"): (0, 5e-5, _ORDER),
    ("kron", "float32", "backward"): (0, 3e-5, _ORDER),
    ("_foreach_pow", "complex64", "forward"): (1e-5, 0, _STEEP),
    ("_foreach_pow", "float32", "gradgrad"): (1e-5, 0, _STEEP),
    ("linalg.eig", "float32", "gradgrad"): (2e-5, 3e-5, "Divides by differences of eigenvalues."),
    ("linalg.householder_product", "float32", "backward"): (1e-4, 0, _ORDER),
    ("linalg.householder_product", "float32", "forward_ad"): (1e-3, 0, _ORDER),
    ("linalg.householder_product", "float32", "gradgrad"): (1e-4, 0, _ORDER),
    ("linalg.lstsq", "float32", "backward"): (1e-4, 0, _SOLVE),
    ("linalg.lstsq", "float32", "gradgrad"): (1e-4, 1e-4, _SOLVE),
    ("linalg.lstsq.grad_oriented", "float32", "backward"): (1e-4, 0, _SOLVE),
    ("linalg.lstsq.grad_oriented", "float32", "forward_ad"): (1e-4, 0, _SOLVE),
    ("linalg.lstsq.grad_oriented", "float32", "gradgrad"): (1e-4, 1e-4, _SOLVE),
    ("logcumsumexp", "float32", "backward"): (
        0,
        5e-3,
        "PyTorch's formula puts sums with 1e4, whose last digit is 1e-3, through exp: "
        "its own CPU result is as far (5e-3) from float64's.",
    ),
    ("matrix_exp", "float32", "forward_ad"): (1e-4, 0, "Squaring multiplies the errors."),
    ("matrix_exp", "float32", "backward"): (1e-4, 0, "Squaring multiplies the errors."),
    ("matrix_exp", "float32", "gradgrad"): (1e-4, 0, "Squaring multiplies the errors."),
    ("nn.functional.ctc_loss", "float32", "backward"): (
        1e-4,
        1e-4,
        "Differences of sums of exponentials.",
    ),
    ("nn.functional.multi_head_attention_forward", "float32", ""): (0, 3e-5, _ORDER),
    ("stft", "float32", "backward"): (0, 1e-4, _ORDER),
    ("stft", "float32", "gradgrad"): (0, 3e-5, _ORDER),
    ("svd", "float32", "gradgrad"): (1e-4, 2e-4, "Divides by differences of singular values."),
}

# (name, check) -> reason
NOT_COMPARED: dict[tuple[str, str], str] = {
    ("narrow_copy", "out"): "PyTorch's CPU kernel ignores the strides of an out= with gaps.",
    ("nn.functional.scaled_dot_product_attention", "gradgrad"): (
        "Fused attention has no second derivative in PyTorch, on CUDA neither; "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) has one."
    ),
}


def tolerance(name: str, dtype, check: str) -> Tolerance | None:
    """The widest entry that is about this operator, dtype and check."""
    text = str(dtype).removeprefix("torch.")
    names = (
        (name, "nn.*")
        if name.startswith("nn.") and not name.startswith("nn.functional.")
        else (name,)
    )
    found = [
        TOLERANCES[n, d, c]
        for n in names
        for d in (text, "")
        for c in (check, "")
        if (n, d, c) in TOLERANCES
    ]
    if not found:
        return None
    return Tolerance(max(f[0] for f in found), max(f[1] for f in found))


def form_only(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether only the form of this sample's result can be compared."""
    if name in UNINITIALIZED:
        return True
    if name not in RANDOM:
        return False
    depends = RANDOM[name]
    return depends is None or bool(depends(args, kwargs))
