"""A Trainer that can lose a rank: `own_trainer.py transformers|lightning STAMPS FOLDER`, without an end, and the same for both launchers. It writes a
checkpoint of the framework's own every ten steps, and goes on from the newest one. For STAMPS see own_kill.py: `loaded` is what comes before
the Trainer, and `step` an optimizer step."""
import time

BEGAN = time.monotonic_ns()
import os  # noqa: E402
import pathlib  # noqa: E402
import sys  # noqa: E402

framework, stamps, folder = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), pathlib.Path(sys.argv[3])


def stamp(what, number=0, at=None):
    os.write(stamps, f"{os.environ['RANK']} {os.getpid()} {what} {number} {at or time.monotonic_ns()}\n".encode())


stamp("begin", at=BEGAN)
import torch  # noqa: E402
from torch import nn  # noqa: E402

CHECKPOINT_EVERY = 10
torch.set_num_threads(1)
torch.manual_seed(1)
inputs, labels = torch.randn(4096, 64), torch.randint(10, (4096,))


def net():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def train_by_transformers():
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            return {"loss": nn.functional.cross_entropy(self.net(x), labels)}

    class Stamp(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            stamp("step", state.global_step)
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]  # which is written last
    newest = max(whole, key=lambda path: int(path.name.partition("-")[2]), default=None)
    arguments = TrainingArguments(output_dir=str(folder), max_steps=10**6, per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True,
                                  save_steps=CHECKPOINT_EVERY, save_total_limit=2, logging_steps=10**6)
    trainer = Trainer(model=Model(), args=arguments, callbacks=[Stamp()],
                      train_dataset=[{"x": x, "labels": y} for x, y in zip(inputs, labels)])
    stamp("loaded")
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)


def train_by_lightning():
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def optimizer_step(self, *args, **named):
            super().optimizer_step(*args, **named)
            stamp("step", self.trainer.global_step)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())
    newest = folder / "last.ckpt"
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=-1, logger=False,
                                enable_progress_bar=False, enable_model_summary=False,
                                callbacks=[ModelCheckpoint(folder, every_n_train_steps=CHECKPOINT_EVERY, save_last=True)])
    stamp("loaded")
    trainer.fit(Model(), DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True), ckpt_path=newest if newest.exists() else None)


{"transformers": train_by_transformers, "lightning": train_by_lightning}[framework]()
