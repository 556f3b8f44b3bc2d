"""Our tokenizer, GPT-2 and LoRA against tokenizers, transformers and peft, on weights that are drawn here.

LOCKSTEP_CACHE: where scripts/get_gpt2_tokenizer keeps the vocabulary.
"""
import json
import os
import random
import subprocess
import sys
import unicodedata

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, GPT2Config, GPT2LMHeadModel, GPT2Model

from programs import fetched, program, tools_folder

TOLERANCE = 1e-4
VOCABULARY = 50257
END_OF_TEXT = 50256
LAYERS, WIDTH, HEADS = 3, 128, 4


@pytest.fixture(scope="module")
def tokenizer_folder():
    """encoder.json and vocab.bpe."""
    return fetched("get_gpt2_tokenizer")


def ours(what, out, peft=None, pool=None, repeats=1, **files):
    """What tests/tools/gpt2_dump makes of the files."""
    command = [program(tools_folder() / "gpt2_dump"), what, "--out", out, "--repeats", str(repeats)]
    for name, value in {**files, "peft": peft, "pool": pool}.items():
        if value is not None:
            command += ["--" + name, value]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        pytest.fail(done.stderr)
    if what == "export":
        return None
    with safe_open(out, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def drawn_texts(count):
    """Titles as MovieLens has them, sentences of the recommender, and what nobody writes."""
    draw = random.Random(21)
    letters = [chr(code) for code in range(sys.maxunicode + 1)
               if unicodedata.category(chr(code))[0] in "LNMPSZ" and unicodedata.category(chr(code)) != "Cs"]
    white = [chr(code) for code in [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
                                    0x202F, 0x205F, 0x3000]]
    controls = [chr(code) for code in [0, 1, 0x1B, 0x1C, 0x1F, 0x7F, 0x80, 0xAD, 0x200B, 0x200D, 0xFEFF, 0xE000, 0x10FFFF]]
    ascii_characters = [chr(code) for code in range(32, 127)]
    words = ["Toy", "Story", "Léon", "Cité des enfants perdus, La", "Postino, Il", "'Til", "Don't", "they'll", "I'VE", "we've",
             "Se7en", "12", "Monkeys", "½", "²", "Ⅷ", "٣", "千と千尋", "Сталкер", "मेघा", "👩‍👩‍👧", "e\u0301", "(1995)", "...", "—",
             "<|endoftext|>", "a" * 70, "\t", "\r\n", "  ", "   \n  "]
    genres = ["Action", "Children's", "Film-Noir", "Sci-Fi", "Drama"]
    texts = ["", " ", "\n", "  a", "a  ", "a \n b", "'", "''s", " 's", "\u00a0a", "a\u00a0 b", "\u3000\u3000x"]
    while len(texts) < count:
        kind = draw.randrange(5)
        if kind == 0:
            title = " ".join(draw.choice(words) for _ in range(draw.randint(1, 6)))
            texts.append(f"Movie: {title} ({draw.randint(1890, 2025)}). Genres: {', '.join(draw.sample(genres, 2))}.")
        elif kind == 1:
            texts.append("".join(draw.choice(words + white) for _ in range(draw.randint(1, 12))))
        elif kind == 2:
            texts.append("".join(draw.choice(letters) for _ in range(draw.randint(1, 40))))
        elif kind == 3:
            texts.append("".join(draw.choice(ascii_characters) for _ in range(draw.randint(1, 80))))
        else:
            pool = [*white, *controls, *ascii_characters, *draw.sample(letters, 60)]
            texts.append("".join(draw.choice(pool) for _ in range(draw.randint(1, 60))))
    return texts


def test_tokens_of_ten_thousand_texts(tokenizer_folder, tmp_path):
    texts = drawn_texts(10_000)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    found = ours("tokens", tmp_path / "out.safetensors", tokenizer=tokenizer_folder, input=tmp_path / "texts.json")
    found = [row.tolist() for row in found["tokens"].split(found["lengths"].tolist())]
    theirs = Tokenizer(models.BPE.from_file(f"{tokenizer_folder}/encoder.json", f"{tokenizer_folder}/vocab.bpe"))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
    differing = [(text, ours_, theirs_) for text, ours_, theirs_ in zip(texts, found, expected) if ours_ != theirs_]
    assert not differing, f"{len(differing)} of {len(texts)}, the first: {differing[0]}"


def drawn_model(seed=0, **changes):
    """transformers' GPT-2 with every weight drawn, biases and norms too, so that none can be left out unnoticed."""
    config = GPT2Config(n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, n_positions=160, vocab_size=VOCABULARY, **changes)
    model = GPT2Model(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw) * (0.3 if parameter.dim() == 1 else 0.08)
            parameter.copy_(1.0 + noise if "ln_" in name and name.endswith("weight") else noise)
    return model.eval()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """(model, its folder)"""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("gpt2")
    model = drawn_model()
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def batch():
    """Texts of several lengths, padded at the right as the recommender pads them."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.tensor([1, 7, 24, 24, 60])
    tokens = torch.randint(0, VOCABULARY, [len(lengths), 60], generator=draw)
    tokens[torch.arange(60)[None] >= lengths[:, None]] = END_OF_TEXT
    return {"tokens": tokens, "lengths": lengths, "of_pooled": torch.randn([len(lengths), WIDTH], generator=draw)}


def mask_of(batch):
    return (torch.arange(batch["tokens"].shape[1])[None] < batch["lengths"][:, None]).long()


def hidden_of(model, batch, masked=True):
    return model(batch["tokens"], attention_mask=mask_of(batch) if masked else None).last_hidden_state


def pooled_of(hidden, batch):
    return (hidden * mask_of(batch)[..., None]).sum(1) / batch["lengths"][:, None]


@pytest.fixture
def dump(gpt2, batch, tokenizer_folder, tmp_path):
    """dump("hidden", …): ours of the batch."""
    def call(what, folder=gpt2[1], **more):
        save_file(batch, tmp_path / "input.safetensors")
        return ours(what, tmp_path / "out.safetensors", gpt2=folder, tokenizer=tokenizer_folder,
                    input=tmp_path / "input.safetensors", **more)
    return call


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_hidden_states_without_adapters(gpt2, batch, dump):
    found = dump("hidden")
    with torch.no_grad():
        close(found["hidden"], hidden_of(gpt2[0], batch, masked=False))
        close(found["pooled"], pooled_of(hidden_of(gpt2[0], batch), batch))


def test_the_mean_over_padding_as_the_guide_has_it(gpt2, batch, dump):
    with torch.no_grad():
        close(dump("hidden", pool="padded")["pooled"], hidden_of(gpt2[0], batch).mean(1))


def with_lora(model, dropout=0.0, seed=5):
    """peft's adapters where ours are, both halves drawn."""
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=32, lora_dropout=dropout, fan_in_fan_out=True,
                                               target_modules=["c_attn", "c_proj"]))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.05)
    return adapted


def plain(name):
    return name.removeprefix("base_model.model.").replace(".default", "")


def test_hidden_states_and_gradients_with_adapters(batch, dump, tmp_path):
    adapted = with_lora(drawn_model())
    adapted.save_pretrained(tmp_path / "peft")
    found = dump("hidden", peft=tmp_path / "peft")
    adapted.eval()
    close(found["hidden"], hidden_of(adapted, batch, masked=False).detach())

    pooled = pooled_of(hidden_of(adapted, batch), batch)
    (pooled * batch["of_pooled"]).sum().backward()
    found = dump("gradients", peft=tmp_path / "peft")
    close(found["pooled"], pooled.detach())
    expected = {"grad/" + plain(name): parameter.grad for name, parameter in adapted.named_parameters()
                if parameter.requires_grad}
    assert len(expected) == LAYERS * 3 * 2
    assert {name for name in found if name.startswith("grad/")} == set(expected)
    errors = {name: ((found[name] - grad).norm() / grad.norm()).item() for name, grad in expected.items()}
    worst = max(errors, key=errors.get)
    assert errors[worst] < TOLERANCE, f"{worst}: {errors[worst]:.1e} of its norm"


def test_peft_opens_what_we_write(gpt2, batch, dump, tokenizer_folder, tmp_path):
    drawn = with_lora(drawn_model())
    adapters = {plain(name): parameter.detach() for name, parameter in drawn.named_parameters() if "lora_" in name}
    save_file(adapters, tmp_path / "adapters.safetensors")
    ours("export", tmp_path / "peft", gpt2=gpt2[1], tokenizer=tokenizer_folder, input=tmp_path / "adapters.safetensors")

    opened = PeftModel.from_pretrained(AutoModel.from_pretrained(gpt2[1]), tmp_path / "peft").eval()
    with torch.no_grad():
        close(hidden_of(opened, batch), hidden_of(drawn.eval(), batch))
        close(dump("hidden", peft=tmp_path / "peft")["pooled"], pooled_of(hidden_of(opened, batch), batch))
    trained = get_peft_model(drawn_model(), opened.peft_config["default"])
    assert {plain(name): parameter.shape for name, parameter in trained.named_parameters() if "lora_" in name} == {
        name: tensor.shape for name, tensor in adapters.items()}


def test_weights_of_a_language_model_in_shards_and_in_half_precision(gpt2, batch, dump, tmp_path):
    head = GPT2LMHeadModel(gpt2[0].config)
    head.transformer.load_state_dict(gpt2[0].state_dict())
    head.save_pretrained(tmp_path / "shards", max_shard_size="10MB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        close(dump("hidden", folder=tmp_path / "shards")["pooled"], pooled_of(hidden_of(gpt2[0], batch), batch))

    for dtype in (torch.float16, torch.bfloat16):
        drawn_model().to(dtype).save_pretrained(tmp_path / str(dtype))
        rounded = drawn_model().to(dtype).float()
        with torch.no_grad():
            close(dump("hidden", folder=tmp_path / str(dtype))["pooled"], pooled_of(hidden_of(rounded, batch), batch))
