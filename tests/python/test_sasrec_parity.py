"""Our SASRec and TiSASRec against their PyTorch twins, in the same run: gradients from equal weights and batches at each
of 20 steps, losses and logits after 20 steps; three forms of SASRec, two of TiSASRec's time attention.

LOCKSTEP_BIN: the folder with our programs (build/dev/bin). LOCKSTEP_CACHE: where data/ml-100k.inter lies.
"""

import contextlib
import itertools
import math
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors import safe_open

from sasrec_twin import FORMS, SASRec, bce_loss
from tisasrec_twin import TiSASRec

STEPS = 20
TIMED_FORMS = ("tisasrec-table", "tisasrec-pairwise")
TOLERANCE = 1e-4


def program(name):
    folder = os.environ.get("LOCKSTEP_BIN")
    assert folder, "LOCKSTEP_BIN is not set: expected the folder with our programs, as build/dev/bin"
    path = pathlib.Path(folder) / name
    assert path.exists(), f"{path} does not exist: build it with `ninja {name}`, or correct LOCKSTEP_BIN"
    return str(path)


def dataset():
    cache = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache" / "lockstep"))
    path = cache / "data" / "ml-100k.inter"
    assert path.exists(), f"{path} does not exist: run scripts/get_ml100k.sh, or correct LOCKSTEP_CACHE"
    return str(path)


def read(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, int(file.metadata()["num_items"])


def weights_of(tensors):
    return {name.removeprefix("weight/"): tensor for name, tensor in tensors.items() if name.startswith("weight/")}


def cases():
    for form in FORMS + TIMED_FORMS:
        for heads in (1, 2):
            # TiSASRec takes most of this file's time. tests/runner/models/tisasrec_test.cc compares the forms of its keys.
            is_long = form in TIMED_FORMS and (form, heads) != ("tisasrec-table", 1)
            yield pytest.param((form, heads), id=f"{form}-{heads}-heads", marks=[pytest.mark.long] if is_long else [])


@pytest.fixture(scope="module", params=cases())
def dump(request, tmp_path_factory):
    """(form, heads, folder): our run of 20 steps."""
    torch.set_num_threads(1)
    form, heads = request.param
    folder = tmp_path_factory.mktemp(f"{form}-{heads}")
    subprocess.run([program("sasrec_dump"), "--dataset", dataset(), "--form", form, "--num_heads", str(heads),
                    "--steps", str(STEPS), "--out", str(folder)], check=True, timeout=300)
    return form, heads, folder


def make_twin(form, heads, weights, num_items):
    if form in TIMED_FORMS:
        twin = TiSASRec(num_items, num_heads=heads, dropout_rate=0.0)
    else:
        twin = SASRec(num_items, maxlen=50, hidden_units=50, num_blocks=2, num_heads=heads, dropout_rate=0.0, form=form)
    assert list(twin.state_dict()) == [name for name, _ in twin.named_parameters()]
    assert sorted(twin.state_dict()) == sorted(weights)
    twin.load_state_dict(weights)
    return twin


def inputs(tensors):
    """What a twin's forward takes."""
    return [*tensors["ids"], *([tensors["times"]] if "times" in tensors else [])]


def loss_of(twin, tensors):
    loss = bce_loss(*twin(*inputs(tensors)), tensors["ids"][1])
    return loss + twin.penalty() if hasattr(twin, "penalty") else loss


def without_key_bias(name, gradient):
    """The key bias shifts every score of a query alike: its gradient is zero but for rounding."""
    if name.endswith("K_w.bias"):
        return gradient.new_ones(1)
    if not name.endswith("in_proj_bias"):
        return gradient
    d = gradient.numel() // 3
    return torch.cat([gradient[:d], gradient[2 * d:]])


# A ReLU input nearer to zero than rounding may fall on either side; one such element of 320,000 moves a whole
# gradient by up to 1 % of its norm (against an fp64 twin too: the rounding is ours or the fp32 twin's). At such a step
# each side is tried at such elements; a run may have few of these steps, or the exception would hide a fault.
KINK = 1e-6
KINKS_MAX = 4
STEPS_AT_A_KINK_MAX = 2


@contextlib.contextmanager
def relu_sides(twin, sides):
    """Within it, the ReLU inputs in `sides` ({(layer, flat index): passes}) pass or do not; yields the kinks seen."""
    kinks = []

    def hook(layer):
        def choose(_, inputs, output):
            x = inputs[0]
            kinks.extend((layer, i) for i in (x.abs() < KINK).flatten().nonzero().flatten().tolist())
            output = output.clone().flatten()
            for (at_layer, i), passes in sides.items():
                if at_layer == layer:
                    output[i] = x.flatten()[i] * passes
            return output.view_as(x)
        return choose

    handles = [block.relu.register_forward_hook(hook(layer)) for layer, block in enumerate(twin.forward_layers)]
    try:
        yield kinks
    finally:
        for handle in handles:
            handle.remove()


def gradient_errors(twin, tensors, sides):
    """(loss, {parameter: error relative to the norm}, kinks)"""
    twin.zero_grad()
    with relu_sides(twin, sides) as kinks:
        loss = loss_of(twin, tensors)
    loss.backward()
    errors = {}
    for name, parameter in twin.named_parameters():
        expected = without_key_bias(name, parameter.grad)
        errors[name] = ((without_key_bias(name, tensors["grad/" + name]) - expected).norm() / expected.norm()).item()
    return loss.item(), errors, kinks


def our_sides(twin, tensors):
    """(loss, {parameter: error}, sides, whether that is at a kink) of a twin with our weights: at a kink the sides with
    the smallest errors."""
    loss, errors, kinks = gradient_errors(twin, tensors, {})
    sides = {}
    is_at_a_kink = max(errors.values()) >= TOLERANCE
    if is_at_a_kink:
        assert len(kinks) <= KINKS_MAX, f"{len(kinks)} ReLU inputs near zero"
        for passes in itertools.product((0.0, 1.0), repeat=len(kinks)):
            tried = gradient_errors(twin, tensors, dict(zip(kinks, passes)))[1]
            if max(tried.values()) < max(errors.values()):
                errors, sides = tried, dict(zip(kinks, passes))
    return loss, errors, sides, is_at_a_kink


def test_gradients_from_equal_weights_and_batches(dump):
    form, heads, folder = dump
    at_a_kink = []
    for step in range(STEPS):
        tensors, num_items = read(folder / f"step-{step:02d}.safetensors")
        twin = make_twin(form, heads, weights_of(tensors), num_items)
        loss, errors, _, is_at_a_kink = our_sides(twin, tensors)
        assert loss == pytest.approx(tensors["loss"].item(), rel=TOLERANCE), f"step {step}"
        if is_at_a_kink:
            at_a_kink.append(step)
        worst = max(errors, key=errors.get)
        assert errors[worst] < TOLERANCE, f"step {step}: gradient of {worst} differs by {errors[worst]:.1e} of its norm"
    print(f"{form}, {heads} heads: steps at a kink of ReLU: {at_a_kink}")
    assert len(at_a_kink) <= STEPS_AT_A_KINK_MAX, at_a_kink


# A twin that trains apart from us has other weights by rounding, and so a few of its ReLU inputs on the other side of
# zero. Adam makes steps of nearly the same length of whatever gradient there is: one of them can move the logits by some
# 1e-4. So the twin takes our sides, of what is nearer to zero than its weights have drifted.
NEAR = 1e-5


def sides_near_zero(twin, tensors):
    """{(layer, flat index): passes} of the ReLU inputs that are near zero."""
    sides = {}

    def note(layer):
        def look(_, inputs, __):
            x = inputs[0].detach().flatten()
            sides.update({(layer, i): float(x[i] > 0) for i in (x.abs() < NEAR).nonzero().flatten().tolist()})
        return look

    handles = [block.relu.register_forward_hook(note(layer)) for layer, block in enumerate(twin.forward_layers)]
    with torch.no_grad():
        twin(*inputs(tensors))
    for handle in handles:
        handle.remove()
    return sides


def test_losses_and_logits_after_20_steps(dump):
    form, heads, folder = dump
    tensors, num_items = read(folder / "step-00.safetensors")
    twin = make_twin(form, heads, weights_of(tensors), num_items)
    adam = torch.optim.Adam(twin.parameters(), lr=1e-3, betas=(0.9, 0.98))
    for step in range(STEPS):
        tensors, num_items = read(folder / f"step-{step:02d}.safetensors")
        ours = make_twin(form, heads, weights_of(tensors), num_items)
        sides = {**sides_near_zero(ours, tensors), **our_sides(ours, tensors)[2]}
        with relu_sides(twin, sides):
            loss = loss_of(twin, tensors)
        assert loss.item() == pytest.approx(tensors["loss"].item(), rel=TOLERANCE), f"step {step}"
        adam.zero_grad()
        loss.backward()
        adam.step()
    final, _ = read(folder / "final.safetensors")
    with torch.no_grad():
        logits = torch.stack(twin(*inputs(final)))
    error = ((logits - final["logits"]).norm() / logits.norm()).item()
    assert error < TOLERANCE, f"logits differ by {error:.1e} of their norm"


def test_the_twin_with_our_weights_gives_our_logits(dump):
    form, heads, folder = dump
    final, num_items = read(folder / "final.safetensors")
    twin = make_twin(form, heads, weights_of(final), num_items)
    with torch.no_grad():
        logits = torch.stack(twin(*inputs(final)))
    torch.testing.assert_close(final["logits"], logits, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_first_loss_is_two_log_two(dump):
    _, _, folder = dump
    tensors, _ = read(folder / "step-00.safetensors")
    assert tensors["loss"].item() == pytest.approx(2 * math.log(2), abs=0.05)
