# SPDX-License-Identifier: Apache-2.0 - many threads on one device: no wrong result, no deadlock.
"""TORCH_TPU_THREAD_SECONDS sets how long the quick test runs; the slow one runs half a minute."""

import concurrent.futures
import contextlib
import gc
import os
import threading
import time

import pytest
import torch
from torch import nn

tpu = torch.tpu
MODES = pytest.mark.parametrize("mode", list(tpu.EagerMode), ids=lambda m: m.name)
SECONDS = float(os.environ.get("TORCH_TPU_THREAD_SECONDS", "2"))
THREADS = 8


def in_threads(functions, timeout):
    """Runs them at once; the first exception is raised, and a thread that hangs is an error."""
    pool = concurrent.futures.ThreadPoolExecutor(len(functions))
    barrier = threading.Barrier(len(functions))

    def run(function):
        barrier.wait()
        return function()

    futures = [pool.submit(run, f) for f in functions]
    try:
        return [f.result(timeout=timeout) for f in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# Each takes the number of the round; all values are small integers, so results are exact.


def arithmetic(x, i):
    y = (x + i) * 2 - x
    y.add_(x[:1])
    return (y.sum(0) + y[1]).tolist()


def views(x, i):
    y = x.clone()
    y[i % 4].mul_(2)
    y.t()[1:3] = i % 7
    return y.tolist()


def indexing(x, i):
    index = torch.tensor([i % 4, 0, 3], device=x.device)
    y = x[index]
    y.index_put_((index[:1] % 3,), x[1], accumulate=True)
    return y.tolist()


def autograd(x, i):
    w = x.clone().requires_grad_()
    ((w * i % 5).relu() @ w.t()).sum().backward()
    return w.grad.tolist()


def uploads(x, i):
    return (torch.full((4, 6), float(i % 9)).to(x.device) + x).cpu().tolist()


WORK = [arithmetic, views, indexing, autograd, uploads]


def hammer(seconds):
    """Half of the threads work on tensors of their own, half read one that they share."""
    host = torch.arange(24.0).view(4, 6)
    shared = host.to("tpu")
    end = time.monotonic() + seconds
    expected = {}
    for f in WORK:
        for i in range(10):
            expected[f, i] = f(host, i)
            assert f(shared, i) == expected[f, i]

    def worker(number):
        x = shared if number % 2 else host.to("tpu")
        rounds = 0
        while time.monotonic() < end:
            f, i = WORK[(rounds + number) % len(WORK)], rounds % 10
            assert f(x, i) == expected[f, i], f"{f.__name__} in thread {number}, round {rounds}"
            rounds += 1
        return rounds

    def disturber():
        """What a monitoring thread does."""
        rounds = 0
        while time.monotonic() < end:
            tpu.memory_allocated()
            tpu.cache_stats()
            tpu.synchronize()
            gc.collect(0)
            time.sleep(0.01)
            rounds += 1
        return rounds

    rounds = in_threads(
        [lambda n=n: worker(n) for n in range(THREADS - 1)] + [disturber], seconds + 120
    )
    assert all(r > 0 for r in rounds)


@MODES
def test_threads_get_right_results(mode):
    with tpu.eager_mode(mode):
        hammer(SECONDS)


@pytest.mark.slow
@MODES
def test_threads_get_right_results_for_long(mode):
    with tpu.eager_mode(mode):
        hammer(30)


@MODES
def test_models_train_in_threads(mode):
    """Backward runs on autograd's thread of the device, for all of them."""

    def train(device):
        generator = torch.Generator().manual_seed(1)
        w = torch.randn(8, 8, generator=generator).to(device).requires_grad_()
        layer = nn.LayerNorm(8, device=device)
        optimizer = torch.optim.SGD([w, *layer.parameters()], lr=0.1, momentum=0.9)
        x = torch.randn(4, 8, generator=generator).to(device)
        for _ in range(5):
            loss = (layer(x @ w) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return w.detach().cpu()

    expected = train("cpu")
    with tpu.eager_mode(mode):
        for found in in_threads([lambda: train("tpu")] * 4, 120):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@MODES
def test_writes_from_threads_to_one_tensor_are_all_done(mode):
    """In-place calls are whole: none is lost, whatever order they come in."""
    with tpu.eager_mode(mode):
        x = torch.zeros(THREADS, 5, device="tpu")
        total = torch.zeros((), device="tpu")

        def work(row):
            for _ in range(50):
                x[row].add_(row)
                total.add_(1)

        in_threads([lambda r=r: work(r) for r in range(THREADS)], 120)
        assert x.tolist() == [[50.0 * r] * 5 for r in range(THREADS)]
        assert total.item() == 50 * THREADS


def test_modes_may_change_while_threads_work():
    end = time.monotonic() + 1
    host = torch.arange(24.0).view(4, 6)
    x = host.to("tpu")
    expected = [arithmetic(host, i) for i in range(10)]

    def work():
        i = 0
        while time.monotonic() < end:
            assert arithmetic(x, i % 10) == expected[i % 10]
            i += 1

    def switch():
        while time.monotonic() < end:
            for mode in tpu.EagerMode:
                tpu.set_eager_mode(mode)
                time.sleep(0.003)

    try:
        in_threads([work, work, work, switch], 120)
    finally:
        tpu.set_eager_mode(tpu.EagerMode.DEFER_NEVER)


def test_a_failed_check_reaches_a_thread_and_the_device_goes_on():
    x = torch.arange(4.0, device="tpu")
    index = torch.tensor([9], device="tpu")

    def work():
        raised = 0
        for _ in range(20):
            try:
                x[index].tolist()
            except IndexError:
                raised += 1
        return raised

    assert sum(in_threads([work] * 3, 120)) > 0
    with contextlib.suppress(IndexError):
        tpu.synchronize()
    assert (x + 1).tolist() == [1, 2, 3, 4]
