# SPDX-License-Identifier: Apache-2.0 - tolerances wider than PyTorch's and what cannot be compared, with reasons.
"""Three tables, keyed by the OpInfo's full name. Everything here has a reason that users may read:
docs/operators.md repeats it."""

from torch_tpu.conformance.compare import Tolerance

# Values are drawn from the device's own generator: only form and distribution can be compared.
RANDOM = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention",
    "normal",
    "normal.in_place",
    "normal.number_mean",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "svd_lowrank",
    "torch.ops.aten._safe_softmax.default",
    "uniform",
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

# (name, dtype or "", check or "") -> (rtol, atol, reason)
TOLERANCES: dict[tuple[str, str, str], tuple[float, float, str]] = {}

# (name, check) -> reason
NOT_COMPARED: dict[tuple[str, str], str] = {}


def tolerance(name: str, dtype, check: str) -> Tolerance | None:
    """The widest entry that is about this operator, dtype and check."""
    text = str(dtype).removeprefix("torch.")
    found = [
        TOLERANCES[name, d, c]
        for d in (text, "")
        for c in (check, "")
        if (name, d, c) in TOLERANCES
    ]
    if not found:
        return None
    return Tolerance(max(f[0] for f in found), max(f[1] for f in found))
