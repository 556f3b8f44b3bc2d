"""JiT as a user trains it, and its network beside the twin."""
import os
import re
import subprocess

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from jit_twin import JiT
from programs import program, tools_folder
from runs import Running, checkpoints, losses, records

SHAPE = (16, 4, 3, 6, 128, 2, 32, 2)  # of tests/tools/jit_dump.cc
SMALL = ["--model", "3x64/4", "--img_size", "16", "--batch_size", "12", "--batch_scope", "total", "--warmup_epochs", "1", "--lr",
         "0.002", "--ema_decay", "0.9", "--sample_images", "4", "--sample_steps", "4", "--status_port", "0", "--log_every", "1"]
DATA = "generated:60:3"
STEPS = 20


def random_twin(*shape):
    torch.manual_seed(1)
    model = JiT(*shape)
    with torch.no_grad():  # what is 0 at the start would hide what it multiplies
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.05 if parameter.dim() > 1 else 0.3))
    return model


@pytest.fixture(scope="module")
def twin():
    return random_twin(*SHAPE)


def dump(what, model, tmp_path, **tensors):
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    save_file(tensors, tmp_path / "input.safetensors")
    done = subprocess.run([program(tools_folder() / "jit_dump"), what, "--weights", tmp_path / "weights.safetensors", "--input",
                           tmp_path / "input.safetensors", "--out", tmp_path / "out.safetensors"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    return load_file(tmp_path / "out.safetensors")


def batch():
    generator = torch.Generator().manual_seed(2)
    return {"z_BCHH": torch.randn(5, 3, 16, 16, generator=generator), "t_B": torch.rand(5, generator=generator),
            "classes_B": torch.tensor([0, 1, 2, 3, 0])}


def test_images_are_those_of_the_twin(twin, tmp_path):
    given = batch()
    expected = twin(given["z_BCHH"], given["t_B"], given["classes_B"])
    assert expected.std() > 0.1
    torch.testing.assert_close(dump("images", twin, tmp_path, **given)["image_BCHH"], expected, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_the_twin(twin, tmp_path):
    given = batch() | {"image_BCHH": torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(3))}
    twin.zero_grad()
    (twin(given["z_BCHH"], given["t_B"], given["classes_B"]) - given["image_BCHH"]).square().sum().backward()
    found = dump("gradients", twin, tmp_path, **given)
    for name, parameter in twin.named_parameters():
        error = (found[f"grad/{name}"] - parameter.grad).abs().max() / parameter.grad.abs().max().clamp_min(1e-3)
        assert error < 1e-4, f"{name}: {error}"


def test_loss_and_one_step_of_the_optimizer_are_those_of_the_twin(tmp_path):
    model = random_twin(16, 4, 3, 6, 128, 2, 64, 2)
    generator = torch.Generator().manual_seed(5)
    given = {"pixels_BHHC": torch.randint(256, (6, 16, 16, 3), generator=generator, dtype=torch.uint8),
             "is_mirrored_B": torch.tensor([True, False, True, False, False, True]), "classes_B": torch.tensor([0, 1, 2, 3, 1, 0]),
             "t_B": torch.tensor([0.02, 0.3, 0.55, 0.9, 0.99, 0.2]), "noise_BCHH": torch.randn(6, 3, 16, 16, generator=generator)}
    found = dump("step", model, tmp_path, **given)
    optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
                                  lr=0.01, betas=(0.9, 0.95), eps=1e-4)
    x = given["pixels_BHHC"].permute(0, 3, 1, 2) / 127.5 - 1
    x = torch.where(given["is_mirrored_B"].view(-1, 1, 1, 1), x.flip(3), x)
    t = given["t_B"].view(-1, 1, 1, 1)
    z = t * x + (1 - t) * 2 * given["noise_BCHH"]
    rest = (1 - t).clamp(min=0.1)
    loss = ((model(z, given["t_B"], given["classes_B"]) - z) / rest - (x - z) / rest).square().mean()
    loss.backward()
    optimizer.step()
    assert found.pop("loss").item() == pytest.approx(loss.item(), rel=1e-4)
    assert found.keys() == model.state_dict().keys()
    for name, parameter in model.state_dict().items():
        torch.testing.assert_close(found[name], parameter, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")


def test_samples_are_those_of_the_twin(twin, tmp_path):
    noise, classes = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(4)), torch.tensor([2, 0, 1])
    expected = twin.sample(2 * noise, classes, none=3, steps=5, guidance=2.0)
    torch.testing.assert_close(dump("samples", twin, tmp_path, noise_BCHH=noise, classes_B=classes)["image_BCHH"], expected,
                               rtol=1e-3, atol=1e-3)


def command(lockstep, folder, *flags, data=DATA):
    return [lockstep, "run", "jit", "--data_path", data, "--train_dir", folder, *SMALL, *flags]


def train(run, lockstep, folder, *flags, data=DATA):
    done = run(command(lockstep, folder, *flags, data=data))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_batches_that_are_added_up_are_one_large_batch(run, lockstep, tmp_path):
    train(run, lockstep, tmp_path / "large", "--max_steps", STEPS, "--dropout", "0.1")
    flags = [flag if flag != "12" else "4" for flag in SMALL]
    assert flags != SMALL
    for n in (1, 4):
        # Of each device: --batch_size images, --grad_accum_steps times.
        folder = tmp_path / f"accumulated-{n}"
        done = run([lockstep, "run", "jit", "--data_path", DATA, "--train_dir", folder, *flags, "--batch_scope", "per_device",
                    "--batch_size", 12 // n // 3, "--grad_accum_steps", "3", "--max_steps", STEPS, "--dropout", "0.1", "--nproc", n])
        assert done.returncode == 0, done.stdout + done.stderr
        found = losses(folder)
        for step, loss in losses(tmp_path / "large").items():
            assert found[step] == pytest.approx(loss, rel=1e-5), f"step {step} with {n} ranks"


def test_the_evaluation_of_a_checkpoint_is_the_same_for_every_world_size(run, lockstep, tmp_path):
    train(run, lockstep, tmp_path / "run", "--max_steps", "8", "--nproc", "2")
    newest = tmp_path / "run" / checkpoints(tmp_path / "run")[-1]
    found = {}
    for n in (1, 2, 4):  # of 6 images: no equal shares for 4
        out = train(run, lockstep, tmp_path / f"w{n}", "--inference_only", "--resume", newest, "--nproc", n)
        found[n] = re.findall(r"valid loss (\S+)", out)
    assert len(found[1]) == 1 and float(found[1][0]) > 0
    assert found[1] == found[2] == found[4]


def test_bf16_on_the_cpu_is_near_fp32(run, lockstep, tmp_path):
    for precision in ("fp32", "bf16"):
        train(run, lockstep, tmp_path / precision, "--max_steps", "10", "--precision", precision)
    expected, found = losses(tmp_path / "fp32"), losses(tmp_path / "bf16")
    assert found.keys() == expected.keys() and found != expected
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=0.02), f"step {step}"


def test_it_learns_and_shows_what(run, lockstep, tmp_path):
    out = train(run, lockstep, tmp_path / "run", "--num_epochs", "30", "--eval_every", "10", "--nproc", "2", data="generated:240:3")
    valid = [record["valid_loss"] for record in records(tmp_path / "run") if "valid_loss" in record]
    assert valid[-1] < 0.7 * losses(tmp_path / "run")[1], out
    pictures = sorted((tmp_path / "run/outputs").glob("step-*/samples.png"))
    assert len(pictures) == 3
    assert pictures[0].read_bytes().startswith(b"\x89PNG") and pictures[0].read_bytes() != pictures[-1].read_bytes()


def test_each_evaluation_samples_from_the_same_noise(run, lockstep, tmp_path):
    """Weights that stay as they are give the same picture again, and other noise another one."""
    train(run, lockstep, tmp_path / "trained", "--max_steps", "12")  # at first any noise becomes grey
    flags = ["--state_dict_path", tmp_path / "trained", "--lr", "0", "--num_epochs", "2", "--eval_every", "1"]
    train(run, lockstep, tmp_path / "run", *flags)
    train(run, lockstep, tmp_path / "seed", *flags, "--seed", "1", "--max_steps", "1")
    first, second, other = (path.read_bytes() for name in ("run", "seed")
                            for path in sorted((tmp_path / name / "outputs").glob("step-*/samples.png")))
    assert first == second != other


@pytest.mark.parametrize("flags, said", [
    (["--img_size", "18"], "--img_size 18 is no multiple of the patches of --model 3x64/4, which are 4 pixels wide"),
    (["--blr", "5e-5"], "--blr is the rate for a batch of 256, --lr is taken as it is: give one of them"),
    (["--sample_images", "400", "--img_size", "512"], "has more than 256 MiB; give at most 341"),
    (["--warmup_steps", "3"], "--warmup_steps and --warmup_epochs both set the length of the warm-up"),
    (["--model", "JiT-S/4"], "JiT-B/4"),
    (["--model", "3x65/4"], "DEPTHxWIDTH/PATCH as 6x192/4, with a WIDTH that is a multiple of 64"),
    (["--data_path", "/nowhere/at/all"], "/nowhere/at/all"),
])
def test_what_cannot_be_trained_on_is_refused_by_name(run, lockstep, tmp_path, flags, said):
    done = run(command(lockstep, tmp_path / "run", *flags))
    assert done.returncode in (2, 3) and said in done.stdout + done.stderr, done.stdout + done.stderr


def test_a_folder_of_mixed_files_is_trained_on_and_what_cannot_be_read_is_named(run, lockstep, tmp_path):
    for name, mode in (("a/1.png", "RGB"), ("a/2.png", "L"), ("a/3.png", "P"), ("b/1.jpg", "CMYK"), ("b/2.png", "I;16"),
                       ("b/3.jpg", "RGB")):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (20, 30) if mode != "P" else (1, 1), 90 if mode in ("L", "P", "I;16") else None).save(file)
    (tmp_path / "images/b/4.png").write_bytes((tmp_path / "images/b/2.png").read_bytes()[:60])
    (tmp_path / "images/b/notes.txt").write_text("no image")
    flags = ["--batch_size", "2", "--batch_scope", "total", "--max_steps", "2", "--valid_images", "0"]
    out = train(run, lockstep, tmp_path / "run", *flags, data=tmp_path / "images")
    words = " ".join(out.split())
    assert "images 6 train, 0 validate, 16 x 16 pixels" in words, out
    assert "left out 2 files that cannot be read, the first b/4.png: cannot be decoded: the file is cut off" in words, out
    (tmp_path / "images/c").mkdir()
    (tmp_path / "images/c/notes.txt").write_text("a class of texts")
    done = run(command(lockstep, tmp_path / "run2", *flags, data=tmp_path / "images"))
    assert done.returncode == 3 and "class folder c in" in done.stderr and "is a text, no image" in done.stderr, done.stderr


def test_auto_says_what_it_found(run, lockstep, tmp_path):
    """Captions that lie beside images are no texts to train on."""
    folder = tmp_path / "images"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 16), (40 * number, 0, 0)).save(folder / label / f"{number}.png")
        (folder / label / "0.txt").write_text("a caption")
    done = run(command(lockstep, tmp_path / "run", "--batch_size", "2", "--max_steps", "1", "--valid_images", "0", data=folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{folder} holds 6 images and 2 text files: --data_format images" in " ".join(done.stderr.split()), done.stderr
    assert "data_format,images\n" in (tmp_path / "run" / "args.txt").read_text()


def test_the_data_must_be_named(run, lockstep, tmp_path):
    done = run([lockstep, "run", "jit", "--train_dir", tmp_path / "run", *SMALL])
    assert done.returncode == 2 and "--data_path is required: a folder of images or texts, or generated" in done.stderr


def test_the_base_rate_is_scaled_by_the_batch(run, lockstep, tmp_path):
    flags = [flag for flag in SMALL if flag not in ("--lr", "0.002")]
    done = run([lockstep, "run", "jit", "--data_path", DATA, "--train_dir", tmp_path / "run", *flags, "--blr", "0.064", "--max_steps", "1",
                "--warmup_epochs", "0"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"learning rate +0\.003", done.stdout), done.stdout
    assert records(tmp_path / "run")[0]["lr"] == pytest.approx(0.064 * 12 / 256)
    # The batch of a step over all ranks and accumulated micro-batches: 12 for each of 2 ranks, 3 times.
    done = run([lockstep, "run", "jit", "--data_path", DATA, "--train_dir", tmp_path / "ranks", *flags, "--blr", "0.064",
                "--max_steps", "1", "--warmup_epochs", "0", "--nproc", "2", "--batch_scope", "per_device", "--grad_accum_steps", "3"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert records(tmp_path / "ranks")[0]["lr"] == pytest.approx(0.064 * 12 * 2 * 3 / 256)


@pytest.mark.long
def test_a_worker_that_is_killed_while_it_prepares_is_started_again(lockstep, tmp_path):
    """What was ready is kept, and images and losses are those of an undisturbed run. Pictures of 9 megapixels take their time."""
    Image.linear_gradient("L").resize((3000, 3000)).convert("RGB").save(tmp_path / "large.png")
    for name in ("reference", "hurt"):
        for number in range(90):
            (tmp_path / name / f"class{number % 3}").mkdir(parents=True, exist_ok=True)
            os.link(tmp_path / "large.png", tmp_path / name / f"class{number % 3}/{number}.png")
    flags = ["--max_steps", "2", "--nproc", "2", "--valid_images", "0", "--eval_every", "0"]
    whole = Running(command(lockstep, tmp_path / "first", *flags, data=tmp_path / "reference"), tmp_path)
    assert whole.end() == 0, whole.output()
    running = Running(command(lockstep, tmp_path / "second", *flags, data=tmp_path / "hurt"), tmp_path)
    running.wait_for(lambda: len(list((tmp_path / "hurt/.lockstep").glob("*.parts/*"))) >= 2, "two parts")
    running.kill_worker(0)
    assert running.end() == 0, running.output()
    assert "90 train" in running.output(), running.output()
    caches = [next((tmp_path / name / ".lockstep").glob("*.cache")).read_bytes() for name in ("reference", "hurt")]
    assert caches[0] == caches[1]
    assert losses(tmp_path / "second") == losses(tmp_path / "first")
