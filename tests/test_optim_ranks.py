"""The optimizer on 1, 2 and 4 ranks: the same parameters, the same states, also when a rank runs out of memory."""

import torch
from forks import Forked
from optim_rank import Run
from optim_rank import main as one_of_them
from safetensors.torch import load_file, save_file
from torch import Tensor


def test_gradients_and_parameters_stay_where_they_are(tmp_path):
    run = Run()
    save_file(run.model.state_dict(), tmp_path / "model.safetensors")  # it refuses tensors that overlap
    places = [(p.data_ptr(), p.grad.data_ptr()) for p in run.model.parameters()]
    assert all(place % 16 == 0 for pair in places for place in pair)
    run.go(0, 2)
    assert places == [(p.data_ptr(), p.grad.data_ptr()) for p in run.model.parameters()]
    assert not any(p.grad.any() for p in run.model.parameters())


def assert_same_model(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5, msg=name)


def assert_identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if name != "norms" and not torch.equal(one[name], other[name])] == []


def test_ranks(tmp_path):
    half1, straight1 = Run().go(0, 3).tensors(), Run().go(0, 6).tensors()
    assert_identical(Run().load(half1).go(3, 6).tensors(), straight1)
    save_file(half1, tmp_path / "half1.safetensors")
    for job in [Forked(tmp_path / f"of {ranks}", one_of_them, tmp_path, ranks=ranks) for ranks in (2, 4)]:
        job.done()
    for ranks in (2, 4):
        read = {path.stem[:-1]: load_file(path) for path in tmp_path.glob(f"*{ranks}.safetensors")}
        assert_same_model(read["straight"], straight1)
        for name in ("half", "micro1", "fault_first", "fault_later"):
            assert_same_model(read[name], half1)
        assert_identical(read["resumed"], read["straight"])
        assert_identical(read["reloaded"], half1)  # from 1 rank to several
        assert_identical(Run().load(read["half"]).tensors(), read["half"])  # and back
