"""Python and we read each other's weight files: safetensors, and torch.save's zip under weights_only=True."""
import collections
import hashlib
import json

import pytest
import safetensors.torch
import torch


@pytest.fixture(scope="session")
def formats_tool(tool):
    return tool("formats_tool")


def expected_sample():
    """The tensors that formats_tool writes."""
    count = torch.arange(10)
    return {
        "layer.f32": (count * 0.5).to(torch.float32).view(2, 5),
        "f64": (count * 0.5).to(torch.float64).view(5, 2),
        "i64": count,
        "u8": count.to(torch.uint8),
        "bf16": count.to(torch.bfloat16),
        "flags": count % 2 == 1,
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
    }


def assert_sample(found):
    expected = expected_sample()
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def row_bytes(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.uint8).numpy().tobytes() if tensor.dim() else tensor.view(1).view(torch.uint8).numpy().tobytes()


DTYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
          torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}


def assert_dump(formats_tool, run, path, expected):
    """formats_tool sees in the file exactly these tensors, byte for byte."""
    done = run([formats_tool, "dump", path])
    assert done.returncode == 0, done.stderr
    found = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name]["dtype"] == DTYPES[tensor.dtype], name
        assert found[name]["shape"] == list(tensor.shape), name
        assert found[name]["sha256"] == hashlib.sha256(row_bytes(tensor)).hexdigest(), name


def refused(formats_tool, run, path):
    done = run([formats_tool, "dump", path])
    assert done.returncode == 1, done.stdout
    return done.stderr


def test_python_opens_our_safetensors(formats_tool, run, tmp_path):
    path = tmp_path / "w.safetensors"
    assert run([formats_tool, "write-safetensors", path]).returncode == 0
    assert_sample(safetensors.torch.load_file(path))


def test_python_opens_our_pt_with_weights_only_and_mapped(formats_tool, run, tmp_path):
    path = tmp_path / "w.pt"
    assert run([formats_tool, "write-pt", path]).returncode == 0
    found = torch.load(path, weights_only=True)
    assert isinstance(found, collections.OrderedDict)
    assert_sample(found)
    assert_sample(torch.load(path, weights_only=True, mmap=True))


@pytest.mark.parametrize("command", ["write-nested", "write-nested-zip64"])
def test_python_opens_nested_values(formats_tool, run, tmp_path, command):
    path = tmp_path / "w.pt"
    assert run([formats_tool, command, path]).returncode == 0
    found = torch.load(path, weights_only=True)
    assert_sample(found.pop("model"))
    assert found == {"epoch": 5_000_000_000, "loss": -0.25, "done": True, "nothing": None, "name": "Sätze",
                     "history": [-1, 0.5]}


def test_we_read_pythons_safetensors(formats_tool, run, tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(expected_sample(), path)
    assert_dump(formats_tool, run, path, expected_sample())


def test_we_read_a_modules_state_dict(formats_tool, run, tmp_path):
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LayerNorm(4))
    for name, state in (("plain", module.state_dict()),
                        ("module", collections.OrderedDict(("module." + k, v) for k, v in module.state_dict().items()))):
        torch.save(state, tmp_path / f"{name}.pth")
        assert_dump(formats_tool, run, tmp_path / f"{name}.pth", state)


def test_we_read_every_dtype(formats_tool, run, tmp_path):
    state = {str(dtype): torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES}
    torch.save(state, tmp_path / "w.pt")
    assert_dump(formats_tool, run, tmp_path / "w.pt", state)


def test_we_read_views_shared_storages_and_parameters(formats_tool, run, tmp_path):
    base = torch.arange(24, dtype=torch.float32)
    state = {
        "base": base,
        "tied": base,
        "transposed": base.view(4, 6).t(),
        "slice": base[5:11],
        "strided": base[::5],
        "expanded": base[3:4].expand(7),
        "permuted": base.view(2, 3, 4).permute(2, 0, 1),
        "bf16_columns": base.view(4, 6).to(torch.bfloat16)[:, 1:3],
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "scalar": torch.tensor(2.0),
        "empty": torch.empty(0, 5),
    }
    torch.save(state, tmp_path / "w.pt")
    assert_dump(formats_tool, run, tmp_path / "w.pt", state)


def test_we_find_the_model_in_a_training_checkpoint(formats_tool, run, tmp_path):
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"epoch": 3, "loss": 0.5, "model_state_dict": module.state_dict(),
                "optimizer_state_dict": optimizer.state_dict()}, tmp_path / "w.pth")
    assert_dump(formats_tool, run, tmp_path / "w.pth", module.state_dict())


def test_we_name_what_we_refuse(formats_tool, run, tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    assert "torch.nn.modules.linear.Linear" in refused(formats_tool, run, tmp_path / "module.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "torch.save(torch.load(FILE), FILE)" in refused(formats_tool, run, tmp_path / "old.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "jit.pt")
    assert "refused" in refused(formats_tool, run, tmp_path / "jit.pt")


def test_we_notice_a_flipped_bit_of_pythons_file(formats_tool, run, tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"w": torch.full((1000,), 1.25)}, path)
    data = bytearray(path.read_bytes())
    place = data.index(torch.full((4,), 1.25).numpy().tobytes())
    data[place + 401] ^= 1
    path.write_bytes(data)
    assert "CRC" in refused(formats_tool, run, path)
