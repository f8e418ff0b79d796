"""The loop: accumulation, evaluation, and runs that stop and go on."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import data, nn, training
from tinygrad_tf.nn import functional as F
from tinygrad_tf.training import checkpoints

V = 7


class Model(nn.Module):
    """A small model with dropout and tied weights."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(V, 8)
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, V, bias=False)
        self.head.weight = self.tokens.weight
        self.broken = False

    def loss(self, ids, targets):
        if self.broken:
            raise RuntimeError("broken")
        x = self.dropout(tg.tanh(self.hidden(self.tokens(ids))))
        return F.cross_entropy(self.head(x).reshape(-1, V), targets.reshape(-1))


def text():
    return np.random.default_rng(0).integers(0, V, 500)


def trainer(out=None, steps=8, **options):
    tg.manual_seed(1)
    config = training.TrainConfig(steps=steps, lr=0.01, warmup=2, eval_every=4, log_every=1, **options)
    ids = text()
    val = data.eval_batches(ids, 5, 4, 2)
    return training.Trainer(
        Model(), data.Batches(ids, 5, 4, seed=3), config, val_batches=val, out=out, floor=0.5, progress=False
    )


def weights(t):
    return {name: p.numpy().copy() for name, p in t.model.named_parameters()}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_a_captured_training_is_the_same(tmp_path):
    """The same losses and weights, with dropout and accumulation, and after a resume; and it is captured."""
    plain = trainer(accumulate=2, capture=False)
    plain.train()
    captured = trainer(tmp_path, accumulate=2)
    captured.train(until=5)
    resumed = trainer(tmp_path, accumulate=2)
    resumed.resume()
    resumed.train()
    assert [s.judged for s in captured._compute._states.values()] == [True], captured._compute.why
    assert plain.loss == resumed.loss
    same(weights(plain), weights(resumed))


def test_bc_60_accumulation_weighs_tokens():
    """BC-60: accumulation weighs tokens."""
    tg.manual_seed(0)
    model = Model().double().eval()
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, V, (1, 3)), rng.integers(0, V, (2, 3))
    ya, yb = rng.integers(0, V, (1, 3)), rng.integers(0, V, (2, 3))
    ya[0, 1:] = -100
    empty = (a, np.full_like(a, -100))
    whole = training.accumulate_gradients(model, [(np.concatenate([a, b]), np.concatenate([ya, yb]))])
    wanted = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    model.zero_grad()
    parts = training.accumulate_gradients(model, [(a, ya), empty, (b, yb)])
    assert parts == pytest.approx(whole, abs=1e-12)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), wanted[name], atol=1e-12)


def test_bc_60_a_step_without_any_scored_token_changes_nothing():
    """BC-60: a step without any scored token changes nothing."""
    model = Model()
    ids = np.zeros((2, 3), dtype=np.int64)
    assert training.accumulate_gradients(model, [(ids, np.full_like(ids, -100))]) == 0.0
    assert model.hidden.weight.grad is None


def test_bc_57_evaluation_restores_modes_and_random_state():
    model = Model()
    model.hidden.eval()
    before, state = [m.training for m in model.modules()], tg.get_rng_state()
    batches = data.eval_batches(text(), 5, 4, 2)
    assert training.evaluate(model, batches) == training.evaluate(model, batches)
    model.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        training.evaluate(model, batches)
    assert [m.training for m in model.modules()] == before and tg.get_rng_state() == state
    assert tg.is_grad_enabled()


def test_bc_01_a_step_keeps_float32():
    t = trainer()
    t.train_step()
    for p in t.model.parameters():
        assert p.dtype == p.grad.dtype == np.float32
    assert all(a.dtype == np.float32 for s in t.optimizer.state.values() for a in s.values() if not isinstance(a, int))


def test_bc_29_bc_36_bc_37_resume_is_bit_for_bit(tmp_path):
    """BC-29, BC-36, BC-37: resume is bit for bit."""
    straight = trainer(tmp_path / "a")
    straight.train()
    first = trainer(tmp_path / "b")
    first.train(until=4)
    second = trainer(tmp_path / "b")
    tg.manual_seed(99)  # a new process knows nothing of the old one's random state
    for p in second.model.parameters():
        p._data[...] = 0
        p._bump()
    assert second.resume() == 4
    second.train()
    same(weights(straight), weights(second))
    rows = [training.read_metrics(tmp_path / run / "metrics.jsonl") for run in "ab"]
    for x, y in zip(*rows, strict=True):
        assert [x[k] for k in ("step", "loss", "val_loss", "lr")] == [y[k] for k in ("step", "loss", "val_loss", "lr")]
    assert set(rows[0][0]) == {"step", "loss", "val_loss", "lr", "tokens_per_s", "elapsed"}
    assert rows[0][0]["lr"] == straight.learning_rate(0)


def test_evaluation_does_not_disturb_training(tmp_path):
    a = trainer()
    a.train()
    b = trainer()  # only now: a trainer starts the process's random numbers again
    b.val_batches = None
    b.train()
    same(weights(a), weights(b))


def test_bc_28_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    t = trainer(tmp_path / "run")
    t.train()
    model, moments, state = training.load_checkpoint(training.latest_checkpoint(tmp_path / "run"))
    assert sum("weight" in name for name in model) == 2 and len(moments) == 2 * 3
    fresh = Model()
    assert training.load_model(fresh, tmp_path / "run") == 8
    assert fresh.head.weight is fresh.tokens.weight
    np.testing.assert_array_equal(fresh.tokens.weight.numpy(), t.model.tokens.weight.numpy())


def test_metrics_after_the_checkpoint_are_dropped(tmp_path):
    t = trainer(tmp_path / "run")
    t.train(until=4)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "loss": 1.0}\n{"step": 6, "lo')
    t = trainer(tmp_path / "run")
    t.resume()
    t.train()
    assert [r["step"] for r in training.read_metrics(tmp_path / "run" / "metrics.jsonl")] == list(range(1, 9))
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "empty"])
def test_bc_38_a_damaged_file_is_named(tmp_path, name, damage):
    """BC-38: a damaged file is named."""
    t = trainer(tmp_path / "run")
    t.train(until=4)
    path = training.latest_checkpoint(tmp_path / "run") / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:1] + bytes([content[1] ^ 0x55]) + content[2:]
        path.write_bytes({"cut": content[:middle], "flipped": flipped, "empty": b""}[damage])
    with pytest.raises(training.CheckpointError, match=name.replace(".", r"\.")) as error:
        trainer(tmp_path / "run").resume()
    assert "\n" not in str(error.value)


def test_bc_38_a_full_disk_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    """BC-38: a full disk keeps the old checkpoint."""
    t = trainer(tmp_path / "run")
    t.train(until=4)
    before = weights(t)
    written = []

    def full(path, content):
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr(checkpoints, "_write", full)
    with pytest.raises(OSError, match="No space"):
        t.train()
    monkeypatch.undo()
    again = trainer(tmp_path / "run")
    assert again.resume() == 4
    same(before, weights(again))
    assert not [p for p in (tmp_path / "run" / "ckpt").iterdir() if p.name.startswith(".tmp-")]


def test_only_the_last_checkpoints_are_kept(tmp_path):
    state = {"a": np.zeros(3)}
    for step in (1, 2, 3, 4, 5):
        training.save_checkpoint(tmp_path, step, state, state, {}, keep=2)
    assert sorted(p.name for p in (tmp_path / "ckpt").iterdir()) == ["000004", "000005", "latest"]


KILLED = """
import numpy as np, sys
from tinygrad_tf import training
step = int(sys.argv[2])
print("ready", flush=True)
while True:
    step += 1
    a = {"w": np.full(50_000, step)}
    training.save_checkpoint(sys.argv[1], step, a, a, {"value": step})
"""


def test_bc_38_kill_in_the_middle_of_saving(tmp_path):
    """BC-38: kill in the middle of saving."""
    rng = np.random.default_rng(2)
    step = 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(step)], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.05 + 0.2 * rng.random())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if (tmp_path / "ckpt" / "latest").exists():
            model, moments, state = training.load_checkpoint(training.latest_checkpoint(tmp_path))
            step = state["step"]
            assert (model["w"] == step).all() and (moments["w"] == step).all() and state["value"] == step
    training.save_checkpoint(tmp_path, step + 1, {}, {}, {})
    assert all(p.name.isdigit() or p.name == "latest" for p in (tmp_path / "ckpt").iterdir())
    assert step > 0


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path):
    t = trainer(tmp_path / "run")
    t.train(until=4)
    good = weights(t)
    t.model.hidden.bias._data[0] = np.nan
    t.model.hidden.bias._bump()
    with pytest.raises(training.TrainingError, match=r"step 5: the loss is nan.*000004.*is kept"):
        t.train()
    again = trainer(tmp_path / "run")
    again.resume()
    same(good, weights(again))


def test_a_folder_with_a_checkpoint_is_not_trained_into(tmp_path):
    trainer(tmp_path / "run").train(until=4)
    with pytest.raises(ValueError, match="has a checkpoint already"):
        trainer(tmp_path / "run").train()


def test_wrong_settings_are_refused():
    for wrong, match in (({"steps": 0}, "steps"), ({"lr": -1}, "lr"), ({"beta2": 1.0}, "beta2"),
                         ({"schedule": "x"}, "schedule"), ({"min_lr": 1.0}, "min_lr")):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            training.TrainConfig(**wrong)


def test_the_state_is_json(tmp_path):
    trainer(tmp_path / "run").train(until=4)
    state = json.loads((training.latest_checkpoint(tmp_path / "run") / "state.json").read_text())
    assert state["step"] == 4
