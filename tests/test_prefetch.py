"""Items made in the background: in order, with their errors, and no thread left behind."""

import itertools
import threading
import time

import pytest
import torch

from nanochat.prefetch import Background, Upload


def threads() -> int:
    return sum(thread.name == "nanochat-data" for thread in threading.enumerate())


def test_items_come_in_order_and_only_so_many_ahead():
    made = []
    background = Background((made.append(i) or i for i in itertools.count()), 3)
    assert [next(background) for _ in range(100)] == list(range(100))
    time.sleep(0.2)
    assert len(made) <= 105  # three ready, one in hand
    background.close()


def test_an_error_comes_when_its_turn_does_and_stays():
    def items():
        yield 1
        yield 2
        raise KeyError("third")

    background = Background(items(), 4)
    assert [next(background), next(background)] == [1, 2]
    for _ in range(2):
        with pytest.raises(KeyError, match="third"):
            next(background)
    background.close()


def test_closing_ends_the_thread_whatever_it_waits_for():
    before = threads()
    full = Background(itertools.count(), 2)  # waits for room
    busy = Background((time.sleep(0.3) for _ in itertools.count()), 2)  # is at an item
    assert threads() == before + 2
    full.close()
    busy.close()
    busy.close()
    assert threads() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_buffers_are_not_written_while_they_are_copied():
    device = torch.device("cuda", 0)
    upload = Upload(device, (512, 2049))
    sent = []
    for i in range(50):
        upload.buffer().fill_(i)
        sent.append(upload.send())
    for i, (tensor, copied) in enumerate(sent):
        torch.cuda.current_stream(device).wait_event(copied)
        assert (tensor == i).all()
