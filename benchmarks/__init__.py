# SPDX-License-Identifier: Apache-2.0 - side-by-side benchmarks; run with `python -m benchmarks`.
