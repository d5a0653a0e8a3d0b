# SPDX-License-Identifier: Apache-2.0 - compares device "tpu" with PyTorch on the CPU, by PyTorch's own test data.
"""Conformance: `python -m torch_tpu.conformance --help`.

samples.py    OpInfo's samples, the same on CPU and on the device
compare.py    when two results are equal, and PyTorch's tolerances
tolerances.py tolerances wider than PyTorch's, each with its reason
exceptions.py what cannot be compared, each with its reason
opinfo.py     the checks of one operator: forward, out=, in-place, gradients, errors
zoo.py        tiny models of transformers and diffusers
models.py     their checks: forward and a training step, eager and compiled
worker.py     a process that runs jobs and tells every sample's outcome
coordinator.py hands jobs to workers, outlives their crashes and hangs, appends results to a file
report.py     what the results say: summary, lists of failures, docs, the ratchet
"""
