"""`lockstep jit sample`: images from a trained model, and how far they are from the data."""
import io
import json
import re
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from jobs import read_status
from runs import Running, evaluations, losses, records

MODEL = ["--model", "2x64/4", "--img_size", "8"]
TRAIN = [*MODEL, "--batch_size", "20", "--batch_scope", "total", "--warmup_epochs", "0", "--lr", "0.002", "--ema_decay", "0.9,0.99",
         "--status_port", "0", "--log_every", "1", "--sample_images", "4", "--sample_steps", "3"]
DATA = "generated:80:4"


@pytest.fixture(scope="module")
def trained(lockstep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    running = Running([lockstep, "run", "jit", "--data_path", DATA, "--train_dir", folder, *TRAIN, "--max_steps", "30"], folder.parent)
    assert running.end() == 0, running.output()
    return folder


@pytest.fixture
def sample(run, lockstep, trained, tmp_path):
    """sample(*flags) → the line of JSON, and what was said."""
    def call(*flags, checkpoint=trained):
        done = run([lockstep, "jit", "sample", "--checkpoint", checkpoint, "--steps", "4", *flags], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr
    return call


@pytest.fixture
def refused(run, lockstep, trained, tmp_path):
    def call(*flags, code=2):
        done = run([lockstep, "jit", "sample", "--checkpoint", trained, "--steps", "2", *flags], cwd=tmp_path)
        assert done.returncode == code and done.stdout == "", done.stdout + done.stderr
        return done.stderr
    return call


def pictures(folder):
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"{i:06}.png" for i in range(len(files))]
    return np.stack([np.array(Image.open(file)) for file in files])


def simple_features(pixels):
    """Mean and deviation of each colour in 4 x 4 fields: float64 of [B, H, H, C]."""
    b, h = pixels.shape[:2]
    fields = (pixels.astype(np.float64) / 255).transpose(0, 3, 1, 2).reshape(b, 3, 4, h // 4, 4, h // 4)
    return np.concatenate([fields.mean((3, 5)).reshape(b, -1), fields.std((3, 5)).reshape(b, -1)], 1)


def distance(mean, covariance, other_mean, other_covariance):
    """By the eigenvalues of the product, which is not symmetric."""
    common = np.sqrt(np.linalg.eigvals(covariance @ other_covariance).real.clip(0)).sum()
    return ((mean - other_mean) ** 2).sum() + np.trace(covariance) + np.trace(other_covariance) - 2 * common


def statistics(features):
    return features.mean(0), np.cov(features, rowvar=False)


def test_ranks_share_the_images_and_change_none(sample, tmp_path):
    one, _ = sample("--count", "11", "--folder", "one", "--grid", "one.png", "--distance")
    three, said = sample("--count", "11", "--folder", "three", "--grid", "three.png", "--distance", "--nproc", "3", "--batch_size", "2")
    assert "11 of 11 images" in said
    alone, shared = pictures(tmp_path / "one"), pictures(tmp_path / "three")
    assert alone.shape == (11, 8, 8, 3)
    assert np.abs(alone.astype(int) - shared.astype(int)).max() <= 1  # another batch is rounded otherwise
    assert three["distance_on_simple_features"] == pytest.approx(one["distance_on_simple_features"], rel=1e-2)
    sheet = np.array(Image.open(tmp_path / "one.png"))
    assert sheet.shape == (3 * 9 - 1, 4 * 9 - 1, 3)  # 4 columns, a line between them
    assert np.array_equal(sheet[9:17, 9:17], alone[5])
    more, _ = sample("--count", "3", "--folder", "more", "--nproc", "8")
    assert more == {"images": 3, "folder": "more"}
    assert np.abs(pictures(tmp_path / "more").astype(int) - alone[:3].astype(int)).max() <= 1


def test_of_a_model_of_one_class_a_remark_says_that_guidance_changes_nothing(sample, lockstep, tmp_path):
    running = Running([lockstep, "run", "jit", "--data_path", "generated:40:1", "--train_dir", tmp_path / "run", *TRAIN, "--max_steps", "2"],
                      tmp_path)
    assert running.end() == 0, running.output()
    remark = "--cfg changes nothing"
    for name, flags, count in [("cfg", ["--cfg", "5"], 1), ("one", ["--cfg", "1"], 0), ("default", [], 0)]:
        _, said = sample("--count", "3", "--nproc", "2", "--folder", name, *flags, checkpoint=tmp_path / "run")
        assert said.count(remark) == count, said
    assert np.array_equal(pictures(tmp_path / "cfg"), pictures(tmp_path / "one"))
    _, said = sample("--count", "1", "--grid", "several.png", "--cfg", "5")
    assert remark not in said


def test_classes_seed_and_average_are_chosen(sample, tmp_path):
    sample("--count", "4", "--folder", "all")
    sample("--count", "4", "--folder", "twos", "--classes", "2")
    named = sample("--count", "4", "--folder", "named", "--classes", "triangle,2")[1]
    assert "the first" not in named
    sample("--count", "4", "--folder", "seed", "--seed", "1")
    everything, twos = pictures(tmp_path / "all"), pictures(tmp_path / "twos")
    assert np.array_equal(everything[2], twos[2]) and not np.array_equal(everything[1], twos[1])
    assert np.array_equal(pictures(tmp_path / "named"), twos)  # triangle is class 2
    assert not np.array_equal(pictures(tmp_path / "seed"), everything)
    of_average = {}
    for average, said in (("0.9", "(--ema_decay 0.9)"), ("0.99", "(--ema_decay 0.99)"), ("0", "")):
        assert said in sample("--count", "4", "--folder", f"ema{average}", "--ema", average)[1]
        of_average[average] = pictures(tmp_path / f"ema{average}")
    assert np.array_equal(of_average["0.9"], everything)
    assert not np.array_equal(of_average["0.99"], everything) and not np.array_equal(of_average["0"], everything)


def test_the_distance_on_simple_features_is_numpy_s_and_called_what_it_is(sample, tool, run, tmp_path):
    result, said = sample("--count", "40", "--folder", "images", "--distance", "--nproc", "2")
    done = run([tool("images_tool"), DATA, "8", tmp_path / "pixels"])
    assert done.returncode == 0, done.stderr
    data = np.fromfile(tmp_path / "pixels", dtype=np.uint8).reshape(80, 8, 8, 3)
    expected = distance(*statistics(simple_features(pictures(tmp_path / "images"))), *statistics(simple_features(data)))
    # The covariance of 40 images has no full rank: the roots of eigenvalues that are 0 but for rounding are what differs.
    assert result["distance_on_simple_features"] == pytest.approx(expected, abs=1e-4)
    assert result["features"] == "simple" and result["compared_with"] == f"80 images of {DATA}"
    assert "Frechet distance on simple features (no FID): " in said


class Colours(torch.nn.Module):
    """Six features of bytes [B, 3, H, W]."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = images.to(torch.float32) / 255
        return torch.cat([values.mean([2, 3]), values.std([2, 3])], 1)


class LikeInception(torch.nn.Module):
    """Returns what is asked for by an argument, as the Inception that is passed around as a TorchScript file."""

    def forward(self, images: torch.Tensor, return_features: bool = False) -> torch.Tensor:
        return images.to(torch.float32).mean([2, 3]) if return_features else torch.zeros([1])


class Labels(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(torch.float32).mean([2, 3]).argmax(1)


class Broken(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.size(1) == 4, "four channels are expected"
        return images.to(torch.float32).mean([2, 3])


def script(module, path):
    torch.jit.script(module).save(path)
    return path


def test_the_distance_on_a_network_s_features_is_numpy_s(sample, tmp_path):
    module = script(Colours(), tmp_path / "colours.pt")
    generator = np.random.default_rng(1)
    mean, mixed = generator.random(6), generator.random((6, 6))
    covariance = mixed @ mixed.T / 20
    np.savez(tmp_path / "stats.npz", mu=mean, sigma=covariance)
    np.savez_compressed(tmp_path / "small.npz", mu=mean.astype(np.float32), sigma=covariance.astype(np.float32), mu_s=mean)
    result, _ = sample("--count", "50", "--folder", "images", "--fid_features", module, "--fid_stats", "stats.npz", "--nproc", "2")
    images = torch.from_numpy(pictures(tmp_path / "images")).permute(0, 3, 1, 2)
    expected = distance(*statistics(Colours()(images).double().numpy()), mean, covariance)
    assert result["frechet_distance"] == pytest.approx(expected, rel=1e-5)
    assert result["features"] == str(module) and result["compared_with"] == "the statistics in stats.npz"
    again, _ = sample("--count", "50", "--fid_features", module, "--fid_stats", "small.npz")
    assert again["frechet_distance"] == pytest.approx(expected, rel=1e-3)
    of_data, _ = sample("--count", "50", "--fid_features", module)
    assert of_data["compared_with"] == f"80 images of {DATA}" and of_data["frechet_distance"] > 0
    assert "frechet_distance" in sample("--count", "9", "--fid_features", script(LikeInception(), tmp_path / "inception.pt"))[0]


def test_what_cannot_be_a_feature_network_or_its_statistics_is_named(refused, tmp_path):
    good = script(Colours(), tmp_path / "good.pt")
    (tmp_path / "text.pt").write_text("no network")
    said = refused("--count", "4", "--fid_features", "text.pt")
    assert "text.pt is no TorchScript file" in said and "torch.jit.script" in said
    said = refused("--count", "4", "--fid_features", script(Broken(), tmp_path / "broken.pt"))
    assert "broken.pt: given bytes [80, 3, 8, 8], it failed: " in said
    assert "returned CPULongType of 1 dimensions; expected floats [images, features]" in \
        refused("--count", "4", "--fid_features", script(Labels(), tmp_path / "labels.pt"))
    assert "give that, too (--fid_features)" in refused("--count", "4", "--fid_stats", "stats.npz")
    assert "missing.npz" in refused("--count", "4", "--fid_features", good, "--fid_stats", "missing.npz")
    np.savez(tmp_path / "five.npz", mu=np.zeros(5), sigma=np.eye(5))
    said = refused("--count", "400", "--batch_size", "4", "--folder", "images", "--fid_features", good, "--fid_stats", "five.npz")
    assert "makes 6 features, --fid_stats five.npz is of 5" in said and "400 images" not in said
    assert list((tmp_path / "images").iterdir()) == [], "it is found with the first images"
    for arrays, what in (({"mu": np.zeros(6)}, "has no array sigma; it has mu.npy"),
                         ({"mu": np.zeros(6), "sigma": np.eye(5)}, "mu and sigma have other shapes"),
                         ({"mu": np.zeros(6, dtype=int), "sigma": np.eye(6)}, "holds '<i8'; expected float64 or float32"),
                         ({"mu": np.zeros(6), "sigma": np.asfortranarray(np.arange(36.0).reshape(6, 6))}, "column by column"),
                         ({"mu": np.full(6, np.nan), "sigma": np.eye(6)}, "not finite")):
        np.savez(tmp_path / "odd.npz", **arrays)
        assert what in refused("--count", "4", "--fid_features", good, "--fid_stats", "odd.npz")
    whole = io.BytesIO()
    np.savez(whole, mu=np.zeros(6), sigma=np.eye(6))
    (tmp_path / "cut.npz").write_bytes(whole.getvalue()[:200])
    assert "cut.npz" in refused("--count", "4", "--fid_features", good, "--fid_stats", "cut.npz", code=3)


@pytest.mark.parametrize("flags, said", [
    ([], "no output was requested: give --grid samples.png"),
    (["--distance", "--count", "1"], "--count 1: a distance needs at least 2 images"),
    (["--grid", "a.png", "--classes", "4"], "--classes: found \"4\", expected a number from 0 to 3, or one of circle, "),
    (["--grid", "a.png", "--classes", "cat"], "--classes: found \"cat\", expected a number from 0 to 3, or one of circle, "),
    (["--grid", "a.png", "--classes", "2,,3"], "--classes: found \"\", expected"),
    (["--grid", "a.png", "--ema", "0.5"], "has averages of the decays 0.9,0.99; expected one of them, or 0"),
    (["--grid", "a.png", "--model", "3x64/4"], "net.blocks.2."),
    (["--grid", "a.png", "--count", "0"], "--count"),
])
def test_what_cannot_be_sampled_is_refused_by_name(refused, flags, said):
    assert said in refused(*flags)


def test_a_folder_that_cannot_be_written_is_named(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert "--folder file/images: file is a file; a folder was expected" in refused("--folder", "file/images", "--count", "2")
    said = refused("--grid", "file/a.png", "--count", "2")
    assert "--grid file/a.png: file is a file; a folder was expected" in said and "2 images" not in said, "before they are made"


def samples_are_made(port):
    status = read_status(port)
    return status is not None and [w["activity"] for w in status["workers"] if w["rank"] == 0] == ["evaluating"]


def test_a_stop_is_obeyed_while_samples_are_made(lockstep, free_port, tmp_path):
    """SIGTERM in the middle of an evaluation's samples, which would take hours; the run then goes on from there."""
    folder = tmp_path / "run"
    command = [lockstep, "run", "jit", "--data_path", DATA, "--train_dir", folder, *TRAIN, "--num_epochs", "4", "--eval_every", "2",
               "--nproc", "2"]
    port = free_port()
    running = Running([*command, "--sample_steps", "10000", "--sample_images", "1000", "--status_port", port], tmp_path)
    running.wait_for(lambda: samples_are_made(port), "evaluation")
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 143, running.output()
    assert max(losses(folder)) == 6
    again = Running(command, tmp_path)
    assert again.end() == 0, again.output()
    assert sorted(losses(folder)) == list(range(1, 13))
    assert [record["epoch"] for record in records(folder) if "valid_loss" in record] == [2, 4]
    assert len(list(folder.glob("outputs/step-*/samples.png"))) == 2


@pytest.mark.long
def test_a_worker_that_is_killed_while_samples_are_made_costs_neither_a_step_nor_a_picture(lockstep, free_port, tmp_path):
    def start(name, *flags):
        return Running([lockstep, "run", "jit", "--data_path", DATA, "--train_dir", tmp_path / name, *TRAIN, "--num_epochs", "4",
                        "--eval_every", "2", "--nproc", "2", "--sample_steps", "600", "--sample_images", "16", *flags], tmp_path)

    undisturbed = start("undisturbed")
    assert undisturbed.end() == 0, undisturbed.output()
    port = free_port()
    running = start("run", "--status_port", port)
    running.wait_for(lambda: samples_are_made(port), "evaluation")
    running.kill_worker(1)
    assert running.end() == 0, running.output()
    assert "SIGKILL" in running.output() or "signal 9" in running.output()
    assert losses(tmp_path / "run") == losses(tmp_path / "undisturbed")
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "undisturbed")
    sheets = [[path.read_bytes() for path in sorted((tmp_path / name).glob("outputs/step-*/samples.png"))]
              for name in ("run", "undisturbed")]
    assert len(sheets[0]) == 2 and sheets[0] == sheets[1]


def test_a_kill_leaves_whole_files_and_the_same_line_again_makes_them_all(sample, lockstep, trained, tmp_path):
    flags = ["--count", "16", "--batch_size", "1", "--steps", "40"]
    sample(*flags, "--folder", "whole")
    whole, folder = pictures(tmp_path / "whole"), tmp_path / "cut"
    running = Running([lockstep, "jit", "sample", "--checkpoint", trained, *flags, "--folder", folder], tmp_path)
    running.wait_for(lambda: len(list(folder.glob("0*.png"))) >= 3, "three files")
    running.signal(signal.SIGKILL)
    assert running.end() == -signal.SIGKILL, running.output()
    files = sorted(folder.glob("0*.png"))
    assert 3 <= len(files) < 16
    assert all(np.array_equal(np.array(Image.open(file)), whole[i]) for i, file in enumerate(files))
    sample(*flags, "--folder", "cut")
    assert np.array_equal(pictures(folder), whole)


@pytest.mark.long
def test_sixteen_pictures_are_learnt_by_heart(run, lockstep, tool, tmp_path):
    """One of each class: each sample lies nearest the picture of its own class."""
    folder = tmp_path / "run"
    done = run([lockstep, "run", "jit", "--data_path", "generated:16:16", "--train_dir", folder, "--model", "4x128/4", "--img_size", "16",
                "--valid_images", "0", "--batch_size", "64", "--batch_scope", "total", "--flip", "false", "--lr", "0.002",
                "--warmup_epochs", "0", "--ema_decay", "0.99", "--num_epochs", "1500", "--eval_every", "1500", "--nproc", "2",
                "--label_drop_prob", "0.1", "--sample_images", "16", "--sample_steps", "20", "--status_port", "0"], timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run([lockstep, "jit", "sample", "--checkpoint", folder, "--count", "16", "--steps", "20", "--cfg", "1", "--folder",
                tmp_path / "samples"])
    assert done.returncode == 0, done.stderr
    assert re.search(r"16 of 16 images", done.stderr)
    samples = pictures(tmp_path / "samples").astype(float)
    done = run([tool("images_tool"), "generated:16:16", "16", tmp_path / "pixels"])
    assert json.loads(done.stdout)["labels"] == list(range(16)), done.stderr
    data = np.fromfile(tmp_path / "pixels", dtype=np.uint8).reshape(16, 16, 16, 3).astype(float)
    apart = ((samples[:, None] - data[None]) ** 2).mean((2, 3, 4))
    assert apart.argmin(1).tolist() == list(range(16)), apart.argmin(1)
