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

from torch_tpu.conformance.tolerances import allowed

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
        while rounds == 0 or time.monotonic() < end:  # a busy machine may be late
            f, i = WORK[(rounds + number) % len(WORK)], rounds % 10
            assert f(x, i) == expected[f, i], f"{f.__name__} in thread {number}, round {rounds}"
            rounds += 1
        return rounds

    def disturber():
        """What a monitoring thread does."""
        rounds = 0
        while rounds == 0 or time.monotonic() < end:
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
            torch.testing.assert_close(found, expected, **allowed("layers"))


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


# ---- failed run-time checks: who is told (the rule is at the top of src/run/check.h) ----


def out_of_range(x):
    return x[torch.tensor([9], device="tpu")]


@MODES
def test_a_failed_check_is_told_to_its_thread_and_to_no_other(mode):
    """Others compute and read all the while, in windows that they share with the failing calls."""
    rounds, done = 60, threading.Event()

    def failing():
        told = 0
        for _ in range(rounds):
            try:
                out_of_range(torch.ones(3, device="tpu")).cpu()
            except IndexError:
                told += 1
        return told

    def others():
        try:
            count = 0
            while not done.is_set() or count < rounds:
                assert (torch.ones(3, device="tpu") + count).tolist() == [1.0 + count] * 3
                count += 1
        except IndexError as error:
            return error

    with tpu.eager_mode(mode), concurrent.futures.ThreadPoolExecutor(2) as pool:
        foreign = pool.submit(others)
        told = pool.submit(failing).result(timeout=120)
        done.set()
        assert (told, foreign.result(timeout=120)) == (rounds, None)
        tpu.synchronize()  # nothing is left


@MODES
def test_who_reads_what_a_failed_call_led_to_is_told_once(mode):
    with tpu.eager_mode(mode), concurrent.futures.ThreadPoolExecutor(1) as other:
        x = torch.arange(4.0, device="tpu")
        unrelated = x + 1
        result, bad = torch.zeros(1, device="tpu"), None
        with contextlib.suppress(IndexError):  # Debug tells at once
            bad = out_of_range(x)
        if bad is None:
            return
        result += bad * 2  # through other programs, and in place
        assert other.submit(unrelated.tolist).result() == [1, 2, 3, 4]
        with pytest.raises(IndexError, match=r"index 9 .* size 4"):
            other.submit(result.tolist).result()
        with pytest.raises(IndexError, match=r"index 9 .* size 4"):
            result.tolist()
        assert other.submit(result.tolist).result() == result.tolist()  # nobody is told twice
        tpu.synchronize()


@pytest.mark.parametrize(
    "wait",
    [
        tpu.synchronize,
        lambda: torch.ones(2, device="tpu").tolist(),
        lambda: tpu.current_stream().synchronize(),
    ],
)
def test_the_submitting_thread_is_told_wherever_it_waits(wait):
    bad = [out_of_range(torch.ones(3, device="tpu")) for _ in range(3)]
    with pytest.raises(IndexError, match="2 more calls failed"):
        wait()
    wait()  # all of them are told
    assert len(bad) == 3


def test_a_failed_check_of_a_thread_that_has_ended_is_told_by_synchronize():
    thread = threading.Thread(target=out_of_range, args=[torch.ones(3, device="tpu")])
    thread.start()
    thread.join()
    assert torch.ones(2, device="tpu").tolist() == [1, 1]
    with pytest.raises(IndexError, match="index 9"):
        tpu.synchronize()
    tpu.synchronize()


@MODES
def test_a_failed_check_of_a_backward_pass_is_told_to_the_thread_of_the_forward(mode):
    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            out_of_range(gradient)
            return gradient

    with tpu.eager_mode(mode):
        x = torch.ones(3, device="tpu", requires_grad=True)
        with pytest.raises(IndexError, match=r"index 9.*test_threads\.py:"):
            Lookup.apply(x).sum().backward()
            tpu.current_stream().synchronize()
        assert (x + 1).tolist() == [2, 2, 2]
