# SPDX-License-Identifier: Apache-2.0 - what cannot be compared, with reasons.
"""Keyed by the OpInfo's full name. Everything here has a reason that users may read: docs/operators.md
repeats it. Tolerances wider than PyTorch's are in tolerances.py."""

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

# (name, check) -> reason
NOT_COMPARED: dict[tuple[str, str], str] = {
    ("narrow_copy", "out"): "PyTorch's CPU kernel ignores the strides of an out= with gaps.",
    ("nn.functional.scaled_dot_product_attention", "gradgrad"): (
        "Fused attention has no second derivative in PyTorch, on CUDA neither; "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) has one."
    ),
}


def form_only(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether only the form of this sample's result can be compared."""
    if name in UNINITIALIZED:
        return True
    if name not in RANDOM:
        return False
    depends = RANDOM[name]
    return depends is None or bool(depends(args, kwargs))
