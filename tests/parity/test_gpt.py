"""The same GPT here and in PyTorch: the same logits, loss and gradients, and the same weights after training steps."""

import importlib.util
import pathlib

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import models, optim

torch = pytest.importorskip("torch")

_path = pathlib.Path(__file__).parents[2] / "benchmarks" / "torch_gpt.py"
_spec = importlib.util.spec_from_file_location("torch_gpt", _path)
peer = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(peer)

FIELDS = dict(vocab_size=17, block_size=12, n_layer=2, n_head=2, n_embd=16)


def _pair(dtype, bias):
    torch.set_num_threads(1)
    tg.manual_seed(0)
    ours = models.GPT(models.GPTConfig(bias=bias, **FIELDS))
    ours = ours.double() if dtype == np.float64 else ours
    theirs = peer.TorchGPT(dict(bias=bias, **FIELDS)).to(torch.float64 if dtype == np.float64 else torch.float32)
    theirs.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()})
    return ours, theirs


def _batch(seed):
    rows = np.random.default_rng(seed).integers(0, 17, (3, 11))
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_logits_loss_and_gradients(dtype, tolerance, bias):
    ours, theirs = _pair(dtype, bias)
    ids, targets = _batch(1)
    np.testing.assert_allclose(
        ours(ids).detach().numpy(), theirs(torch.from_numpy(ids)).detach().numpy(), atol=tolerance
    )
    loss, their_loss = ours.loss(ids, targets), theirs.loss(torch.from_numpy(ids), torch.from_numpy(targets))
    assert abs(loss.item() - their_loss.item()) < tolerance
    loss.backward()
    their_loss.backward()
    wanted = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        assert np.abs(p.grad.numpy()).max() > 0
        np.testing.assert_allclose(p.grad.numpy(), wanted[name].grad.numpy(), atol=tolerance, err_msg=name)


def test_training_steps_with_clipping():
    ours, theirs = _pair(np.float64, True)
    optimizer = optim.AdamW(ours.param_groups(0.1), lr=1e-2, betas=(0.9, 0.99))
    their_optimizer = theirs.optimizer(1e-2, (0.9, 0.99), 0.1)
    for step in range(5):
        ids, targets = _batch(step)
        optimizer.zero_grad()
        ours.loss(ids, targets).backward()
        norm = optim.clip_grad_norm_(ours.parameters(), 0.5)
        optimizer.step()
        their_optimizer.zero_grad()
        theirs.loss(torch.from_numpy(ids), torch.from_numpy(targets)).backward()
        their_norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        their_optimizer.step()
        assert abs(float(norm) - their_norm.item()) < 1e-9
    wanted = theirs.state_dict()
    for name, p in ours.named_parameters():
        np.testing.assert_allclose(p.detach().numpy(), wanted[name].numpy(), atol=1e-7, err_msg=name)
