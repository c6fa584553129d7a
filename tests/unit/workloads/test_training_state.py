"""The optimizer, the mock text and the captured state, each compared in a process that has torch."""

from __future__ import annotations

from tests.unit.workloads.lives import run_with_torch


def _compare_optimizers() -> None:
    import copy

    import torch

    from nvrx_chain.workloads.model import Gpt, MockText
    from nvrx_chain.workloads.optimizer import FlatAdamW
    from nvrx_chain.workloads.options import ModelShape

    for tied in (True, False):
        shape = ModelShape(layers=1, width=16, heads=2, sequence=8, vocabulary=32, dropout=0.0, tied_head=tied)
        torch.manual_seed(0)
        ours = Gpt(shape)
        theirs = copy.deepcopy(ours)
        flat = FlatAdamW(ours.parameters(), 1e-2)
        reference = torch.optim.AdamW(theirs.parameters(), 1e-2)
        text = MockText(shape, batch=4, seed=1, rank=0)
        for _ in range(20):
            batch = text.draw()
            flat.zero_gradient()
            ours(*batch).backward()
            flat.step()
            reference.zero_grad()
            theirs(*batch).backward()
            reference.step()
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5, msg=name)
            assert mine.untyped_storage().data_ptr() == flat.weights.untyped_storage().data_ptr()
            assert mine.grad.untyped_storage().data_ptr() == flat.gradient.untyped_storage().data_ptr()
        assert sum(parameter.numel() for parameter in ours.parameters()) == flat.weights.numel()
        assert ("head.weight" in ours.state_dict()) is not tied


def _draw_text() -> None:
    import torch

    from nvrx_chain.workloads.model import MockText
    from nvrx_chain.workloads.options import ModelShape

    def text(*, seed: int = 1, rank: int = 0, position: int = 0) -> MockText:
        made = MockText(ModelShape(), batch=4, seed=seed, rank=rank)
        made.position = position
        return made

    inputs, targets = text().draw()
    assert inputs.shape == targets.shape == (4, ModelShape().sequence)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    second = text()
    second.draw()
    assert second.position == 1
    assert torch.equal(second.draw()[0], text(position=1).draw()[0])
    for other in (text(seed=2), text(rank=1), text(position=1)):
        assert not torch.equal(other.draw()[0], inputs)


def _step_after_capture() -> None:
    import copy

    import torch

    from nvrx_chain.workloads.options import DeviceChoice, parse_options
    from nvrx_chain.workloads.placement import read_placement
    from nvrx_chain.workloads.ranks import joined_ranks
    from nvrx_chain.workloads.state import build_state, capture_state, collect_dropout

    options, placement = parse_options([]), read_placement({})
    with joined_ranks(placement, DeviceChoice.CPU, 60) as ranks:
        state = build_state(options, placement, ranks)
        captured = capture_state(state, collect_dropout(ranks))
        before = copy.deepcopy(captured)
        state.model(*state.text.draw()).backward()
        state.optimizer.step()
        after = capture_state(state, collect_dropout(ranks))
    for part, name in (("model", "norm.weight"), ("optimizer", "first_moment")):
        assert torch.equal(captured[part][name], before[part][name])
        assert not torch.equal(captured[part][name], after[part][name])
    assert captured["optimizer"]["steps"] == 0
    assert torch.equal(captured["rng"]["cpu"][0], before["rng"]["cpu"][0])
    assert not torch.equal(captured["rng"]["cpu"][0], after["rng"]["cpu"][0])


def test_the_flat_optimizer_moves_the_weights_as_torch_does() -> None:
    run_with_torch(_compare_optimizers)


def test_a_batch_follows_from_seed_position_and_rank() -> None:
    run_with_torch(_draw_text)


def test_later_steps_leave_a_captured_state_alone() -> None:
    run_with_torch(_step_after_capture)
