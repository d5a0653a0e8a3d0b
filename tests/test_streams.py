# SPDX-License-Identifier: Apache-2.0 - streams and events: waits that order, queries that tell the truth, times.
"""Work long enough to be seen pending: a chain of matrix products of some 100 ms."""

import threading
import time

import pytest
import torch

tpu = torch.tpu


@pytest.fixture(scope="module")
def work():
    x = torch.full((512, 512), 1 / 512, device="tpu")

    def run(times=40):
        y = x
        for _ in range(times):
            y = y @ x
        return y

    run(2)
    tpu.synchronize()
    return run


@pytest.fixture(autouse=True, params=list(tpu.EagerMode), ids=lambda m: m.name)
def mode(request):
    tpu.synchronize()
    with tpu.eager_mode(request.param):
        yield request.param
        tpu.synchronize()
        assert tpu.current_stream() == tpu.default_stream()


def pending(mode):
    """In the blocking mode nothing is ever pending."""
    return mode is not tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING


def test_streams_have_identity():
    a, b = tpu.Stream(), tpu.Stream(device="tpu:0", priority=-1)
    assert a != b
    assert a == a
    assert len({a, b, tpu.default_stream()}) == 3
    assert isinstance(a, torch.Stream)
    assert a.device == torch.device("tpu", 0)
    assert tpu.default_stream().stream_id == 0
    assert tpu.Stream.priority_range() == (0, 0)
    assert all(isinstance(s, tpu.Stream) for s in (a, b, torch.Stream("tpu"), tpu.current_stream()))
    assert isinstance(torch.Event("tpu"), tpu.Event)
    assert not isinstance(3, tpu.Stream)
    with pytest.raises(ValueError, match="tpu:1"):
        tpu.Stream(device=1)


def test_stream_contexts_nest_and_restore():
    a, b = tpu.Stream(), torch.Stream("tpu")
    with tpu.stream(a) as entered:
        assert entered is a
        assert tpu.current_stream() == a
        with tpu.stream(b), tpu.stream(None):
            assert torch.accelerator.current_stream() == b
        assert tpu.current_stream() == a
        with pytest.raises(ZeroDivisionError), tpu.stream(b):
            _ = 1 / 0
        assert tpu.current_stream() == a
    with a:
        assert tpu.current_stream() == a
    tpu.set_stream(b)
    assert tpu.current_stream() == b
    tpu.set_stream(None)
    assert tpu.current_stream() == b
    tpu.set_stream(tpu.default_stream())


def test_the_current_stream_belongs_to_a_thread():
    seen = []
    with tpu.stream(tpu.Stream()):
        t = threading.Thread(target=lambda: seen.append(tpu.current_stream()))
        t.start()
        t.join()
    assert seen == [tpu.default_stream()]


def test_stream_query_tells_the_truth(work, mode):
    idle, busy = tpu.Stream(), tpu.Stream()
    assert idle.query()
    with tpu.stream(busy):
        y = work()  # held: what nobody can see need not be computed
        if pending(mode):
            assert not busy.query()
    if pending(mode):
        assert not busy.query()
    assert idle.query()
    del y
    busy.synchronize()
    assert busy.query()
    assert tpu.default_stream().query()


def test_a_query_in_a_loop_ends(work):
    """Also where ops are deferred: asking sends them off."""
    s = tpu.Stream()
    with tpu.stream(s):
        y = work(5)
    end = time.monotonic() + 60
    while not s.query():
        assert time.monotonic() < end
        time.sleep(0.001)
    assert y.shape == (512, 512)


def test_waits_order_work_of_different_streams(work):
    a, b = tpu.Stream(), tpu.Stream()
    x = torch.zeros(512, 512, device="tpu")
    with tpu.stream(a):
        x.copy_(work(10))
        x.mul_(3)
        done = a.record_event()
    with tpu.stream(b):
        b.wait_event(done)
        y = x + 1
        x.zero_()
    b.wait_stream(a)
    a.wait_stream(b)
    torch.testing.assert_close(y.cpu(), torch.full((512, 512), 3 / 512 + 1))
    assert x.sum().item() == 0


def test_event_query_and_synchronize(work, mode):
    never = tpu.Event()
    assert never.query()
    never.synchronize()
    never.wait()
    e = tpu.Event()
    y = work()
    e.record()
    if pending(mode):
        assert not e.query()
    e.synchronize()
    assert e.query()
    assert tpu.current_stream().query()
    del y


def test_an_event_can_be_recorded_again(work, mode):
    e = tpu.Event()
    e.record()
    e.synchronize()
    y = work()
    assert tpu.current_stream().record_event(e) is e
    if pending(mode):
        assert not e.query()
    e.synchronize()
    assert e.query()
    del y


def test_an_event_does_not_wait_for_later_work(work, mode):
    e = torch.Event("tpu")
    x = work(2)
    e.record()
    y = work(200)
    e.synchronize()
    if pending(mode):
        assert not tpu.current_stream().query()
    del x, y


def test_elapsed_time_is_the_time_of_the_work(work):
    begin, end = tpu.Event(enable_timing=True), torch.Event("tpu", enable_timing=True)
    tpu.synchronize()
    started = time.perf_counter()
    begin.record()
    y = work()
    end.record()
    end.synchronize()
    wall = (time.perf_counter() - started) * 1e3
    measured = begin.elapsed_time(end)
    # An upper bound that always holds, and a lower one that shows it is not the time of submission.
    assert measured <= wall
    assert measured >= wall / 3
    assert end.elapsed_time(begin) == -measured
    del y


def test_elapsed_time_of_events_that_have_none(work, mode):
    timed, plain = tpu.Event(enable_timing=True), tpu.Event()
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(tpu.Event(enable_timing=True))
    timed.record()
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed.elapsed_time(plain)
    if pending(mode):
        later = tpu.Event(enable_timing=True)
        y = work()
        later.record()
        with pytest.raises(RuntimeError, match="completed"):
            timed.elapsed_time(later)
        del y


def test_record_stream_and_non_blocking_copies(work):
    s = tpu.Stream()
    x = torch.ones(1000, device="tpu")
    with tpu.stream(s):
        y = x * 2
        x.record_stream(s)
    del x
    host = torch.empty(1000, pin_memory=True)
    host.copy_(y, non_blocking=True)
    s.synchronize()
    tpu.synchronize()
    assert host.sum().item() == 2000


def test_events_stay_in_their_process():
    with pytest.raises(NotImplementedError, match="process"):
        tpu.Event(interprocess=True)
    with pytest.raises(NotImplementedError, match="not supported"):
        tpu.Event().ipc_handle()
    with pytest.raises(NotImplementedError, match="process"):
        tpu.Event.from_ipc_handle(0, b"")


def test_streams_of_other_devices_are_refused():
    with pytest.raises(TypeError, match=r"torch\.Stream"):
        tpu.set_stream(3)
    with pytest.raises(TypeError, match=r"torch\.Stream"):
        tpu.stream("a")


@pytest.mark.parametrize("wait_for", ["stream", "event"])
def test_an_error_in_the_queue_reaches_who_synchronizes(wait_for):
    x = torch.zeros(4, device="tpu")
    event = tpu.Event()
    with pytest.raises(IndexError):
        _ = x[torch.tensor([9], device="tpu")]
        event.record()
        (event if wait_for == "event" else tpu.current_stream()).synchronize()
    assert (x + 1).sum().item() == 4  # and the device goes on
