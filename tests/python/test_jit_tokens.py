"""The guide's variant of JiT for texts as images: beside the twin, its data beside the tokenizers library, and as a user trains it."""
import json
import random
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from pixel_dlm_twin import PixelDlm, loss_of
from programs import program, text, tools_folder
from runs import losses, weights

SHAPE = (16, 4, 2, 64, 2)
SMALL = ["--model", "2x64/4", "--img_size", "16", "--batch_size", "6", "--batch_scope", "total", "--warmup_epochs", "0", "--lr",
         "0.002", "--status_port", "0", "--log_every", "1", "--threads", "1"]
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = ["the", "water", "Paris", "it's", "WE'LL", "2024", "naïve", "数据", "—", "(see", "x²)", "don't", "\ttab", "  two", "§12.", "été"]


def sentence(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


@pytest.fixture
def texts(tmp_path):
    """Texts in a folder, and their list."""
    folder, draw = tmp_path / "texts", random.Random(3)
    folder.mkdir()
    lines = [sentence(draw, draw.randint(30, 60)) for _ in range(24)]
    (folder / "b.txt").write_text("".join(line + "\n" + "\n" * (i % 3) for i, line in enumerate(lines)), encoding="utf-8")
    (folder / "a.json").write_text(json.dumps([{"text": "one text\n\nof two lines "}, {"prompt": "why?", "answer": "so."}, "alone"]))
    return folder, ["one text\n\nof two lines", "why?\nso.", "alone", *(line.strip() for line in lines)]


@pytest.fixture
def tokenizer(tmp_path, texts):
    """A tokenizer of Qwen2's form in its folder, and the library's own."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.train_from_iterator(texts[1] * 3, trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    made.model.save(str(folder))
    end = made.get_vocab_size() + 2  # beside the vocabulary, as Qwen2.5 has it
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
        "added_tokens_decoder": {str(end): {"content": "<|im_end|>"}, str(end - 1): {"content": "<|im_start|>"}}}))
    return folder, made, end


def dump(what, tmp_path, **flags):
    out = tmp_path / "out.safetensors"
    done = subprocess.run([program(tools_folder() / "pixel_dlm_dump"), what, "--out", out,
                           *(str(word) for name, value in flags.items() for word in (f"--{name}", value))],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return load_file(out)


# --- the model


@pytest.fixture(scope="module")
def twin():
    torch.manual_seed(1)
    model = PixelDlm(*SHAPE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.copy_(torch.randn(parameter.shape) * 0.08)
    return model


def batch():
    """Pictures of many tokens, of few, and of so few that no patch is half full."""
    draw = torch.Generator().manual_seed(2)
    is_token = torch.zeros(4, 256, dtype=torch.uint8)
    for row, count in enumerate((256, 150, 41, 5)):
        is_token[row, :count] = 1
    is_token = is_token.view(4, 16, 16)
    return {"z_BCHH": torch.randn(4, 3, 16, 16, generator=draw), "t_B": torch.tensor([0, 17, 400, 999]), "is_token_BHH": is_token,
            "image_BCHH": torch.rand(4, 3, 16, 16, generator=draw) * is_token[:, None]}


def of_model(what, twin, tmp_path, given):
    save_file(twin.state_dict(), tmp_path / "weights.safetensors")
    save_file(given, tmp_path / "input.safetensors")
    return dump(what, tmp_path, size=",".join(map(str, SHAPE)), weights=tmp_path / "weights.safetensors",
                input=tmp_path / "input.safetensors")


def test_pictures_are_those_of_the_twin(twin, tmp_path):
    given = batch()
    expected = twin(given["z_BCHH"], given["t_B"], given["is_token_BHH"])
    assert expected[0].std() > 0.1 and expected[3].abs().max() == 0
    torch.testing.assert_close(of_model("images", twin, tmp_path, given)["image_BCHH"], expected, rtol=1e-4, atol=1e-4)


def test_loss_and_gradients_are_those_of_the_twin(twin, tmp_path):
    given = batch()
    twin.zero_grad()
    loss = loss_of(twin(given["z_BCHH"], given["t_B"], given["is_token_BHH"]), given["image_BCHH"], given["is_token_BHH"])
    loss.backward()
    found = of_model("gradients", twin, tmp_path, given)
    assert found.pop("loss").item() == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in twin.named_parameters():
        if name.startswith("cond"):
            assert f"grad/{name}" not in found  # nothing hears them without a condition
            continue
        error = (found[f"grad/{name}"] - parameter.grad).abs().max() / parameter.grad.abs().max().clamp_min(1e-6)
        assert error < 1e-4, f"{name}: {error}"


def test_a_batch_and_its_loss_are_those_of_the_twin(twin, texts, tmp_path):
    """From the texts to the loss: black where there is no token, a picture that fades into noise with t of 0 to 999."""
    save_file(twin.state_dict(), tmp_path / "weights.safetensors")
    found = dump("step", tmp_path, data=texts[0], weights=tmp_path / "weights.safetensors")
    pixels, t = found["pixels_BHHC"], found["t_B"]
    assert t.dtype == torch.int64 and 0 <= t.min() and t.max() <= 999 and len(set(t.tolist())) > 8
    assert found["noise_BCHH"].mean().abs() < 0.1 and found["noise_BCHH"].std() == pytest.approx(1, abs=0.05)
    is_token = (pixels != 255).any(3)
    image = (pixels.float() / 255 * is_token[..., None]).permute(0, 3, 1, 2)
    share = (1 - t / 1000)[:, None, None, None]
    one_head = PixelDlm(*SHAPE[:4], 1)  # as --model 2x64/4 has it
    one_head.load_state_dict(twin.state_dict())
    with torch.no_grad():
        loss = loss_of(one_head(share * image + (1 - share) * found["noise_BCHH"], t, is_token), image, is_token)
    assert found["weight"].item() == is_token.sum()
    assert found["loss"].item() / is_token.sum() == pytest.approx(loss.item(), rel=1e-4)


def test_training_begins_with_weights_of_the_guides_python(run, lockstep, twin, texts, tmp_path):
    torch.save({"epoch": 3, "model_state_dict": twin.state_dict(), "loss": 0.5}, tmp_path / "best_model.pth")
    line = [lockstep, "run", "jit", "--data_path", texts[0], *SMALL, "--model", "2x128/4", "--state_dict_path",
            tmp_path / "best_model.pth", "--inference_only"]
    done = run([*line, "--output_dir", tmp_path / "other"])
    assert done.returncode == 2 and "best_model.pth" in text(done), text(done)
    line[line.index("2x128/4")] = "2x64/4"
    done = run([*line, "--output_dir", tmp_path / "run"])
    assert done.returncode == 0, text(done)


@pytest.mark.long
def test_the_published_size_has_its_parameters(run, lockstep, texts, tmp_path):
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in PixelDlm(64, 4, 12, 768, 12).parameters()) == 127_681_584
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "two.txt").write_text("\n".join(texts[1][-2:]))
    done = run([lockstep, "run", "jit", "--data_path", tmp_path / "two", "--output_dir", tmp_path / "run", "--batch_size", "1",
                "--max_steps", "1", "--ema_decay", "0", "--status_port", "0"])
    assert done.returncode == 0, text(done)
    assert "256 patches of 4 x 4 pixels, 127681584 parameters" in " ".join(done.stdout.split()), done.stdout


# --- the data


def ids_of(pixels):
    """Of a picture's pixels: the tokens before the white."""
    values = pixels.reshape(-1, 3).to(torch.int64)
    ids = (values[:, 0] * 65536 + values[:, 1] * 256 + values[:, 2]).tolist()
    return ids[:ids.index(0xFFFFFF)] if 0xFFFFFF in ids else ids


def test_tokens_are_those_of_the_library(texts, tokenizer, tmp_path):
    folder, made, end = tokenizer
    found = dump("tokens", tmp_path, tokenizer=folder, data=texts[0], side=32)
    assert found["end_of_text"].item() == end
    expected = [made.encode(one, add_special_tokens=False).ids + [end] for one in texts[1]]
    assert [ids_of(pixels) for pixels in found["pixels"]] == expected


def test_a_text_that_is_too_long_is_cut_and_ended(texts, tokenizer, tmp_path):
    folder, made, end = tokenizer
    pixels = dump("tokens", tmp_path, tokenizer=folder, data=texts[0], side=8)["pixels"]
    longest = max(range(len(texts[1])), key=lambda i: len(texts[1][i]))
    assert ids_of(pixels[longest]) == made.encode(texts[1][longest], add_special_tokens=False).ids[:63] + [end]


def test_lines_are_the_same_however_a_file_is_cut(tokenizer, tmp_path):
    """A file is read in pieces of 64 KiB; a line belongs to the piece in which it begins."""
    draw = random.Random(5)
    lines = [sentence(draw, draw.choice((1, 3, 200, 9000))) for _ in range(40)]
    (tmp_path / "long.txt").write_text("\n".join(lines), encoding="utf-8")
    assert (tmp_path / "long.txt").stat().st_size > 5 * 65536
    folder, made, end = tokenizer
    pixels = dump("tokens", tmp_path, tokenizer=folder, data=tmp_path / "long.txt", side=16)["pixels"]
    assert [ids_of(one) for one in pixels] == [(made.encode(line.strip(), add_special_tokens=False).ids[:255] + [end]) for line in lines]


@pytest.mark.parametrize("config, said", [
    ('{"eos_token": "<|gone|>"}', 'has no token "<|gone|>", which ends texts'),
    ('{"added_tokens_decoder": {"x": {}}, "eos_token": "a"}', 'added_tokens_decoder has "x" where the number of a token is expected'),
    ('{"added_tokens_decoder": []}', "added_tokens_decoder: expected an object"),
    ("[1]", "expected an object"),
    ("{", "tokenizer_config.json"),
])
def test_a_tokenizer_that_does_not_fit_is_refused(run, lockstep, texts, tokenizer, tmp_path, config, said):
    (tokenizer[0] / "tokenizer_config.json").write_text(config)
    done = run([lockstep, "run", "jit", "--data_path", texts[0], "--tokenizer_path", tokenizer[0], "--output_dir", tmp_path / "run", *SMALL])
    assert done.returncode == 3 and said in text(done) and "tokenizer" in text(done), text(done)


# --- training


def train(run, lockstep, folder, data, *flags):
    done = run([lockstep, "run", "jit", "--data_path", data, "--output_dir", folder, *SMALL, *flags])
    assert done.returncode == 0, text(done)
    return text(done)


def test_batches_that_are_added_up_are_one_large_batch(run, lockstep, texts, tokenizer, tmp_path):
    for name, flags in (("one", []), ("summed", ["--grad_accum_steps", "3"])):
        train(run, lockstep, tmp_path / name, texts[0], "--tokenizer_path", tokenizer[0], "--max_steps", "50", *flags)
    assert losses(tmp_path / "summed") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_it_learns_and_the_guides_python_opens_its_files(run, lockstep, texts, tmp_path):
    folder = tmp_path / "run"
    train(run, lockstep, folder, texts[0], "--preset", "guide", "--num_epochs", "20", "--eval_every", "10", "--data_format", "tokens")
    found = losses(folder)
    assert found[max(found)] < 0.7 * found[1]
    file = torch.load(folder / "checkpoint_epoch_20.pth", weights_only=True)
    model = PixelDlm(*SHAPE[:4], 1)
    model.load_state_dict(file["model_state_dict"], strict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01)
    optimizer.load_state_dict(file["optimizer_state_dict"])
    names = [name for name, _ in model.named_parameters()]
    assert file["optimizer_state_dict"]["param_groups"][0]["params"] == names
    for name, parameter in model.named_parameters():
        assert (parameter in optimizer.state) == (not name.startswith("cond")), name
        if parameter in optimizer.state:
            assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape
    # Torch's own optimizer numbers the parameters, those of the condition too.
    torch.save({**file, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()},
               tmp_path / "guide.pth")
    out = train(run, lockstep, tmp_path / "next", texts[0], "--preset", "guide", "--num_epochs", "21", "--eval_every", "10",
                "--data_format", "tokens", "--resume", tmp_path / "guide.pth")
    assert f"resumed from {tmp_path / 'guide.pth'}, trained for 20 epochs: begins with epoch 21" in " ".join(out.split()), out
    assert min(losses(tmp_path / "next")) == max(found) + 1


def test_auto_says_what_it_found(run, lockstep, texts, tmp_path):
    out = train(run, lockstep, tmp_path / "run", texts[0], "--max_steps", "1")
    assert f"{texts[0]} holds 2 text files: --data_format tokens" in " ".join(out.split()), out
    assert "bytes (no --tokenizer_path)" in out and "2 files of texts (.json 1, .txt 1)" in out
    assert "data_format,tokens\n" in (tmp_path / "run" / "args.txt").read_text()


def test_a_single_file_is_taken(run, lockstep, texts, tmp_path):
    out = train(run, lockstep, tmp_path / "run", texts[0] / "b.txt", "--max_steps", "1", "--max_tokens", "50")
    assert "1 file of texts (.txt 1)" in out


@pytest.mark.parametrize("name, content, said", [
    ("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "holds a byte 0, and is no text"),
    ("a.json", b'[{"title": "x"}]', "record 1 is no text"),
    ("a.json", b'[{"text": "x"}, 5]', "record 2 is no text"),
    ("a.json", b'[{"text": ', "a.json"),
    ("a.txt", b"\n  \n", "there is nothing in 1 file of texts (.txt 1)"),
], ids=["an image under a text's name", "another field", "a number", "torn", "blank"])
def test_files_that_are_no_texts_are_named(run, lockstep, tmp_path, name, content, said):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).write_bytes(content)
    done = run([lockstep, "run", "jit", "--data_path", folder, "--output_dir", tmp_path / "run", *SMALL])
    assert done.returncode == 3 and said in text(done) and "Traceback" not in text(done), text(done)


@pytest.mark.parametrize("flags, said", [
    (["--data_path", "generated"], "--data_format tokens needs a folder of texts"),
    (["--max_tokens", "257"], "--max_tokens 257: each token is a pixel, and an image of --img_size 16 has 256"),
    (["--max_tokens", "0"], "--max_tokens"),
    (["--max_tokens", "20"], "--max_tokens 20: a patch is predicted only of texts of 33 tokens or more"),
    (["--data_format", "words"], "auto, images or tokens"),
    (["--data_path", "/nowhere/at/all"], "/nowhere/at/all does not exist"),
    (["--tokenizer_path", "/nowhere"], "/nowhere"),
])
def test_what_cannot_be_trained_on_is_refused_by_name(run, lockstep, texts, tmp_path, flags, said):
    done = run([lockstep, "run", "jit", "--data_path", texts[0], "--data_format", "tokens", "--output_dir", tmp_path / "run", *SMALL, *flags])
    assert done.returncode in (2, 3) and said in text(done), text(done)


def test_samples_of_tokens_are_refused(run, lockstep, texts, tmp_path):
    train(run, lockstep, tmp_path / "run", texts[0], "--max_steps", "1")
    done = run([lockstep, "jit", "sample", "--checkpoint", tmp_path / "run", "--count", "1", "--grid", tmp_path / "x.png"])
    assert done.returncode == 2 and "is of --data_format tokens" in text(done), text(done)


def test_flags_of_images_have_no_effect_on_tokens_and_a_remark_says_so(run, lockstep, texts, tmp_path):
    out = " ".join(train(run, lockstep, tmp_path / "run", texts[0], "--data_format", "tokens", "--max_steps", "1", "--noise_scale", "2").split())
    assert "--noise_scale" in out and "--data_format images" in out, out


@pytest.fixture
def pictures(tmp_path):
    from PIL import Image
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (16, 16), (i, 0, 0)).save(folder / f"{i}.png")
    return folder


def test_data_of_the_other_kind_are_refused(run, lockstep, texts, pictures, tmp_path):
    line = [lockstep, "run", "jit", "--output_dir", tmp_path / "run", *SMALL]
    done = run([*line, "--data_path", texts[0], "--data_format", "images"])
    assert done.returncode == 3, text(done)
    assert f"--data_format images: {texts[0]} holds 2 text files" in text(done) and "give --data_format tokens" in text(done)
    done = run([*line, "--data_path", pictures, "--data_format", "tokens"])
    assert done.returncode == 3, text(done)
    assert f"--data_format tokens: {pictures} holds 3 images" in text(done) and "give --data_format images" in text(done)
