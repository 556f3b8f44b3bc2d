"""A small classifier under Lightning's Trainer: dropout, accumulation, sync_dist, torchmetrics, validations in mid-epoch, checkpoints, an average
of the weights. It knows nothing of Lockstep, unless --package says so. Each rank writes what it has computed, with all digits, into
losses-RANK.txt (each batch), logs-RANK.txt (each log) and end-RANK.txt of --folder."""
import argparse
import hashlib
import importlib
import os
import pathlib
import signal

import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

from cases import Killer, hash_of, moment

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path, required=True)
parser.add_argument("--case", default="epochs", choices=["epochs", "steps", "workers", "manual", "two loaders", "stream"])
parser.add_argument("--kill", action="append", default=[], type=moment)
parser.add_argument("--package", action="store_true", help="use the Strategy of lockstep.lightning")
parser.add_argument("--name", default="lightning.pytorch", help="of Lightning")
options = parser.parse_args()
lightning, loggers, callbacks = [importlib.import_module(options.name + part) for part in ("", ".loggers", ".callbacks")]
torch.set_num_threads(1)
killer = Killer(options.folder, options.kill, signal.SIGKILL, os.getpid())
rank = int(os.environ.get("RANK", "0"))
is_manual = options.case == "manual"
EPOCHS = int(os.environ.get("EPOCHS", "3"))
with open(options.folder / f"processes-{rank}.txt", "a") as processes:
    print(os.getpid(), file=processes)


def at(trainer, where):
    killer.at(rank, trainer.fit_loop.epoch_loop.total_batch_idx, where)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = not is_manual
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
        self.noise = torch.nn.Linear(16, 16)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)
        self.validated = torchmetrics.Accuracy(task="multiclass", num_classes=4)

    def loss(self, x, y):
        logits = self.net(x + 0.1 * self.noise(torch.rand_like(x)))
        self.accuracy(logits, y)
        return torch.nn.functional.cross_entropy(logits, y)

    def training_step(self, batch, number):
        at(self.trainer, "forward")
        if options.kill:
            self.net[0].weight.register_hook(lambda _: at(self.trainer, "backward"))
        x, y = batch["some"] if options.case == "two loaders" else batch
        loss = self.loss(x, y)
        if is_manual:
            for optimizer, factor in zip(self.optimizers(), (1.0, 0.5)):
                optimizer.zero_grad()
                self.manual_backward(factor * loss if factor == 1.0 else self.loss(x, y))
                at(self.trainer, "reduced")
                optimizer.step()
            self.lr_schedulers().step()
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("own loss", loss, on_step=False, on_epoch=True)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        with open(options.folder / f"losses-{rank}.txt", "a") as losses:
            print(self.trainer.fit_loop.epoch_loop.total_batch_idx, loss.item().hex(), file=losses)
        return {"loss": loss, "number": number}

    def on_before_optimizer_step(self, optimizer):
        at(self.trainer, "reduced")

    def validation_step(self, batch, _):
        at(self.trainer, "validation")
        x, y = batch
        logits = self.net(x)
        self.validated(logits, y)
        self.log("val", torch.nn.functional.cross_entropy(logits, y), sync_dist=True)
        self.log("validated", self.validated)

    def configure_optimizers(self):
        if is_manual:
            both = [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.net, self.noise)]
            return both, [torch.optim.lr_scheduler.ExponentialLR(both[0], 0.9)]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "val"}
                if options.case == "epochs" else {"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}}


class Moments(callbacks.Callback):
    def on_train_epoch_start(self, trainer, module):
        self.outputs = []
        at(trainer, "epoch begin")

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        at(trainer, "batch end")
        self.outputs.append(float(outputs["loss"]))
        assert outputs.get("number", number) == number
        self.record(trainer, "step")

    def on_validation_epoch_end(self, trainer, module):
        at(trainer, "validated")

    def on_train_epoch_end(self, trainer, module):
        at(trainer, "epoch end")
        self.record(trainer, "epoch", *map(float.hex, self.outputs))

    def on_save_checkpoint(self, trainer, module, checkpoint):
        at(trainer, "save")

    def on_train_end(self, trainer, module):
        at(trainer, "train end")

    def record(self, trainer, *what):
        with open(options.folder / f"logs-{rank}.txt", "a") as file:
            print(*what, trainer.global_step, sorted((name, float(value).hex()) for name, value in trainer.callback_metrics.items()), file=file)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for number in range(rank, len(data), int(os.environ.get("WORLD_SIZE", "1"))):
            yield data[number]


lightning.seed_everything(7, workers=True)
draw = torch.Generator().manual_seed(5)
data = TensorDataset(torch.randn(88, 16, generator=draw), torch.randint(4, (88,), generator=draw))
more = DataLoader(TensorDataset(*data[:24]), batch_size=4)
by_step = options.case == "steps"
checkpoint = callbacks.ModelCheckpoint(monitor="val", save_top_k=2, save_last=True, **({"every_n_train_steps": 3} if by_step else {}))
trainer = lightning.Trainer(
    accelerator="cpu", strategy=__import__("lockstep.lightning").lightning.Strategy() if options.package else "ddp",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), logger=loggers.CSVLogger(options.folder), default_root_dir=options.folder, enable_progress_bar=False,
    log_every_n_steps=2, callbacks=[checkpoint, callbacks.EarlyStopping("val", patience=max(9, EPOCHS)), Moments(), *([callbacks.EMAWeightAveraging()] if by_step else [])],
    **({} if is_manual else {"gradient_clip_val": 1.0, "accumulate_grad_batches": 2}),
    **({"max_steps": 7, "val_check_interval": 2} if by_step else {"max_epochs": EPOCHS}), use_distributed_sampler=options.case != "stream")
loader = DataLoader(Stream() if options.case == "stream" else data, batch_size=4, shuffle=options.case != "stream", drop_last=True,
                    num_workers=2 if options.case == "workers" else 0)


class Data(lightning.LightningDataModule):
    def prepare_data(self):
        (options.folder / "prepared").touch()

    def train_dataloader(self):
        return {"some": loader, "other": DataLoader(data, batch_size=8)} if options.case == "two loaders" else loader

    def val_dataloader(self):
        return more


model = Classifier()
trainer.validate(model, more, verbose=False)
# As many programs do: a rank that is started again finds a checkpoint here, and the first ones have not.
newest = sorted(options.folder.glob("lightning_logs/version_0/checkpoints/last.ckpt"))
trainer.fit(model, datamodule=Data(), ckpt_path=newest[-1] if newest else None)
figures = trainer.validate(model, more, verbose=False)
into = hashlib.sha256()
for part in (model, *trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs)):
    hash_of(part.state_dict(), into)
hash_of(torch.get_rng_state(), into)
best = {pathlib.Path(path).name: float(value).hex() for path, value in checkpoint.best_k_models.items()}
into.update(repr((figures, trainer.global_step, trainer.current_epoch, best, float(checkpoint.best_model_score).hex())).encode())
(options.folder / f"end-{rank}.txt").write_text(into.hexdigest())
