"""Threads, interrupts and progress."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import ultta
from conftest import simulate


def test_two_threads_at_once_are_refused_not_queued() -> None:
    stream = simulate(rows=4000, classes=500, dim=64)
    session = ultta.Session(stream.head)
    refusals: list[str] = []

    def work() -> None:
        for _ in range(100):
            try:
                session.step(stream.features, keep_scores=False)
            except RuntimeError as error:
                refusals.append(str(error))
            if refusals:
                return

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert refusals and "in use by another thread" in refusals[0]
    # What was refused left no trace: the session is whole.
    assert session.seen % 4000 == 0
    assert len(session.step(stream.features[:3])) == 3


def test_the_interpreter_goes_on_while_a_step_computes() -> None:
    stream = simulate(rows=8000, classes=500, dim=64)
    session = ultta.Session(stream.head)
    stop, ticks = threading.Event(), []

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    begun = time.perf_counter()
    session.step(stream.features)
    ended = time.perf_counter()
    stop.set()
    ticker.join()
    assert sum(begun < t < ended for t in ticks) >= 5


def test_sessions_of_their_own_run_side_by_side() -> None:
    stream = simulate(rows=2000)
    expected = ultta.Session(stream.head).step(stream.features).probs
    answers: list[np.ndarray] = []

    def work() -> None:
        answers.append(ultta.Session(stream.head).step(stream.features).probs)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for answer in answers:
        np.testing.assert_array_equal(answer, expected)


def test_an_interrupt_stops_a_long_step_and_leaves_the_session_whole() -> None:
    program = textwrap.dedent(
        """
        import signal
        import numpy as np, ultta
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where the tests run
        rows = np.zeros((3_000_000, 32), dtype=np.float32)
        rows[:, 0] = 1
        head = ultta.Head.from_text_features(np.eye(32), [str(i) for i in range(32)])
        session = ultta.Session(head)
        print("ready", flush=True)
        try:
            session.step(rows, keep_scores=False)
        except KeyboardInterrupt:
            seen = session.seen
            session.step(rows[:1])
            print("stopped", 0 < seen < 3_000_000 and session.seen == seen + 1)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120)[0] == "stopped True\n"


def test_progress_is_shown_by_tqdm(capsys: pytest.CaptureFixture[str]) -> None:
    stream = simulate()
    step = ultta.Session(stream.head).step(stream.features, progress=True)
    np.testing.assert_array_equal(step.probs, ultta.Session(stream.head).step(stream.features).probs)
    assert "600/600" in capsys.readouterr().err


def test_progress_without_tqdm_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    stream = simulate()
    session = ultta.Session(stream.head)
    with pytest.raises(ImportError, match=r"pip install 'ultta\[progress\]'"):
        session.step(stream.features, progress=True)
    assert session.seen == 0
