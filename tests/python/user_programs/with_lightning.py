"""A program that knows nothing of Lockstep, written with Lightning. Each rank writes its losses with all digits into losses-RANK.txt of
--folder."""
import argparse
import pathlib

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path, required=True)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        with open(options.folder / f"losses-{self.global_rank}.txt", "a") as losses:
            print(self.global_step, repr(loss.item()), file=losses)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)}


lightning.seed_everything(7, workers=True)
draw = torch.Generator().manual_seed(5)
data = TensorDataset(torch.randn(64, 16, generator=draw), torch.randint(4, (64,), generator=draw))
trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=options.ranks, max_epochs=options.epochs, logger=False,
                            default_root_dir=options.folder, enable_progress_bar=False, gradient_clip_val=1.0)
trainer.fit(Classifier(), DataLoader(data, batch_size=8, shuffle=True))
